//! What clients send: JSON bodies and queries, read or refused with the field that is wrong.

use std::path::PathBuf;

use base::Error;
use base::limits::DATA_SECTOR_DEFAULT;
use serde_json::{Map, Value};
use wire::Forwarding;
use wire::api::Size;

use crate::levels::{LevelsChange, VolumeChange};
use crate::rules;
use crate::service::CreateVolume;

/// What a change of a volume may name, and a creation, too.
const CHANGES: [&str; 7] =
    ["base_iops", "base_bandwidth", "burst_iops", "burst_bandwidth", "credit_seconds", "credit_percent", "forwarding"];

/// Reads the body of a creation.
///
/// # Errors
/// `Invalid`.
pub fn parse_create(body: &[u8]) -> Result<CreateVolume, Error> {
    let fields = Fields::read(body, &["name", "size", "data_sector", "owner", "allow_existing"])?;
    let missing =
        |key: &str| Error::invalid(format!("{key:?} is missing; send {{\"name\": \"vm-1\", \"size\": \"10G\"}}"));
    Ok(CreateVolume {
        name: fields.text("name")?.ok_or_else(|| missing("name"))?,
        size: fields.size("size")?.ok_or_else(|| missing("size"))?,
        data_sector_bytes: fields.size("data_sector")?.unwrap_or(DATA_SECTOR_DEFAULT),
        owner: fields.text("owner")?.unwrap_or_default(),
        allow_existing: match fields.0.get("allow_existing") {
            None => false,
            Some(Value::Bool(allow)) => *allow,
            Some(other) => return Err(Error::invalid(format!("\"allow_existing\" is true or false, not {other}"))),
        },
        levels: fields.levels()?,
        forwarding: fields.forwarding()?.unwrap_or_default(),
    })
}

/// Reads the body of a change of a volume.
///
/// # Errors
/// `Invalid`, also where nothing is to change.
pub fn parse_change(body: &[u8]) -> Result<VolumeChange, Error> {
    let fields = Fields::read(body, &[])?;
    let change = VolumeChange { levels: fields.levels()?, forwarding: fields.forwarding()? };
    match change.is_empty() {
        true => Err(Error::invalid(format!("nothing is to change; send some of {}", CHANGES.join(", ")))),
        false => Ok(change),
    }
}

/// Reads the body of a move: the server, if one is named.
///
/// # Errors
/// `Invalid`.
pub fn parse_move(body: &[u8]) -> Result<Option<String>, Error> {
    Fields::read_only(body, &["to"])?.text("to")
}

/// Reads the body of a change of a server: whether it is drained.
///
/// # Errors
/// `Invalid`.
pub fn parse_drained(body: &[u8]) -> Result<bool, Error> {
    match Fields::read_only(body, &["drained"])?.0.get("drained") {
        Some(Value::Bool(drained)) => Ok(*drained),
        Some(other) => Err(Error::invalid(format!("\"drained\" is true or false, not {other}"))),
        None => Err(Error::invalid("\"drained\" is missing; send {\"drained\": true}")),
    }
}

/// Reads the body of an attachment: the volume and the path of its socket.
///
/// # Errors
/// `Invalid`.
pub fn parse_attach(body: &[u8]) -> Result<(String, PathBuf), Error> {
    let fields = Fields::read_only(body, &["volume", "path"])?;
    let missing = |key: &str| {
        Error::invalid(format!("{key:?} is missing; send {{\"volume\": \"vm-1\", \"path\": \"/run/vm-1.sock\"}}"))
    };
    let volume = fields.text("volume")?.ok_or_else(|| missing("volume"))?;
    Ok((volume, fields.text("path")?.ok_or_else(|| missing("path"))?.into()))
}

/// Reads the body of its end: the path of the socket.
///
/// # Errors
/// `Invalid`.
pub fn parse_detach(body: &[u8]) -> Result<PathBuf, Error> {
    let path = Fields::read_only(body, &["path"])?.text("path")?;
    path.map(PathBuf::from).ok_or_else(|| Error::invalid("\"path\" is missing; send {\"path\": \"/run/vm-1.sock\"}"))
}

/// Reads the query of a deletion.
///
/// # Errors
/// `Invalid`.
pub fn parse_force(query: &str) -> Result<bool, Error> {
    let mut force = false;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        force = match pair {
            "force" | "force=true" => true,
            "force=false" => false,
            _ => return Err(Error::invalid(format!("the query {pair:?} is not known; known is force=true"))),
        };
    }
    Ok(force)
}

/// The fields of a JSON object.
struct Fields(Map<String, Value>);

impl Fields {
    /// Reads an object that has some of `known` and of the changes; the error names the nearest one of an unknown field.
    fn read(body: &[u8], known: &[&str]) -> Result<Fields, Error> {
        Fields::read_only(body, &[known, &CHANGES].concat())
    }

    /// Reads an object that has some of `known`.
    fn read_only(body: &[u8], known: &[&str]) -> Result<Fields, Error> {
        let fields: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| Error::invalid(format!("the body is not a JSON object: {error}")))?;
        if let Some(unknown) = fields.keys().find(|key| !known.contains(&key.as_str())) {
            let near = rules::nearest(unknown, known.iter().copied()).map(|near| format!("did you mean {near:?}?"));
            let hint = near.unwrap_or_else(|| format!("known are {}", known.join(", ")));
            return Err(Error::invalid(format!("there is no field {unknown:?}; {hint}")));
        }
        Ok(Fields(fields))
    }

    fn text(&self, key: &str) -> Result<Option<String>, Error> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(Error::invalid(format!("{key:?} is text, not {other}"))),
        }
    }

    fn size(&self, key: &str) -> Result<Option<u64>, Error> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        serde_json::from_value::<Size>(value.clone())
            .map_err(|_| format!("{value} is not a size; write a number of bytes or text such as \"10G\""))
            .and_then(|size| size.bytes())
            .map(Some)
            .map_err(|message| Error::invalid(format!("{key:?}: {message}")))
    }

    /// A number up to `max`; null is 0.
    fn number(&self, key: &str, max: u64) -> Result<Option<u64>, Error> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Null) => Ok(Some(0)),
            Some(value) => match value.as_u64().filter(|number| *number <= max) {
                Some(number) => Ok(Some(number)),
                None => Err(Error::invalid(format!("{key:?} is a whole number up to {max}, or null, not {value}"))),
            },
        }
    }

    /// Null is the default.
    fn forwarding(&self) -> Result<Option<Forwarding>, Error> {
        let known = Forwarding::NAMES.map(|(_, name)| name).join(", ");
        match self.0.get("forwarding") {
            None => Ok(None),
            Some(Value::Null) => Ok(Some(Forwarding::default())),
            Some(value) => match value.as_str().and_then(Forwarding::named) {
                Some(forwarding) => Ok(Some(forwarding)),
                None => Err(Error::invalid(format!("\"forwarding\" is one of {known}, or null, not {value}"))),
            },
        }
    }

    fn levels(&self) -> Result<LevelsChange, Error> {
        let rate = |key: &str| match self.0.get(key) {
            Some(Value::Null) => Ok(Some(0)),
            _ => self.size(key),
        };
        let small = |key: &str| self.number(key, u32::MAX.into()).map(|number| number.map(|number| number as u32));
        Ok(LevelsChange {
            base_iops: self.number("base_iops", u64::MAX)?,
            base_bytes_per_sec: rate("base_bandwidth")?,
            burst_iops: self.number("burst_iops", u64::MAX)?,
            burst_bytes_per_sec: rate("burst_bandwidth")?,
            credit_seconds: small("credit_seconds")?,
            credit_percent: small("credit_percent")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use base::{ErrorKind, GIB, KIB, MIB};

    use super::*;

    #[test]
    fn a_body_is_read_or_refused_with_what_was_wrong() {
        let full = br#"{"name": "a", "size": "1.5G", "data_sector": 131072, "owner": "x", "allow_existing": true}"#;
        let wanted = parse_create(full).unwrap();
        assert_eq!((wanted.size, wanted.data_sector_bytes, wanted.allow_existing), (3 * GIB / 2, 128 * KIB, true));
        for (body, part) in [
            ("", "not a JSON object"),
            ("[]", "not a JSON object"),
            (r#"{"name": "a"}"#, r#""size" is missing"#),
            (r#"{"size": 1}"#, r#""name" is missing"#),
            (r#"{"name": "a", "sise": 1}"#, r#"did you mean "size"?"#),
            (r#"{"name": "a", "size": 1, "zzzzzzzzzzzz": 1}"#, "known are name, size"),
            (r#"{"name": 7, "size": 1}"#, r#""name" is text, not 7"#),
            (r#"{"name": "a", "size": -1}"#, "-1 is not a size"),
            (r#"{"name": "a", "size": "x"}"#, "'x' is not a size"),
            (r#"{"name": "a", "size": 1, "allow_existing": 1}"#, "true or false"),
        ] {
            let error = parse_create(body.as_bytes()).unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(part), "{body}: {error}");
        }
    }

    #[test]
    fn levels_are_read_or_refused() {
        let full = br#"{"base_iops": 100, "base_bandwidth": "1M", "burst_iops": null, "burst_bandwidth": 0,
            "credit_seconds": 60, "credit_percent": 50}"#;
        let change = LevelsChange {
            base_iops: Some(100),
            base_bytes_per_sec: Some(MIB),
            burst_iops: Some(0),
            burst_bytes_per_sec: Some(0),
            credit_seconds: Some(60),
            credit_percent: Some(50),
        };
        assert_eq!(parse_change(full).unwrap(), change.into());
        let spread = VolumeChange { forwarding: Some(Forwarding::Auto), ..VolumeChange::default() };
        assert_eq!(parse_change(br#"{"forwarding": "auto"}"#).unwrap(), spread);
        let created = parse_create(br#"{"name": "a", "size": "1G", "forwarding": "on"}"#).unwrap();
        assert_eq!(created.forwarding, Forwarding::On);
        let one = LevelsChange { burst_bytes_per_sec: Some(0), ..LevelsChange::default() };
        assert_eq!(parse_change(br#"{"burst_bandwidth": null}"#).unwrap(), one.into());
        let created = parse_create(br#"{"name": "a", "size": 1, "burst_bandwidth": null}"#).unwrap();
        assert_eq!(created.levels, one);
        for (body, part) in [
            ("", "not a JSON object"),
            ("{}", "nothing is to change; send some of base_iops, base_bandwidth"),
            (r#"{"size": 1}"#, "there is no field \"size\"; known are base_iops"),
            (r#"{"base_iop": 1}"#, r#"did you mean "base_iops"?"#),
            (r#"{"base_iops": -1}"#, "whole number up to 18446744073709551615, or null, not -1"),
            (r#"{"base_iops": 1.5}"#, "not 1.5"),
            (r#"{"burst_iops": "1"}"#, "not \"1\""),
            (r#"{"base_bandwidth": "x"}"#, "'x' is not a size"),
            (r#"{"credit_seconds": 4294967296}"#, "up to 4294967295"),
            (r#"{"credit_percent": true}"#, "not true"),
            (r#"{"forwarding": "sometimes"}"#, "one of default, off, auto, on, or null, not \"sometimes\""),
        ] {
            let error = parse_change(body.as_bytes()).unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(part), "{body}: {error}");
        }
    }

    /// A fuzz target of bodies and queries: JSON with edits, and noise.
    #[test]
    fn a_request_is_read_or_refused() {
        type Input = (u8, Vec<(u16, u8)>, Vec<u8>);
        let examples = [
            r#"{"name": "a", "size": "1.5G", "data_sector": 131072, "owner": "x", "allow_existing": true}"#,
            r#"{"name": "vm-1", "size": 1073741824}"#,
            r#"{"name": "\u00e9", "size": "9999999999999999999T"}"#,
            r#"{"name": "a", "size": "1e308P", "data_sector": "0.1K"}"#,
            r#"{"name": "a", "size": "1M", "base_iops": 50000, "burst_bandwidth": "2G", "credit_percent": 7}"#,
            r#"{"base_bandwidth": null, "burst_iops": 18446744073709551615, "credit_seconds": 4294967295}"#,
        ];
        bolero::check!().with_iterations(20_000).with_type().for_each(|(example, edits, noise): &Input| {
            let mut body = examples[usize::from(*example) % examples.len()].as_bytes().to_vec();
            for (at, value) in edits.iter().take(3) {
                let at = usize::from(*at) % body.len();
                match value % 4 {
                    0 => body[at] = *value,
                    1 => body.insert(at, b"0123456789.eE-\"{}[],"[usize::from(*value) % 20]),
                    2 => drop(body.remove(at)),
                    _ => body[at] = b"0123456789.KMGTPi\" "[usize::from(*value) % 19],
                }
            }
            for body in [&body, noise] {
                match parse_create(body) {
                    Ok(wanted) => drop(rules::check_size(wanted.size)),
                    Err(error) => assert!(error.kind == ErrorKind::Invalid && !error.message.is_empty()),
                }
                match parse_change(body) {
                    Ok(change) => drop(rules::check_levels(&change.levels.over(Default::default()))),
                    Err(error) => assert!(error.kind == ErrorKind::Invalid && !error.message.is_empty()),
                }
            }
            drop(parse_force(&String::from_utf8_lossy(noise)));
        });
    }

    #[test]
    fn a_query_is_known_or_refused() {
        assert!(
            !parse_force("").unwrap() && parse_force("force=true").unwrap() && !parse_force("force=false").unwrap()
        );
        assert!(parse_force("froce=true").is_err() && parse_force("force=1").is_err());
    }
}

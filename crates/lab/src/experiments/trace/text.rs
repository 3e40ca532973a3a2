//! Traces as lines of text: milliseconds, device, offset and size in bytes, and 1 for a read or 0 for a write, with blanks
//! between them, as the cuts of the MSR Cambridge traces have them.

use super::Request;

/// The requests of a text.
pub(super) fn parse(text: &str) -> Result<Vec<Request>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed = lines.map(|(number, line)| {
        request(line).map_err(|what| {
            format!(
                "line {}: {what}; lines are: milliseconds device offset bytes 1-for-read-or-0-for-write",
                number + 1
            )
        })
    });
    parsed.collect()
}

fn request(line: &str) -> Result<Request, String> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [time, device, offset, bytes, kind] = fields.as_slice() else {
        return Err(format!("it has {} fields, not 5", fields.len()));
    };
    let number = |name: &str, field: &str| field.parse::<u64>().map_err(|_| format!("{field:?} is no {name}"));
    let ms = time.parse::<f64>().ok().filter(|ms| (0.0..1e12).contains(ms)).ok_or(format!("{time:?} is no time"))?;
    Ok(Request {
        at_ns: (ms * 1e6) as u64,
        device: number("device", device)?,
        offset: number("offset", offset)?,
        bytes: number("size", bytes)?,
        is_write: match *kind {
            "0" => true,
            "1" => false,
            other => return Err(format!("{other:?} is neither 0 nor 1")),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_requests() {
        let parsed = parse("0.500 2 8192 4096 0\n\n  1.25   2 0 512 1  \r\n").unwrap();
        let first = Request { at_ns: 500_000, device: 2, offset: 8192, bytes: 4096, is_write: true };
        let second = Request { at_ns: 1_250_000, device: 2, offset: 0, bytes: 512, is_write: false };
        assert_eq!(parsed, [first, second]);
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (wrong, what) in [
            ("0 0 0 4096", "4 fields"),
            ("x 0 0 4096 0", "\"x\" is no time"),
            ("-1 0 0 4096 0", "no time"),
            ("NaN 0 0 4096 0", "no time"),
            ("0 0 -5 4096 0", "\"-5\" is no offset"),
            ("0 0 0 4k 0", "\"4k\" is no size"),
            ("0 0 0 4096 2", "neither 0 nor 1"),
            ("128166372003061629,hm,0,Read,383496192,32768,413", "1 fields"),
        ] {
            let error = parse(&format!("0 0 0 4096 0\n{wrong}\n")).unwrap_err();
            assert!(error.contains("line 2") && error.contains(what), "{wrong}: {error}");
        }
    }
}

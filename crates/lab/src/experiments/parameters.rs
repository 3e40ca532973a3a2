//! The parameters of experiments: a file for each paper, and what a run sets anew.

use std::fmt::Debug;

use base::{Error, Result};
use serde::de::DeserializeOwned;

/// What all figures of a paper depend on, as its file has it.
pub trait FromFile: Clone + Debug + DeserializeOwned {
    /// The text of the file, which explains each.
    const FILE: &'static str;
    /// Those that are shares of a whole: double of one is left out where that would be the whole or more.
    const SHARES: &'static [&'static str] = &[];

    /// Whether there can be an experiment with them.
    fn is_sound(&self) -> bool;

    /// Those of the file.
    ///
    /// # Errors
    /// `Invalid`: only in a build with a broken file.
    fn from_file() -> Result<Self> {
        Self::with(&[])
    }

    /// Those of the file, with others in their place: `key=value`, values as in the file.
    ///
    /// # Errors
    /// `Invalid`, with the key.
    fn with(changes: &[String]) -> Result<Self> {
        let table = changed(Self::FILE, changes)?;
        let parameters: Self = table.try_into().map_err(|error| Error::invalid(error.to_string().trim_end()))?;
        match parameters.is_sound() {
            true => Ok(parameters),
            false => Err(Error::invalid(format!("these parameters make no experiment: {parameters:?}"))),
        }
    }

    /// The same with half and with double of one of them.
    ///
    /// # Errors
    /// `Invalid`: there is no such number, or no experiment with it.
    fn neighbours(changes: &[String], key: &str) -> Result<Vec<(String, Self)>> {
        let both = half_and_double(Self::FILE, changes, key)?;
        let with = |value: String| {
            let change = format!("{key}={value}");
            let parameters = Self::with(&[changes, std::slice::from_ref(&change)].concat())?;
            Ok((change, parameters))
        };
        let is_whole = |value: &String| value.parse().is_ok_and(|value: f64| value >= 1.0);
        both.into_iter().filter(|value| !(Self::SHARES.contains(&key) && is_whole(value))).map(with).collect()
    }
}

/// A file of parameters with others in their place.
fn changed(file: &str, changes: &[String]) -> Result<toml::Table> {
    let mut table: toml::Table = file.parse().map_err(|error: toml::de::Error| Error::invalid(error.to_string()))?;
    for change in changes {
        let parsed = change.parse::<toml::Table>();
        let changed = parsed.map_err(|_| Error::invalid(format!("{change:?} is not key=value")))?;
        for (key, value) in changed {
            if !table.contains_key(&key) {
                let known: Vec<&String> = table.keys().collect();
                return Err(Error::invalid(format!("there is no parameter {key:?}; there are {known:?}")));
            }
            table.insert(key, value);
        }
    }
    Ok(table)
}

/// Half and double of one of a file's parameters, or of what was set in its place.
fn half_and_double(file: &str, changes: &[String], key: &str) -> Result<[String; 2]> {
    match changed(file, changes)?.get(key) {
        Some(toml::Value::Integer(value)) => Ok([value / 2, value * 2].map(|value| value.to_string())),
        Some(toml::Value::Float(value)) => Ok([value / 2.0, value * 2.0].map(|value| format!("{value:?}"))),
        _ => Err(Error::invalid(format!("{key} is not a number that can be halved"))),
    }
}

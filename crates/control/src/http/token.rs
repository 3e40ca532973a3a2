//! The token that changes need: 64 hexadecimal digits in a file that only its owner can read.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use base::{Error, Result};

const DIGITS: usize = 64;

/// The token in `path`. The file must be private and look like a token file.
///
/// # Errors
/// `NotFound`, `Invalid` for a file that others can read or that holds something else, `Io`.
pub fn read(path: &Path) -> Result<String> {
    let context = |error: &std::io::Error| Error::from_io(format!("the token file {}", path.display()), error);
    let metadata = fs::symlink_metadata(path).map_err(|error| context(&error))?;
    if !metadata.is_file() || metadata.size() > 2 * DIGITS as u64 {
        return Err(Error::invalid(format!("{} is not a token file", path.display())));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        let path = path.display();
        return Err(Error::invalid(format!("the token file {path} can be read by others: run chmod 600 {path}")));
    }
    let text = fs::read_to_string(path).map_err(|error| context(&error))?;
    let token = text.trim_end();
    if token.len() != DIGITS || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let path = path.display();
        return Err(Error::invalid(format!("{path} does not hold a token: remove it and start the store again")));
    }
    Ok(token.to_owned())
}

/// The token in `path`, or a new one from `seed` that is written there.
///
/// # Errors
/// As [`read`].
pub fn read_or_make(path: &Path, seed: [u64; 4]) -> Result<String> {
    match read(path) {
        Err(error) if error.kind == base::ErrorKind::NotFound => {}
        // An empty file is one that a crash left behind.
        Err(_) if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.size() == 0) => {
            fs::remove_file(path).map_err(|error| Error::from_io(path.display(), &error))?;
        }
        other => return other,
    }
    let token = seed.map(|word| format!("{word:016x}")).concat();
    let context = |error: std::io::Error| Error::from_io(format!("cannot make {}", path.display()), &error);
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made {
        Ok(mut file) => {
            writeln!(file, "{token}").and_then(|()| file.sync_all()).map_err(context)?;
            Ok(token)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read(path),
        Err(error) => Err(context(error)),
    }
}

/// Compares two tokens in a time that does not depend on where they differ.
pub fn is_equal(one: &str, other: &str) -> bool {
    let differences = one.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    one.len() == other.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.token");
        let token = read_or_make(&path, [1, 2, 3, u64::MAX]).unwrap();
        assert!(token.len() == 64 && token.ends_with("ffffffffffffffff"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_or_make(&path, [9; 4]).unwrap(), token, "the second start finds it");
        assert_eq!(read(&path).unwrap(), token);
        assert!(is_equal(&token, &token) && !is_equal(&token, "") && !is_equal(&token, &token[1..]));

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let refused = read_or_make(&path, [9; 4]).unwrap_err();
        assert!(refused.message.contains("chmod 600"), "{refused}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "something else").unwrap();
        assert!(read_or_make(&path, [9; 4]).unwrap_err().message.contains("remove it"));
        fs::write(&path, "").unwrap();
        assert!(read_or_make(&path, [9; 4]).is_ok(), "what a crash left is replaced");
    }
}

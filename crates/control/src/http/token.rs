//! The tokens of the API: 64 hexadecimal digits each, in files that only their owner can read.
//!
//! One of them, the token of the store, is made by chance and may do everything. The others, each for a part of that, follow from
//! it and cannot be turned back into it: managers that have the same token of the store agree on all of them, and whoever
//! replaces that one replaces all.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use base::{Error, Result};
use ring::hmac;

const DIGITS: usize = 64;

/// What a token is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Right {
    /// Looking, and nothing else.
    Read,
    /// That, and giving disks to virtual machines and taking them away.
    Attach,
    /// Everything.
    Operate,
}

impl Right {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Attach => "attach",
            Right::Operate => "operate",
        }
    }
}

/// The tokens of a store.
pub struct Tokens(Vec<(Right, String)>);

impl Tokens {
    /// Those that follow from the token of the store.
    pub fn of(operate: String) -> Tokens {
        let key = hmac::Key::new(hmac::HMAC_SHA256, operate.as_bytes());
        let derived = |right: Right| {
            let tag = hmac::sign(&key, format!("levee token to {}", right.name()).as_bytes());
            (right, tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
        };
        Tokens(vec![derived(Right::Read), derived(Right::Attach), (Right::Operate, operate)])
    }

    /// Writes those that follow beside the file of the token of the store, for whoever hands them out.
    ///
    /// # Errors
    /// `Invalid`: that file is called as one of them. `Io`.
    pub fn write_beside(&self, token_file: &Path) -> Result<()> {
        for (name, right) in [(READ_TOKEN_FILE, Right::Read), (ATTACH_TOKEN_FILE, Right::Attach)] {
            let path = token_file.with_file_name(name);
            if path == token_file {
                let shown = path.display();
                return Err(Error::invalid(format!(
                    "{shown} is where the token to {} goes: choose another token file",
                    right.name()
                )));
            }
            let token = self.0.iter().find(|(of, _)| *of == right).map_or("", |(_, token)| token);
            if !read(&path).is_ok_and(|there| there == token) {
                replace(&path, token)?;
            }
        }
        Ok(())
    }

    /// What whoever shows this may do.
    pub fn right_of(&self, given: &str) -> Option<Right> {
        // All of them are compared, whichever it is.
        self.0.iter().filter(|(_, token)| is_equal(given, token)).map(|(right, _)| *right).max()
    }
}

/// The files of the tokens that follow from that of the store, beside it.
pub const READ_TOKEN_FILE: &str = "read.token";
/// See [`READ_TOKEN_FILE`].
pub const ATTACH_TOKEN_FILE: &str = "attach.token";

fn replace(path: &Path, token: &str) -> Result<()> {
    let failed = |error: std::io::Error| Error::from_io(format!("cannot make {}", path.display()), &error);
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        // Another manager on this machine writes the same.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        made => made.map_err(failed)?,
    };
    writeln!(file, "{token}").and_then(|()| file.sync_all()).map_err(failed)
}

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
fn is_equal(one: &str, other: &str) -> bool {
    let differences = one.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    one.len() == other.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_a_token_is_the_same_everywhere_and_less() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.token");
        let operate = read_or_make(&path, [1, 2, 3, 4]).unwrap();
        let tokens = Tokens::of(operate.clone());
        tokens.write_beside(&path).unwrap();
        let beside = |name: &str| read(&directory.path().join(name)).unwrap();
        let (look, attach) = (beside("read.token"), beside("attach.token"));
        assert_eq!(tokens.right_of(&operate), Some(Right::Operate));
        assert_eq!(tokens.right_of(&look), Some(Right::Read));
        assert_eq!(tokens.right_of(&attach), Some(Right::Attach));
        assert!(tokens.right_of("").is_none() && tokens.right_of(&"0".repeat(64)).is_none());
        assert_eq!(Tokens::of(operate).right_of(&attach), Some(Right::Attach), "of another manager");
        assert_eq!(Tokens::of("another".into()).right_of(&attach), None);
        // What somebody changed is put right.
        fs::write(directory.path().join("read.token"), "nonsense").unwrap();
        tokens.write_beside(&path).unwrap();
        assert_eq!(beside("read.token"), look);
        let odd = tokens.write_beside(&directory.path().join("read.token")).unwrap_err();
        assert!(odd.message.contains("choose another token file"), "{odd}");
    }

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

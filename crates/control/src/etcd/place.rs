//! Where an etcd is, and as whom it is asked.

use std::path::PathBuf;

use runtime::Address;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The addresses of its members: any of them is asked.
    pub endpoints: Vec<Address>,
    /// Before all keys.
    pub prefix: String,
    /// It is asked over TLS, with what is in this directory ([`link::tls::Credentials::open_to_ask`]).
    pub tls: Option<PathBuf>,
    /// It is asked as this user.
    pub user: Option<User>,
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The name.
    pub name: String,
    /// The file with the password.
    pub password: PathBuf,
}

/// The prefix where none is named, and the longest one.
const PREFIX: &str = "levee";
const PREFIX_MAX: usize = 64;

impl Place {
    /// What `etcd:HOST:PORT,HOST:PORT,...[/PREFIX][?tls=DIR&user=NAME&password=FILE]` names.
    ///
    /// # Errors
    /// What is wrong with it, and an example.
    pub fn parse(text: &str) -> Result<Place, String> {
        const EXAMPLE: &str = "write etcd:10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379, the same and /PREFIX, and \
                               ?tls=DIR&user=NAME&password=FILE where etcd wants that";
        let wrong = |what: &str| format!("'{text}': {what}: {EXAMPLE}");
        let rest = text.strip_prefix("etcd:").ok_or_else(|| wrong("it is no etcd"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, PREFIX));
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || !prefix.chars().all(is_letter) {
            return Err(wrong("a prefix has 1 to 64 of a-z, A-Z, 0-9, '-', '_', '.'"));
        }
        let endpoint =
            |member: &str| member.parse().map(Address::Tcp).map_err(|_| wrong("an endpoint is HOST:PORT, by number"));
        let endpoints = members.split(',').map(endpoint).collect::<Result<_, _>>()?;
        let (mut tls, mut user, mut password) = (None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("tls", directory)) if !directory.is_empty() => tls = Some(PathBuf::from(directory)),
                Some(("user", name)) if !name.is_empty() => user = Some(name.to_owned()),
                Some(("password", file)) if !file.is_empty() => password = Some(PathBuf::from(file)),
                _ => return Err(wrong(&format!("'{pair}' is none of tls=DIR, user=NAME and password=FILE"))),
            }
        }
        let user = match (user, password) {
            (None, None) => None,
            (Some(name), Some(password)) => Some(User { name, password }),
            _ => return Err(wrong("a user and the file of the password come together")),
        };
        Ok(Place { endpoints, prefix: prefix.into(), tls, user })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_says_as_whom_it_is_asked() {
        let place =
            Place::parse("etcd:10.0.0.1:2379,10.0.0.2:2379/two?tls=/etc/levee/etcd&user=levee&password=/p").unwrap();
        assert_eq!((place.endpoints.len(), &place.prefix[..]), (2, "two"));
        assert_eq!(place.tls, Some("/etc/levee/etcd".into()));
        assert_eq!(place.user, Some(User { name: "levee".into(), password: "/p".into() }));
        let plain = Place::parse("etcd:10.0.0.1:2379").unwrap();
        assert!(plain.tls.is_none() && plain.user.is_none() && plain.prefix == "levee");
        for wrong in
            ["etcd:1.2.3.4:5?tls=", "etcd:1.2.3.4:5?user=a", "etcd:1.2.3.4:5?password=/p", "etcd:1.2.3.4:5?x=y"]
        {
            assert!(Place::parse(wrong).unwrap_err().contains("tls=DIR&user=NAME&password=FILE"), "{wrong}");
        }
    }
}

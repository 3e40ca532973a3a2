//! Certificates that do not do, as the processes say it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::bed::{Engines, levee, text};

/// What `levee` says when it does what it is asked, or does not.
fn said(arguments: &[&str], directory: &Path) -> (bool, String) {
    let output = levee().args(arguments).current_dir(directory).output().unwrap();
    (output.status.success(), if output.status.success() { text(&output.stdout) } else { text(&output.stderr) })
}

struct Store(Child);

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_wrong_with_a_certificate_is_said_in_one_sentence() {
    // It takes a while, since processes wait for a store to come back, and needs no other engines.
    if Engines::named().is_some() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let here = scratch.path();
    let good = |arguments: &[&str]| {
        let (is_good, said) = said(arguments, here);
        assert!(is_good, "{arguments:?}: {said}");
        said
    };
    let refused = |arguments: &[&str], why: &str| {
        let (is_good, said) = said(arguments, here);
        assert!(!is_good && said.starts_with("error: ") && said.contains(why), "{arguments:?}: {said}");
    };
    refused(&["pki", "issue", "server", "s1"], "levee pki init --dir pki");
    good(&["pki", "init"]);
    refused(&["pki", "init"], "holds an authority already");
    assert_eq!(fs::metadata(here.join("pki/ca-key.pem")).unwrap().permissions().mode() & 0o777, 0o600);
    refused(&["pki", "issue", "janitor", "x"], "roles are store, manager, server, agent, client");
    refused(&["pki", "issue", "server", "a b"], "cannot be a name");
    for role in ["store", "server", "agent"] {
        let shown = good(&["pki", "issue", role, "one"]);
        assert!(shown.contains(&format!("--tls pki/{role}-one")), "{shown}");
        let mode = fs::metadata(here.join(format!("pki/{role}-one/key.pem"))).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    good(&["pki", "init", "--dir", "other"]);
    good(&["pki", "issue", "server", "one", "--dir", "other"]);
    good(&["pki", "issue", "client", "host"]);
    assert!(here.join("pki/client-host/client-key.pem").exists());

    let store = ["lab", "files", "--dir", "disk", "--listen", "unix:store.sock", "--tls", "pki/store-one"];
    let mut child = levee().args(store).current_dir(here).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
    let _store = Store(child);
    assert!(line.contains("is ready"), "{line}");
    let server = |tls: &'static [&'static str], why: &str| {
        let role = ["server", "--name", "s1", "--managers", "127.0.0.1:1", "--store", "unix:store.sock"];
        refused(&[&role[..], tls].concat(), why);
    };
    server(&["--tls", "nowhere"], "levee pki issue ROLE NAME");
    server(&[], "it does not speak TLS, and this process takes nothing else; start it with --tls DIR");
    server(&["--tls", "pki/agent-one"], "makes it none of those that may ask here");
    server(&["--tls", "other/server-one"], "of another authority");
    // A key that everybody reads, one of another certificate, and one that is none.
    let key = here.join("pki/server-one/key.pem");
    let its_own = fs::read(&key).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    server(&["--tls", "pki/server-one"], "chmod 600");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::copy(here.join("pki/agent-one/key.pem"), &key).unwrap();
    server(&["--tls", "pki/server-one"], "the key of another certificate");
    fs::write(&key, "nonsense").unwrap();
    server(&["--tls", "pki/server-one"], "key.pem");
    fs::write(&key, its_own).unwrap();
}

//! A running `levee up`, and calls of the binary.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::Value;

pub const LEVEE: &str = env!("CARGO_BIN_EXE_levee");

/// `levee` with nothing of the caller's environment that would change what it does.
pub fn levee(arguments: &[&str]) -> Command {
    let mut command = Command::new(LEVEE);
    command.args(arguments).env_remove("LEVEE_TOKEN").env_remove("LEVEE_API").env_remove("RUST_LOG");
    command.stdin(Stdio::null());
    command
}

pub fn output(arguments: &[&str]) -> Output {
    levee(arguments).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must fail with `code`; gives what it said.
pub fn refused(code: i32, arguments: &[&str]) -> String {
    let output = output(arguments);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{error}");
    assert!(error.starts_with("error: ") && out.is_empty(), "{arguments:?}: errors go to standard error: {out}{error}");
    error
}

/// A running store. It is killed when dropped.
pub struct Store {
    pub child: Child,
    pub directory: PathBuf,
    pub lines: Vec<String>,
    pub api: String,
}

impl Store {
    /// Starts a store, and reads what it prints until it is ready.
    pub fn start(directory: &Path, more: &[&str]) -> Store {
        let mut command = levee(&["up", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--dir"]);
        command.arg(directory).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = Vec::new();
        for line in BufReader::new(child.stdout.as_mut().unwrap()).lines() {
            lines.push(line.unwrap());
            // The example below the NBD address is the last line.
            if lines.len() >= 2 && lines[lines.len() - 2].starts_with("NBD ") {
                break;
            }
        }
        let api = lines.iter().find_map(|line| line.strip_prefix("control  ")).map(str::to_owned);
        let Some(api) = api else {
            let mut error = String::new();
            child.stderr.as_mut().unwrap().read_to_string(&mut error).unwrap();
            panic!("it did not start: {lines:?} {error}");
        };
        Store { child, directory: directory.to_owned(), lines, api }
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = output(&[arguments, &["--json", "--api", &self.api]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    pub fn stop(mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.child.wait().unwrap()
    }

    /// A line after the one that begins with `label`: an example.
    pub fn example(&self, label: &str) -> &str {
        let place = self.lines.iter().position(|line| line.starts_with(label)).unwrap();
        self.lines[place + 1].trim()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! fio as a client: it writes at random places for as long as it is let, reads back what it wrote, and gives up at the first
//! error.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::bed::text;

/// Whether it is installed; says so, where it is not.
pub fn is_there() -> bool {
    let there = Command::new("fio").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: fio is not installed (scripts/setup test installs it)");
    }
    there
}

/// Begins to write and to read back, for so long.
pub fn begin(uri: &str, seconds: u64) -> Fio {
    begin_in_pieces(uri, "4k", seconds)
}

/// The same in pieces of another size.
pub fn begin_in_pieces(uri: &str, piece: &str, seconds: u64) -> Fio {
    let mut command = Command::new("fio");
    command.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--iodepth=8", "--size=64m"]);
    command.arg(format!("--bs={piece}"));
    command.args(["--offset=64m", "--time_based", "--verify=crc32c", "--verify_backlog=128", "--verify_fatal=1"]);
    command.args([&format!("--uri={uri}"), &format!("--runtime={seconds}")]);
    // It leaves what it knows of its blocks in files.
    command.current_dir(std::env::temp_dir()).arg("--verify_state_save=0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Fio(command.spawn().unwrap())
}

/// Writes 32 MiB that [`check`] knows again.
pub fn fill(uri: &str) {
    once(uri, &["--rw=write", "--do_verify=0"]);
}

/// Reads what [`fill`] wrote, and compares it.
pub fn check(uri: &str) {
    once(uri, &["--rw=read", "--verify_only"]);
}

/// Writes 512 MiB in pieces of this size, not all of which are to be taken; gives what is said of them.
pub fn refused(uri: &str, piece: &str) -> String {
    let done = write(uri, piece, "512m");
    assert!(!done.status.success(), "it was written");
    text(&done.stdout) + &text(&done.stderr)
}

/// Whether pieces of this size can be written to all segments: servers do not go on at the same moment.
pub fn is_taken(uri: &str, piece: &str) -> bool {
    write(uri, piece, "4m").status.success()
}

fn write(uri: &str, piece: &str, all: &str) -> std::process::Output {
    let mut command = Command::new("fio");
    command.args(["--name=write", "--ioengine=nbd", "--iodepth=8", "--offset=256m", "--rw=write"]);
    command.args([format!("--uri={uri}"), format!("--bs={piece}"), format!("--size={all}")]);
    command.current_dir(std::env::temp_dir()).output().unwrap()
}

fn once(uri: &str, how: &[&str]) {
    let mut command = Command::new("fio");
    command.args(["--name=fill", "--ioengine=nbd", "--bs=64k", "--iodepth=4", "--size=32m", "--verify=crc32c"]);
    command.current_dir(std::env::temp_dir()).arg("--verify_state_save=0");
    let done = command.arg("--verify_fatal=1").arg(format!("--uri={uri}")).args(how).output().unwrap();
    assert!(done.status.success(), "{how:?}: {}{}", text(&done.stdout), text(&done.stderr));
}

/// A fio that runs.
pub struct Fio(Child);

impl Fio {
    /// Waits for its end: it has met no error.
    pub fn end(self) {
        let done = self.0.wait_with_output().unwrap();
        assert!(done.status.success(), "fio met an error: {}{}", text(&done.stdout), text(&done.stderr));
    }

    /// Waits for its end, whatever it met.
    pub fn ended(self) -> std::process::Output {
        self.0.wait_with_output().unwrap()
    }

    /// It has met no error so far.
    pub fn goes_on(&mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "fio has ended early");
    }
}

pub fn pause(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

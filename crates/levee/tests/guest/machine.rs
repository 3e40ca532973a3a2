//! A virtual machine: QEMU without acceleration, and what it says on its console.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::initramfs::Parts;

pub struct Machine {
    child: Child,
    console: BufReader<ChildStdout>,
    /// All that it said.
    pub said: String,
}

impl Machine {
    /// Starts a machine of two processors and 256 MiB, with `disk` as options of its disk.
    pub fn start(parts: &Parts, script: &str, directory: &Path, disk: &[String]) -> Machine {
        let archive = directory.join("initramfs");
        std::fs::write(&archive, parts.archive(script)).unwrap();
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-nodefaults", "-display", "none", "-no-reboot", "-m", "256M", "-smp", "2", "-serial", "stdio"]);
        command.args(["-accel", "tcg,thread=multi", "-append", "console=ttyS0 quiet panic=-1"]);
        command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(&archive).args(disk);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let console = BufReader::new(child.stdout.take().unwrap());
        Machine { child, console, said: String::new() }
    }

    /// Reads what it says up to a line that begins with `word`: the rest of that line.
    pub fn wait_for(&mut self, word: &str) -> String {
        let mut line = Vec::new();
        while self.console.read_until(b'\n', &mut line).unwrap() > 0 {
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            self.said.push_str(&text);
            self.said.push('\n');
            if let Some(rest) = text.strip_prefix("GUEST ").and_then(|text| text.strip_prefix(word)) {
                return rest.trim().to_owned();
            }
            assert!(!text.starts_with("GUEST failed"), "{}", self.said);
            line.clear();
        }
        panic!("the machine ended before it said {word:?}:\n{}", self.said);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Real guests: Debian's kernel in QEMU uses a volume over vhost-user, and over NBD with the options that `levee attach`
//! prints. Without acceleration, so that it runs everywhere; skipped with a line where QEMU or a kernel is missing.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]
#![allow(clippy::disallowed_methods, reason = "threads and time outside of the simulated worlds")]

mod initramfs;
#[path = "../../src/profile/machine.rs"]
mod load;
mod machine;
#[path = "../cli/store.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod store;

use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use initramfs::Parts;
use machine::Machine;
use node::profile::Asked;
use serde_json::Value;
use store::{Store, levee, text};

const SCRIPT: &str = include_str!("guest.sh");

/// What keeps a queue busy, as a measurement does.
trait Client {
    fn ask(&mut self, asked: Asked, bytes: u64, span: Duration) -> base::Result<u64>;
}

/// The options of a machine's disk, as `levee attach` says.
fn options(store: &Store, arguments: &[&str]) -> Vec<String> {
    let answer = store.json(&[&["attach", "vm-1"], arguments].concat());
    let all = answer["qemu"].as_array().unwrap().iter().map(|option: &Value| option.as_str().unwrap().to_owned());
    // The memory of the machine is said once.
    all.map(|option| option.replace("size=2G", "size=256M")).collect()
}

/// The longest pause between two writes that a machine told of, in seconds.
fn longest_pause(said: &str) -> f64 {
    let times = said.lines().filter_map(|line| line.strip_prefix("GUEST wrote ")?.rsplit(' ').next()?.parse().ok());
    let times: Vec<f64> = times.collect();
    times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
}

fn is_well(device: &str, disk: &str) {
    for part in ["2097152 ", "queues=2", "blocks=512/4096", "cache=writeback"] {
        assert!(disk.contains(part), "{device}: {disk} lacks {part}");
    }
    assert!(!disk.contains("discard=0") && !disk.contains("zeroes=0"), "{device}: {disk}");
}

#[test]
fn a_virtual_machine_notices_no_kill() {
    let Some(parts) = Parts::find() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let (directory, socket) = (scratch.path().join("store"), scratch.path().join("vm.sock"));
    let disk = format!("vm-1={}", socket.display());
    let flags = ["--volume", "vm-1", "--size", "1G"];
    let mut store = Store::start(&directory, &flags);
    // It is asked for once, and is there after each restart.
    let options = options(&store, &["--vhost-user", socket.to_str().unwrap()]);
    let mut machine = Machine::start(&parts, SCRIPT, scratch.path(), &options);
    let said = machine.wait_for("disk");
    is_well("vhost-user", &said);
    assert!(said.contains("serial=levee-1"), "{said}");
    ["verified", "discarded", "mounted", "writing"].into_iter().for_each(|word| drop(machine.wait_for(word)));
    let devices = store.json(&["volume", "show", "vm-1"]);
    assert_eq!(devices["clients"], 1);
    // In the middle of what both writers do.
    for writes in [7, 20, 33] {
        machine.wait_for(&format!("wrote 1 {writes} "));
        store.stop("KILL");
        store = Store::start(&directory, &flags);
    }
    machine.wait_for("wrote 2 60 ");
    // A clean stop, with the machine at work.
    assert!(store.stop("TERM").success());
    store = Store::start(&directory, &[&flags[..], &["--vhost-user", &disk]].concat());
    assert_eq!(machine.wait_for("errors"), "0", "{}", machine.said);
    machine.wait_for("done");
    eprintln!("the longest pause of the machine was {:.2} s", longest_pause(&machine.said));
    drop(machine);
    assert!(store.stop("TERM").success());
}

#[test]
fn a_virtual_machine_uses_nbd_as_it_is_told() {
    let Some(parts) = Parts::find() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let store = Store::start(&scratch.path().join("store"), &["--volume", "vm-1", "--size", "1G"]);
    let options = options(&store, &[]);
    let mut machine = Machine::start(&parts, SCRIPT, scratch.path(), &options);
    let said = machine.wait_for("disk");
    assert!(said.contains("2097152 "), "{said}");
    ["verified", "discarded", "mounted"].into_iter().for_each(|word| drop(machine.wait_for(word)));
    assert_eq!(machine.wait_for("errors"), "0", "{}", machine.said);
}

/// Loops take turns at a queue that is busy for a moment and then quiet, again and again: whoever listens at it hears its guest.
#[test]
fn a_queue_that_several_loops_serve_never_stands_still() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("vm.sock");
    let disk = format!("vm-1={}", socket.display());
    let flags = ["--volume", "vm-1", "--size", "1G", "--loops", "4", "--vhost-user", &disk];
    let store = Store::start(&scratch.path().join("store"), &flags);
    let (said, heard) = mpsc::channel();
    let asking = std::thread::spawn(move || {
        let mut guest = load::Machine::connect(&socket, 1 << 30, 64).unwrap();
        for n in 0..400 {
            let asked = if n % 2 == 0 { Asked::Write } else { Asked::Read };
            said.send(guest.ask(asked, 4096, Duration::from_millis(n % 20)).unwrap()).unwrap();
        }
    });
    // Somebody who is not heard waits for ever.
    let most = Duration::from_secs(60);
    let answered: u64 =
        (0..400).map(|n| heard.recv_timeout(most).unwrap_or_else(|_| panic!("burst {n} stands still"))).sum();
    asking.join().unwrap();
    assert!(answered >= 400 * 64);
    assert!(store.stop("TERM").success());
}

/// What is wrong is said once, and clearly.
#[test]
fn sockets_that_cannot_be_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let store = Store::start(&scratch.path().join("store"), &["--volume", "vm-1", "--size", "1G"]);
    let attach = |volume: &str, path: &Path| {
        let arguments = ["attach", volume, "--vhost-user", path.to_str().unwrap(), "--api", &store.api];
        let output = levee(&arguments).output().unwrap();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let file = scratch.path().join("file");
    std::fs::write(&file, "something").unwrap();
    let (is_done, _, said) = attach("vm-1", &file);
    assert!(!is_done && said.contains("exists and is not a socket"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), b"something");
    let busy = std::os::unix::net::UnixListener::bind(scratch.path().join("busy")).unwrap();
    let (is_done, _, said) = attach("vm-1", &scratch.path().join("busy"));
    assert!(!is_done && said.contains("another process listens there"), "{said}");
    drop(busy);
    let (is_done, _, said) = attach("none", &scratch.path().join("socket"));
    assert!(!is_done && said.contains("none"), "{said}");
    let (is_done, said, _) = attach("vm-1", &scratch.path().join("socket"));
    assert!(is_done && said.contains("memory-backend-memfd") && said.contains("vhost-user-blk-pci"), "{said}");
    assert!(scratch.path().join("socket").exists());
    let path = scratch.path().join("socket");
    let detach = ["detach", "--vhost-user", path.to_str().unwrap(), "--api", &store.api];
    assert!(levee(&detach).output().unwrap().status.success());
    assert!(!path.exists());
    let again = levee(&detach).output().unwrap();
    assert!(!again.status.success() && text(&again.stderr).contains("no disk of a virtual machine"));
    // A flag of a volume that is not there, and one that is none.
    let started = |disk: &str| {
        let directory = scratch.path().join("other");
        let mut command = Command::new(store::LEVEE);
        command.args(["up", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--vhost-user", disk, "--dir"]);
        text(&command.arg(&directory).output().unwrap().stderr)
    };
    let said = started(&format!("none={}", path.display()));
    assert!(said.contains("error: ") && said.contains("none"), "{said}");
    assert!(started("none").contains("VOLUME=PATH"));
}

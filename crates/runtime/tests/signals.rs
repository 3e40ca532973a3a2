//! A process on a loop stops when it is asked to, and at once when it is asked twice. The test runs itself as that
//! process.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use runtime::uring;
use runtime::uring::process::{Stop, stop_signals};

const ROLE: &str = "LEVEE_TEST_ROLE";

fn main() {
    match std::env::var(ROLE).as_deref() {
        Ok("polite") => child(false),
        Ok("stubborn") => child(true),
        _ => {
            for (signal, name) in [(libc::SIGTERM, "Terminate"), (libc::SIGINT, "Interrupt")] {
                let (mut child, mut lines) = start("polite");
                send(&child, signal);
                assert_eq!(lines.next().as_deref(), Some(name));
                assert!(child.wait().expect("ends").success());
            }
            let (mut child, mut lines) = start("stubborn");
            send(&child, libc::SIGINT);
            assert_eq!(lines.next().as_deref(), Some("Interrupt"));
            send(&child, libc::SIGTERM);
            assert_eq!(child.wait().expect("ends").signal(), Some(libc::SIGTERM));
            println!("signals: ok");
        }
    }
}

fn child(stubborn: bool) {
    let stop = stop_signals().expect("a thread for signals");
    let outcome = uring::run(uring::Options::default(), |_| async move {
        println!("ready");
        let why: Stop = stop.recv().await.expect("a signal comes");
        println!("{why:?}");
        if stubborn {
            std::future::pending::<()>().await;
        }
    });
    outcome.expect("io_uring");
}

fn start(role: &str) -> (Child, impl Iterator<Item = String>) {
    let program = std::env::current_exe().expect("this test");
    let mut child = Command::new(program).env(ROLE, role).stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    (child, lines)
}

fn send(child: &Child, signal: i32) {
    // SAFETY: the child was not waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

//! What a process in the real world needs besides its loops: to hear that it should stop, and enough descriptors.

use std::io;
use std::mem::MaybeUninit;

use super::check;
use crate::sync::mailbox;

/// Why the process should stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// SIGINT, such as from Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// Gives the first SIGINT or SIGTERM to a loop; a second one ends the process at once, as if nobody had asked for it.
///
/// To be called before any other thread is started, because a thread inherits which signals it does not take itself.
///
/// # Errors
/// The thread that waits for signals cannot be started.
pub fn stop_signals() -> io::Result<async_channel::Receiver<Stop>> {
    let (sender, receiver) = mailbox(1);
    let signals = signal_set(&[libc::SIGINT, libc::SIGTERM]);
    // SAFETY: the set is initialised and outlives the call.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) };
    std::thread::Builder::new().name("levee-signals".into()).spawn(move || {
        let mut signal = 0;
        // SAFETY: the set and the number outlive the calls. It fails only for a set that is not valid.
        unsafe { libc::sigwait(&signals, &mut signal) };
        let stop = if signal == libc::SIGINT { Stop::Interrupt } else { Stop::Terminate };
        // The loop may be gone; then the process is ending anyway.
        let _ = sender.try_send(stop);
        // From here on this is the one thread that takes them, and their default action ends the process.
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &signals, std::ptr::null_mut()) };
        loop {
            // SAFETY: no memory is passed.
            unsafe { libc::pause() };
        }
    })?;
    Ok(receiver)
}

fn signal_set(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set, and it outlives the calls.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Raises the limit of open descriptors to what this process may have; gives that number.
///
/// # Errors
/// The kernel's.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
    }
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_what_is_allowed() {
        let limit = raise_descriptor_limit().expect("raises");
        assert_eq!(raise_descriptor_limit().expect("raises"), limit);
    }
}

//! The ring itself: setting it up on old and new kernels, queueing entries without a bound, entering the kernel once
//! for submission and reception together.

use std::collections::VecDeque;
use std::io;

use io_uring::squeue::Entry;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue};

/// Entries that one system call hands over at most; more wait in user space.
const SUBMISSION_ENTRIES: u32 = 256;
/// Completions that the kernel stores without allocating; more wait inside it until these are taken.
const COMPLETION_ENTRIES: u32 = 4096;

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 8;

type Setup = fn(&mut io_uring::Builder) -> &mut io_uring::Builder;

/// Ways to set a ring up, best first. With deferred task work completions are posted when this thread asks for them,
/// never by an interrupt (6.1); cooperative task work comes close (with a single issuer 6.0, else 5.19).
pub(super) const SETUPS: [Setup; 3] = [
    |builder| builder.setup_single_issuer().setup_defer_taskrun(),
    |builder| builder.setup_single_issuer().setup_coop_taskrun(),
    |builder| builder.setup_coop_taskrun(),
];

/// How long [`Ring::enter`] may stay in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stay {
    /// Only to submit: completions are not asked for.
    Submit,
    /// To submit and to let completions be posted.
    Collect,
    /// Until a completion is there, or for so many nanoseconds.
    For(u64),
    /// Until a completion is there.
    Forever,
}

pub(super) struct Ring {
    ring: IoUring,
    /// Entries that did not fit the submission queue, in order.
    backlog: VecDeque<Entry>,
    /// How often the kernel was entered.
    #[cfg(test)]
    pub entered: u64,
}

impl Ring {
    /// A ring for the calling thread.
    ///
    /// # Errors
    /// One sentence for the operator where the kernel or a sandbox forbids it.
    pub fn new() -> io::Result<Self> {
        let mut refusal = io::Error::from(io::ErrorKind::Unsupported);
        for setup in SETUPS {
            match Self::with(setup) {
                Ok(ring) => return Ok(ring),
                Err(error) => refusal = error,
            }
            // Anything but "unknown flag" will not go away with fewer flags.
            if refusal.raw_os_error() != Some(libc::EINVAL) {
                break;
            }
        }
        Err(explain_refusal(&refusal))
    }

    pub fn with(setup: Setup) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_taskrun_flag().setup_submit_all().setup_clamp().setup_cqsize(COMPLETION_ENTRIES).dontfork();
        setup(&mut builder);
        Ok(Ring {
            ring: builder.build(SUBMISSION_ENTRIES)?,
            backlog: VecDeque::new(),
            #[cfg(test)]
            entered: 0,
        })
    }

    /// Whether this kernel knows an operation.
    pub fn supports(&self, opcode: u8) -> bool {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(opcode)
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// Memory that the entry points to stays where it is, and untouched, until its completion was taken.
    pub unsafe fn push(&mut self, entry: Entry) {
        if !self.backlog.is_empty() {
            self.backlog.push_back(entry);
            return;
        }
        // SAFETY: promised by the caller.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        }
    }

    /// Whether entries wait for submission.
    pub fn has_queued(&mut self) -> bool {
        !self.backlog.is_empty() || !self.ring.submission().is_empty()
    }

    /// Whether the kernel holds completions back until it is entered.
    pub fn owes_completions(&mut self) -> bool {
        let submission = self.ring.submission();
        submission.taskrun() || submission.cq_overflow()
    }

    /// Whether completions are there to be taken.
    pub fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Takes a completion: (user data, result).
    pub fn pop(&mut self) -> Option<(u64, i32)> {
        self.ring.completion().next().map(|entry: cqueue::Entry| (entry.user_data(), entry.result()))
    }

    /// Enters the kernel, at least once. Returns early for a signal, or where the kernel wants completions to be
    /// taken before it accepts more entries.
    pub fn enter(&mut self, stay: Stay) {
        loop {
            // Only the last batch of a backlog may wait for completions.
            let stay = if self.backlog.is_empty() { stay } else { Stay::Collect };
            let outcome = self.enter_once(stay);
            let consumed = self.refill();
            match outcome {
                Ok(_) if consumed && self.has_queued() => {}
                Ok(_) => return,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY) => return,
                    _ => panic!("io_uring_enter failed, which only a bug explains: {error}"),
                },
            }
        }
    }

    fn enter_once(&mut self, stay: Stay) -> io::Result<usize> {
        #[cfg(test)]
        {
            self.entered += 1;
        }
        let queued = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        // SAFETY: the flags say what the argument is, and the argument outlives the call.
        unsafe {
            match stay {
                Stay::Submit => submitter.enter::<libc::sigset_t>(queued, 0, 0, None),
                Stay::Collect => submitter.enter::<libc::sigset_t>(queued, 0, ENTER_GETEVENTS, None),
                Stay::Forever => submitter.enter::<libc::sigset_t>(queued, 1, ENTER_GETEVENTS, None),
                Stay::For(nanos) => {
                    let span = Timespec::new().sec(nanos / 1_000_000_000).nsec((nanos % 1_000_000_000) as u32);
                    let args = SubmitArgs::new().timespec(&span);
                    submitter.enter(queued, 1, ENTER_GETEVENTS | ENTER_EXT_ARG, Some(&args))
                }
            }
        }
    }

    /// Moves the backlog to the submission queue as far as it fits; whether anything moved.
    fn refill(&mut self) -> bool {
        let before = self.backlog.len();
        let mut submission = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: promised when the entry was pushed.
            if unsafe { submission.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
        self.backlog.len() < before
    }
}

/// Why there is no ring, and what to do about it.
fn explain_refusal(refusal: &io::Error) -> io::Error {
    let advice = match refusal.raw_os_error() {
        Some(libc::ENOSYS) => {
            "this kernel or sandbox has no io_uring: Levee needs Linux 5.19 or newer with CONFIG_IO_URING"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "it is forbidden here: set the sysctl kernel.io_uring_disabled to 0 (or 1, and add this user's group as \
             kernel.io_uring_group), or, in a container, allow io_uring_setup, io_uring_enter and io_uring_register \
             in its seccomp profile"
        }
        Some(libc::EINVAL) | None => "this kernel is too old: Levee needs Linux 5.19 or newer",
        Some(libc::ENOMEM) => "raise the limit of locked memory (ulimit -l) or free some memory",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => "Levee needs Linux 5.19 or newer with io_uring allowed",
    };
    io::Error::new(refusal.kind(), format!("io_uring cannot be set up ({refusal}); {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let text = |errno| explain_refusal(&io::Error::from_raw_os_error(errno)).to_string();
        assert!(text(libc::EPERM).contains("kernel.io_uring_disabled") && text(libc::EPERM).contains("seccomp"));
        assert!(text(libc::ENOSYS).contains("5.19") && text(libc::EINVAL).contains("5.19"));
    }

    #[test]
    fn more_entries_than_the_queue_holds_are_submitted_in_order() {
        for setup in SETUPS {
            let mut ring = Ring::with(setup).expect("io_uring");
            let count = u64::from(SUBMISSION_ENTRIES) * 3 + 7;
            for i in 0..count {
                // SAFETY: a no-op points to nothing.
                unsafe { ring.push(io_uring::opcode::Nop::new().build().user_data(i)) };
            }
            assert!(ring.has_queued());
            ring.enter(Stay::Forever);
            assert!(!ring.has_queued());
            let seen: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|(data, _)| data).collect();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn more_completions_than_the_queue_holds_are_all_taken() {
        let mut ring = Ring::new().expect("io_uring");
        let count = u64::from(COMPLETION_ENTRIES) * 2 + 3;
        for i in 0..count {
            // SAFETY: a no-op points to nothing.
            unsafe { ring.push(io_uring::opcode::Nop::new().build().user_data(i)) };
        }
        let mut seen = Vec::new();
        for _ in 0..10_000 {
            ring.enter(Stay::Collect);
            seen.extend(std::iter::from_fn(|| ring.pop()).map(|(data, _)| data));
            if seen.len() as u64 == count {
                break;
            }
        }
        assert_eq!(seen, (0..count).collect::<Vec<_>>());
    }
}

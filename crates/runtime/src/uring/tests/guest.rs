//! Hypervisors at a real socket: the `vhost` crate's own frontend plays them, on a thread.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::path::Path;

use vhost::vhost_user::message::*;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vm_memory::{Bytes as _, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::*;
use crate::Doorbell;
use crate::guest::{Answer, Ask, Port, Refusal};

/// Features that a device here has.
const FEATURES: u64 = 1 << 32 | 1 << 29;

/// Runs a device on a loop and a hypervisor on a thread; the hypervisor's is the outcome.
fn meet<T: Send + 'static, F: Future<Output = ()> + 'static>(
    device: impl FnOnce(Handle, Port) -> F + 'static,
    hypervisor: impl FnOnce(&Path) -> T + Send + 'static,
) -> T {
    let (_directory, path) = scratch();
    let socket = path.join("socket");
    run_default(|handle| async move {
        let listener = handle.listen(&Address::Unix(socket.clone())).await.expect("listens");
        let (sender, outcome) = sync::foreign();
        let thread = std::thread::Builder::new();
        let playing = move || drop(sender.send(hypervisor(&socket)));
        thread.spawn(playing).expect("a thread");
        let stream = listener.accept().await.expect("accepts");
        let port = handle.attend(stream.release().await.expect("leaves")).expect("attends");
        device(handle.clone(), port).await;
        outcome.await.expect("the hypervisor ends")
    })
}

fn frontend(path: &Path) -> Frontend {
    let mut frontend = Frontend::connect(path, 2).expect("connects");
    frontend.set_owner().expect("owns");
    let features = frontend.get_features().expect("has features");
    assert_eq!(features, FEATURES | 1 << 30);
    frontend.set_features(features).expect("takes them");
    let protocol = frontend.get_protocol_features().expect("has them");
    frontend.set_protocol_features(protocol).expect("takes them");
    // Every message is answered, so that it is known what became of it.
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    frontend
}

/// Answers everything until the connection ends; `act` may answer instead.
async fn answer_all(port: Port, mut act: impl AsyncFnMut(Ask) -> Result<Answer, Refusal>) {
    while let Some(question) = port.next().await {
        let answer = match question.ask {
            Ask::Features => Ok(Answer::Number(FEATURES)),
            Ask::QueuesMax => Ok(Answer::Number(2)),
            Ask::SetFeatures(_) => Ok(Answer::Done),
            ask => act(ask).await,
        };
        question.reply.send(answer);
    }
}

fn memfd(len: u64, seals: i32, flags: u32) -> File {
    // SAFETY: the name outlives the call; the new descriptor is owned by nobody else.
    let file = unsafe { File::from_raw_fd(check(libc::memfd_create(c"guest".as_ptr(), flags)).expect("a memfd")) };
    file.set_len(len).expect("has room");
    if seals != 0 {
        // SAFETY: no memory is passed.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }).expect("seals");
    }
    file
}

fn region(file: &File, guest: u64, len: u64, offset: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: len,
        userspace_addr: 0x1000_0000 + guest,
        mmap_offset: offset,
        mmap_handle: file.as_raw_fd(),
    }
}

#[test]
fn memory_is_shared_with_its_guest() {
    let device = |_, port| async move {
        answer_all(port, async |ask| {
            let Ask::SetMemory(memory) = ask else { return Ok(Answer::Done) };
            assert_eq!(memory.guest_address(0x1000_0000 + (1 << 30) + 5), Some((1 << 30) + 5));
            assert_eq!(memory.guest_address(0x1000_0000 + (1 << 20)), None);
            assert_eq!(memory.map().read_obj::<u8>(GuestAddress((1 << 30) + 7)).expect("is there"), 77);
            memory.map().write_obj(88u8, GuestAddress(9)).expect("is there");
            assert!(memory.map().read_obj::<u8>(GuestAddress(1 << 20)).is_err());
            Ok(Answer::Done)
        })
        .await;
    };
    let written = meet(device, |path| {
        use std::os::unix::fs::FileExt;
        let frontend = frontend(path);
        let file = memfd(2 << 20, libc::F_SEAL_SHRINK, libc::MFD_ALLOW_SEALING);
        file.write_all_at(&[77], (1 << 20) + 7).expect("writes");
        // Not in the order of their addresses.
        let regions = [region(&file, 1 << 30, 1 << 20, 1 << 20), region(&file, 0, 1 << 20, 0)];
        frontend.set_mem_table(&regions).expect("is taken");
        let mut byte = [0];
        file.read_exact_at(&mut byte, 9).expect("reads");
        byte[0]
    });
    assert_eq!(written, 88);
}

/// What a hypervisor may give instead of memory: each ends its connection, before a device hears of it.
#[test]
fn memory_that_could_end_the_process_is_refused() {
    let (_directory, path) = scratch();
    std::fs::write(path.join("file"), vec![0; 1 << 20]).expect("writes");
    let plain = File::options().read(true).write(true).open(path.join("file")).expect("opens");
    let shrink = libc::F_SEAL_SHRINK;
    let sealed = || memfd(1 << 20, shrink, libc::MFD_ALLOW_SEALING);
    let wrong = [
        (memfd(1 << 20, 0, libc::MFD_ALLOW_SEALING), 1 << 20, 0),
        (memfd(1 << 20, 0, 0), 1 << 20, 0),
        (plain, 1 << 20, 0),
        // It ends too early, and where pages begin it does not.
        (sealed(), 2 << 20, 0),
        (sealed(), 1 << 20, 4096),
        (sealed(), 1 << 19, 100),
        // Nobody may write.
        (memfd(1 << 20, shrink | libc::F_SEAL_WRITE, libc::MFD_ALLOW_SEALING), 1 << 20, 0),
    ];
    for (n, (file, len, offset)) in wrong.into_iter().enumerate() {
        let device = |_, port| async move {
            answer_all(port, async |ask| {
                assert!(!matches!(ask, Ask::SetMemory(_)), "{ask:?}");
                Ok(Answer::Done)
            })
            .await;
        };
        meet(device, move |path| {
            let frontend = frontend(path);
            assert!(frontend.set_mem_table(&[region(&file, 0, len, offset)]).is_err(), "{n}");
            assert!(frontend.get_features().is_err(), "{n}: the connection has ended");
        });
    }
}

#[test]
fn bells_are_heard_at_either_end() {
    for flags in [0, EFD_NONBLOCK] {
        let device = |handle: Handle, port| async move {
            let mut kick: Option<Doorbell> = None;
            answer_all(port, async |ask| {
                match ask {
                    Ask::SetKick { queue: 1, bell: Some(bell) } => {
                        kick = Some(handle.hang(bell).await.expect("is one"));
                    }
                    Ask::SetCall { queue: 0, bell: Some(bell) } => {
                        let call = handle.hang(bell).await.expect("is one");
                        kick.as_ref().expect("came first").wait().await.expect("is rung");
                        // It waits for the next one, until it is dropped.
                        let waiting = kick.as_ref().map(Doorbell::wait).expect("is there");
                        assert!(sync::first(waiting, std::future::ready(())).await.is_err());
                        call.ring().await.expect("rings");
                        call.ring().await.expect("rings");
                        kick.take();
                    }
                    Ask::Stop { queue: 1 } => return Ok(Answer::Number(77)),
                    ask => panic!("{ask:?}"),
                }
                Ok(Answer::Done)
            })
            .await;
        };
        let heard = meet(device, move |path| {
            let mut frontend = frontend(path);
            let [kick, call] = [(), ()].map(|()| EventFd::new(flags).expect("a counter"));
            frontend.set_vring_kick(1, &kick).expect("is taken");
            kick.write(3).expect("rings");
            frontend.set_vring_call(0, &call).expect("is taken");
            assert_eq!(frontend.get_vring_base(1).expect("stops"), 77);
            assert_eq!(frontend.get_queue_num().expect("has some"), 2);
            call.read().expect("was rung")
        });
        assert_eq!(heard, 2);
    }
}

/// A counter that is full keeps whoever rings waiting, and no loop.
#[test]
fn a_bell_that_nobody_hears_holds_nobody_up() {
    let device = |handle: Handle, port| async move {
        answer_all(port, async |ask| {
            let Ask::SetCall { bell: Some(bell), .. } = ask else { return Ok(Answer::Done) };
            let call = handle.hang(bell).await.expect("is one");
            let ringing = call.ring();
            assert!(sync::first(ringing, handle.yield_now()).await.is_err(), "there is no room");
            Ok(Answer::Done)
        })
        .await;
    };
    meet(device, |path| {
        let frontend = frontend(path);
        let call = EventFd::new(0).expect("a counter");
        call.write(u64::MAX - 1).expect("has room");
        frontend.set_vring_call(0, &call).expect("is taken");
    });
}

#[test]
fn a_bell_that_is_something_else_is_refused() {
    let device = |_, port| async move {
        answer_all(port, async |ask| panic!("{ask:?}")).await;
    };
    meet(device, |path| {
        let frontend = frontend(path);
        let file = memfd(4096, 0, 0);
        // SAFETY: the descriptor is owned by nobody else.
        let odd = unsafe { EventFd::from_raw_fd(file.into_raw_fd()) };
        assert!(frontend.set_vring_kick(0, &odd).is_err());
        assert!(frontend.get_features().is_err());
    });
}

#[test]
fn what_is_in_flight_is_kept_by_the_hypervisor() {
    let device = |_, port| async move {
        answer_all(port, async |ask| match ask {
            Ask::InflightLen { queues: 2, size: 64 } => Ok(Answer::Number(4096)),
            Ask::SetInflight { area, queues: 2, size: 64 } => {
                let seen: u8 = area.map().read_obj(GuestAddress(5)).expect("is there");
                area.map().write_obj(seen + 1, GuestAddress(5)).expect("is there");
                assert_eq!(area.len(), 4096);
                Ok(Answer::Done)
            }
            ask => panic!("{ask:?}"),
        })
        .await;
    };
    meet(device, |path| {
        use std::os::unix::fs::FileExt;
        let mut frontend = frontend(path);
        let wanted = VhostUserInflight::new(0, 0, 2, 64);
        let (inflight, file) = frontend.get_inflight_fd(&wanted).expect("is given");
        assert!(file.set_len(0).is_err(), "it does not shrink");
        for lives in 1..3 {
            frontend.set_inflight_fd(&inflight, file.as_raw_fd()).expect("is taken");
            let mut byte = [0];
            file.read_exact_at(&mut byte, 5).expect("reads");
            assert_eq!(byte[0], lives);
        }
        let loose = memfd(4096, 0, libc::MFD_ALLOW_SEALING);
        assert!(frontend.set_inflight_fd(&inflight, loose.as_raw_fd()).is_err());
    });
}

/// Whoever drops a port ends the connection, also while an answer is awaited.
#[test]
fn a_port_that_is_dropped_ends_its_connection() {
    let device = |_, port: Port| async move {
        assert!(matches!(port.next().await.map(|question| question.ask), Some(Ask::Features)));
    };
    meet(device, |path| {
        let frontend = Frontend::connect(path, 1).expect("connects");
        frontend.set_owner().expect("owns");
        assert!(frontend.get_features().is_err());
    });
}

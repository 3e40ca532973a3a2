//! The driver against the real kernel: temporary files, loopback and Unix sockets. Nothing here waits for a time.

mod guest;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base::{AlignedBuf, Bytes};
use tempfile::TempDir;

use super::*;
use crate::{File, OpenOptions, Stream, sync};

fn run_default<T: 'static, F: Future<Output = T> + 'static>(main: impl FnOnce(Handle) -> F) -> T {
    run(Options::default(), main).expect("io_uring")
}

fn scratch() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_owned();
    (directory, path)
}

fn writing() -> OpenOptions {
    OpenOptions { write: true, create: true, ..OpenOptions::default() }
}

fn pattern(len: usize, seed: u8) -> AlignedBuf {
    let mut buffer = AlignedBuf::zeroed(len);
    buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i as u8).wrapping_mul(31).wrapping_add(seed));
    buffer
}

async fn loopback(handle: &Handle) -> (Stream, Stream) {
    let listener = handle.listen(&Address::Tcp("127.0.0.1:0".parse().expect("valid"))).await.expect("listens");
    let client = handle.connect(listener.address()).await.expect("connects");
    (client, listener.accept().await.expect("accepts"))
}

#[test]
fn direct_and_durable_round_trip() {
    let (_directory, path) = scratch();
    run_default(|handle| async move {
        let options = OpenOptions { direct: true, dsync: true, exclusive: true, ..writing() };
        let file = handle.open(&path.join("journal"), options.clone()).await.expect("opens");
        let again = handle.open(&path.join("journal"), options).await;
        assert_eq!(again.err().map(|error| error.kind()), Some(io::ErrorKind::AlreadyExists));
        file.allocate(0, 1 << 20).await.expect("allocates");
        assert_eq!(file.length().await.expect("has a length"), 1 << 20);
        let data = pattern(64 << 10, 1).freeze();
        file.write_at(4096, data.clone()).await.expect("writes");
        assert_eq!(&file.read_at(4096, data.len()).await.expect("reads")[..], &data[..]);
        // Memory at any address is accepted.
        let shifted = pattern(8192, 2).freeze().slice(1000..1000 + 4096);
        file.write_at(0, shifted.clone()).await.expect("writes");
        assert_eq!(&file.read_at(0, 4096).await.expect("reads")[..], &shifted[..]);
        let mode = std::fs::metadata(path.join("journal")).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn files_and_names() {
    let (_directory, path) = scratch();
    run_default(|handle| async move {
        let folder = path.join("a/b");
        handle.create_directory(&folder).await.expect("makes");
        let file = handle.open(&folder.join("one"), writing()).await.expect("opens");
        file.write_at(0, Bytes::from_static(b"levee holds water")).await.expect("writes");
        file.sync().await.expect("syncs");
        file.set_len(5).await.expect("truncates");
        assert_eq!(&file.read_up_to(0, 100).await.expect("reads")[..], b"levee");
        assert_eq!(file.read_at(0, 6).await.err().map(|e| e.kind()), Some(io::ErrorKind::UnexpectedEof));
        assert_eq!(file.read_up_to(100, 8).await.expect("reads").len(), 0);
        handle.rename(&folder.join("one"), &folder.join("two")).await.expect("renames");
        handle.create_directory(&folder.join("c")).await.expect("makes");
        handle.sync_directory(&folder).await.expect("syncs");
        let entries = handle.read_directory(&folder).await.expect("lists");
        let names: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.is_directory)).collect();
        assert_eq!(names, [("c", true), ("two", false)]);
        handle.remove(&folder.join("two")).await.expect("removes");
        let gone = handle.open(&folder.join("two"), OpenOptions::default()).await;
        assert_eq!(gone.err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
        let space = handle.space(&folder).await.expect("has room");
        assert!(space.total >= space.free && space.free > 0);
        assert!(handle.open(Path::new("a\0b"), writing()).await.is_err());
    });
}

#[test]
fn a_lock_keeps_others_out_until_its_file_is_closed() {
    let (_directory, path) = scratch();
    run_default(|handle| async move {
        let first = handle.open(&path.join("lock"), writing()).await.expect("opens");
        let second = handle.open(&path.join("lock"), writing()).await.expect("opens");
        assert!(first.try_lock().await.expect("locks"));
        assert!(!second.try_lock().await.expect("asks"));
        drop(first);
        // The close is in flight; it ends before this turn's successors are through.
        while !second.try_lock().await.expect("asks") {
            handle.yield_now().await;
        }
    });
}

#[test]
fn where_direct_access_is_refused_the_page_cache_serves() {
    run_default(|handle| async move {
        // No file of procfs can be opened with O_DIRECT.
        let options = OpenOptions { direct: true, ..OpenOptions::default() };
        let file = handle.open(Path::new("/proc/self/status"), options).await.expect("opens");
        assert!(file.read_up_to(0, 4096).await.expect("reads").starts_with(b"Name:"));
    });
}

#[test]
fn the_flags_of_a_journal_reach_the_kernel() {
    let options = OpenOptions { direct: true, dsync: true, ..writing() };
    let flags = names::open_flags(&options, options.direct);
    assert_eq!(flags & libc::O_DIRECT, libc::O_DIRECT);
    assert_eq!(flags & libc::O_DSYNC, libc::O_DSYNC);
}

#[test]
fn a_stream_carries_gathered_sends_in_order() {
    run_default(|handle| async move {
        let (client, server) = loopback(&handle).await;
        let parts: Vec<Bytes> = (0..3000u32).map(|i| pattern(1 + i as usize % 700, i as u8).freeze()).collect();
        let expected: Vec<u8> = parts.iter().flatten().copied().collect();
        let sender = handle.spawn(Class::Io, "sender", async move {
            client.send(parts).await.expect("sends");
            client.shutdown();
        });
        let mut received = Vec::new();
        let mut buffer = AlignedBuf::zeroed(10_000);
        loop {
            let (count, returned) = server.receive(buffer, 100).await;
            buffer = returned;
            match count.expect("receives") {
                0 => break,
                count => received.extend_from_slice(&buffer[100..100 + count]),
            }
        }
        sender.await;
        assert!(received == expected);
    });
}

/// Sends back what arrives until the peer is done.
async fn echo(stream: Stream) {
    let mut buffer = AlignedBuf::zeroed(4096);
    loop {
        let (count, returned) = stream.receive(buffer, 0).await;
        buffer = returned;
        match count {
            Ok(count) if count > 0 => stream.send(vec![Bytes::copy_from_slice(&buffer[..count])]).await.expect("sends"),
            _ => break,
        }
    }
}

async fn receive_exactly(stream: &Stream, len: usize) -> AlignedBuf {
    let (mut buffer, mut have) = (AlignedBuf::zeroed(len), 0);
    while have < len {
        let (count, returned) = stream.receive(buffer, have).await;
        buffer = returned;
        have += count.expect("receives");
    }
    buffer
}

async fn client(handle: Handle, address: Address, seed: u8) {
    let stream = handle.connect(&address).await.expect("connects");
    for round in 0..5 {
        let message = pattern(1000, seed.wrapping_add(round)).freeze();
        stream.send(vec![message.clone()]).await.expect("sends");
        assert_eq!(&receive_exactly(&stream, 1000).await[..], &message[..]);
    }
}

/// How often the kernel was entered by a loop that answers as many requests of another thread over a Unix socket.
fn entered_for(requests: u64) -> u64 {
    let (_directory, path) = scratch();
    let path = path.join("echo.sock");
    let driver = Rc::new(UringDriver::new(Ring::new().expect("io_uring")).expect("a driver"));
    let handle = Executor::start(driver.clone(), LoopSettings::default());
    let running = Running { handle: &handle, driver: &driver };
    let is_done = Rc::new(RefCell::new(false));
    let (inside, done) = (handle.clone(), is_done.clone());
    let main = async move {
        let listener = inside.listen(&Address::Unix(path.clone())).await.expect("listens");
        #[allow(clippy::disallowed_methods, reason = "a peer beside the loop")]
        let client = std::thread::spawn(move || {
            let mut stream = std::os::unix::net::UnixStream::connect(path).expect("connects");
            let mut answer = [0; 4];
            for request in 0..requests as u32 {
                stream.write_all(&request.to_le_bytes()).expect("sends");
                stream.read_exact(&mut answer).expect("receives");
                assert_eq!(answer, request.to_le_bytes());
            }
        });
        echo(listener.accept().await.expect("accepts")).await;
        client.join().expect("it gets its answers");
        *done.borrow_mut() = true;
    };
    handle.spawn(Class::Io, "main", main).detach();
    while !*is_done.borrow() {
        handle.0.turn(true);
    }
    let entered = driver.state.borrow().ring.entered;
    drop(running);
    entered
}

#[test]
fn a_loop_that_answers_and_sleeps_enters_the_kernel_once() {
    let entered = entered_for(1000);
    // To start and to end; a signal may end a sleep.
    assert!(entered < 1050, "the kernel was entered {entered} times for 1000 requests");
}

#[test]
fn what_is_asked_for_after_a_send_comes_after_it() {
    run_default(|handle| async move {
        let (client, server) = loopback(&handle).await;
        let (sending, ending) = (client.clone(), client);
        let sending = handle
            .spawn(Class::Io, "send", async move { sending.send(vec![Bytes::from_static(b"the last words")]).await });
        let ending = handle.spawn(Class::Io, "end", async move { ending.shutdown() });
        // The loop does not sleep meanwhile, and leaves both to the ring.
        let inside = handle.clone();
        let busy = handle.spawn(Class::Io, "busy", async move {
            for _ in 0..10 {
                inside.yield_now().await;
            }
        });
        assert_eq!(&receive_exactly(&server, 14).await[..], b"the last words");
        sending.await.expect("it is sent");
        ending.await;
        busy.await;
        assert_eq!(server.receive(AlignedBuf::zeroed(8), 0).await.0.expect("it ends"), 0);
    });
}

#[test]
fn many_connections_at_once() {
    run_default(|handle| async move {
        let listener = handle.listen(&Address::Tcp("127.0.0.1:0".parse().expect("valid"))).await.expect("listens");
        let address = listener.address().clone();
        let inner = handle.clone();
        let server = handle.spawn(Class::Io, "listener", async move {
            loop {
                let stream = listener.accept().await.expect("accepts");
                inner.spawn(Class::Io, "echo", echo(stream)).detach();
            }
        });
        let clients: Vec<_> =
            (0..200).map(|i| handle.spawn(Class::Io, "client", client(handle.clone(), address.clone(), i))).collect();
        for client in clients {
            client.await;
        }
        drop(server);
    });
}

#[test]
fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    let (_directory, path) = scratch();
    let address = Address::Unix(path.join("nbd.sock"));
    let socket = path.join("nbd.sock");
    // A listener that went without taking its file along, as after kill -9.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("binds"));
    assert!(socket.exists());
    run_default(|handle| async move {
        let listener = handle.listen(&address).await.expect("replaces the stale file");
        assert_eq!(listener.address(), &address);
        let mode = std::fs::metadata(&socket).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = handle.listen(&address).await;
        assert_eq!(second.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
        let stream = handle.connect(&address).await.expect("the first still listens");
        drop((stream, listener));
        while socket.exists() {
            handle.yield_now().await;
        }
        assert_eq!(handle.connect(&address).await.err().map(|e| e.kind()), Some(io::ErrorKind::NotFound));
        std::fs::write(&socket, b"not a socket").expect("writes");
        let error = handle.listen(&address).await.err().expect("keeps a file that is no socket");
        assert!(error.to_string().contains("not a socket"), "{error}");
    });
}

#[test]
fn dropped_waits_are_cancelled_and_leave_nothing_in_flight() {
    run_default(|handle| async move {
        let (client, server) = loopback(&handle).await;
        let listener = handle.listen(&Address::Tcp("127.0.0.1:0".parse().expect("valid"))).await.expect("listens");
        let receive = handle.spawn(Class::Io, "receive", {
            let server = server.clone();
            async move { server.receive(AlignedBuf::zeroed(4096), 0).await.0 }
        });
        let accept = handle.spawn(Class::Io, "accept", async move { drop(listener.accept().await) });
        for _ in 0..10 {
            handle.yield_now().await;
        }
        assert_eq!(handle.statistics().operations_in_flight, 2);
        drop((receive, accept));
        while handle.statistics().operations_in_flight > 0 {
            handle.yield_now().await;
        }
        // The stream itself goes on.
        client.send(vec![Bytes::from_static(b"still here")]).await.expect("sends");
        assert_eq!(&receive_exactly(&server, 10).await[..], b"still here");
    });
}

#[test]
fn closing_a_stream_ends_what_waits_on_it() {
    run_default(|handle| async move {
        let (client, server) = loopback(&handle).await;
        let reader = server.clone();
        let receive =
            handle.spawn(Class::Io, "receive", async move { reader.receive(AlignedBuf::zeroed(64), 0).await.0 });
        handle.yield_now().await;
        server.shutdown();
        assert_eq!(receive.await.expect("ends like a stream"), 0);
        drop(server);
        assert_eq!(client.receive(AlignedBuf::zeroed(64), 0).await.0.expect("the peer notices"), 0);
    });
}

#[test]
fn closing_a_stream_ends_a_send_that_nobody_receives() {
    run_default(|handle| async move {
        let (client, server) = loopback(&handle).await;
        let sender = client.clone();
        // Far more than the buffers of both sockets hold.
        let send =
            handle.spawn(Class::Io, "send", async move { sender.send(vec![base::buffer::zeros(64 << 20)]).await });
        for _ in 0..10 {
            handle.yield_now().await;
        }
        assert!(!send.is_finished());
        drop((send, client));
        while handle.statistics().operations_in_flight > 0 {
            handle.yield_now().await;
        }
        drop(server);
    });
}

#[test]
fn a_dropped_write_still_happens_and_its_file_closes_after_it() {
    let (_directory, path) = scratch();
    run_default(|handle| async move {
        let name = path.join("file");
        let file = handle.open(&name, OpenOptions { direct: true, dsync: true, ..writing() }).await.expect("opens");
        let data = pattern(1 << 20, 9).freeze();
        drop(file.write_at(0, data.clone()));
        drop(file);
        while handle.statistics().operations_in_flight > 0 {
            handle.yield_now().await;
        }
        assert!(std::fs::read(&name).expect("reads")[..] == data[..]);
    });
}

#[test]
fn what_is_in_flight_when_the_loop_ends_is_waited_for() {
    let (_directory, path) = scratch();
    let name = path.join("file");
    let data = pattern(4 << 20, 3).freeze();
    let (to_write, written_name) = (data.clone(), name.clone());
    run_default(|handle| async move {
        let file = handle.open(&written_name, OpenOptions { direct: true, ..writing() }).await.expect("opens");
        let (_client, server) = loopback(&handle).await;
        handle.spawn(Class::Io, "receive", async move { server.receive(AlignedBuf::zeroed(64), 0).await.0 }).detach();
        handle.yield_now().await;
        let write = file.write_at(0, to_write);
        handle.spawn(Class::Io, "writer", write).detach();
        // The write reaches the kernel with this turn; nobody awaits it.
        handle.open(&written_name, OpenOptions::default()).await.expect("opens");
    });
    assert!(std::fs::read(&name).expect("reads")[..] == data[..]);
}

#[test]
fn other_threads_wake_a_sleeping_loop() {
    let (to_loop, from_thread) = sync::mailbox::<u32>(4);
    let (started, starts) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().spawn(move || {
        starts.recv().expect("the loop starts");
        for i in 0..1000 {
            to_loop.send_blocking(i).expect("the loop listens");
        }
    });
    let sum = run_default(|_| async move {
        started.send(()).expect("the thread waits");
        let mut sum = 0;
        while let Ok(i) = from_thread.recv().await {
            sum += i;
        }
        sum
    });
    thread.expect("starts").join().expect("ends");
    assert_eq!(sum, 499_500);
}

#[test]
fn rings_of_older_kernels_serve_as_well() {
    for setup in ring::SETUPS {
        let (_directory, path) = scratch();
        let ring = Ring::with(setup).expect("this kernel has them all");
        let outcome = run_on(ring, Options::default(), |handle| async move {
            let file = handle.open(&path.join("file"), OpenOptions { direct: true, dsync: true, ..writing() }).await?;
            let data = pattern(8192, 5).freeze();
            file.write_at(0, data.clone()).await?;
            file.sync().await?;
            assert_eq!(&file.read_at(0, 8192).await?[..], &data[..]);
            let (client, server) = loopback(&handle).await;
            handle.spawn(Class::Io, "echo", echo(server)).detach();
            client.send(vec![data.clone()]).await?;
            assert_eq!(&receive_exactly(&client, 8192).await[..], &data[..]);
            handle.sleep(Duration::from_micros(100)).await;
            io::Result::Ok(handle.offload(Duration::ZERO, || 7).await)
        });
        assert_eq!(outcome.expect("runs").expect("works"), 7);
    }
}

#[test]
fn a_sandbox_without_io_uring_gets_one_clear_error() {
    let thread = std::thread::Builder::new().spawn(|| {
        forbid_io_uring();
        run(Options::default(), |_| async {}).expect_err("forbidden").to_string()
    });
    let error = thread.expect("starts").join().expect("ends");
    assert!(error.contains("kernel.io_uring_disabled") && error.contains("seccomp"), "{error}");
}

/// Makes io_uring_setup fail with EPERM for this thread, as the seccomp profiles of containers do.
fn forbid_io_uring() {
    let instruction = |code: u32, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // the number of the system call
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32, 0, 1),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program outlives the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn signals_disturb_nothing() {
    extern "C" fn ignore(_signal: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = ignore;
    // SAFETY: the handler does nothing; without SA_RESTART it interrupts the system call that the loop sleeps in.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    // SAFETY: asks for this thread's own id.
    let this_thread = unsafe { libc::pthread_self() };
    let (to_loop, from_thread) = sync::mailbox::<u32>(1);
    let thread = std::thread::Builder::new().spawn(move || {
        for i in 0..100 {
            // SAFETY: the loop's thread waits for this one, so it exists.
            unsafe { libc::pthread_kill(this_thread, libc::SIGUSR1) };
            to_loop.send_blocking(i).expect("the loop listens");
        }
    });
    let count = run_default(|_| async move {
        let mut count = 0;
        while from_thread.recv().await.is_ok() {
            count += 1;
        }
        count
    });
    thread.expect("starts").join().expect("ends");
    assert_eq!(count, 100);
}

#[test]
fn jobs_on_the_pool_come_back() {
    run_default(|handle| async move {
        let jobs: Vec<_> = (0..200u64).map(|i| handle.offload(Duration::ZERO, move || i * i)).collect();
        for (i, job) in (0..200u64).zip(jobs) {
            assert_eq!(job.await, i * i);
        }
        assert_eq!(handle.statistics().offloads, 200);
    });
}

#[test]
#[should_panic(expected = "told apart")]
fn a_jobs_panic_is_its_callers() {
    run_default(|handle| async move { handle.offload(Duration::ZERO, || panic!("told apart")).await });
}

#[test]
fn an_idle_loop_takes_no_turns() {
    let turns = run_default(|handle| async move {
        let (_client, server) = loopback(&handle).await;
        let receive = async move { server.receive(AlignedBuf::zeroed(64), 0).await.0 };
        handle.spawn(Class::Io, "receive", receive).detach();
        handle.sleep(Duration::from_millis(1)).await;
        let before = handle.statistics().turns;
        handle.sleep(Duration::from_secs(1)).await;
        handle.statistics().turns - before
    });
    // One that arms the timer and sleeps, one that the timer starts; one more for a wait that ends a moment early.
    assert!(turns <= 3, "{turns} turns");
}

#[test]
fn timers_fire_in_order_and_not_early() {
    run_default(|handle| async move {
        let start = handle.now();
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = [3000u64, 1000, 2000]
            .map(|us| {
                let (handle, order) = (handle.clone(), order.clone());
                let sleep = handle.sleep_until(start + Duration::from_micros(us));
                handle.clone().spawn(Class::Io, "sleeper", async move {
                    sleep.await;
                    assert!(handle.now() >= start + Duration::from_micros(us));
                    order.borrow_mut().push(us);
                })
            })
            .into();
        for task in tasks {
            task.await;
        }
        assert_eq!(*order.borrow(), [1000, 2000, 3000]);
    });
}

#[test]
#[should_panic(expected = "a task's own")]
fn a_panic_of_a_task_ends_the_loop_in_order() {
    let (_directory, path) = scratch();
    run_default(|handle| async move {
        let file: File = handle.open(&path.join("file"), writing()).await.expect("opens");
        drop(file.write_at(0, pattern(1 << 20, 0).freeze()));
        panic!("a task's own");
    });
}

//! What a loop costs: durable appends and an echo over a Unix socket, measured through `Handle`.
//!
//! `cargo run --release -p runtime --example ping -- append FILE DEPTH COUNT` appends 4 KiB blocks with O_DIRECT and
//! O_DSYNC over a file that it zero-writes first. `... echo DEPTH COUNT` answers 4 KiB messages on a Unix socket; the
//! client is a thread of its own without a loop, so that the process time of the loop's thread is the server's alone.
//! `... mixed FILE DEPTH COUNT` appends while background tasks grind in steps of 20 us without end, with and without
//! priority-based task scheduling.
//! `... turn COUNT` measures tasks and timers alone, without the kernel. `... sleep US COUNT` measures how late timers
//! are. `... cross DEPTH COUNT` has another loop answer through a mailbox, as links between loops do, and the same on this
//! loop: the difference is what the two passages cost.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{AlignedBuf, Bytes, Histogram};
use policies::loop_schedule::{Discipline, LoopSettings};
use runtime::{Address, Class, File, Handle, OpenOptions, Stream, sync, uring};

const BLOCK: usize = 4096;
const FILE_SIZE: u64 = 256 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u64>().ok());
    let outcome = match (arguments.first().map(String::as_str), number(1), number(2), number(3)) {
        (Some("append"), _, Some(depth), Some(count)) => {
            let path = PathBuf::from(&arguments[1]);
            uring::run(uring::Options::default(), move |handle| append(handle, path, depth, count))
        }
        (Some("mixed"), _, Some(depth), Some(count)) => mixed(Path::new(&arguments[1]), depth, count),
        (Some("echo"), Some(depth), Some(count), _) => {
            uring::run(uring::Options::default(), move |handle| echo(handle, depth, count))
        }
        (Some("turn"), Some(count), _, _) => uring::run(uring::Options::default(), move |handle| turn(handle, count)),
        (Some("cross"), Some(depth), Some(count), _) => {
            uring::run(uring::Options::default(), move |handle| cross(handle, depth, count))
        }
        (Some("sleep"), Some(us), Some(count), _) => {
            uring::run(uring::Options::default(), move |handle| sleep(handle, us, count))
        }
        _ => {
            eprintln!(
                "usage: ping append FILE DEPTH COUNT | mixed FILE DEPTH COUNT | echo DEPTH COUNT | turn COUNT | sleep US COUNT | \
                 cross DEPTH COUNT"
            );
            std::process::exit(2);
        }
    };
    if let Err(error) = outcome {
        eprintln!("ping: {error}");
        std::process::exit(1);
    }
}

async fn append(handle: Handle, path: PathBuf, depth: u64, count: u64) {
    let file = zero_written(&handle, &path).await;
    let data = AlignedBuf::zeroed(BLOCK).freeze();
    let before = Usage::now(&handle);
    let workers: Vec<_> = (0..depth)
        .map(|worker| {
            let (inner, file, data) = (handle.clone(), file.clone(), data.clone());
            handle.spawn(Class::Io, "append", async move {
                let mut latency = Histogram::new();
                for i in 0..count / depth {
                    let block = i * depth + worker;
                    let start = inner.now();
                    file.write_at(block * BLOCK as u64 % FILE_SIZE, data.clone()).await.expect("writes");
                    latency.record(inner.now().nanos_since(start));
                }
                latency
            })
        })
        .collect();
    let mut latency = Histogram::new();
    for worker in workers {
        latency.merge(&worker.await);
    }
    report("append", &handle, &before, &latency);
}

fn mixed(path: &Path, depth: u64, count: u64) -> std::io::Result<()> {
    for discipline in [Discipline::Priority, Discipline::Fifo] {
        let schedule = LoopSettings { discipline, ..LoopSettings::default() };
        let path = path.to_owned();
        println!("{discipline:?}");
        uring::run(uring::Options { schedule }, move |handle| async move {
            let grinders: Vec<_> = (0..4)
                .map(|_| {
                    let inner = handle.clone();
                    handle.spawn(Class::Background, "grind", async move {
                        loop {
                            let start = inner.now();
                            while inner.now().nanos_since(start) < 20_000 {}
                            inner.yield_now().await;
                        }
                    })
                })
                .collect();
            append(handle.clone(), path, depth, count).await;
            drop(grinders);
            let statistics = handle.statistics();
            println!(
                "receive wait, ns: p50 {}, p99 {}; background took {} ms",
                statistics.receive_wait.quantile(500_000),
                statistics.receive_wait.quantile(990_000),
                statistics.background_ns / 1_000_000
            );
        })?;
    }
    Ok(())
}

async fn zero_written(handle: &Handle, path: &Path) -> File {
    let options = OpenOptions { write: true, create: true, direct: true, dsync: true, ..OpenOptions::default() };
    let file = handle.open(path, options).await.expect("opens");
    if file.length().await.expect("has a length") < FILE_SIZE {
        let zeros = AlignedBuf::zeroed(1 << 20).freeze();
        for offset in (0..FILE_SIZE).step_by(1 << 20) {
            file.write_at(offset, zeros.clone()).await.expect("writes");
        }
    }
    file
}

async fn echo(handle: Handle, depth: u64, count: u64) {
    let path = std::env::temp_dir().join(format!("levee-ping-{}.sock", std::process::id()));
    let listener = handle.listen(&Address::Unix(path.clone())).await.expect("listens");
    let client = std::thread::Builder::new().spawn(move || ping(&path, depth, count)).expect("starts");
    let stream = listener.accept().await.expect("accepts");
    let before = Usage::now(&handle);
    answer(&stream).await;
    let latency = client.join().expect("the client ends");
    report("echo", &handle, &before, &latency);
}

/// Sends back whole messages, all that have arrived in one gathered send.
async fn answer(stream: &Stream) {
    let (mut buffer, mut have) = (AlignedBuf::zeroed(64 * BLOCK), 0);
    loop {
        let (count, returned) = stream.receive(buffer, have).await;
        buffer = returned;
        have += match count.expect("receives") {
            0 => return,
            count => count,
        };
        let whole = have / BLOCK * BLOCK;
        if whole > 0 {
            let messages: Vec<Bytes> = buffer[..whole].chunks(BLOCK).map(Bytes::copy_from_slice).collect();
            buffer.copy_within(whole..have, 0);
            have -= whole;
            stream.send(messages).await.expect("sends");
        }
    }
}

/// Keeps `depth` messages in flight, on a thread without a loop.
fn ping(path: &Path, depth: u64, count: u64) -> Histogram {
    let mut stream = std::os::unix::net::UnixStream::connect(path).expect("connects");
    let mut message = vec![0u8; BLOCK];
    let mut latency = Histogram::new();
    let mut sent = std::collections::VecDeque::new();
    for i in 0..count + depth {
        if i >= depth {
            stream.read_exact(&mut message).expect("receives");
            let start: u64 = sent.pop_front().expect("one in flight");
            latency.record(clock_ns(libc::CLOCK_MONOTONIC) - start);
        }
        if i < count {
            sent.push_back(clock_ns(libc::CLOCK_MONOTONIC));
            stream.write_all(&message).expect("sends");
        }
    }
    latency
}

async fn turn(handle: Handle, count: u64) {
    let before = Usage::now(&handle);
    let mut latency = Histogram::new();
    for _ in 0..count {
        let start = handle.now();
        handle.spawn(Class::Io, "task", handle.yield_now()).await;
        latency.record(handle.now().nanos_since(start));
    }
    report("spawn, two polls, join", &handle, &before, &latency);
}

async fn sleep(handle: Handle, us: u64, count: u64) {
    let before = Usage::now(&handle);
    let mut late = Histogram::new();
    for _ in 0..count {
        let deadline = handle.now() + Duration::from_micros(us);
        handle.sleep_until(deadline).await;
        late.record(handle.now().nanos_since(deadline));
    }
    report("lateness", &handle, &before, &late);
}

/// What is done on the loop that is asked.
type Errand = Box<dyn FnOnce() + Send>;

/// Takes errands, and does each in a task of its own.
async fn serve(handle: Handle, errands: async_channel::Receiver<Errand>) {
    while let Ok(errand) = errands.recv().await {
        handle.spawn(Class::Io, "errand", async move { errand() }).detach();
    }
}

async fn cross(handle: Handle, depth: u64, count: u64) {
    let (near, far) = sync::mailbox::<Errand>(1024);
    handle.start_loop("far", move |other| serve(other, far)).await.expect("starts");
    errands("two loops", &handle, &near, depth, count).await;
    let (near, far) = sync::mailbox::<Errand>(1024);
    handle.spawn(Class::Io, "serve", serve(handle.clone(), far)).detach();
    errands("one loop", &handle, &near, depth, count).await;
}

/// Has errands done, so many at once.
async fn errands(what: &str, handle: &Handle, near: &async_channel::Sender<Errand>, depth: u64, count: u64) {
    let before = Usage::now(handle);
    let askers: Vec<_> = (0..depth)
        .map(|_| {
            let (inner, near) = (handle.clone(), near.clone());
            handle.spawn(Class::Io, "asker", async move {
                let mut latency = Histogram::new();
                for _ in 0..count / depth {
                    let start = inner.now();
                    let (sender, receiver) = sync::foreign();
                    near.send(Box::new(move || sender.send(()).unwrap_or_default())).await.expect("is taken");
                    receiver.await.expect("is done");
                    latency.record(inner.now().nanos_since(start));
                }
                latency
            })
        })
        .collect();
    let mut latency = Histogram::new();
    for asker in askers {
        latency.merge(&asker.await);
    }
    report(what, handle, &before, &latency);
}

/// The clock, and the processor time of this thread and of the process, at one moment.
struct Usage {
    wall_ns: u64,
    thread_ns: u64,
    process_ns: u64,
    turns: u64,
}

impl Usage {
    fn now(handle: &Handle) -> Self {
        Usage {
            wall_ns: clock_ns(libc::CLOCK_MONOTONIC),
            thread_ns: clock_ns(libc::CLOCK_THREAD_CPUTIME_ID),
            process_ns: clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID),
            turns: handle.statistics().turns,
        }
    }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn report(what: &str, handle: &Handle, before: &Usage, latency: &Histogram) {
    let after = Usage::now(handle);
    let count = latency.count().max(1);
    let us = |ns: u64| ns as f64 / 1000.0;
    println!(
        "{what}: {count} operations, p50 {:.1} us, p99 {:.1} us, {:.0}/s; per operation: {:.2} us of the loop's thread, \
         {:.2} us of the process, {:.2} turns",
        us(latency.quantile(500_000)),
        us(latency.quantile(990_000)),
        count as f64 * 1e9 / (after.wall_ns - before.wall_ns) as f64,
        us(after.thread_ns - before.thread_ns) / count as f64,
        us(after.process_ns - before.process_ns) / count as f64,
        (after.turns - before.turns) as f64 / count as f64,
    );
}

//! What a stream between processes costs: 4 KiB writes to a block service that stores nothing, called directly, and asked
//! over a stream by another thread with a loop of its own.
//!
//! `cargo run --release -p link --example passage -- DEPTH COUNT` does both in turn, five times, and prints medians; the
//! stream goes over a Unix socket, and over TCP on this machine. Processor time is that of the process: both sides.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a tool for the command line, with threads of its own"
)]

use std::rc::Rc;
use std::sync::mpsc;

use base::io::{AllocationExtent, fragment_checksums};
use base::{
    AlignedBuf, Bytes, Epoch, Generation, Histogram, Passage, ReadPart, Result, SegmentId, VolumeId, WriteStamp,
};
use link::stream::{FarEnd, NearEnd, Options, Services};
use runtime::{Address, Class, Handle, uring};
use wire::{Answer, Attachment, BlockService, LocalBoxFuture, Reply, SessionId, Target};

const BLOCK: usize = 4096;
const ROUNDS: usize = 5;

/// Takes everything, and forgets it.
struct Void;

fn done<T: 'static>(target: Target, value: T) -> LocalBoxFuture<'static, Answer<T>> {
    let reply = Reply { epoch: target.epoch, result: Ok(value), passage: Passage::default() };
    Box::pin(std::future::ready(Ok(reply)))
}

impl BlockService for Void {
    fn attach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(std::future::ready(Ok(Attachment { session: SessionId(1), epoch: Epoch(1) })))
    }

    fn detach(&self, _session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn read(&self, target: Target, _offset: u64, _len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        done(target, vec![])
    }

    fn write(
        &self,
        target: Target,
        _offset: u64,
        _data: Bytes,
        _checksums: Vec<u32>,
        _stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        done(target, ())
    }

    fn discard(&self, target: Target, _offset: u64, _len: u64, _stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        done(target, ())
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        done(target, ())
    }

    fn allocation(
        &self,
        target: Target,
        _offset: u64,
        _len: u64,
        _extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        done(target, vec![])
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [depth, count] = numbers[..] else {
        eprintln!("usage: passage DEPTH COUNT");
        std::process::exit(2);
    };
    let directory = tempfile::tempdir().expect("there is room for a socket");
    let unix = far(Address::Unix(directory.path().join("far.sock")));
    let tcp = far(Address::Tcp(([127, 0, 0, 1], 0).into()));
    let measured = uring::run(uring::Options::default(), move |handle| async move {
        let near = |address: Address| NearEnd::dial(&handle, address, Services::default(), Options::new("passage"));
        let ways: [(&str, Rc<dyn BlockService>); 3] =
            [("a call", Rc::new(Void)), ("a Unix socket", Rc::new(near(unix))), ("TCP", Rc::new(near(tcp)))];
        let mut rounds = ways.each_ref().map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for ((_, service), rounds) in ways.iter().zip(&mut rounds) {
                rounds.push(measure(&handle, service, depth, count).await);
            }
        }
        ways.iter().zip(rounds).map(|((name, _), rounds)| (*name, rounds)).collect::<Vec<_>>()
    });
    println!("{:<14} {:>12} {:>26}", "4 KiB writes", "p50, us", "processor time each, us");
    for (name, rounds) in measured.expect("io_uring") {
        let median = |value: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[ROUNDS / 2]
        };
        println!("{name:<14} {:>12.2} {:>26.2}", median(|round| round.0), median(|round| round.1));
    }
    drop(directory);
    // The threads of the far ends have no end of their own.
    std::process::exit(0);
}

/// Serves on a thread of its own; gives its address.
fn far(address: Address) -> Address {
    let (sender, receiver) = mpsc::channel();
    let serve = move |handle: Handle| async move {
        let services = Services { block: Some(Rc::new(Void)), ..Services::default() };
        let far = FarEnd::new(&handle, services, Options::new("void"));
        let listener = handle.listen(&address).await.expect("the address is free");
        sender.send(listener.address().clone()).expect("somebody wants it");
        far.serve(listener);
        std::future::pending::<()>().await;
    };
    std::thread::spawn(move || uring::run(uring::Options::default(), serve));
    receiver.recv().expect("it starts")
}

/// The median latency and the processor time of a request, in microseconds.
async fn measure(handle: &Handle, service: &Rc<dyn BlockService>, depth: u64, count: u64) -> (f64, f64) {
    let attachment = service.attach(VolumeId(1), Generation(1)).await.expect("it is served");
    let segment = SegmentId { volume: VolumeId(1), index: 0 };
    let target = Target {
        session: attachment.session,
        segment,
        epoch: attachment.epoch,
        level: base::levels::Level::Open,
        behind: 0,
    };
    let before = processor_ns();
    let worker = |_| {
        let (inside, service) = (handle.clone(), service.clone());
        let data = AlignedBuf::zeroed(BLOCK).freeze();
        handle.spawn(Class::Io, "writer", async move {
            let mut latency = Histogram::new();
            // Whoever writes makes them, whichever way the write goes.
            let checksums = fragment_checksums(target.segment, 0, &data);
            for _ in 0..count / depth {
                let begun = inside.now();
                let answer = service.write(target, 0, data.clone(), checksums.clone(), WriteStamp::default()).await;
                answer.expect("nothing is wrong").result.expect("it takes everything");
                latency.record(inside.now().nanos_since(begun));
            }
            latency
        })
    };
    let workers: Vec<_> = (0..depth).map(worker).collect();
    let mut latency = Histogram::new();
    for worker in workers {
        latency.merge(&worker.await);
    }
    let each = (processor_ns() - before) as f64 / latency.count() as f64;
    service.detach(attachment.session).await.expect("it is served");
    (latency.quantile(500_000) as f64 / 1e3, each / 1e3)
}

fn processor_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

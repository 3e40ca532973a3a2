//! Serves one volume from memory over NBD: what the frontend costs by itself, and something to try clients on.
//!
//! `cargo run --release -p agent --example memory -- SOCKET SIZE_MIB` serves until it is interrupted. Once a second it
//! prints what a request cost if there were any: processor time of this process, user and system, per request.

#[path = "../tests/common/memory.rs"]
mod memory;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use agent::{Agent, Options, VolumeStatistics};
use base::MIB;
use memory::Memory;
use runtime::{Address, Handle, uring};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(socket), Some(size)) = (arguments.first(), arguments.get(1).and_then(|size| size.parse::<u64>().ok()))
    else {
        eprintln!("usage: memory SOCKET SIZE_MIB");
        std::process::exit(2);
    };
    let address = Address::Unix(PathBuf::from(socket));
    let outcome = uring::run(uring::Options::default(), move |handle| serve(handle, address, size * MIB));
    if let Err(error) | Ok(Err(error)) = outcome {
        eprintln!("memory: {error}");
        std::process::exit(1);
    }
}

async fn serve(handle: Handle, address: Address, size: u64) -> std::io::Result<()> {
    let store = Memory::new("disk", size);
    let agent = Agent::new(&handle, store.clone(), Rc::clone(&store) as Rc<dyn wire::BlockService>, Options::default());
    agent.serve(handle.listen(&address).await?);
    eprintln!("serving {address:?}");
    let (mut cpu_before, mut count_before, mut turns_before) = (cpu_ns(), 0, 0);
    loop {
        handle.sleep(Duration::from_secs(1)).await;
        let count = agent.volume_statistics().iter().map(|(_, _, statistics)| requests(statistics)).sum();
        let (cpu, turns) = (cpu_ns(), handle.statistics().turns);
        if count > count_before {
            let each = |total: [u64; 2], part: usize| (total[part] - cpu_before[part]) / (count - count_before);
            let per_turn = (count - count_before) / (turns - turns_before).max(1);
            eprintln!(
                "{} requests, {} ns user and {} ns system each, {per_turn} per turn",
                count - count_before,
                each(cpu, 0),
                each(cpu, 1)
            );
        }
        (cpu_before, count_before, turns_before) = (cpu, count, turns);
    }
}

fn requests(statistics: &VolumeStatistics) -> u64 {
    let all = [&statistics.read, &statistics.write, &statistics.flush, &statistics.discard, &statistics.query];
    all.iter().map(|operation| operation.latency_ns.count() + operation.errors).sum()
}

/// User and system time of this process, in nanoseconds, to the kernel's tick.
fn cpu_ns() -> [u64; 2] {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat.rsplit(") ").next().unwrap_or("").split(' ').map(|f| f.parse().unwrap_or(0)).collect();
    [11, 12].map(|field| fields.get(field).copied().unwrap_or(0) * 10_000_000)
}

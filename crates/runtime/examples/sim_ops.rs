//! How fast the simulated world is: run it under `time`. It prints what it did; the clock is yours.
//!
//! Arguments: operations (default 1,000,000), tasks (default 8), and `files` or `sockets`.

use std::net::SocketAddr;
use std::path::Path;

use base::AlignedBuf;
use runtime::sim::{NodeOptions, World};
use runtime::{Address, Class, Handle, OpenOptions};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (operations, tasks): (u64, u64) = (number(1_000_000), number(8));
    let sockets = arguments.next().is_some_and(|what| what == "sockets");
    let world = World::new(1);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let inside = handle.clone();
            let rounds = operations / tasks;
            handle.spawn(Class::Io, "worker", async move {
                match sockets {
                    true => echo(inside, task, rounds).await,
                    false => write_and_read(inside, task, rounds).await,
                }
            })
        })
        .collect();
    world.block_on(&handle, async move {
        for task in running {
            task.await.expect("nothing goes wrong in this world");
        }
    });
    println!(
        "{} operations in {:.3} s of virtual time, history {:016x}",
        world.operations_done(),
        world.now().0 as f64 / 1e9,
        world.history_hash()
    );
}

/// Durable writes and reads of 4 KiB at random places of 16 MiB, one after the other.
async fn write_and_read(handle: Handle, task: u64, rounds: u64) -> std::io::Result<()> {
    let options = OpenOptions { write: true, create: true, direct: true, dsync: true, ..OpenOptions::default() };
    let file = handle.open(Path::new(&format!("/disk/{task}")), options).await?;
    let data = AlignedBuf::copy_of(&[7; 4096]).freeze();
    for round in 0..rounds / 2 {
        let offset = handle.random_u64() % 4096 * 4096;
        file.write_at(offset, data.clone()).await?;
        let offset = (offset + round) % 4096 * 4096;
        file.read_up_to(offset, 4096).await?;
    }
    Ok(())
}

/// 4 KiB there and back over a loopback connection: a send and a receive on either side.
async fn echo(handle: Handle, task: u64, rounds: u64) -> std::io::Result<()> {
    let address = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 1000 + task as u16)));
    let listener = handle.listen(&address).await?;
    let client = handle.connect(&address).await?;
    let server = listener.accept().await?;
    let data = AlignedBuf::copy_of(&[7; 4096]).freeze();
    let mut buffer = AlignedBuf::zeroed(4096);
    for _ in 0..rounds / 4 {
        for (from, to) in [(&client, &server), (&server, &client)] {
            from.send(vec![data.clone()]).await?;
            let mut received = 0;
            while received < data.len() {
                let (count, back) = to.receive(buffer, received).await;
                buffer = back;
                received += count?;
            }
        }
    }
    Ok(())
}

//! The same over real sockets: what the simulated network promises, the kernel keeps.

use runtime::{Address, Class, Handle, uring};
use wire::{BlockService, VolumeDirectory};

use super::store::Store;
use super::world::{attach, options, read, write};
use crate::stream::{FarEnd, NearEnd, Services};

/// Writes and reads over a socket at `address`, many requests at once and large ones.
async fn carry(handle: Handle, address: Address) {
    let store = Store::new(&handle);
    let end = FarEnd::new(&handle, store.services(), options("the store"));
    let listener = handle.listen(&address).await.unwrap();
    let address = listener.address().clone();
    end.serve(listener);
    let near = NearEnd::dial(&handle, address, Services::default(), options("an agent"));
    let target = attach(&near).await.unwrap();
    let writers: Vec<_> = (0..32u64)
        .map(|n| {
            let near = near.clone();
            let len = if n % 8 == 0 { 3 << 20 } else { 4096 * (1 + n as usize % 5) };
            handle.spawn(Class::Io, "writer", async move {
                let data: Vec<u8> = (0..len).map(|at| (at as u64 * 31 + n) as u8).collect();
                write(&near, target, n << 24, data.clone()).await.unwrap().result.unwrap();
                assert!(read(&near, target, n << 24, len as u64).await.unwrap().unwrap() == data, "{len} bytes");
            })
        })
        .collect();
    for writer in writers {
        writer.await;
    }
    BlockService::detach(&near, target.session).await.unwrap();
    end.stop().await;
    assert!(near.list().await.is_err(), "nobody listens any more");
    assert!(store.sessions.borrow().is_empty() && end.statistics().violations == 0);
}

#[test]
fn a_stream_carries_over_the_sockets_of_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let addresses = [Address::Tcp(([127, 0, 0, 1], 0).into()), Address::Unix(directory.path().join("levee.sock"))];
    for address in addresses {
        if let Err(error) = uring::run(uring::Options::default(), |handle| carry(handle, address)) {
            eprintln!("there is no real world here: {error}");
        }
    }
}

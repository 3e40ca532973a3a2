//! A client that expects its connection to end at any time.

use base::AlignedBuf;
use runtime::{Address, Handle, Stream};

/// A client of the volume `disk`. Whatever is `None` has no outcome: the connection is of no use any more.
pub struct Nbd(Stream);

impl Nbd {
    /// Connects, and names the volume.
    pub async fn attach(handle: &Handle, address: &Address) -> Option<Nbd> {
        let client = Nbd(handle.connect(address).await.ok()?);
        client.receive(18).await?;
        // Fixed newstyle without zeros; then EXPORT_NAME.
        let option = [&[0, 0, 0, 3], &b"IHAVEOPT"[..], &1u32.to_be_bytes(), &4u32.to_be_bytes(), b"disk"].concat();
        client.send(option).await?;
        client.receive(10).await?;
        Some(client)
    }

    pub async fn read(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        self.send(header(0, offset, len)).await?;
        self.outcome().await?;
        self.receive(len as usize).await
    }

    pub async fn write(&self, offset: u64, data: &[u8]) -> Option<()> {
        self.send([&header(1, offset, data.len() as u64)[..], data].concat()).await?;
        self.outcome().await
    }

    /// The head of a reply, unless it is an error.
    async fn outcome(&self) -> Option<()> {
        let head = self.receive(16).await?;
        (head[..8] == [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]).then_some(())
    }

    async fn send(&self, bytes: Vec<u8>) -> Option<()> {
        self.0.send(vec![bytes.into()]).await.ok()
    }

    async fn receive(&self, len: usize) -> Option<Vec<u8>> {
        let mut buffer = AlignedBuf::zeroed(len);
        let mut from = 0;
        while from < len {
            let (received, returned) = self.0.receive(buffer, from).await;
            let received = received.ok().filter(|&received| received > 0)?;
            (buffer, from) = (returned, from + received);
        }
        Some(buffer.to_vec())
    }
}

fn header(kind: u8, offset: u64, len: u64) -> Vec<u8> {
    let len = (len as u32).to_be_bytes();
    [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind][..], &7u64.to_be_bytes(), &offset.to_be_bytes(), &len].concat()
}

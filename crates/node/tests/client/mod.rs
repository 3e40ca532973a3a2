//! A client for tests of a whole store.

use base::{AlignedBuf, Bytes};
use runtime::{Address, Handle, Stream};

/// A client that speaks as much NBD as it takes to write and read.
pub struct Client(Stream);

impl Client {
    /// Connects, and names the volume.
    pub async fn attach(handle: &Handle, address: &Address, volume: &str) -> Client {
        let client = Client(handle.connect(address).await.unwrap());
        client.receive(18).await;
        // Fixed newstyle without zeros; then EXPORT_NAME.
        let length = (volume.len() as u32).to_be_bytes();
        client.send(&[&[0, 0, 0, 3], &b"IHAVEOPT"[..], &1u32.to_be_bytes(), &length, volume.as_bytes()]).await;
        client.receive(10).await;
        client
    }

    /// Sends bytes.
    pub async fn send(&self, parts: &[&[u8]]) {
        self.0.send(vec![Bytes::from(parts.concat())]).await.unwrap();
    }

    async fn receive(&self, len: usize) -> Vec<u8> {
        let mut buffer = AlignedBuf::zeroed(len);
        let mut from = 0;
        while from < len {
            let (received, returned) = self.0.receive(buffer, from).await;
            let received = received.unwrap();
            assert!(received > 0, "the server closed the connection");
            (buffer, from) = (returned, from + received);
        }
        buffer.to_vec()
    }

    /// The replies to as many requests, none of which failed; each with `len` bytes.
    pub async fn replies(&self, count: usize, len: usize) -> Vec<Vec<u8>> {
        let mut replies = Vec::new();
        for _ in 0..count {
            let header = self.receive(16).await;
            assert_eq!(header[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a simple reply without an error");
            replies.push(self.receive(len).await);
        }
        replies
    }
}

/// The head of a request: kind 0 reads, kind 1 writes the bytes that follow it.
pub fn request(kind: u8, offset: u64, len: u32) -> Vec<u8> {
    [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind][..], &7u64.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()]
        .concat()
}

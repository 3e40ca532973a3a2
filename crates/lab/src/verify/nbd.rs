//! A client of the NBD protocol, written for the laboratory: what the agent is asked by, over the simulated network.
//!
//! It knows the numbers of the protocol by itself instead of sharing the agent's, so that a mistake there is not
//! repeated here. One task receives; requests wait for the reply that bears their cookie.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use base::{AlignedBuf, Bytes};
use runtime::sync::{Budget, Event, Sender, oneshot};
use runtime::{Address, Class, Handle, Stream};

/// What is asked of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Command {
    /// Reads.
    Read = 0,
    /// Writes the payload.
    Write = 1,
    /// Makes answered writes durable.
    Flush = 3,
    /// Frees a range.
    Trim = 4,
    /// Zeros a range.
    WriteZeroes = 6,
}

/// NO_HOLE, a flag of WRITE_ZEROES.
pub const NO_HOLE: u16 = 1 << 1;

/// How long a client waits for anything: a server without power says nothing.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The error of a disk that says that a request failed, and not why.
pub const UNNAMED: u32 = u32::MAX;

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Done; with what was read.
    Done(Vec<u8>),
    /// An error number, or [`UNNAMED`].
    Failed(u32),
}

/// Why no reply comes any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// The connection ended.
    Broken,
    /// Nothing was heard for [`TIMEOUT`].
    TimedOut,
    /// Who has asked is no more.
    Ended,
    /// It was taken back before anybody began with it: it never happens.
    NotBegun,
}

/// A reply that is waited for: the length of what it brings, and who waits.
type Waiting = (usize, Sender<Reply>);

/// A connection to one volume. Dropping it closes it.
pub struct Connection {
    handle: Handle,
    stream: Stream,
    sending: Budget,
    next_cookie: Cell<u64>,
    waiting: Rc<RefCell<BTreeMap<u64, Waiting>>>,
    broken: Rc<Cell<bool>>,
    /// Notified when it broke.
    pub on_broken: Event,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stream.shutdown();
    }
}

impl Connection {
    /// Attaches to `volume`.
    ///
    /// # Errors
    /// Nobody answers, there is no such volume, or the connection broke.
    pub async fn attach(handle: &Handle, address: &Address, volume: &str) -> Result<Rc<Connection>, Gone> {
        within(handle, Connection::negotiate(handle, address, volume)).await?
    }

    async fn negotiate(handle: &Handle, address: &Address, volume: &str) -> Result<Rc<Connection>, Gone> {
        let stream = handle.connect(address).await.map_err(|_| Gone::Broken)?;
        let greeting = receive(&stream, 18).await?;
        if greeting[..16] != *b"NBDMAGICIHAVEOPT" {
            return Err(Gone::Broken);
        }
        // Fixed newstyle, no zeros; then EXPORT_NAME.
        let mut hello = vec![0, 0, 0, 3];
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1u32.to_be_bytes());
        hello.extend_from_slice(&(volume.len() as u32).to_be_bytes());
        hello.extend_from_slice(volume.as_bytes());
        stream.send(vec![hello.into()]).await.map_err(|_| Gone::Broken)?;
        receive(&stream, 10).await?;
        let connection = Rc::new(Connection {
            handle: handle.clone(),
            stream: stream.clone(),
            sending: Budget::new(1),
            next_cookie: Cell::new(1),
            waiting: Rc::default(),
            broken: Rc::default(),
            on_broken: Event::new(),
        });
        let (waiting, broken, event) =
            (connection.waiting.clone(), connection.broken.clone(), connection.on_broken.clone());
        let receiving = async move {
            while receive_reply(&stream, &waiting).await.is_ok() {}
            broken.set(true);
            // Whoever waits hears that nothing comes.
            let lost = std::mem::take(&mut *waiting.borrow_mut());
            drop(lost);
            event.notify();
        };
        handle.spawn(Class::Io, "lab receive", receiving).detach();
        Ok(connection)
    }

    /// Whether nothing more is answered.
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Sends a request and waits for its reply. `len` is in bytes.
    ///
    /// # Errors
    /// The connection broke before a reply came.
    pub async fn ask(&self, command: Command, flags: u16, offset: u64, len: u32, data: Bytes) -> Result<Reply, Gone> {
        let cookie = self.next_cookie.get();
        self.next_cookie.set(cookie + 1);
        let mut header = Vec::with_capacity(28);
        header.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        header.extend_from_slice(&flags.to_be_bytes());
        header.extend_from_slice(&(command as u16).to_be_bytes());
        header.extend_from_slice(&cookie.to_be_bytes());
        header.extend_from_slice(&offset.to_be_bytes());
        header.extend_from_slice(&len.to_be_bytes());
        let (sender, receiver) = oneshot();
        if self.is_broken() {
            return Err(Gone::Broken);
        }
        let expected = if command == Command::Read { len as usize } else { 0 };
        self.waiting.borrow_mut().insert(cookie, (expected, sender));
        let exchange = async {
            {
                let _alone = self.sending.take(1).await;
                self.stream.send(vec![header.into(), data]).await.map_err(|_| Gone::Broken)?;
            }
            receiver.await.ok_or(Gone::Broken)
        };
        let reply = within(&self.handle, exchange).await;
        if reply.is_err() {
            // What was sent in part cannot be taken back: nobody uses it any more.
            self.broken.set(true);
            self.close();
        }
        reply?
    }

    /// Ends it.
    pub fn close(&self) {
        self.stream.shutdown();
    }
}

/// What `future` gives, if it does in time.
async fn within<T>(handle: &Handle, future: impl Future<Output = T>) -> Result<T, Gone> {
    let (mut future, mut pause) = (pin!(future), pin!(handle.sleep(TIMEOUT)));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => pause.as_mut().poll(context).map(|()| Err(Gone::TimedOut)),
    })
    .await
}

async fn receive_reply(stream: &Stream, waiting: &RefCell<BTreeMap<u64, Waiting>>) -> Result<(), Gone> {
    let header = receive(stream, 16).await?;
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|k| header[at + k]));
    assert_eq!(word(0), 0x6744_6698, "a simple reply was asked for, and another thing came");
    let (error, cookie) = (word(4), u64::from(word(8)) << 32 | u64::from(word(12)));
    let (len, sender) = waiting.borrow_mut().remove(&cookie).expect("a reply answers a request");
    let reply = match error {
        0 => Reply::Done(receive(stream, len).await?),
        error => Reply::Failed(error),
    };
    sender.send(reply);
    Ok(())
}

async fn receive(stream: &Stream, len: usize) -> Result<Vec<u8>, Gone> {
    let mut buffer = AlignedBuf::with_capacity(len);
    while buffer.len() < len {
        let room = len - buffer.len();
        let (received, returned) = stream.receive_more(buffer, room).await;
        buffer = returned;
        if received.map_err(|_| Gone::Broken)? == 0 {
            return Err(Gone::Broken);
        }
    }
    Ok(buffer.to_vec())
}

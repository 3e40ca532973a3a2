//! Virtual machines as peers of a loop: their memory, what is rung at either end, and what their hypervisor asks of a
//! device.
//!
//! A hypervisor connects to a Unix socket and speaks vhost-user there: few messages, some with descriptors of memory and of
//! event counters, each answered before the next. [`Handle::attend`] takes such a connection and gives a [`Port`], out of
//! which the messages come as [`Ask`]s. What moves data is not in the messages: a device reads and writes the guest's
//! [`Memory`], waits for a [`Doorbell`](crate::Doorbell) that the guest rings, and rings another one.
//!
//! In the real world (`uring::guest`) memory is mapped from files, bells are event counters of the kernel, and a thread of
//! each connection receives messages and waits for their answers. In the simulated one all three are things of the process,
//! and a test is the hypervisor ([`Visitor`]). What a device makes of them cannot tell.
//!
//! Invariants: memory that was handed out stays mapped for as long as somebody has it, and cannot shrink; who drops a port
//! ends its connection; a bell that nobody waits for does no harm to whoever rings it.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

use vm_memory::{GuestAddress, GuestMemoryMmap};

/// Guest memory as the crates of rust-vmm know it.
pub type Map = GuestMemoryMmap<()>;

/// Where one region of a guest's memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its address in the guest.
    pub guest: u64,
    /// Its length in bytes, not 0.
    pub len: u64,
    /// Its address in the hypervisor.
    pub user: u64,
}

/// The memory of a guest, or an area that a hypervisor keeps for a device (one region, at 0). Clones are the same memory,
/// which is unmapped when the last one is dropped.
///
/// Somebody else changes it at any time: what matters is copied out once and looked at then.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    map: Map,
    regions: Vec<Region>,
}

impl Memory {
    /// Memory of this process, all zeros: what a guest of the simulated world has.
    ///
    /// # Errors
    /// Regions that overlap, and the lack of memory.
    pub fn plain(mut regions: Vec<Region>) -> io::Result<Memory> {
        regions.sort_by_key(|region| region.guest);
        let ranges: Vec<_> = regions.iter().map(|region| (GuestAddress(region.guest), region.len as usize)).collect();
        let map = Map::from_ranges(&ranges).map_err(io::Error::other)?;
        Ok(Memory::new(map, regions))
    }

    /// An area of so many zeros.
    ///
    /// # Errors
    /// The lack of memory.
    pub fn area(len: u64) -> io::Result<Memory> {
        Memory::plain(vec![Region { guest: 0, len, user: 0 }])
    }

    pub(crate) fn new(map: Map, regions: Vec<Region>) -> Memory {
        Memory(Arc::new(Inner { map, regions }))
    }

    /// The memory itself, by addresses of the guest.
    pub fn map(&self) -> &Map {
        &self.0.map
    }

    /// The guest's address of what the hypervisor has at `user`.
    pub fn guest_address(&self, user: u64) -> Option<u64> {
        let within = |region: &Region| user.checked_sub(region.user).filter(|offset| *offset < region.len);
        self.0.regions.iter().find_map(|region| Some(region.guest + within(region)?))
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.0.regions.iter().map(|region| region.len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.regions.is_empty()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Memory").field(&self.0.regions).finish()
    }
}

/// What a hypervisor asks of a device. Numbers of queues begin with 0.
// The documentation of a variant speaks of its fields.
#[allow(missing_docs)]
#[derive(Debug)]
pub enum Ask {
    /// The features that the device has: `Answer::Number`.
    Features,
    /// Those that the guest's driver takes.
    SetFeatures(u64),
    /// How many queues it can have: `Answer::Number`.
    QueuesMax,
    /// All of the guest's memory, from now on.
    SetMemory(Memory),
    /// How many descriptors a queue has.
    SetSize { queue: usize, size: u32 },
    /// Where the parts of a queue lie, in the hypervisor's addresses.
    SetAddresses { queue: usize, descriptors: u64, available: u64, used: u64 },
    /// Which place of the available ring comes next.
    SetNext { queue: usize, next: u32 },
    /// What the guest rings when something is available; none, if it is to be looked for all the time.
    SetKick { queue: usize, bell: Option<Bell> },
    /// What to ring when something was used, if anything.
    SetCall { queue: usize, bell: Option<Bell> },
    /// Whether a queue is served.
    SetEnabled { queue: usize, is_enabled: bool },
    /// Stop a queue; when nothing of it is in flight, `Answer::Number` with the next place of its available ring.
    Stop { queue: usize },
    /// A part of the configuration space: `Answer::Bytes` of that length.
    Config { offset: u32, len: u32 },
    /// How many bytes the hypervisor is to keep for the device, which says there what is in flight: `Answer::Number`.
    InflightLen { queues: u16, size: u16 },
    /// Those bytes; zeros, or what a former life of the device has left there.
    SetInflight { area: Memory, queues: u16, size: u16 },
    /// Forget everything but the connection.
    Reset,
}

/// What it is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It was done.
    Done,
    /// A number.
    Number(u64),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// Why it is not answered. Whoever says so ends the connection as well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(pub String);

/// An [`Ask`], and the way of its answer. Dropped without one, it ends the connection.
#[derive(Debug)]
pub struct Question {
    /// What is asked.
    pub ask: Ask,
    /// The way of its answer.
    pub reply: Reply,
}

impl Question {
    /// The question, and where its answer will be.
    pub(crate) fn new(ask: Ask) -> (Question, async_channel::Receiver<Result<Answer, Refusal>>) {
        let (reply, answer) = async_channel::bounded(1);
        (Question { ask, reply: Reply(reply) }, answer)
    }
}

/// The way of an answer.
#[derive(Debug)]
pub struct Reply(async_channel::Sender<Result<Answer, Refusal>>);

impl Reply {
    /// Answers.
    pub fn send(self, answer: Result<Answer, Refusal>) {
        // Nobody may be waiting any more.
        let _ = self.0.try_send(answer);
    }
}

/// A connection of a hypervisor, at the device's end. Dropped, it ends.
pub struct Port {
    questions: async_channel::Receiver<Question>,
    /// Ends the connection when it is dropped.
    _line: Box<dyn Any + Send>,
}

impl Port {
    pub(crate) fn new(questions: async_channel::Receiver<Question>, line: Box<dyn Any + Send>) -> Port {
        Port { questions, _line: line }
    }

    /// The next question; none when the hypervisor is gone.
    pub async fn next(&self) -> Option<Question> {
        self.questions.recv().await.ok()
    }
}

impl Drop for Port {
    /// What nobody will take any more is dropped here, because the queue itself lives as long as whoever asks: who waits for
    /// an answer learns that there is none.
    fn drop(&mut self) {
        self.questions.close();
        while self.questions.try_recv().is_ok() {}
    }
}

/// A connection in the simulated world, at the hypervisor's end. Dropped, it ends.
pub struct Visitor(async_channel::Sender<Question>);

impl Visitor {
    /// Asks the device.
    ///
    /// # Errors
    /// `ConnectionReset` where the device has ended the connection; a refusal as `Other`.
    pub async fn ask(&self, ask: Ask) -> io::Result<Answer> {
        let ended = || io::Error::from(io::ErrorKind::ConnectionReset);
        let (question, answer) = Question::new(ask);
        self.0.send(question).await.map_err(|_| ended())?;
        answer.recv().await.map_err(|_| ended())?.map_err(|Refusal(why)| io::Error::other(why))
    }

    /// Returns when the device has ended the connection.
    pub async fn ended(&self) {
        self.0.closed().await;
    }
}

/// The two ends of a connection within a process.
pub fn pair() -> (Visitor, Port) {
    let (sender, questions) = async_channel::bounded(1);
    (Visitor(sender), Port::new(questions, Box::new(())))
}

/// A bell on its way to the loop that will use it: [`Handle::hang`](crate::Handle::hang).
#[derive(Debug)]
pub struct Bell(pub(crate) Hung);

#[derive(Debug)]
pub(crate) enum Hung {
    /// In the form of its world.
    World(Box<dyn WorldBell>),
    /// Within the process: a bell that was rung and not heard is in the channel.
    Plain(async_channel::Sender<()>, async_channel::Receiver<()>),
}

/// A bell as its world has it.
pub(crate) trait WorldBell: Send + fmt::Debug {
    /// The same bell once more.
    fn share(&self) -> io::Result<Box<dyn WorldBell>>;
    /// What a loop of its world adopts.
    fn into_token(self: Box<Self>) -> Box<dyn Any + Send>;
}

impl Bell {
    /// The same bell once more, for another loop: what is rung, one of those hears that wait.
    ///
    /// # Errors
    /// The world's.
    pub fn share(&self) -> io::Result<Bell> {
        Ok(Bell(match &self.0 {
            Hung::World(bell) => Hung::World(bell.share()?),
            Hung::Plain(sender, receiver) => Hung::Plain(sender.clone(), receiver.clone()),
        }))
    }

    /// A bell within the process. Its clones by [`PlainBell::bell`] are the same one.
    pub fn plain() -> PlainBell {
        let (sender, receiver) = async_channel::bounded(1);
        PlainBell(sender, receiver)
    }
}

/// A bell of the simulated world, for whoever has both ends.
#[derive(Clone)]
pub struct PlainBell(async_channel::Sender<()>, async_channel::Receiver<()>);

impl PlainBell {
    /// The same bell, to be handed over.
    pub fn bell(&self) -> Bell {
        Bell(Hung::Plain(self.0.clone(), self.1.clone()))
    }

    /// Rings it. Rung twice before anybody hears, it has been rung once.
    pub fn ring(&self) {
        let _ = self.0.try_send(());
    }

    /// Waits until it is rung.
    pub async fn wait(&self) {
        // This end has a sender, too.
        let _ = self.1.recv().await;
    }
}

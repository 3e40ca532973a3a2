//! A guest with a driver of its own, and its hypervisor, for the simulated world: tests and the laboratory.
//!
//! **Intuition.** What the frontend serves is a virtual machine that somebody else has written. This one is ours: its memory
//! is plain memory of the process, its bells ring within the process, and whoever holds it is both its kernel, which puts
//! requests into rings, and its hypervisor, which says over a connection where they lie.
//!
//! **Names.** A *piece* is one buffer of a request. A request's *shape* says how it is cut into pieces and whether their
//! descriptors lie in a table of their own. Its *head* is the descriptor that it is known by. What was *asked* is in a ring
//! until the device has *used* it. The *introduction* is all that a hypervisor says of a guest before a device can run.
//!
//! **Invariants.** Memory and in-flight area belong to the guest, not to its connection: when the device's process dies, or the
//! connection ends, what was asked stays where it is, and [`Guest::connect`] lets the next life go on with it. A head that the
//! device uses was asked for and was not used before: the driver asserts that. Memory of a request is not handed out again
//! before that was used, if whoever asks heeds [`Guest::has_room`]. It breaks no rule by itself; whoever wants to puts chains
//! and numbers as they are ([`Guest::put_chain`], [`Guest::put`]).
//!
//! **Flow.** [`Guest::new`] -> [`Guest::connect`] -> [`Guest::request`], any number at once -> [`Guest::wait_used`] or
//! [`Guest::next_used`] -> [`Guest::answer`]. Addresses are those of the guest's memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use base::{MIB, Prng};
use runtime::guest::{Answer, Ask, Bell, Memory, PlainBell, Region, Visitor};
use runtime::{Address, Handle};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{ByteValued, Bytes, GuestAddress};

use super::inflight::area_len;
use super::protocol::{QUEUES_MAX, feature, kind};

/// Where the hypervisor has the guest's memory.
pub const USER: u64 = 0x7f00_0000_0000;
/// The second region, behind a hole.
pub const HIGH: u64 = 1 << 30;
/// Bytes of either region.
pub const REGION: u64 = 32 * MIB;
const MAPPED: &str = "the guest has memory there";
/// Buffers begin here; rings lie before.
const BUFFERS: u64 = MIB;

/// Flag of a descriptor: another one follows.
pub const NEXT: u16 = 1;
/// Flag of a descriptor: the device writes there.
pub const WRITE: u16 = 2;
/// Flag of a descriptor: it is a table of others.
pub const INDIRECT: u16 = 4;

/// How requests are laid out.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// In a table of its own.
    pub is_indirect: bool,
    /// Bytes of one piece at most.
    pub piece: u32,
}

/// As most requests are.
pub const PLAIN: Shape = Shape { is_indirect: false, piece: 1 << 16 };

/// A request that the guest has made, and where its answer will be.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What it is known by in its queue.
    pub head: u16,
    /// Pieces of what is written, with their lengths.
    pub input: Vec<(u64, u32)>,
    /// Pieces of what is read.
    pub answer: Vec<(u64, u32)>,
    /// Where its status will be.
    pub status: u64,
}

/// A queue, as the driver sees it.
pub struct Queue {
    /// Descriptors of its table, and places of its rings.
    pub size: u16,
    /// What the driver rings.
    pub kick: PlainBell,
    /// What the device rings.
    pub call: PlainBell,
    /// The index of the available ring.
    pub available: u16,
    /// How much of the used ring was looked at.
    pub seen: u16,
    /// Descriptors that nothing uses.
    free: Vec<u16>,
    /// By head: the descriptors of a request that is in use, and how much memory was handed out before it.
    used_by: Vec<(Vec<u16>, u64)>,
    /// Calls that came.
    pub calls: u64,
    /// Kicks that were given.
    pub kicks: u64,
}

/// See the module.
pub struct Guest {
    /// Two regions, with a hole between them.
    pub memory: Memory,
    /// What the hypervisor keeps for the device: what is in flight.
    pub area: Memory,
    /// Its queues.
    pub queues: Vec<Queue>,
    /// What the driver takes of what the device has.
    pub features: u64,
    /// The connection, if there is one. Dropped, it ends as it does with a hypervisor that is killed.
    pub visitor: Option<Visitor>,
    next_buffer: u64,
    /// Bytes of memory that were handed out so far.
    handed_out: u64,
    socket: PathBuf,
}

/// Connects to the device at `socket`, and says nothing yet. To be called on its machine.
///
/// # Errors
/// No device is there.
pub async fn dial(handle: &Handle, socket: &Path) -> io::Result<Visitor> {
    let stream = handle.connect(&Address::Unix(socket.to_owned())).await?;
    handle.visit(stream.release().await?)
}

/// Where the parts of a queue lie: the table of descriptors, the available and the used ring.
pub fn places(queue: usize) -> (u64, u64, u64) {
    let start = 0x1_0000 * (queue as u64 + 1);
    (start, start + 0x4000, start + 0x8000)
}

impl Guest {
    /// A guest whose hypervisor will connect to the device at `socket`, with so many queues of so many descriptors each.
    ///
    /// # Panics
    /// There is no memory, or no device has such queues.
    pub fn new(socket: impl Into<PathBuf>, queues: usize, size: u16) -> Guest {
        let regions = [0, HIGH].map(|guest| Region { guest, len: REGION, user: USER + guest });
        let memory = Memory::plain(regions.to_vec()).expect("there is memory");
        let len = area_len(queues as u16, size).expect("a device has such queues");
        let queue = |_| Queue {
            size,
            kick: Bell::plain(),
            call: Bell::plain(),
            available: 0,
            seen: 0,
            free: (0..size).rev().collect(),
            used_by: vec![(Vec::new(), 0); usize::from(size)],
            calls: 0,
            kicks: 0,
        };
        Guest {
            memory,
            area: Memory::area(len).expect("there is memory"),
            queues: (0..queues).map(queue).collect(),
            features: feature::VERSION_1 | feature::INDIRECT | feature::EVENT_IDX | feature::PROTOCOL | feature::MQ,
            visitor: None,
            next_buffer: BUFFERS,
            handed_out: 0,
            socket: socket.into(),
        }
    }

    /// Asks the device over the connection.
    ///
    /// # Errors
    /// There is no connection, it has ended, or the device refuses and ends it.
    pub async fn ask(&self, ask: Ask) -> io::Result<Answer> {
        match &self.visitor {
            Some(visitor) => visitor.ask(ask).await,
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Connects as QEMU does, also after the device was gone. A connection that is there ends.
    ///
    /// # Errors
    /// No device is there, or it ends the connection.
    pub async fn connect(&mut self, handle: &Handle) -> io::Result<()> {
        self.dial(handle).await?;
        self.set_up().await
    }

    /// Connects, and says nothing yet.
    ///
    /// # Errors
    /// No device is there.
    pub async fn dial(&mut self, handle: &Handle) -> io::Result<()> {
        self.visitor = Some(dial(handle, &self.socket).await?);
        Ok(())
    }

    /// Says all that a device must know before it runs.
    ///
    /// # Errors
    /// The connection has ended.
    ///
    /// # Panics
    /// The device lacks what every disk has.
    pub async fn set_up(&mut self) -> io::Result<()> {
        self.check_features(&self.ask(Ask::Features).await?);
        assert_eq!(self.ask(Ask::QueuesMax).await?, Answer::Number(QUEUES_MAX as u64));
        for ask in self.introduction() {
            self.ask(ask).await?;
        }
        Ok(())
    }

    /// Asserts that the device has the features that the driver takes. `answer` is that to [`Ask::Features`].
    pub fn check_features(&self, answer: &Answer) {
        let lacks = |has: &u64| self.features & !has & !feature::PROTOCOL;
        assert!(matches!(answer, Answer::Number(has) if lacks(has) == 0), "every disk has these features: {answer:?}");
    }

    /// What a device must be told before it runs. It is to be asked for when the device has answered something: what an earlier
    /// connection had in flight is used by then.
    pub fn introduction(&self) -> Vec<Ask> {
        let (queues, size) = (self.queues.len(), self.queues[0].size);
        let mut asks = vec![
            Ask::SetFeatures(self.features),
            Ask::SetInflight { area: self.area.clone(), queues: queues as u16, size },
            Ask::SetMemory(self.memory.clone()),
        ];
        asks.extend((0..queues).flat_map(|queue| self.introduction_of(queue)));
        asks.extend((0..queues).map(|queue| Ask::SetEnabled { queue, is_enabled: true }));
        asks
    }

    fn introduction_of(&self, queue: usize) -> [Ask; 5] {
        let of = &self.queues[queue];
        // What QEMU says after a device that was gone: as if all had been used in order.
        let next = u32::from(self.used_index(queue));
        let (descriptors, available, used) = places(queue);
        let [descriptors, available, used] = [descriptors, available, used].map(|place| USER + place);
        [
            Ask::SetSize { queue, size: u32::from(of.size) },
            Ask::SetNext { queue, next },
            Ask::SetAddresses { queue, descriptors, available, used },
            Ask::SetKick { queue, bell: Some(of.kick.bell()) },
            Ask::SetCall { queue, bell: Some(of.call.bell()) },
        ]
    }

    /// Says all that a device must know of one queue.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn set_up_queue(&mut self, queue: usize) -> io::Result<()> {
        for ask in self.introduction_of(queue) {
            self.ask(ask).await?;
        }
        Ok(())
    }

    /// Writes to its memory.
    ///
    /// # Panics
    /// There is none at that address. The same holds for whatever takes an address here.
    pub fn put<T: ByteValued>(&self, value: T, at: u64) {
        self.memory.map().write_obj(value, GuestAddress(at)).expect(MAPPED);
    }

    /// Reads its memory.
    pub fn get<T: ByteValued>(&self, at: u64) -> T {
        self.memory.map().read_obj(GuestAddress(at)).expect(MAPPED)
    }

    /// Memory for a buffer: in either region, again and again.
    fn buffer(&mut self, len: u32) -> u64 {
        let len = u64::from(len);
        if self.next_buffer % HIGH + len > REGION {
            self.next_buffer = if self.next_buffer < HIGH { HIGH } else { BUFFERS };
        }
        self.next_buffer += len;
        self.handed_out += len;
        self.next_buffer - len
    }

    /// Whether there is memory for `len` bytes more of requests that nothing in flight lies in.
    pub fn has_room(&self, len: u64) -> bool {
        let in_use = self.queues.iter().flat_map(|queue| &queue.used_by).filter(|(indices, _)| !indices.is_empty());
        let oldest = in_use.map(|(_, before)| *before).min().unwrap_or(self.handed_out);
        // Memory comes round after both regions, less what is left at the end of each.
        self.handed_out + len - oldest <= REGION
    }

    /// Descriptors of a queue that nothing uses.
    pub fn free(&self, queue: usize) -> usize {
        self.queues[queue].free.len()
    }

    /// Pieces of memory of `len` bytes in all.
    fn pieces(&mut self, len: u64, shape: Shape) -> Vec<(u64, u32)> {
        let (mut left, mut pieces) = (len, Vec::new());
        while left > 0 {
            let part = left.min(u64::from(shape.piece)) as u32;
            pieces.push((self.buffer(part), part));
            left -= u64::from(part);
        }
        pieces
    }

    /// Puts a request into a queue, without a kick: `data` to be written, `room` for what is read.
    ///
    /// # Panics
    /// The queue is full.
    pub fn put_request(&mut self, queue: usize, kind: u32, sector: u64, data: &[u8], room: u64, shape: Shape) -> Asked {
        let before = self.handed_out;
        let header = self.buffer(16);
        self.put(kind.to_le_bytes(), header);
        self.put([0u8; 4], header + 4);
        self.put(sector.to_le_bytes(), header + 8);
        let input = self.pieces(data.len() as u64, shape);
        let mut at = 0;
        for &(address, len) in &input {
            self.memory.map().write_slice(&data[at..at + len as usize], GuestAddress(address)).expect(MAPPED);
            at += len as usize;
        }
        let answer = self.pieces(room, shape);
        let status = self.buffer(1);
        self.put(0xffu8, status);
        let readable =
            std::iter::once((header, 16)).chain(input.iter().copied()).map(|(address, len)| (address, len, 0));
        let writable = answer.iter().copied().chain([(status, 1)]).map(|(address, len)| (address, len, WRITE));
        let all: Vec<(u64, u32, u16)> = readable.chain(writable).collect();
        let head = match shape.is_indirect {
            true => {
                let table = self.buffer(16 * all.len() as u32 + 16).next_multiple_of(16);
                for (index, (address, len, flags)) in all.iter().enumerate() {
                    let next = if index + 1 < all.len() { NEXT } else { 0 };
                    let descriptor = Descriptor::new(*address, *len, flags | next, index as u16 + 1);
                    self.put(descriptor, table + 16 * index as u64);
                }
                self.put_chain(queue, &[(table, 16 * all.len() as u32, INDIRECT)])
            }
            false => self.put_chain(queue, &all),
        };
        self.queues[queue].used_by[usize::from(head)].1 = before;
        Asked { head, input, answer, status }
    }

    /// Puts a chain of descriptors (address, length, flags) into a queue, as they are: its head.
    ///
    /// # Panics
    /// The queue is full.
    pub fn put_chain(&mut self, queue: usize, all: &[(u64, u32, u16)]) -> u16 {
        let of = &mut self.queues[queue];
        let indices: Vec<u16> = all.iter().map(|_| of.free.pop().expect("the queue has room")).collect();
        let (table, ..) = places(queue);
        for (n, (address, len, flags)) in all.iter().enumerate() {
            let next = indices.get(n + 1);
            let flags = flags | if next.is_some() { NEXT } else { 0 };
            let descriptor = Descriptor::new(*address, *len, flags, next.copied().unwrap_or(0));
            let place = GuestAddress(table + 16 * u64::from(indices[n]));
            self.memory.map().write_obj(descriptor, place).expect(MAPPED);
        }
        let head = indices[0];
        self.queues[queue].used_by[usize::from(head)] = (indices, self.handed_out);
        self.make_available(queue, head);
        head
    }

    /// Puts a head into the ring of what is available.
    pub fn make_available(&mut self, queue: usize, head: u16) {
        let (_, available, _) = places(queue);
        let of = &mut self.queues[queue];
        let place = available + 4 + 2 * u64::from(of.available % of.size);
        of.available = of.available.wrapping_add(1);
        let index = of.available;
        self.put(head, place);
        self.memory.map().store(index, GuestAddress(available + 2), Ordering::Release).expect(MAPPED);
    }

    /// Kicks a queue if the device wants that for what was made available since `before`.
    pub fn kick(&mut self, queue: usize, before: u16) {
        let (.., used) = places(queue);
        let of = &mut self.queues[queue];
        let event: u16 = self.memory.map().read_obj(GuestAddress(used + 4 + 8 * u64::from(of.size))).expect(MAPPED);
        let (new, old) = (of.available, before);
        let is_wanted = new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old);
        if is_wanted || self.features & feature::EVENT_IDX == 0 {
            of.kicks += 1;
            of.kick.ring();
        }
    }

    /// Puts a request into a queue and kicks it.
    pub fn request(&mut self, queue: usize, kind: u32, sector: u64, data: &[u8], room: u64, shape: Shape) -> Asked {
        let before = self.queues[queue].available;
        let asked = self.put_request(queue, kind, sector, data, room, shape);
        self.kick(queue, before);
        asked
    }

    /// The index of a queue's used ring.
    pub fn used_index(&self, queue: usize) -> u16 {
        let (.., used) = places(queue);
        self.memory.map().load(GuestAddress(used + 2), Ordering::Acquire).expect(MAPPED)
    }

    /// Takes the next request out of the ring of what was used, if there is one: its head, and how many bytes the device says
    /// that it has written.
    ///
    /// # Panics
    /// The device has used what nobody asked for, or something twice.
    pub fn next_used(&mut self, queue: usize) -> Option<(u16, u32)> {
        let (.., used) = places(queue);
        if self.used_index(queue) == self.queues[queue].seen {
            return None;
        }
        let of = &mut self.queues[queue];
        let place = used + 4 + 8 * u64::from(of.seen % of.size);
        of.seen = of.seen.wrapping_add(1);
        let (head, len): (u32, u32) = (self.get(place), self.get(place + 4));
        let of = &mut self.queues[queue];
        let (indices, _) = std::mem::take(&mut of.used_by[head as usize]);
        assert!(!indices.is_empty(), "a request that nobody made was used, or one twice");
        of.free.extend(indices);
        Some((head as u16, len))
    }

    /// Waits for the next used request of a queue.
    pub async fn wait_used(&mut self, queue: usize) -> (u16, u32) {
        loop {
            if let Some(used) = self.next_used(queue) {
                return used;
            }
            if !self.listen(queue) {
                self.queues[queue].call.clone().wait().await;
                self.queues[queue].calls += 1;
            }
        }
    }

    /// Asks to be called when something more is used in a queue; whether something is there already.
    pub fn listen(&self, queue: usize) -> bool {
        let (_, available, _) = places(queue);
        let of = &self.queues[queue];
        self.put(of.seen, available + 4 + 2 * u64::from(of.size));
        self.used_index(queue) != of.seen
    }

    /// The one request that is under way in a queue: its status, and what was read.
    ///
    /// # Panics
    /// Another one was used, or the device says another length.
    pub async fn outcome(&mut self, queue: usize, asked: &Asked) -> (u8, Vec<u8>) {
        let (head, len) = self.wait_used(queue).await;
        assert_eq!(head, asked.head);
        let answer = self.answer(asked);
        if answer.0 == 0 {
            assert_eq!(len as usize, answer.1.len() + 1);
        }
        answer
    }

    /// What was answered to a request that was used: its status, and what was read.
    pub fn answer(&self, asked: &Asked) -> (u8, Vec<u8>) {
        let mut bytes = Vec::new();
        for &(address, len) in &asked.answer {
            let mut piece = vec![0; len as usize];
            self.memory.map().read_slice(&mut piece, GuestAddress(address)).expect(MAPPED);
            bytes.extend(piece);
        }
        (self.get(asked.status), bytes)
    }

    /// Writes, alone in a queue: the status.
    pub async fn write(&mut self, queue: usize, sector: u64, data: &[u8], shape: Shape) -> u8 {
        let asked = self.request(queue, kind::OUT, sector, data, 0, shape);
        self.outcome(queue, &asked).await.0
    }

    /// Reads, alone in a queue: the status, and what was read.
    pub async fn read(&mut self, queue: usize, sector: u64, len: u64, shape: Shape) -> (u8, Vec<u8>) {
        let asked = self.request(queue, kind::IN, sector, &[], len, shape);
        self.outcome(queue, &asked).await
    }

    /// A request that says a range, alone in a queue: a discard, or zeroes. The status.
    pub async fn range(&mut self, queue: usize, kind: u32, sector: u64, count: u32, flags: u32) -> u8 {
        let said = [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat();
        let asked = self.request(queue, kind, 0, &said, 0, PLAIN);
        self.outcome(queue, &asked).await.0
    }

    /// Stops all queues and starts them anew with empty rings, as a driver that resets its disk does.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn reset(&mut self) -> io::Result<()> {
        for queue in 0..self.queues.len() {
            self.ask(Ask::Stop { queue }).await?;
        }
        self.renew();
        self.set_up().await
    }

    /// Forgets all that was asked: empty rings, in memory of their own. No device may know of the former ones any more.
    pub fn renew(&mut self) {
        let fresh = Guest::new(&self.socket, self.queues.len(), self.queues[0].size);
        (self.memory, self.area, self.queues) = (fresh.memory, fresh.area, fresh.queues);
        (self.next_buffer, self.handed_out) = (fresh.next_buffer, fresh.handed_out);
    }
}

/// Any shape.
pub fn shape(prng: &mut Prng) -> Shape {
    Shape { is_indirect: prng.one_in(2), piece: *prng.pick(&[512, 600, 4096, 1 << 16]) }
}

//! The clients of [`super::Latency`]: they write and read what the traffic says, when it says so.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use agent::forwarding::Forwarder;
use base::buffer::zeros;
use base::levels::Level;
use base::{Epoch, Histogram, Instant, Passage, SegmentId, Stage, VolumeId, WriteSequence, WriteStamp};
use runtime::sync::join_all;
use runtime::{Class, Handle};
use wire::{BlockService, Layout, SessionId, Target};

use super::super::cards::UnderWay;
use super::super::workload::{Read, Write};
use super::servers::{ATTACHED, STRIPE, WRITER};
use super::{Latency, WARM_UP};

/// Logs are looked at so often.
const LOOK: Duration = Duration::from_secs(1);

/// What was seen of logs.
#[derive(Default)]
struct Looks {
    waiting: Vec<u64>,
    /// Of each volume: the entries of all looks together, and the most.
    entries: Vec<(u64, u64)>,
}

impl Looks {
    fn look(&mut self, forwarder: &Forwarder, volumes: usize) {
        self.waiting.push(forwarder.waiting().0);
        self.entries.resize(volumes, (0, 0));
        for (volume, (sum, most)) in self.entries.iter_mut().enumerate() {
            let entries = forwarder.state(VolumeId(volume as u64)).map_or(0, |state| state.waiting_entries);
            *sum += entries;
            *most = entries.max(*most);
        }
    }

    fn entries(&self) -> Vec<(f64, u64)> {
        let looks = self.waiting.len().max(1) as f64;
        self.entries.iter().map(|(sum, most)| (*sum as f64 / looks, *most)).collect()
    }
}

/// What clients of all volumes do, and what came of it.
pub(super) struct Clients {
    handle: Handle,
    forwarder: Rc<Forwarder>,
    sessions: Vec<SessionId>,
    under_way: RefCell<UnderWay>,
    begun: Instant,
    measured: RefCell<Histogram>,
    read: RefCell<Histogram>,
    parts: RefCell<[Histogram; 2]>,
}

impl Clients {
    /// Clients of so many volumes, each of which is attached.
    pub(super) async fn attach(handle: &Handle, forwarder: Rc<Forwarder>, volumes: usize) -> Rc<Clients> {
        let mut sessions = Vec::new();
        for volume in 0..volumes as u64 {
            let attached = BlockService::attach(&*forwarder, VolumeId(volume), ATTACHED).await;
            sessions.push(attached.expect("a modelled server takes everybody").session);
        }
        Rc::new(Clients {
            under_way: RefCell::new(UnderWay::new(volumes)),
            handle: handle.clone(),
            forwarder,
            sessions,
            begun: handle.now(),
            measured: RefCell::default(),
            read: RefCell::default(),
            parts: RefCell::default(),
        })
    }

    /// Asks for all of it, and says how that went. If nothing is merged, writes that wait for it are not waited for.
    pub(super) async fn ask_all(self: Rc<Self>, writes: Vec<Write>, reads: Vec<Read>, is_merged: bool) -> Latency {
        let (mut tasks, mut logs, mut look) = (Vec::new(), Looks::default(), WARM_UP);
        let mut reads = reads.into_iter().peekable();
        for (number, write) in writes.into_iter().enumerate() {
            while let Some(read) = reads.next_if(|read| read.at_ns <= write.at_ns) {
                self.handle.sleep_until(self.begun + Duration::from_nanos(read.at_ns)).await;
                tasks.push(self.handle.spawn(Class::Io, "read", self.clone().read(read)));
            }
            let at = Duration::from_nanos(write.at_ns);
            self.handle.sleep_until(self.begun + at).await;
            tasks.push(self.handle.spawn(Class::Io, "write", self.clone().write(number as u64, write)));
            if tasks.len() >= 4096 {
                tasks.retain(|task| !task.is_finished());
            }
            if at >= look {
                look += LOOK;
                logs.look(&self.forwarder, self.sessions.len());
            }
        }
        for task in tasks {
            match is_merged {
                true => task.await,
                false => drop(task),
            }
        }
        let counted = self.forwarder.counted();
        Latency {
            writes: self.measured.take(),
            reads: self.read.take(),
            parts: self.parts.take(),
            bytes: [counted.written_bytes, counted.burst_bytes + counted.rescheduled_bytes, counted.merged_bytes],
            entries: logs.entries(),
            waiting: logs.waiting,
            balance: None,
        }
    }

    fn target(&self, volume: u32, segment: u32) -> Target {
        let segment = SegmentId { volume: VolumeId(volume.into()), index: segment };
        let session = self.sessions[volume as usize];
        Target { session, segment, epoch: Epoch(1), level: Level::Open, behind: 0 }
    }

    async fn read(self: Rc<Self>, read: Read) {
        let Read { at_ns, volume, offset, bytes } = read;
        let parts = Layout::new(STRIPE).pieces(offset..offset + bytes).map(|piece| {
            let asked = self.forwarder.read(self.target(volume, piece.segment), piece.offset, piece.len);
            async move { asked.await.expect("no link is lost").result.expect("nothing is refused") }
        });
        join_all(parts).await;
        let at = self.begun + Duration::from_nanos(at_ns);
        if at - self.begun >= WARM_UP {
            self.read.borrow_mut().record(self.handle.now().nanos_since(at));
        }
    }

    async fn write(self: Rc<Self>, number: u64, write: Write) {
        let Write { at_ns, volume, offset, bytes, .. } = write;
        let (at, range) = (self.begun + Duration::from_nanos(at_ns), offset..offset + bytes);
        let volume = volume as usize;
        while !self.under_way.borrow_mut().begin(volume, range.clone()) {
            self.handle.sleep(UnderWay::AGAIN).await;
        }
        let sequence = WriteSequence(number + 1);
        let stamp = WriteStamp { generation: WRITER, sequence, ..WriteStamp::default() };
        let parts = Layout::new(STRIPE).pieces(range.clone()).map(|piece| {
            let target = self.target(volume as u32, piece.segment);
            let this = &self;
            async move {
                // No server looks at checksums.
                let data = zeros(piece.len as usize);
                let answer = this.forwarder.write(target, piece.offset, data, Vec::new(), stamp).await;
                let reply = answer.expect("no link is lost");
                reply.result.expect("nothing is refused");
                (this.handle.now(), reply.passage)
            }
        });
        let last = join_all(parts).await.into_iter().max_by_key(|(at, _)| *at);
        self.under_way.borrow_mut().end(volume, range);
        if at - self.begun >= WARM_UP {
            let took = self.handle.now().nanos_since(at);
            let passage = last.map_or(Passage::default(), |(_, passage)| passage);
            let passed = passage.of(Stage::Payload);
            self.measured.borrow_mut().record(took);
            let [waiting, passing] = &mut *self.parts.borrow_mut();
            waiting.record(took.saturating_sub(passed + passage.of(Stage::Append)));
            passing.record(passed);
        }
    }
}

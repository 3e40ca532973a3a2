//! The logs of one volume, as its agent writes and reads them: segments of a hidden volume, one on each of several servers.
//!
//! Because a log is a segment like any other, it is durable, fenced, moved and adopted as any other is, and nothing here has to
//! know of servers. What is here is what a log is beside that: addresses ([`Space`]), whose turn it is ([`Turns`]), and the book.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::checksum::crc32c;
use base::io::fragment_checksums;
use base::levels::Level;
use base::{Bytes, Epoch, Error, Passage, ReadPart, Result, SegmentId, WriteSequence, WriteStamp};
use policies::forwarding::{Address, LogNumber, Reach, Space, Turns};
use runtime::sync::{Budget, join_all, oneshot};
use runtime::{Class, Handle};
use wire::{BlockService, LinkLost, SessionId, Target, VolumeDescriptor};

use super::book::{Book, FRONT, LOGS_MAX, Watermark};
use super::entry::{DATA_MAX, HEADER, Header};

/// How far behind the first append that has not landed there may be another one: as far as a traversal looks on over holes.
pub(super) const WINDOW: u64 = 4 << 20;
/// Bytes that a traversal reads at once.
const STEP: u64 = 1 << 20;

/// Why something in a log has no outcome, or none that can be used.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The server refused it, or could not.
    Refused(Error),
    /// Nobody knows what becomes of it, until the volume is attached anew.
    Lost(LinkLost),
}

impl From<LinkLost> for Trouble {
    fn from(lost: LinkLost) -> Trouble {
        Trouble::Lost(lost)
    }
}

impl Trouble {
    pub(super) fn into_error(self) -> Error {
        match self {
            Trouble::Refused(error) => error,
            Trouble::Lost(lost) => Error::io(lost.message),
        }
    }
}

/// See the module.
pub(super) struct Logs {
    handle: Handle,
    service: Rc<dyn BlockService>,
    /// The hidden volume, as it was attached.
    pub(super) volume: VolumeDescriptor,
    session: SessionId,
    spaces: RefCell<Vec<Space>>,
    turns: RefCell<Turns>,
    key: u64,
    pub(super) log_bytes: u64,
    book: Pages,
    last_sequence: Cell<u64>,
}

/// The book, as far as it is written.
struct Pages {
    turn: Budget,
    /// The last edition that was written, and of which state.
    edition: Cell<u64>,
    written: Cell<u64>,
    /// How often somebody wanted it written.
    wanted: Cell<u64>,
    /// Whether it says, durably, that there may be something in the logs.
    is_open: Cell<bool>,
}

/// What the logs of a volume were found to hold.
pub(super) struct Found {
    pub(super) watermarks: Vec<Watermark>,
    pub(super) headers: Vec<(LogNumber, Header)>,
}

impl Logs {
    /// The logs of a session with the hidden volume, and what is in them.
    ///
    /// # Errors
    /// Those of the link and of the servers.
    pub(super) async fn open(
        handle: &Handle,
        service: Rc<dyn BlockService>,
        volume: VolumeDescriptor,
        session: SessionId,
        log_bytes: u64,
    ) -> Result<(Rc<Logs>, Found)> {
        let count = (volume.segments as usize).min(LOGS_MAX);
        let reader = Reader { service: &*service, volume: &volume, session };
        let front = reader.read(LogNumber(0), 0, FRONT).await?;
        let found = Book::newest(&front).map_err(|error| error.context(format!("{:?}", volume.name)))?;
        let fresh =
            || Book { key: handle.random_u64(), lows: vec![Address(0); count], is_clean: true, ..Book::default() };
        let mut book = found.unwrap_or_else(fresh);
        if book.is_clean {
            // Nothing is there yet that lies where another length has it.
            book.log_bytes = log_bytes;
        }
        if book.lows.len() > count {
            let (logs, name) = (book.lows.len(), &volume.name);
            return Err(Error::corrupt(format!("the book of {name:?} knows {logs} logs, of which there are {count}")));
        }
        let scans = book.lows.iter().enumerate().map(|(number, low)| {
            let (reader, log, is_clean) = (&reader, LogNumber(number as u8), book.is_clean);
            async move {
                match is_clean {
                    true => Ok(Vec::new()),
                    false => reader.scan(log, *low, book.key, book.log_bytes).await,
                }
            }
        });
        let mut spaces = Vec::new();
        let mut headers = Vec::new();
        for (number, scanned) in join_all(scans).await.into_iter().enumerate() {
            let mut space = Space::new(book.log_bytes, book.log_bytes, WINDOW, book.lows[number]);
            for header in scanned? {
                space.found(header.at, header.space());
                headers.push((LogNumber(number as u8), header));
            }
            spaces.push(space);
        }
        let turns = Turns::new(spaces.len() as u8, (handle.random_u64() % spaces.len() as u64) as u8);
        let pages = Pages {
            turn: Budget::new(1),
            edition: Cell::new(book.edition),
            written: Cell::new(0),
            wanted: Cell::new(0),
            is_open: Cell::new(!book.is_clean),
        };
        let logs = Logs {
            handle: handle.clone(),
            service,
            volume,
            session,
            spaces: RefCell::new(spaces),
            turns: RefCell::new(turns),
            key: book.key,
            log_bytes: book.log_bytes,
            book: pages,
            last_sequence: Cell::new(0),
        };
        Ok((Rc::new(logs), Found { watermarks: book.segments, headers }))
    }

    /// Whether some log has room for an entry with so much data.
    pub(super) fn has_room(&self, data: u64) -> bool {
        self.spaces.borrow().iter().any(|space| space.has_room(HEADER + data))
    }

    /// The log whose turn it is, or the nearest one, and an address in it; none: there is no room in any.
    pub(super) fn reserve(&self, data: u64, reach: Reach) -> Option<(LogNumber, Address)> {
        let mut spaces = self.spaces.borrow_mut();
        let has_room = |log: LogNumber| spaces[usize::from(log.0)].has_room(HEADER + data);
        let log = self.turns.borrow_mut().next(self.handle.now(), reach, has_room)?;
        let at = spaces[usize::from(log.0)].reserve(HEADER + data)?;
        Some((log, at))
    }

    /// Whether the book says that there may be something in the logs, as it must before something is.
    pub(super) fn is_open(&self) -> bool {
        self.book.is_open.get()
    }

    /// Appends an entry: durable when it returns.
    ///
    /// # Errors
    /// After each of them nobody knows whether it is there.
    pub(super) async fn append(&self, log: LogNumber, header: Header, data: &[u8]) -> Result<Passage, Trouble> {
        let offset = FRONT + self.spaces.borrow()[usize::from(log.0)].offset(header.at);
        let begun = self.handle.now();
        let passage = self.write(log, offset, header.with(self.key, data)).await?;
        let now = self.handle.now();
        self.turns.borrow_mut().on_append(now, log, now.since(begun));
        self.spaces.borrow_mut()[usize::from(log.0)].landed(header.at);
        Ok(passage)
    }

    /// What is at these addresses.
    ///
    /// # Errors
    /// Those of the link and of the server.
    pub(super) async fn read(
        &self,
        log: LogNumber,
        at: u64,
        len: u64,
        level: Level,
    ) -> Result<(Vec<ReadPart>, Passage), Trouble> {
        let offset = FRONT + self.spaces.borrow()[usize::from(log.0)].offset(Address(at));
        let reply = self.service.read(Target { level, ..self.target(log) }, offset, len).await?;
        reply.result.map(|parts| (parts, reply.passage)).map_err(Trouble::Refused)
    }

    /// Which server has a log ([`BlockService::server`]).
    pub(super) fn server(&self, log: LogNumber) -> u64 {
        self.service.server(self.target(log), FRONT)
    }

    /// Nobody needs this entry any more.
    pub(super) fn release(&self, log: LogNumber, at: Address) {
        self.spaces.borrow_mut()[usize::from(log.0)].release(at);
    }

    /// Whether so much is free and not written down as such that the book should say so.
    pub(super) fn wants_book(&self) -> bool {
        self.spaces.borrow().iter().any(Space::wants_low)
    }

    /// Returns when a book is durable that was made after this was called. `state` says what is to be in it beside the lows, and
    /// whether nothing is in the logs.
    ///
    /// # Errors
    /// Nobody knows which book is there.
    pub(super) async fn write_book(self: &Rc<Self>, state: impl Fn() -> (Vec<Watermark>, bool)) -> Result<(), Trouble> {
        let pages = &self.book;
        let wanted = pages.wanted.get() + 1;
        pages.wanted.set(wanted);
        let alone = pages.turn.take(1).await;
        if pages.written.get() >= wanted {
            return Ok(());
        }
        let has_all = pages.wanted.get();
        let (segments, is_clean) = state();
        let lows: Vec<Address> = self.spaces.borrow().iter().map(Space::low).collect();
        let edition = pages.edition.get() + 1;
        let (key, log_bytes) = (self.key, self.log_bytes);
        let book = Book { key, edition, is_clean, log_bytes, lows: lows.clone(), segments };
        let bytes = book.bytes().map_err(Trouble::Refused)?;
        // An edition that was tried is not tried again with something else in it.
        pages.edition.set(edition);
        // From the first try on it may say so.
        pages.is_open.set(pages.is_open.get() && !is_clean);
        // It comes to an end before the next one begins, though nobody may wait for it any more: that after the next one is
        // written to the same place.
        let logs = self.clone();
        let writing = async move {
            tracing::trace!(volume = %logs.volume.name, ?book, "to be written down");
            logs.write(LogNumber(0), book.place(), bytes).await?;
            tracing::trace!(volume = %logs.volume.name, edition, "written down");
            logs.book.is_open.set(!is_clean);
            logs.book.written.set(has_all);
            for (space, low) in logs.spaces.borrow_mut().iter_mut().zip(lows) {
                space.low_is_durable(low);
            }
            drop(alone);
            Ok(())
        };
        to_its_end(&self.handle, "write the book of logs", writing).await?
    }

    /// Gives the session back.
    pub(super) async fn close(&self) -> Result<()> {
        self.service.detach(self.session).await
    }

    async fn write(&self, log: LogNumber, offset: u64, bytes: Bytes) -> Result<Passage, Trouble> {
        self.last_sequence.set(self.last_sequence.get() + 1);
        let (generation, sequence) = (self.volume.generation, WriteSequence(self.last_sequence.get()));
        let stamp = WriteStamp { generation, sequence, ..WriteStamp::default() };
        let target = self.target(log);
        let checksums = fragment_checksums(target.segment, offset, &bytes);
        let reply = self.service.write(target, offset, bytes, checksums, stamp).await?;
        reply.result.map(|()| reply.passage).map_err(Trouble::Refused)
    }

    fn target(&self, log: LogNumber) -> Target {
        target(&self.volume, self.session, log)
    }
}

/// Waits for something that goes on though nobody may wait for it any more.
///
/// # Errors
/// The loop is going away.
pub(super) async fn to_its_end<T: 'static>(
    handle: &Handle,
    name: &'static str,
    what: impl Future<Output = T> + 'static,
) -> Result<T, LinkLost> {
    let (done, outcome) = oneshot();
    handle.spawn(Class::Io, name, async move { done.send(what.await) }).detach();
    outcome.await.ok_or_else(|| LinkLost { message: "the agent is going away".to_owned() })
}

fn target(volume: &VolumeDescriptor, session: SessionId, log: LogNumber) -> Target {
    let segment = SegmentId { volume: volume.id, index: log.0.into() };
    Target { session, segment, epoch: Epoch(1), level: Level::Open, behind: 0 }
}

/// Reads what is in logs, before anybody writes there.
struct Reader<'a> {
    service: &'a dyn BlockService,
    volume: &'a VolumeDescriptor,
    session: SessionId,
}

impl Reader<'_> {
    async fn read(&self, log: LogNumber, offset: u64, len: u64) -> Result<Vec<u8>> {
        let answer = self.service.read(target(self.volume, self.session, log), offset, len).await;
        let parts = answer.map_err(|lost| Error::io(lost.message))?.result?;
        let mut bytes = Vec::with_capacity(len as usize);
        for part in parts {
            match part {
                ReadPart::Data(data) => bytes.extend_from_slice(&data),
                ReadPart::Zeros(len) => bytes.resize(bytes.len() + len as usize, 0),
            }
        }
        Ok(bytes)
    }

    /// What is whole in a log from `low` on, by address. It goes on over holes for as far as there may be one.
    async fn scan(&self, log: LogNumber, low: Address, key: u64, log_bytes: u64) -> Result<Vec<Header>> {
        let mut found = Vec::new();
        let (mut at, mut end) = (low.0, low.0);
        let mut step = (0, Vec::new());
        // An entry that would have crossed the end of the log left the space before that empty.
        while at < low.0 + log_bytes && at <= end + WINDOW + HEADER + DATA_MAX {
            if !(step.0..step.0 + step.1.len() as u64).contains(&at) {
                let offset = at % log_bytes;
                step = (at, self.read(log, FRONT + offset, STEP.min(log_bytes - offset)).await?);
            }
            let sector = &step.1[(at - step.0) as usize..];
            let header = sector.get(..HEADER as usize).and_then(|sector| Header::parse(sector, key, Address(at)));
            at += match header {
                Some(header) if self.is_whole(log, &header, log_bytes).await? => {
                    end = at + header.space();
                    found.push(header);
                    header.space()
                }
                _ => HEADER,
            };
        }
        Ok(found)
    }

    /// Whether all of an entry's data is there.
    async fn is_whole(&self, log: LogNumber, header: &Header, log_bytes: u64) -> Result<bool> {
        let Some(checksum) = header.data_checksum else { return Ok(true) };
        let offset = (header.at.0 + HEADER) % log_bytes;
        if offset + header.len > log_bytes {
            return Ok(false);
        }
        let data = self.read(log, FRONT + offset, header.len).await?;
        Ok(crc32c(&data) == checksum)
    }
}

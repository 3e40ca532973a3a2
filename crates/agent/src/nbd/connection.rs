//! One connection from its first byte to its last.
//!
//! ```text
//! receive -> header -> plan -> slot -> memory -> payload -> task: volume -> outbox -> send
//! ```
//!
//! One task receives and decides; each request that runs has a task of its own; one task sends. A request holds a
//! slot (256 of a connection) from its arrival until its reply is sent, refused ones included, and a request with a
//! payload holds memory, counted against the connection and against all of them. Whoever cannot get either stops
//! receiving: that is the back-pressure.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use base::{Bytes, Error, Instant, MIB, Passage, Result, Stage};
use policies::slow_requests::{self, Direction};
use policies::tenants;
use runtime::sync::{Budget, Permit};
use runtime::{Class, Stream, Work};

use super::end::End;
use super::entrance::Entrance;
use super::intake::Intake;
use super::negotiate::{Negotiated, negotiate};
use super::outbox::{Outbox, Permits};
use super::protocol::Errno;
use super::reply::Frames;
use super::request::{Command, Export, Header, Plan, plan_request};
use crate::accounts::{self, MEMORY_SHARE, take};
use crate::peers::Peer;
use crate::shared::Shared;
use crate::statistics::Operation;
use crate::volume::Volume;

/// Extents of one BLOCK_STATUS reply.
const EXTENTS_MAX: usize = 1024;

struct Connection {
    shared: Rc<Shared>,
    peer: Rc<Peer>,
    volume: Rc<Volume>,
    export: Export,
    /// Bytes of payload of this connection.
    memory: Budget,
    outbox: Outbox,
}

/// A request that runs.
struct Request {
    header: Header,
    command: Command,
    payload: Bytes,
    received_at: Instant,
    /// How long it may have lain there before that.
    unseen_ns: u64,
    /// How long it waited for a slot or for memory.
    intake_ns: u64,
    /// How long it waited for the rest of its payload.
    payload_ns: u64,
    permits: Permits,
}

/// Serves one connection to its end.
pub(crate) async fn serve_connection(shared: &Rc<Shared>, peer: &Rc<Peer>, stream: Stream, entrance: Entrance) {
    let handle = &shared.handle;
    let mut intake = Intake::new(handle, stream, shared.large_buffers.clone());
    let (impatient, timeout) = (peer.clone(), shared.options().handshake_timeout);
    let pause = handle.sleep(timeout);
    let watchdog = handle.spawn(Class::Io, "nbd handshake", async move {
        pause.await;
        tracing::info!(connection = impatient.id, ?timeout, "a handshake took too long");
        impatient.line.shutdown();
    });
    let negotiated = negotiate(shared, peer, &mut intake, entrance).await;
    drop(watchdog);
    let end = match negotiated {
        Ok(negotiated) => transmit(shared, peer, intake, negotiated).await,
        Err(end) => end,
    };
    log_end(shared, peer, &end);
}

/// The transmission phase. The volume is left when nothing of the connection is in flight.
async fn transmit(shared: &Rc<Shared>, peer: &Rc<Peer>, mut intake: Intake, negotiated: Negotiated) -> End {
    let Negotiated { volume, export } = negotiated;
    tracing::debug!(connection = peer.id, volume = %volume.descriptor().name, "a client attached");
    let share = (shared.options().payload_bytes_max / MEMORY_SHARE).max(MIB);
    let connection = Rc::new(Connection {
        shared: shared.clone(),
        peer: peer.clone(),
        volume: volume.clone(),
        export,
        memory: Budget::new(share),
        outbox: Outbox::default(),
    });
    let (sending, channel) = (connection.clone(), intake.channel().clone());
    let sender = shared.handle.spawn_ahead("nbd send", async move {
        sending.outbox.send(&sending.shared.handle, &sending.peer, &channel, &sending.volume.counters).await;
    });
    let end = receive_requests(&connection, &mut intake).await.unwrap_or_else(|end| end);
    drop(intake);
    // Every slot back means that every request was answered, or that the stream takes no answers.
    peer.slots.take(peer.slots.total()).await;
    drop(sender);
    shared.leave(volume.descriptor().id).await;
    end
}

/// Receives and starts requests until the connection ends.
async fn receive_requests(connection: &Rc<Connection>, intake: &mut Intake) -> Result<End, End> {
    loop {
        let Some(header) = Header::parse(intake.bytes())? else {
            intake.fill().await.map_err(End::Stream)?;
            continue;
        };
        intake.consume(Header::SIZE);
        let plan = plan_request(&header, &connection.export)?;
        if plan == Plan::Disconnect {
            return Ok(End::Clean);
        }
        let received_at = intake.received_at();
        let unseen_ns = intake.take_unseen_ns();
        let (slot, waited) = take(&connection.peer.slots, 1).await;
        if connection.peer.draining.get() {
            return Ok(End::Drained);
        }
        match plan {
            Plan::Run(command) => {
                let request = Request {
                    header,
                    command,
                    payload: Bytes::new(),
                    received_at,
                    unseen_ns,
                    intake_ns: 0,
                    payload_ns: 0,
                    permits: Permits { _slot: slot, memory: None },
                };
                let request = connection.accept(intake, request, waited).await?;
                let running = connection.clone();
                connection
                    .shared
                    .handle
                    .spawn(Class::Io, "nbd request", async move { running.run(request).await })
                    .detach();
            }
            refused => {
                intake.skip(header.payload_len()).await.map_err(End::Stream)?;
                connection.answer_at_once(&header, refused, slot);
            }
        }
    }
}

impl Connection {
    /// Takes memory and payload of a request that will run.
    async fn accept(&self, intake: &mut Intake, mut request: Request, mut waited: bool) -> Result<Request, End> {
        let len = u64::from(request.header.len);
        if matches!(request.command, Command::Read { .. } | Command::Write) {
            let (own, own_waited) = take(&self.memory, len.min(self.memory.total())).await;
            let (shared, shared_waited) = self.shared.take_payload(len).await;
            request.permits.memory = Some((own, shared));
            waited |= own_waited || shared_waited;
        }
        if waited {
            request.intake_ns = self.shared.handle.now().nanos_since(request.received_at);
        }
        if request.command == Command::Write {
            let begins = self.shared.handle.now();
            self.peer.receives_since.set(Some(begins));
            let payload = intake.payload(len as usize).await;
            self.peer.receives_since.set(None);
            request.payload = payload.map_err(End::Stream)?;
            // That of the payload is part of the wait for it.
            intake.take_unseen_ns();
            // Zero where all of it had come with the header.
            request.payload_ns = intake.received_at().nanos_since(begins);
        }
        Ok(request)
    }

    /// Answers a request that does not reach the volume.
    fn answer_at_once(&self, header: &Header, plan: Plan, slot: Permit) {
        let structured = self.export.structured;
        let permits = Permits { _slot: slot, memory: None };
        self.outbox.put(self.shared.handle.now(), permits, None, |out| match plan {
            Plan::Refuse { errno, reason } => out.put_error(structured, header.cookie, errno, reason),
            _ if structured => out.put_done(header.cookie),
            _ => out.put_simple(header.cookie, 0),
        });
        if matches!(plan, Plan::Refuse { .. }) {
            self.volume.counters.with(|counters| counters.refused += 1);
        }
    }

    /// Runs a request and queues its reply.
    async fn run(&self, mut request: Request) {
        let handle = &self.shared.handle;
        tracing::trace!(target: "levee::stage", connection = self.peer.id, cookie = request.header.cookie, "received");
        let wait = handle.now().nanos_since(request.received_at);
        self.volume.counters.with(|counters| counters.receive_wait_ns.record(wait));
        let (header, command) = (request.header, request.command);
        let mut passage = Passage::default();
        passage.add(Stage::Intake, request.intake_ns);
        passage.add(Stage::Payload, request.payload_ns);
        passage.fill(Stage::Turn, wait);
        let range = header.offset..header.offset + u64::from(header.len);
        let volume = &self.volume;
        let delay_ns = wait.saturating_sub(request.intake_ns + request.payload_ns);
        let level = volume.pass(command.priced_as(), u64::from(header.len), delay_ns, &mut passage).await;
        handle.spend(Work::Request);
        let outcome = match command {
            Command::Read { whole } => {
                volume.read(range, level, &mut passage).await.map(|parts| Answer::Parts { whole, parts })
            }
            Command::Write => {
                let outcome = volume.write(range.start, request.payload, level, &mut passage).await;
                // From here on the store accounts for the bytes that it keeps.
                request.permits.memory = None;
                outcome.map(|()| Answer::Done)
            }
            Command::Flush => volume.flush().await.map(|()| Answer::Done),
            Command::Trim | Command::WriteZeroes { allocate: false } => {
                volume.discard(range).await.map(|()| Answer::Done)
            }
            Command::WriteZeroes { allocate: true } => volume.write_zeros(range, level).await.map(|()| Answer::Done),
            Command::BlockStatus { one } => {
                let extents_max = if one { 1 } else { EXTENTS_MAX };
                volume.allocation(range, extents_max).await.map(Answer::Extents)
            }
            // Looking the range up brings its part of the index into memory, which is what a read would wait for.
            Command::Cache => volume.allocation(range, EXTENTS_MAX).await.map(|_| Answer::Done),
        };
        let now = handle.now();
        let latency_ns = now.nanos_since(request.received_at);
        let noted = note(&header, command, passage, request.unseen_ns, latency_ns);
        let error = outcome.as_ref().err().map(|error| error.kind);
        let bytes = u64::from(header.len);
        volume.counters.with(|counters| counters.on_outcome(command.operation(), latency_ns, bytes, error));
        tracing::trace!(target: "levee::stage", connection = self.peer.id, cookie = header.cookie, "reply queued");
        self.outbox.put(now, request.permits, noted, |out| match outcome {
            Ok(answer) => answer.put(out, self.export.structured, &header),
            Err(error) => {
                let errno = Errno::of(&error);
                out.put_error(self.export.structured, header.cookie, errno, public_message(errno, &error));
            }
        });
    }
}

/// What is kept of a read or write until its reply is sent: its stages add up to the time until now, with what it may
/// have lain there before.
fn note(
    header: &Header,
    command: Command,
    passage: Passage,
    unseen_ns: u64,
    latency_ns: u64,
) -> Option<slow_requests::Request> {
    let direction = match command {
        Command::Read { .. } => Direction::Read,
        Command::Write => Direction::Write,
        _ => return None,
    };
    let range = header.offset..header.offset + u64::from(header.len);
    Some(accounts::note(direction, range, passage, unseen_ns, latency_ns))
}

/// What a request that succeeded is answered with.
enum Answer {
    Done,
    Parts { whole: bool, parts: Vec<base::ReadPart> },
    Extents(Vec<base::AllocationExtent>),
}

impl Answer {
    fn put(self, out: &mut Frames, structured: bool, header: &Header) {
        match self {
            Answer::Done => out.put_simple(header.cookie, 0),
            Answer::Parts { whole, parts } if structured => {
                out.put_read_chunks(header.cookie, header.offset, whole, parts);
            }
            Answer::Parts { parts, .. } => out.put_read_simple(header.cookie, parts),
            Answer::Extents(extents) => out.put_block_status(header.cookie, &extents),
        }
    }
}

/// What a client is told: where files lie is for the log.
fn public_message(errno: Errno, error: &Error) -> &str {
    match errno {
        Errno::Io => "the store could not do this; its log says why",
        _ => &error.message,
    }
}

impl Header {
    /// Bytes that follow the header.
    fn payload_len(&self) -> usize {
        if self.kind == super::protocol::command::WRITE { self.len as usize } else { 0 }
    }
}

impl Command {
    /// What kind of request it is among those of all tenants.
    fn priced_as(&self) -> tenants::Operation {
        match self {
            Command::Read { .. } => tenants::Operation::Read,
            Command::Write | Command::WriteZeroes { allocate: true } => tenants::Operation::Write,
            Command::Trim | Command::WriteZeroes { allocate: false } => tenants::Operation::Discard,
            // Questions are not what anybody bursts with.
            Command::Flush | Command::Cache | Command::BlockStatus { .. } => tenants::Operation::Flush,
        }
    }

    fn operation(&self) -> Operation {
        match self {
            Command::Read { .. } => Operation::Read,
            Command::Write | Command::WriteZeroes { allocate: true } => Operation::Write,
            Command::Flush => Operation::Flush,
            Command::Trim | Command::WriteZeroes { allocate: false } => Operation::Discard,
            Command::Cache | Command::BlockStatus { .. } => Operation::Query,
        }
    }
}

/// One line for an end that somebody should know of.
fn log_end(shared: &Shared, peer: &Peer, end: &End) {
    let connection = peer.id;
    match end {
        _ if peer.stalled.get() => {
            tracing::warn!(connection, "a client held memory without moving while others waited; it was cut off");
        }
        End::Violation(violation) => {
            shared.commons.violations.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(connection, %violation, "a client broke the NBD protocol; its connection was ended");
        }
        End::Distrusted(error) => {
            shared.commons.violations.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(connection, %error, "a client was not let in");
        }
        End::Refused(error) => tracing::warn!(connection, %error, "a client asked for an export that it cannot have"),
        End::Stream(error) => tracing::debug!(connection, %error, "a connection ended"),
        End::Clean | End::Drained => tracing::debug!(connection, "a connection ended"),
    }
}

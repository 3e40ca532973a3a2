//! Routes to owners that remember what they were asked.

use base::{Epoch, ErrorKind};
use runtime::sim;

use super::*;

/// Who was asked for what.
type Log = Rc<RefCell<Vec<String>>>;

/// An owner with numbered sessions. Attaching fails once `fails` says so.
struct Owner {
    name: &'static str,
    sessions: Cell<u64>,
    fails: Cell<bool>,
    log: Log,
}

impl Owner {
    fn heard<T: 'static>(&self, what: String, answer: T) -> LocalBoxFuture<'_, T> {
        self.log.borrow_mut().push(format!("{} {what}", self.name));
        Box::pin(async move { answer })
    }

    fn on(&self, what: &str, target: Target) -> String {
        format!("{what} {} in {}", target.segment, target.session)
    }
}

fn reply<T>(value: T) -> Answer<T> {
    Ok(Reply { epoch: Epoch(1), result: Ok(value), passage: base::Passage::default() })
}

impl BlockService for Owner {
    fn attach(&self, volume: VolumeId, _: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        self.sessions.set(self.sessions.get() + 1);
        let session = SessionId(self.sessions.get());
        let attachment = match self.fails.get() {
            true => Err(Error::io("no")),
            false => Ok(Attachment { session, epoch: Epoch(1) }),
        };
        self.heard(format!("attach {volume}"), attachment)
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        self.heard(format!("detach {session}"), Ok(()))
    }

    fn read(&self, target: Target, _: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        self.heard(self.on("read", target), reply(vec![ReadPart::Zeros(len)]))
    }

    fn write(&self, target: Target, _: u64, _: Bytes, _: Vec<u32>, _: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        self.heard(self.on("write", target), reply(()))
    }

    fn discard(&self, target: Target, _: u64, _: u64, _: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        self.heard(self.on("discard", target), reply(()))
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        self.heard(self.on("flush", target), reply(()))
    }

    fn allocation(
        &self,
        target: Target,
        _: u64,
        len: u64,
        _: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        self.heard(self.on("allocation", target), reply(vec![AllocationExtent { len, allocated: true }]))
    }
}

/// Two owners, of the even and of the odd segments; the second one has had a session more. The routes of two loops.
fn two(handle: &Handle, log: &Log) -> ([Rc<Routes>; 2], [Rc<Owner>; 2]) {
    let owner = |name, sessions| {
        Rc::new(Owner { name, sessions: Cell::new(sessions), fails: Cell::new(false), log: log.clone() })
    };
    let owners = [owner("even", 0), owner("odd", 1)];
    let sessions = Sessions::default();
    let routes = [0, 1].map(|here| {
        let services = owners.iter().map(|owner| owner.clone() as Rc<dyn BlockService>).collect();
        Routes::new(handle, services, here, Rc::new(|segment| segment.index as usize % 2), sessions.clone())
    });
    (routes, owners)
}

fn target(session: SessionId, index: u32) -> Target {
    Target {
        session,
        segment: SegmentId { volume: VolumeId(1), index },
        epoch: Epoch(1),
        level: base::levels::Level::Open,
        behind: 0,
    }
}

#[test]
fn each_request_goes_to_the_owner_of_its_segment_in_its_own_session() {
    let log = Log::default();
    let inside = log.clone();
    sim::run(1, |handle| async move {
        let ([routes, _], _) = two(&handle, &inside);
        let session = routes.attach(VolumeId(1), Generation(1)).await.unwrap().session;
        let stamp = WriteStamp::default();
        routes.read(target(session, 3), 0, 512).await.unwrap().result.unwrap();
        routes.write(target(session, 2), 0, Bytes::new(), Vec::new(), stamp).await.unwrap().result.unwrap();
        routes.discard(target(session, 1), 0, 512, stamp).await.unwrap().result.unwrap();
        routes.flush(target(session, 0)).await.unwrap().result.unwrap();
        routes.allocation(target(session, 7), 0, 512, 1).await.unwrap().result.unwrap();
        routes.detach(session).await.unwrap();
        // What comes late is refused, as a session that has ended refuses it.
        let late = routes.read(target(session, 3), 0, 512).await.unwrap().result;
        assert_eq!(late.unwrap_err().kind, ErrorKind::Fenced);
        routes.detach(session).await.unwrap();
    });
    let expected = [
        "even attach v1",
        "odd attach v1",
        "odd read v1/3 in session 2",
        "even write v1/2 in session 1",
        "odd discard v1/1 in session 2",
        "even flush v1/0 in session 1",
        "odd allocation v1/7 in session 2",
        "even detach session 1",
        "odd detach session 2",
    ];
    assert_eq!(*log.borrow(), expected);
}

#[test]
fn an_owner_that_refuses_leaves_no_session_with_the_others() {
    let log = Log::default();
    let inside = log.clone();
    sim::run(1, |handle| async move {
        let ([routes, _], owners) = two(&handle, &inside);
        owners[1].fails.set(true);
        assert!(routes.attach(VolumeId(1), Generation(1)).await.is_err());
        assert!(routes.sessions.lock().is_empty());
    });
    assert_eq!(*log.borrow(), ["even attach v1", "odd attach v1", "even detach session 1"]);
}

/// What one loop's routes opened, those of another one use, until it has ended for all of them.
#[test]
fn loops_share_their_sessions() {
    let log = Log::default();
    let inside = log.clone();
    sim::run(1, |handle| async move {
        let ([first, second], _) = two(&handle, &inside);
        let open = |volume| first.attach(VolumeId(volume), Generation(1));
        let (one, other) = (open(1).await.unwrap().session, open(2).await.unwrap().session);
        inside.borrow_mut().clear();
        for session in [one, other] {
            second.read(target(session, 3), 0, 512).await.unwrap().result.unwrap();
        }
        assert_eq!(second.known.borrow().len(), 2);
        first.detach(one).await.unwrap();
        let late = second.read(target(one, 3), 0, 512).await.unwrap().result;
        assert_eq!(late.unwrap_err().kind, ErrorKind::Fenced);
        second.read(target(other, 3), 0, 512).await.unwrap().result.unwrap();
        // What has ended is not remembered for ever.
        assert_eq!(second.known.borrow().len(), 1);
    });
    let expected = [
        "odd read v1/3 in session 2",
        "odd read v1/3 in session 3",
        "even detach session 1",
        "odd detach session 2",
        "odd read v1/3 in session 3",
    ];
    assert_eq!(*log.borrow(), expected);
}

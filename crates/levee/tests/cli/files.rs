//! `levee lab files`: a shared store in a process of its own, asked over its socket as another process asks it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use base::{Bytes, Epoch, FileId, Generation, Incarnation, Instant, MIB, ReadPart, StoreId};
use wire::connection::{Connection, Event, Needs, Options};
use wire::files::{FileDescriptor, Life, NewFile};
use wire::frame::{Frame, Marks, Request, Services, Value};

use crate::store::{Store, levee, refused, text};

/// A shared store that runs. It is killed when dropped.
struct Files {
    child: Child,
    line: String,
}

impl Files {
    fn start(arguments: &[&str]) -> Files {
        let mut command = levee(&["lab", "files"]);
        let mut child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut error = String::new();
            child.stderr.as_mut().unwrap().read_to_string(&mut error).unwrap();
            panic!("it did not start: {error}");
        }
        Files { child, line }
    }

    /// Asks it to stop; its exit code, and what it said on standard error.
    fn stop(mut self, signal: &str) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let code = self.child.wait().unwrap().code();
        let mut said = Vec::new();
        self.child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
        (code, text(&said))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other end of a connection with it, which asks one thing at a time.
struct Client {
    stream: UnixStream,
    connection: Connection,
    there: Bytes,
}

impl Client {
    fn dial(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let options = Options {
            services: Services::default(),
            requests_max: 4,
            bytes_max: 64 << 20,
            silence: Duration::from_secs(60),
            name: "a test".into(),
        };
        let (connection, hello) = Connection::new(options, Instant::ZERO);
        let mut client = Client { stream, connection, there: Bytes::new() };
        client.send(&hello);
        assert!(matches!(client.next(), Event::Greeted(hello) if hello.services.files && !hello.services.block));
        client
    }

    fn send(&mut self, frame: &Frame) {
        self.stream.write_all(&frame.head).unwrap();
        frame.payload.iter().for_each(|part| self.stream.write_all(part).unwrap());
    }

    fn next(&mut self) -> Event {
        loop {
            if let Needs::Payload(len) = self.connection.needs() {
                if self.there.len() >= len {
                    let payload = self.there.split_to(len);
                    return self.connection.receive_payload(payload).unwrap();
                }
            } else if let Some(event) = self.connection.receive(&mut self.there).unwrap() {
                return event;
            } else if matches!(self.connection.needs(), Needs::Payload(_)) {
                continue;
            }
            let mut more = [0; 65536];
            let count = self.stream.read(&mut more).unwrap();
            assert!(count > 0, "the store has ended the connection");
            self.there = [&self.there[..], &more[..count]].concat().into();
        }
    }

    fn ask(&mut self, request: Request) -> base::Result<Value> {
        let (asked, frame) = self.connection.ask(Instant::ZERO, request, Marks::default());
        self.send(&frame);
        match self.next() {
            Event::Reply { sequence, reply } if sequence == asked => reply.result,
            other => panic!("{other:?}"),
        }
    }

    fn join(&mut self) -> (StoreId, Life) {
        let Value::Joined(store, incarnation) = self.ask(Request::Join).unwrap() else { panic!("no number") };
        let life = Life { incarnation, generation: Generation(1) };
        assert!(
            matches!(self.ask(Request::Enter { store, life }), Ok(Value::Space(space)) if space.granted > 64 * MIB)
        );
        (store, life)
    }

    /// A file with something in it that was confirmed.
    fn write(&mut self, life: Life) -> FileId {
        let file =
            NewFile { kind: 1, capacity: MIB, copies: 2, prepared: true, epoch: Epoch(1), segment: None, claim: 0 };
        let created = self.ask(Request::CreateFile { life, file }).unwrap();
        let Value::Created(FileDescriptor { id, copies, .. }, _) = created else { panic!("{created:?}") };
        assert_eq!(copies, 2);
        for (offset, len) in [(0, 4096), (4096, 128 * 1024)] {
            let data = Bytes::from(vec![0x5a; len]).into();
            assert_eq!(self.ask(Request::Append { life, file: id, offset, data }).unwrap(), Value::Done);
        }
        id
    }

    fn check(&mut self, life: Life, file: FileId) {
        for copy in [None, Some(0), Some(1)] {
            let read = self.ask(Request::ReadFile { life, file, copy, offset: 0, len: 132 * 1024 }).unwrap();
            let Value::Parts(parts) = read else { panic!("{read:?}") };
            assert!(matches!(&parts[..], [ReadPart::Data(data)] if data[..] == [0x5a; 132 * 1024]));
        }
    }
}

#[test]
fn a_shared_store_outlives_its_process() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (one, two, socket) = (path("one"), path("two"), path("store.sock"));
    let listen = format!("unix:{socket}");
    let arguments = ["--dir", &one, "--dir", &two, "--listen", &listen];
    let mut files = Files::start(&arguments);
    assert!(files.line.contains("for tests") && files.line.contains(&listen), "{}", files.line);
    let mut client = Client::dial(socket.as_ref());
    let (store, life) = client.join();
    let file = client.write(life);
    // Killed: what was confirmed is there, and the life goes on.
    files.child.kill().unwrap();
    files.child.wait().unwrap();
    let files = Files::start(&arguments);
    let mut client = Client::dial(socket.as_ref());
    let refused = client.ask(Request::DeleteFile { life, file }).unwrap_err();
    assert_eq!(refused.kind, base::ErrorKind::Retry, "{refused}");
    let life = Life { generation: Generation(2), ..life };
    client.ask(Request::Enter { store, life }).unwrap();
    client.check(life, file);
    let sealed = client.ask(Request::Seal { life, file, length: 132 * 1024 }).unwrap();
    assert!(matches!(sealed, Value::File(Some(file)) if file.sealed == Some(132 * 1024)), "{sealed:?}");
    let mut other = Client::dial(socket.as_ref());
    let (_, fencer) = other.join();
    other.ask(Request::Fence { store, incarnation: life.incarnation }).unwrap();
    assert_eq!(client.ask(Request::DeleteFile { life, file }).unwrap_err().kind, base::ErrorKind::Fenced);
    other.check(fencer, file);
    // Stopped, with connections that are open.
    let (code, said) = files.stop("TERM");
    assert!(code == Some(0) && said.is_empty(), "{code:?} {said}");
    assert!(!Path::new(&socket).exists());

    // On a socket in its directory, if on no other one.
    let files = Files::start(&arguments[..4]);
    let default = format!("{one}/files.sock");
    assert!(files.line.contains(&format!("unix:{default}")), "{}", files.line);
    let mut client = Client::dial(default.as_ref());
    let Value::Lives(lives) = client.ask(Request::Lives { after: Incarnation(0) }).unwrap() else { panic!("no lives") };
    assert_eq!(lives.iter().filter(|life| life.is_fenced).count(), 1, "{lives:?}");
    drop(client);
    assert_eq!(files.stop("INT").0, Some(0));
    // Over TCP.
    let files = Files::start(&["--dir", &one, "--dir", &two, "--listen", "127.0.0.1:0"]);
    assert!(files.line.contains(" 127.0.0.1:") && !files.line.contains(":0."), "{}", files.line);
}

#[test]
fn what_keeps_a_shared_store_from_starting_is_said() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let start = |arguments: &[&str]| refused(1, &[&["lab", "files"], arguments].concat());
    std::fs::write(path("file"), "content").unwrap();
    assert!(start(&["--dir", &path("file")]).contains("file"));
    std::fs::create_dir(path("full")).unwrap();
    std::fs::write(path("full/photo.jpg"), "content").unwrap();
    assert!(start(&["--dir", &path("full")]).contains("photo.jpg"));

    let socket = format!("unix:{}", path("a.sock"));
    let files = Files::start(&["--dir", &path("a"), "--listen", &socket]);
    let taken = start(&["--dir", &path("b"), "--listen", &socket]);
    assert!(taken.contains("a.sock") && taken.contains("choose another address with --listen"), "{taken}");
    let held = start(&["--dir", &path("a")]);
    assert!(held.contains("in use by levee lab files") && held.contains(&files.child.id().to_string()), "{held}");
    drop(files);

    // A store that is not shared is left alone.
    let store = Store::start(&scratch.path().join("store"), &["--volume", "vm-1", "--size", "1G"]);
    assert_eq!(store.stop("TERM").code(), Some(0));
    let other = start(&["--dir", &path("store")]);
    assert!(other.contains("not shared") && other.contains("another directory"), "{other}");
    let store = Store::start(&scratch.path().join("store"), &[]);
    assert_eq!(store.json(&["volume", "show", "vm-1"])["id"], 1);

    for arguments in [&["lab", "files"][..], &["lab", "files", "--dir", "x", "--listen", "nowhere"]] {
        refused(2, arguments);
    }
    let nowhere = refused(2, &["lab", "files", "--dir", "x", "--listen", "nowhere"]);
    assert!(nowhere.contains("unix:PATH"), "{nowhere}");
}

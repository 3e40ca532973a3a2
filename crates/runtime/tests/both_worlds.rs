//! The simulated world answers as Linux does: the same code runs in both, and notes the same.
//!
//! Each scenario writes down what it got: lengths, bytes, kinds of errors. The real notes are the truth that the
//! simulated ones are compared with. Where io_uring is not to be had, nothing can be compared, and the test says so.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{AlignedBuf, Bytes};
use runtime::sim::{DiskOptions, NetworkOptions, NodeOptions, World};
use runtime::{Address, Class, File, Handle, OpenOptions, Released, Stream};

const READ: OpenOptions = OpenOptions { write: false, create: false, exclusive: false, direct: false, dsync: false };
const CREATE: OpenOptions = OpenOptions { write: true, create: true, ..READ };

/// What a scenario saw.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn add<T: Debug>(&mut self, what: &str, result: io::Result<T>) {
        let result = result.map_err(|error| error.kind());
        self.0.push(format!("{what}: {result:?}"));
    }
}

/// Runs a scenario in both worlds, in a directory of the same name, and compares its notes.
fn compare<F: Future<Output = Notes> + 'static>(scenario: impl Fn(Handle, PathBuf) -> F) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
    let path = directory.path().to_owned();
    let real = match runtime::uring::run(Default::default(), |handle| scenario(handle, path.clone())) {
        Ok(notes) => notes,
        Err(error) => return eprintln!("nothing to compare with: {error}"),
    };
    for seed in 0..20 {
        let world = World::new(seed);
        let node = world.add_node(NodeOptions::with_disks([&path], &DiskOptions::default()));
        // What is sent at once arrives at once, as it does within a machine.
        world.set_network(NetworkOptions { split_one_in: 0, ..NetworkOptions::default() });
        let handle = world.start_loop(node);
        let simulated = world.block_on(&handle, scenario(handle.clone(), path.clone()));
        assert_eq!(simulated.0, real.0, "seed {seed}: left is simulated, right is real");
    }
}

fn bytes(value: u8, len: usize) -> Bytes {
    vec![value; len].into()
}

async fn read(file: &File, offset: u64, len: usize) -> io::Result<(usize, Vec<u8>)> {
    let buffer = file.read_up_to(offset, len).await?;
    Ok((buffer.len(), buffer.iter().take(8).copied().collect()))
}

/// Another loop answers until nobody can ask it any more; then what it had open is closed.
/// A stream goes on where another loop takes it over, and ends where nobody does.
#[test]
fn a_stream_moves_to_another_loop() {
    compare(|handle, directory| async move {
        let mut notes = Notes::default();
        let (moved, streams) = runtime::sync::mailbox::<Released>(1);
        let started = handle.start_loop("other", move |other| async move {
            while let Ok(released) = streams.recv().await {
                let stream = other.adopt(released).await.unwrap();
                let first = receive(&stream).await.unwrap();
                send(&stream, if first == b'a' { b"A" } else { b"?" }).await.unwrap();
                // Closed with this one's end.
            }
        });
        notes.add("start", started.await);
        let [client, accepted] = pair(&handle, &Address::Unix(directory.join("socket"))).await;
        send(&client, b"a").await.unwrap();
        moved.send(accepted.release().await.unwrap()).await.unwrap();
        notes.add("from there", receive(&client).await);
        notes.add("at its end", receive(&client).await);
        let [client, accepted] = pair(&handle, &Address::Unix(directory.join("another"))).await;
        let released = accepted.release().await.unwrap();
        drop(released);
        notes.add("dropped on its way", receive(&client).await);
        notes
    });
}

#[test]
fn another_loop() {
    compare(|handle, directory| async move {
        let mut notes = Notes::default();
        let (question, questions) = runtime::sync::mailbox::<u64>(1);
        let (answer, answers) = runtime::sync::mailbox::<String>(1);
        let path = directory.join("locked");
        let there = path.clone();
        let started = handle.start_loop("other", move |other| async move {
            let file = other.open(&there, CREATE).await.unwrap();
            file.write_at(0, bytes(9, 4096)).await.unwrap();
            assert!(file.try_lock().await.unwrap());
            while let Ok(number) = questions.recv().await {
                answer.send(format!("{number} bytes: {:?}", read(&file, 0, number as usize).await)).await.unwrap();
            }
            // Ends with the loop.
            other.spawn(Class::Io, "left behind", std::future::pending::<()>()).detach();
        });
        notes.add("start", started.await);
        for number in [1, 4096] {
            question.send(number).await.unwrap();
            notes.0.push(answers.recv().await.unwrap());
        }
        let file = handle.open(&path, CREATE).await.unwrap();
        notes.add("locked by us", file.try_lock().await);
        drop(question);
        notes.0.push(format!("after the end: {:?}", answers.recv().await));
        while !file.try_lock().await.unwrap() {
            handle.sleep(std::time::Duration::from_millis(1)).await;
        }
        notes
    });
}

#[test]
fn contents_of_files() {
    compare(|handle, directory| async move {
        let mut notes = Notes::default();
        let file = handle.open(&directory.join("file"), CREATE).await.unwrap();
        notes.add("write", file.write_at(10, bytes(7, 5000)).await);
        notes.add("nothing", file.write_at(9_000, Bytes::new()).await);
        notes.add("length", file.length().await);
        notes.add("hole", read(&file, 5, 10).await);
        notes.add("end", read(&file, 5_000, 4096).await);
        notes.add("beyond", read(&file, 50_000, 4096).await);
        notes.add("exactly", file.read_at(5_000, 4096).await.map(|buffer| buffer.len()));
        notes.add("truncate", file.set_len(100).await);
        notes.add("extend", file.set_len(9_000).await);
        notes.add("zeros", read(&file, 96, 8).await);
        notes.add("allocate", file.allocate(8_000, 8_000).await);
        notes.add("allocate nothing", file.allocate(0, 0).await);
        notes.add("length", file.length().await);
        notes.add("sync", file.sync().await);
        let other = handle.open(&directory.join("file"), READ).await.unwrap();
        notes.add("read-only write", other.write_at(0, bytes(1, 1)).await);
        notes.add("read-only truncate", other.set_len(0).await);
        notes.add("read-only allocate", other.allocate(0, 1).await);
        notes.add("read-only sync", other.sync().await);
        notes.add("read-only", read(&other, 10, 4).await);
        notes.add("lock", file.try_lock().await);
        notes.add("again", file.try_lock().await);
        notes.add("elsewhere", other.try_lock().await);
        drop(file);
        let reopened = handle.open(&directory.join("file"), CREATE).await.unwrap();
        notes.add("after close", other.try_lock().await);
        notes.add("not twice", reopened.try_lock().await);
        notes
    });
}

#[test]
fn names_of_files() {
    compare(|handle, directory| async move {
        let mut notes = Notes::default();
        let at = |name: &str| directory.join(name);
        let open = async |name: &str, options: OpenOptions| handle.open(&at(name), options).await.map(drop);
        notes.add("open nothing", open("none", READ).await);
        notes.add("open in nothing", open("none/none", CREATE).await);
        notes.add("open to write nothing", open("none", OpenOptions { write: true, ..READ }).await);
        notes.add("create", open("file", CREATE).await);
        notes.add("create again", open("file", CREATE).await);
        notes.add("exclusively", open("file", OpenOptions { exclusive: true, ..CREATE }).await);
        notes.add("exclusively new", open("new", OpenOptions { exclusive: true, ..CREATE }).await);
        notes.add("make directories", handle.create_directory(&at("a/b")).await);
        notes.add("make them again", handle.create_directory(&at("a/b")).await);
        notes.add("make one below a file", handle.create_directory(&at("file/a")).await);
        notes.add("make one over a file", handle.create_directory(&at("file")).await);
        notes.add("open a directory to write", open("a", CREATE).await);
        notes.add("open below a file", open("file/x", CREATE).await);
        notes.add("rename nothing", handle.rename(&at("none"), &at("some")).await);
        notes.add("rename into nothing", handle.rename(&at("file"), &at("none/file")).await);
        notes.add("rename over a directory", handle.rename(&at("file"), &at("a")).await);
        notes.add("rename a directory over a file", handle.rename(&at("a"), &at("file")).await);
        notes.add("rename a directory into itself", handle.rename(&at("a"), &at("a/b/c")).await);
        notes.add("rename onto itself", handle.rename(&at("file"), &at("file")).await);
        notes.add("rename over a file", handle.rename(&at("file"), &at("new")).await);
        notes.add("move", handle.rename(&at("new"), &at("a/b/moved")).await);
        notes.add("move a directory", handle.rename(&at("a/b"), &at("b")).await);
        notes.add("remove a directory", handle.remove(&at("b")).await);
        notes.add("remove nothing", handle.remove(&at("none")).await);
        notes.add("list", handle.read_directory(&directory).await);
        notes.add("list below", handle.read_directory(&at("b")).await);
        notes.add("list nothing", handle.read_directory(&at("none")).await);
        notes.add("list a file", handle.read_directory(&at("b/moved")).await);
        notes.add("sync nothing", handle.sync_directory(&at("none")).await);
        notes.add("sync a file", handle.sync_directory(&at("b/moved")).await);
        notes.add("sync", handle.sync_directory(&directory).await);
        notes.add("sync above", handle.sync_directory(Path::new("/")).await);
        notes.add("make what is above", handle.create_directory(Path::new("/")).await);
        notes.add("room nowhere", handle.space(&at("none")).await.map(|space| space.free > 0));
        notes.add("room", handle.space(&at("b")).await.map(|space| space.free > 0 && space.free <= space.total));
        let open_file = handle.open(&at("b/moved"), CREATE).await.unwrap();
        notes.add("remove", handle.remove(&at("b/moved")).await);
        notes.add("write without a name", open_file.write_at(0, bytes(1, 9)).await);
        notes.add("read without a name", read(&open_file, 0, 100).await);
        notes.add("gone", open("b/moved", READ).await);
        notes
    });
}

async fn receive(stream: &Stream) -> io::Result<u8> {
    let (count, buffer) = stream.receive(AlignedBuf::zeroed(1), 0).await;
    count.map(|count| if count == 0 { 0 } else { buffer[0] })
}

async fn send(stream: &Stream, text: &'static [u8]) -> io::Result<()> {
    stream.send(vec![Bytes::from_static(text)]).await
}

/// A connection: the connected end, the accepted end.
async fn pair(handle: &Handle, address: &Address) -> [Stream; 2] {
    let listener = handle.listen(address).await.expect("a connection within a machine");
    let client = handle.connect(listener.address()).await.expect("a connection within a machine");
    [client, listener.accept().await.expect("a connection within a machine")]
}

/// Sends until the other side's end is known here.
async fn send_until_told(handle: &Handle, stream: &Stream) -> io::Result<()> {
    loop {
        send(stream, b"x").await?;
        handle.yield_now().await;
    }
}

/// Connects until it is known that nobody listens any more.
async fn connect_until_refused(handle: &Handle, address: &Address) -> io::Result<()> {
    loop {
        handle.connect(address).await?;
    }
}

async fn ends_of_streams(handle: Handle, address: Address, mut notes: Notes) -> Notes {
    let [client, server] = pair(&handle, &address).await;
    notes.add("send", send(&client, b"ab").await);
    notes.add("receive", receive(&server).await);
    notes.add("more", receive(&server).await);
    drop(client);
    notes.add("the end", receive(&server).await);
    notes.add("still the end", receive(&server).await);
    notes.add("send to nobody", send_until_told(&handle, &server).await);
    notes.add("the end after that", receive(&server).await);

    let [client, server] = pair(&handle, &address).await;
    notes.add("send", send(&client, b"ab").await);
    // The byte has arrived once its neighbour was received.
    notes.add("receive", receive(&server).await);
    drop(server);
    notes.add("closed with something unread", receive(&client).await);
    notes.add("then", receive(&client).await);
    notes.add("send then", send(&client, b"x").await);

    let [client, server] = pair(&handle, &address).await;
    let waiting = {
        let server = server.clone();
        handle.spawn(Class::Io, "waiting", async move { receive(&server).await })
    };
    handle.yield_now().await;
    server.shutdown();
    notes.add("shut down while receiving", waiting.await);
    notes.add("receive after", receive(&server).await);
    notes.add("send after", send(&server, b"x").await);
    notes.add("the peer", receive(&client).await);
    notes
}

#[test]
fn streams_over_tcp() {
    compare(|handle, _| async move {
        let any = Address::Tcp(([127, 0, 0, 1], 0).into());
        let mut notes = Notes::default();
        let listener = handle.listen(&any).await.unwrap();
        let taken = listener.address().clone();
        notes.add("taken", handle.listen(&taken).await.map(drop));
        notes.add("not here", handle.listen(&Address::Tcp(([203, 0, 113, 1], 0).into())).await.map(drop));
        drop(listener);
        notes.add("nobody", connect_until_refused(&handle, &taken).await);
        notes.add("free again", handle.listen(&taken).await.map(drop));
        ends_of_streams(handle, any, notes).await
    });
}

#[test]
fn streams_over_unix_sockets() {
    compare(|handle, directory| async move {
        let address = Address::Unix(directory.join("socket"));
        let mut notes = Notes::default();
        notes.add("no such socket", handle.connect(&address).await.map(drop));
        let listener = handle.listen(&address).await.unwrap();
        notes.add("taken", handle.listen(&address).await.map(drop));
        drop(listener);
        notes.add("nobody", connect_until_refused(&handle, &address).await);
        ends_of_streams(handle, address, notes).await
    });
}

#[test]
fn a_cancelled_receive_and_an_abandoned_accept() {
    compare(|handle, _| async move {
        let mut notes = Notes::default();
        let listener = Rc::new(handle.listen(&Address::Tcp(([127, 0, 0, 1], 0).into())).await.unwrap());
        let waiting = {
            let listener = listener.clone();
            handle.spawn(Class::Io, "waiting", async move { listener.accept().await.map(drop) })
        };
        handle.yield_now().await;
        drop(waiting);
        let client = handle.connect(listener.address()).await.unwrap();
        let server = listener.accept().await.unwrap();
        let waiting = {
            let server = server.clone();
            handle.spawn(Class::Io, "waiting", async move { receive(&server).await.map(drop) })
        };
        handle.yield_now().await;
        drop(waiting);
        handle.yield_now().await;
        notes.add("send", send(&client, b"z").await);
        notes.add("not lost", receive(&server).await);
        notes
    });
}

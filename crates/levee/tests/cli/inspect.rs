//! `levee inspect` on directories that a real store left behind.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base::checksum::crc32c;
use serde_json::{Value, json};

use crate::store::{Store, output, refused, text};

const KIB: u64 = 1024;

/// An NBD client that can write.
struct Disk(UnixStream);

impl Disk {
    fn attach(store: &Store, volume: &str) -> Disk {
        let mut stream = UnixStream::connect(store.directory.join("nbd.sock")).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        // Fixed newstyle without zeros; then EXPORT_NAME.
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(1u32.to_be_bytes());
        hello.extend((volume.len() as u32).to_be_bytes());
        hello.extend(volume.as_bytes());
        stream.write_all(&hello).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Disk(stream)
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend([0, 0, 0, 1]);
        request.extend(7u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend((data.len() as u32).to_be_bytes());
        request.extend(data);
        self.0.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "the write failed");
    }
}

/// A store that was written to by two lives: small writes, and large ones past the journal.
pub fn written(directory: &Path) -> Store {
    let config = directory.with_extension("toml");
    fs::write(&config, "[engine]\njournal_file = \"4M\"\n").unwrap();
    let start = || Store::start(directory, &["--volume", "vm-1", "--size", "1G", "--config", config.to_str().unwrap()]);
    let first = start();
    Disk::attach(&first, "vm-1").write(64 * KIB, &[1; 4096]);
    assert_eq!(first.stop("TERM").code(), Some(0));
    let store = start();
    let mut disk = Disk::attach(&store, "vm-1");
    // The second one's record says that the first one is durable.
    disk.write(1 << 20, &[2; 128 * 1024]);
    disk.write(2 << 20, &[3; 128 * 1024]);
    for number in 0..20 {
        disk.write(number * 8 * KIB + 512, &[number as u8; 4096]);
    }
    store
}

/// Every file below `directory`: length, checksum, time of the last change.
pub fn snapshot(directory: &Path) -> Vec<(PathBuf, u64, u32, SystemTime)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let modified = metadata.modified().unwrap();
        if metadata.is_dir() {
            found.extend(snapshot(&path));
            found.push((path, 0, 0, modified));
        } else if metadata.is_file() {
            found.push((path.clone(), metadata.len(), crc32c(&fs::read(&path).unwrap()), modified));
        }
    }
    found.sort();
    found
}

/// What `levee inspect --json` says, and its exit code. It changes nothing.
fn inspected(directory: &Path) -> (Value, Option<i32>) {
    let before = snapshot(directory);
    let done = output(&["inspect", directory.to_str().unwrap(), "--json"]);
    assert!(snapshot(directory) == before, "an inspection changed something");
    let report = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", text(&done.stderr)));
    (report, done.status.code())
}

#[test]
fn a_store_that_was_stopped_is_listed() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("store");
    assert_eq!(written(&directory).stop("TERM").code(), Some(0));
    let (report, code) = inspected(&directory);
    assert_eq!(code, Some(0), "{report}");
    let mut keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    keys.sort();
    let expected = [
        "damage",
        "damage_count",
        "directories",
        "files",
        "incarnation",
        "notes",
        "refusals",
        "replay",
        "segments",
        "store",
        "verified",
        "volumes",
    ];
    assert_eq!(keys, expected);
    // 20 writes of nine sectors over 160 KiB with gaps, the first life's block among them, and the large ones.
    let data_bytes = 20 * 8 * KIB + 2 * 128 * KIB;
    let volume = json!({"id": 1, "name": "vm-1", "size_bytes": 1 << 30, "state": "active", "data_bytes": data_bytes,
        "journal_bytes": 0});
    assert_eq!(report["volumes"], json!([volume]));
    assert_eq!((&report["damage"], &report["refusals"], &report["incarnation"]), (&json!([]), &json!([]), &json!(2)));
    assert!(report["verified"].as_u64().unwrap() >= data_bytes / 4096, "{report}");
    let live: u64 = report["files"].as_array().unwrap().iter().filter_map(|file| file["live_bytes"].as_u64()).sum();
    assert_eq!(live, data_bytes);
    let plain = output(&["inspect", directory.to_str().unwrap()]);
    let plain = text(&plain.stdout);
    for word in ["VOLUME", "vm-1", "SEGMENT", "transaction-", "SPACE", "everything is intact"] {
        assert!(plain.contains(word), "{word}: {plain}");
    }
}

#[test]
fn a_store_that_was_killed_is_intact() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("store");
    written(&directory).stop("KILL");
    let (report, code) = inspected(&directory);
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["replay"]["journal_records"], 20, "{report}");
    assert_eq!(report["volumes"][0]["journal_bytes"], 20 * 4 * KIB);
    // What it says is what a start does.
    let store = Store::start(&directory, &[]);
    assert_eq!(store.stop("TERM").code(), Some(0));
    assert_eq!(inspected(&directory).0["replay"]["journal_records"], 0);
}

#[test]
fn a_flipped_byte_in_any_kind_of_file_is_found_and_named() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("store");
    written(&directory).stop("KILL");
    let report = inspected(&directory).0;
    let mut kinds = Vec::new();
    // The middle of a slot of the superblock; of every file its header, and the first block of its content.
    let mut places =
        vec![("superblock", directory.join("superblock"), 100), ("superblock", directory.join("superblock"), 4196)];
    for file in report["files"].as_array().unwrap() {
        let kind = file["kind"].as_str().unwrap();
        let path = PathBuf::from(file["paths"][0].as_str().unwrap());
        places.push((kind, path.clone(), 100));
        let is_garbage = kind == "data" && file["live_bytes"] == 0;
        // Some are made ahead of need.
        let is_used = fs::read(&path).unwrap()[4096..8192].iter().any(|byte| *byte != 0);
        if is_used && !is_garbage {
            // A data file of large writes begins with the label of the first one, which nobody needs once its record
            // is logged.
            let label = if kind == "data" && file["live_bytes"] != 4096 { 4096 } else { 0 };
            places.push((kind, path, 4096 + label + 100));
            kinds.push(kind);
        }
    }
    for kind in ["journal", "transaction", "data", "log"] {
        assert!(kinds.contains(&kind), "there is no {kind} file to damage: {report}");
    }
    for (kind, path, at) in places {
        let sound = fs::read(&path).unwrap();
        let mut rotten = sound.clone();
        rotten[at] ^= 0x10;
        fs::write(&path, &rotten).unwrap();
        let done = output(&["inspect", directory.to_str().unwrap()]);
        let (out, error) = (text(&done.stdout), text(&done.stderr));
        assert_eq!(done.status.code(), Some(1), "{kind} at {at}: {out}{error}");
        assert!(error.starts_with("error: "), "{error}");
        let named = |line: &str| line.contains(path.to_str().unwrap()) && line.starts_with("damaged: ");
        let refused = |line: &str| line.contains(path.to_str().unwrap()) && line.starts_with("a start would refuse: ");
        assert!(out.lines().any(|line| named(line) || refused(line)), "{kind} at {at}: {out}{error}");
        fs::write(&path, &sound).unwrap();
    }
    assert_eq!(inspected(&directory).1, Some(0));
}

#[test]
fn what_is_no_store_is_said_and_left_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    fs::create_dir(path("empty")).unwrap();
    fs::create_dir(path("photos")).unwrap();
    fs::write(path("photos/cat.jpg"), "cat").unwrap();
    fs::write(path("file"), "text").unwrap();
    let before = snapshot(scratch.path());
    for name in ["none", "empty", "photos", "file"] {
        let error = refused(1, &["inspect", path(name).to_str().unwrap()]);
        assert!(error.contains(path(name).to_str().unwrap()), "{name}: {error}");
    }
    assert!(snapshot(scratch.path()) == before, "an inspection changed something");
}

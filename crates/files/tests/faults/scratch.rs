//! The scratch file of a measurement: only where nobody runs a store, never in the way of one, gone afterwards.

use std::path::Path;
use std::time::Duration;

use base::{ErrorKind, MIB};
use files::local::LocalOptions;
use files::local::scratch::{Scratch, look};

use crate::bench::{Bench, read_all, sealed_file};

const NAME: &str = "levee/calibration.scratch";

fn looking(bench: &Bench) -> LocalOptions {
    LocalOptions { read_only: true, ..bench.options(&[0]) }
}

fn has_scratch(bench: &Bench) -> bool {
    bench.disk(0).files().iter().any(|(path, _)| path == Path::new(NAME))
}

/// What [`look`] says of the directory; whether it is a store.
fn looked(bench: &Bench) -> Result<bool, (ErrorKind, String)> {
    let (handle, options) = (bench.handle.clone(), looking(bench));
    let found = bench.run(async move { look(&handle, &options).await });
    found.map(|place| place.is_store).map_err(|error| (error.kind, error.message))
}

fn made(bench: &Bench, len: u64) -> Result<Scratch, (ErrorKind, String)> {
    let (handle, options) = (bench.handle.clone(), looking(bench));
    bench.run(async move { Scratch::create(&handle, &options, len).await }).map_err(|error| (error.kind, error.message))
}

#[test]
fn a_directory_is_lent_only_while_nobody_uses_it() {
    let bench = Bench::new(1, 1);
    assert_eq!(looked(&bench).unwrap_err().0, ErrorKind::NotFound);
    let store = bench.open();
    let file = bench.run(sealed_file(store.clone(), 1, 7));
    let in_use = "/0/levee is in use by levee up, process 7: stop it first".to_owned();
    assert_eq!(looked(&bench), Err((ErrorKind::Conflict, in_use.clone())));
    assert_eq!(made(&bench, MIB).err(), Some((ErrorKind::Conflict, in_use)));
    drop(store);
    assert_eq!(looked(&bench), Ok(true));

    let scratch = made(&bench, MIB).unwrap();
    let busy = "/0/levee is in use by levee calibrate: wait until that is done, or stop it";
    assert_eq!(looked(&bench).unwrap_err().1, busy);
    assert_eq!(made(&bench, MIB).err().unwrap().1, busy);
    assert_eq!(bench.refusal(bench.options(&[0])).message, busy);
    bench.run(async move { scratch.remove().await.unwrap() });
    assert!(!has_scratch(&bench));
    let store = bench.open();
    assert_eq!(bench.run(read_all(store, file)), [7; 4 * 4096]);
}

#[test]
fn what_a_killed_measurement_leaves_is_removed_by_the_next_one_and_by_a_start() {
    let mut bench = Bench::new(2, 1);
    let handle = bench.handle.clone();
    bench.run(async move { handle.create_directory(Path::new("/0/levee")).await.unwrap() });
    assert_eq!(looked(&bench), Ok(false));
    for life in ["an empty directory", "a store"] {
        let scratch = made(&bench, MIB).unwrap();
        bench.restart();
        drop(scratch);
        assert!(has_scratch(&bench) && looked(&bench).is_ok() && has_scratch(&bench), "{life}: a look changes nothing");
        drop(made(&bench, 2 * MIB).unwrap());
        assert!(has_scratch(&bench));
        drop(bench.open());
        assert!(!has_scratch(&bench), "{life}");
    }
}

#[test]
fn a_full_disk_is_left_as_it_was() {
    let bench = Bench::new(3, 1);
    drop(bench.open());
    let (files, used) = (bench.disk(0).files(), bench.disk(0).used());
    let (kind, message) = made(&bench, 1 << 37).err().unwrap();
    assert!(kind == ErrorKind::Full && message.contains("no room in /0/levee"), "{message}");
    bench.world.run_for(Duration::from_secs(1));
    assert_eq!((bench.disk(0).files(), bench.disk(0).used()), (files, used));
}

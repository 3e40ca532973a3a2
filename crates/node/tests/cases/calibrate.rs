//! A whole calibration on simulated disks: what it finds, and what it leaves behind.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, GIB, MIB};
use node::calibrate::{Bench, CalibrateOptions, Mix, Plan, Progress, Report, plan};
use node::settings::EngineSettings;
use node::{Node, Settings};
use runtime::Handle;
use runtime::sim::{DiskOptions, Fault, NodeId, NodeOptions, World};

/// Eight requests at a time, a millisecond or a bit more each, 200 MB/s.
fn disk() -> DiskOptions {
    DiskOptions {
        latency: Duration::from_micros(800),
        sync_latency: Duration::from_micros(200),
        transfer_bytes_per_sec: 200_000_000,
        channels: 8,
        capacity: GIB,
        ..DiskOptions::default()
    }
}

struct Machine {
    world: World,
    node: NodeId,
    handle: Handle,
}

impl Machine {
    fn new(seed: u64, disks: &[&str]) -> Machine {
        let world = World::new(seed);
        let node = world.add_node(NodeOptions::with_disks(disks.iter().copied(), &disk()));
        let handle = world.start_loop(node);
        Machine { world, node, handle }
    }

    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(&self.handle, future)
    }

    fn plan(&self, options: &CalibrateOptions) -> Result<Plan, base::Error> {
        let (handle, options) = (self.handle.clone(), options.clone());
        self.run(async move { plan(&handle, &options).await })
    }

    /// As the command does it.
    fn calibrate(&self, options: &CalibrateOptions) -> Result<Report, base::Error> {
        let (handle, options) = (self.handle.clone(), options.clone());
        self.run(async move {
            let bench = Bench::open(&handle, &options).await?;
            let report = bench.measure(|_| {}).await;
            bench.close().await?;
            report
        })
    }

    fn make_directories(&self, options: &CalibrateOptions) {
        let (handle, directories) = (self.handle.clone(), options.directories.clone());
        self.run(async move {
            for directory in directories {
                handle.create_directory(&directory).await.unwrap();
            }
        });
    }

    fn has_scratch(&self, disk: &str) -> bool {
        let files = self.world.disk(self.node, disk).files();
        files.iter().any(|(path, _)| path.ends_with("calibration.scratch"))
    }
}

fn options(directories: &[&str]) -> CalibrateOptions {
    CalibrateOptions {
        directories: directories.iter().map(PathBuf::from).collect(),
        copies: directories.len(),
        size: 32 * MIB,
        lasts: Duration::from_secs(20),
        mix: Mix::default(),
        takeoff_percent: 160,
        operation_bytes: 0,
        seed: 1,
    }
}

#[test]
fn the_knee_of_a_simulated_disk_and_what_it_costs() {
    let machine = Machine::new(1, &["/a"]);
    let options = options(&["/a/levee"]);
    machine.make_directories(&options);
    let planned = machine.plan(&options).unwrap();
    assert_eq!((planned.scratch_bytes, planned.written_bytes_min, planned.seconds), (32 * MIB, 32 * MIB, 20));
    assert!(!planned.directories[0].is_store && !machine.has_scratch("/a"), "nothing was changed");

    let report = machine.calibrate(&options).unwrap();
    assert_eq!(report.doubts, Vec::<String>::new());
    // The disk delivers 8 requests of 25 KiB in 1.1 ms at most, and 200 MB/s: the knee of the queue is well below.
    let (knee, mu) = (report.knee.unwrap(), report.service);
    assert!((120_000_000..200_000_000).contains(&mu), "{mu}");
    assert!(knee * 100 > mu * 30 && knee < mu, "{knee} of {mu}: {:?}", report.points);
    let lines = report.lines.unwrap();
    assert!(lines.bandwidth <= knee && lines.service_bandwidth <= mu && lines.headroom > 0);
    assert!(report.points.iter().any(|point| point.has_taken_off));
    assert_eq!(report.alone.len(), 10, "each size, read and written");
    assert!(report.seconds < 27.0 && !machine.has_scratch("/a"));
    let counted = machine.world.disk(machine.node, "/a").counters();
    assert_eq!([counted.read_bytes, counted.written_bytes - 32 * MIB], report.moved[0]);
}

#[test]
fn a_write_goes_to_every_copy_and_a_read_to_one() {
    let machine = Machine::new(2, &["/a", "/b"]);
    let both = options(&["/a/levee", "/b/levee"]);
    machine.make_directories(&both);
    let two = machine.calibrate(&both).unwrap();
    let [[read_a, written_a], [read_b, written_b]] = two.moved[..] else { panic!("{:?}", two.moved) };
    assert_eq!(written_a, written_b);
    assert!(read_a.abs_diff(read_b) * 10 < read_a && (read_a + read_b).abs_diff(written_a) * 10 < written_a);
    let one = machine.calibrate(&options(&["/a/levee"])).unwrap();
    // Three quarters of the work of one disk for the same requests.
    let ratio = two.service as f64 / one.service as f64;
    assert!((1.15..1.5).contains(&ratio), "{ratio}");
}

#[test]
fn a_store_is_left_as_it_was() {
    let machine = Machine::new(3, &["/a"]);
    let (handle, address) = (machine.handle.clone(), machine.world.address(machine.node));
    let mut settings = Settings { directories: vec!["/a/levee".into()], ..Settings::default() };
    settings.nbd.listen = (address, 0).into();
    settings.api.is_off = true;
    settings.engine = EngineSettings::small();
    let running = settings.clone();
    let node = machine.run(async move {
        let node = Node::start(&handle, &running).await.unwrap();
        node.ensure_volume("disk", GIB).await.unwrap();
        node
    });
    let options = options(&["/a/levee"]);
    let refused = machine.plan(&options).unwrap_err();
    assert!(refused.kind == ErrorKind::Conflict && refused.message.contains("stop it first"), "{refused}");
    machine.run(async move { node.stop().await.unwrap() });
    let contents = || {
        let disk = machine.world.disk(machine.node, "/a");
        disk.files().into_iter().map(|(path, _)| (disk.content(&path), path)).collect::<Vec<_>>()
    };
    let before = contents();
    assert!(machine.plan(&options).unwrap().directories[0].is_store);
    machine.calibrate(&options).unwrap();
    assert!(contents() == before, "byte for byte");
    let handle = machine.handle.clone();
    machine.run(async move { Node::start(&handle, &settings).await.unwrap().stop().await.unwrap() });
}

#[test]
fn no_room_is_said_with_numbers() {
    let machine = Machine::new(4, &["/a"]);
    let options = options(&["/a/levee"]);
    machine.make_directories(&options);
    let wanted = CalibrateOptions { size: GIB - 8 * MIB, ..options.clone() };
    for refused in [machine.plan(&wanted).unwrap_err(), machine.calibrate(&wanted).unwrap_err()] {
        assert_eq!(refused.kind, ErrorKind::Full);
        let said = "/a/levee has 1 GiB free; the scratch file needs 1016 MiB, and 51.1 MiB are to stay free";
        assert!(refused.message.starts_with(said) && refused.message.contains("--size"), "{refused}");
    }
    assert!(machine.world.disk(machine.node, "/a").files().is_empty());
    for (wrong, part) in [
        (CalibrateOptions { size: MIB, ..options.clone() }, "at least 16 MiB"),
        (CalibrateOptions { copies: 2, ..options.clone() }, "at most one per directory"),
        (CalibrateOptions { directories: vec!["/a/x".into(), "/a/x".into()], ..options.clone() }, "twice"),
        (CalibrateOptions { directories: vec![], ..options.clone() }, "--dir"),
        (CalibrateOptions { directories: vec!["/a/none".into()], ..options }, "there is no directory /a/none"),
    ] {
        let error = machine.plan(&wrong).unwrap_err();
        assert!(error.message.contains(part), "{error}");
    }
}

#[test]
fn nothing_is_left_of_one_that_fails_or_is_stopped() {
    let machine = Machine::new(5, &["/a"]);
    let options = options(&["/a/levee"]);
    machine.make_directories(&options);
    // While the file is written over, and later.
    for (after, fault) in [(0, Fault::WriteError), (8, Fault::ReadError), (8, Fault::WriteError)] {
        let disk = machine.world.disk(machine.node, "/a");
        machine.world.after(Duration::from_secs(after), move |_| disk.inject(fault, 1));
        let error = machine.calibrate(&options).unwrap_err();
        assert!(error.message.contains("its disk failed") && error.kind == ErrorKind::Io, "{error}");
        assert!(!machine.has_scratch("/a"));
    }
    // Stopped in the middle: whoever measures is dropped.
    let handle = machine.handle.clone();
    let seen = Rc::new(RefCell::new(0));
    let count = seen.clone();
    machine.run(async move {
        let bench = Bench::open(&handle, &options).await.unwrap();
        let measuring = Box::pin(bench.measure(move |progress| {
            if matches!(progress, Progress::Point(_)) {
                *count.borrow_mut() += 1;
            }
        }));
        let stop = Box::pin(handle.sleep(Duration::from_secs(9)));
        first(measuring, stop).await;
        bench.close().await.unwrap();
    });
    assert!(*seen.borrow() > 0 && !machine.has_scratch("/a"));
}

/// Waits for whichever is done first.
async fn first<A>(mut one: impl Future<Output = A> + Unpin, mut other: impl Future<Output = ()> + Unpin) {
    std::future::poll_fn(|cx| {
        let is_done = std::pin::Pin::new(&mut one).poll(cx).is_ready();
        if is_done || std::pin::Pin::new(&mut other).poll(cx).is_ready() {
            return std::task::Poll::Ready(());
        }
        std::task::Poll::Pending
    })
    .await;
}

#[test]
fn a_disk_that_others_use_is_not_believed() {
    let machine = Machine::new(6, &["/a"]);
    let options = options(&["/a/levee"]);
    machine.make_directories(&options);
    let disk = machine.world.disk(machine.node, "/a");
    machine.world.after(Duration::from_secs(12), move |_| disk.set_slowness(3));
    let report = machine.calibrate(&options).unwrap();
    assert!(report.doubts.iter().any(|doubt| doubt.contains("somebody else uses these disks")), "{:?}", report.doubts);
}

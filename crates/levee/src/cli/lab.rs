//! `levee lab`: what can be asked of the laboratory.

use std::path::PathBuf;
use std::time::Duration;

use ::lab::experiments::replay::Policy;
use ::lab::experiments::sig23::geometry::Geometry;
use ::lab::verify::FaultKind;
use clap::{Args, Subcommand, ValueEnum};

/// `levee lab`.
#[derive(Subcommand)]
pub enum Lab {
    /// Run the whole store in simulated worlds under load, crashes and failing disks, and check that nothing that was
    /// acknowledged is lost and nobody reads wrong bytes. The last line is a hash of all that happened: the same
    /// build and the same seeds give the same hash. Exits 1 on a violation, with the command that replays it.
    Verify(Verify),
    /// Run experiments: figures of the papers, with this store's block server or its agent over a modelled store. Prints what the
    /// paper has beside what was measured. Without a name: lists them. Exits 1 if a printed number is missed, or is not
    /// missed without what it depends on.
    Run(Run),
    /// Say what spreading bursts over servers, or cutting volumes otherwise, would do to the workload of a trace: its writes are
    /// replayed on a modelled cluster whose network cards are what is scarce, once for each policy and each size of segments.
    Replay(Replay),
    /// Look at block traces.
    #[command(subcommand)]
    Traces(Traces),
    /// Serve directories of this machine as a store of files that several processes share, until Ctrl-C or SIGTERM. A test
    /// double: it stands for a store over many machines, and is safe from the loss of none.
    Files(Files),
    /// Break one safety rule after the other on purpose, and count the seeds until a simulated run notices. Prints a
    /// table; exits 1 if one is not noticed.
    #[cfg(feature = "seeded-bugs")]
    Bugs(Bugs),
}

/// `levee lab replay`.
#[derive(Args)]
pub struct Replay {
    /// The trace, not compressed: VSCSI version 1, MSR Cambridge, Alibaba or Tencent CBS. Its disks are volumes; its reads are
    /// left out.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Who takes what, several times for several: owners (each segment's owner its writes), migration (the same, and segments move
    /// every 5 s), auto (bursts go to all servers while that gains, as by default), spread (they always do, as with
    /// `--forwarding on`), spread-less (only large ones). Default: all.
    #[arg(long = "policy", value_name = "POLICY", value_parser = policy)]
    pub policies: Vec<Policy>,
    /// The size of a segment in whole GiB, such as 32G, several times for several; 0 for volumes that are not cut. Default: 32G,
    /// as Levee has them. Four segments take turns.
    #[arg(long = "segment", value_name = "SIZE", value_parser = segment)]
    pub segments: Vec<Geometry>,
    /// Servers.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub servers: u16,
    /// How much of the servers' cards all writes take on average, from 0 to 1: this says how fast cards are.
    #[arg(long, value_name = "PART", default_value_t = 0.3, value_parser = share)]
    pub utilization: f64,
    /// Take the trace so many times, each beginning somewhere else in it: for a trace of one disk.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub copies: u32,
    /// Take so many writes at most, the first ones, copies counted. More take longer, some 20 s for each 500,000 and policy.
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(100..))]
    pub writes: u32,
    /// Where segments are placed, and copies begin, depends on this.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Draw the table as a picture (SVG), too.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn policy(text: &str) -> Result<Policy, String> {
    let names = Policy::ALL.map(Policy::name).join(", ");
    let found = Policy::ALL.into_iter().find(|policy| policy.name() == text);
    found.ok_or_else(|| format!("there is no policy '{text}'; there are {names}"))
}

fn segment(text: &str) -> Result<Geometry, String> {
    let wrong = || "write whole GiB, such as 32G, or 0 for volumes that are not cut".to_owned();
    match base::units::parse_size(text).map_err(|_| wrong())? {
        0 => Ok(Geometry::WHOLE),
        bytes if bytes.is_multiple_of(base::GIB) => Ok(Geometry { segment_bytes: Some(bytes), ..Geometry::LEVEE }),
        _ => Err(wrong()),
    }
}

/// `levee lab traces`.
#[derive(Subcommand)]
pub enum Traces {
    /// Say what traces are like: how large writes are, how uneven in time and over volumes, and which of them are bursts. Takes
    /// VSCSI version 1, MSR Cambridge, Alibaba and Tencent CBS files of any length, whose times do not go back.
    Stat(TracesStat),
    /// Print traffic as that of the clusters of "DiffForward" (SIGMETRICS 2023), which is what `levee lab run sig23` spreads: a
    /// thousand volumes with bursts, 230 MiB a second written to them for 240 s. A trace in lines as Alibaba's.
    Make(TracesMake),
}

/// `levee lab traces make`.
#[derive(Args)]
pub struct TracesMake {
    /// W1, the morning, which rises; or W2, the afternoon, which is steady.
    #[arg(value_enum, ignore_case = true)]
    pub workload: Made,
    /// Keep so much of the writes, each by chance, from 0 to 1: there is less of everything, when it was.
    #[arg(long, default_value_t = 1.0, value_parser = share)]
    pub share: f64,
    /// What is drawn at random depends on this.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Take another value of a parameter, such as volumes=100 or seconds=60. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub changes: Vec<String>,
}

/// Traffic of `levee lab traces make`.
#[derive(ValueEnum, Clone, Copy)]
pub enum Made {
    /// The morning.
    W1,
    /// The afternoon.
    W2,
}

fn share(text: &str) -> std::result::Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share) && *share > 0.0);
    share.ok_or_else(|| "a share is above 0 and at most 1, such as 0.1".into())
}

/// `levee lab traces stat`.
#[derive(Args)]
pub struct TracesStat {
    /// The traces, not compressed.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `levee lab files`.
#[derive(Args)]
pub struct Files {
    /// Where the files are: a directory, made if it does not exist. Give it once per disk for two copies over several.
    #[arg(long = "dir", value_name = "DIR", required = true)]
    pub directories: Vec<PathBuf>,
    /// Serve here: an address such as 127.0.0.1:7500 (port 0 takes a free one), or unix: and the path of a socket. Default:
    /// files.sock in the first directory.
    #[arg(long, value_name = "ADDR|unix:PATH", value_parser = node::cluster::address)]
    pub listen: Option<runtime::Address>,
    /// Show the certificate in this directory, and speak TLS only. `levee pki issue store NAME` makes one.
    #[arg(long, value_name = "DIR")]
    pub tls: Option<PathBuf>,
}

/// `levee lab run`.
#[derive(Args)]
pub struct Run {
    /// Experiments, such as nsdi26/fig10, osdi24/fig19 or sig23/fig13, or nsdi26 for all of that paper.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// A look instead of a measurement: few requests, whose last percentiles mean little.
    #[arg(long)]
    pub quick: bool,
    /// Requests at each point. Default: 10,000,000; 50,000 for osdi24, which has no percentiles; 2,000,000 writes for
    /// sig23.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..))]
    pub requests: Option<u64>,
    /// A parameter other than in crates/lab/parameters; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub changes: Vec<String>,
    /// Also without each mechanism that a number depends on: it must be missed then. Half as long again.
    #[arg(long)]
    pub necessity: bool,
    /// Also with half and double of each parameter that the paper does not print: many times as long.
    #[arg(long)]
    pub neighbours: bool,
    /// Everything random depends on it. Default: 1, or with --seeds a new one.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Also with the seeds that follow the first one, so many in all; a number has to be met for nine in ten.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub seeds: Option<u64>,
    /// What clients ask for instead: a block trace (VSCSI version 1, MSR Cambridge, Alibaba or Tencent CBS), on
    /// the experiment's segments and servers, its time stretched to the experiment's load. Nothing is judged then.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Writes NAME.csv, NAME.svg and summary.md there.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `levee lab verify`.
#[derive(Args)]
pub struct Verify {
    /// The first seed; alone, the only one. Default: a new one.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How many seeds. Default: 200, or as many as --minutes allows.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: Option<u64>,
    /// Begin no more seeds after so many minutes.
    #[arg(long, value_name = "M", value_parser = minutes)]
    pub minutes: Option<Duration>,
    /// What may go wrong: names with commas between them, `all` or `none`. Default: all.
    #[arg(long, value_name = "LIST", value_parser = faults)]
    pub faults: Option<Faults>,
    /// Seeds that run side by side. Default: one per processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Do not look for a smaller plan after a violation.
    #[arg(long)]
    pub no_shrink: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `levee lab bugs`.
#[cfg(feature = "seeded-bugs")]
#[derive(Args)]
pub struct Bugs {
    /// Only this one; may be given several times. Default: all.
    #[arg(long = "bug", value_name = "NAME")]
    pub bugs: Vec<String>,
    /// Only so many, other ones for each --base.
    #[arg(long, value_name = "K", conflicts_with = "bugs")]
    pub subset: Option<usize>,
    /// From how many places each hunt begins.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub starts: u64,
    /// Seeds after which a hunt is given up.
    #[arg(long, value_name = "MAX", default_value_t = ::lab::bugs::SEEDS_MAX, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// The first seed of the first hunt. Default: a new one.
    #[arg(long, value_name = "SEED")]
    pub base: Option<u64>,
    /// Say what gave each of them away, too.
    #[arg(long)]
    pub explain: bool,
}

/// The value of `--faults`.
#[derive(Clone, Debug)]
pub struct Faults(pub Vec<FaultKind>);

fn faults(text: &str) -> Result<Faults, String> {
    let kind = |name: &str| {
        FaultKind::parse(name).ok_or_else(|| {
            let names: Vec<&str> = FaultKind::ALL.iter().map(|kind| kind.name()).collect();
            format!("there is no fault '{name}'; there are all, none, {}", names.join(", "))
        })
    };
    match text {
        "all" => Ok(Faults(FaultKind::ALL.to_vec())),
        "none" => Ok(Faults(Vec::new())),
        list => list.split(',').map(|name| kind(name.trim())).collect::<Result<_, _>>().map(Faults),
    }
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "write a number of minutes, such as 3 or 0.5".to_owned())?;
    match minutes > 0.0 && minutes <= 1e6 {
        true => Ok(Duration::from_secs_f64(minutes * 60.0)),
        false => Err("write a positive number of minutes, such as 3 or 0.5".into()),
    }
}

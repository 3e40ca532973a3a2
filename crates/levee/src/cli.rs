//! What can be asked on the command line.

mod lab;
mod pki;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::units::parse_size;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use node::calibrate::Mix;
use wire::Forwarding;
use wire::api::Size;

pub use self::lab::*;
pub use self::pki::*;

/// Levee, an elastic block store: virtual disks over NBD on local directories.
#[derive(Parser)]
#[command(version, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    /// What to log on standard error: error, warn, info, debug, trace, or a filter such as engine=debug. Default:
    /// the environment's RUST_LOG, else warn.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Run a whole store in this process, until Ctrl-C or SIGTERM.
    Up(Up),
    /// Create, list, show, change and delete volumes of a running store, and say why one waits.
    #[command(subcommand)]
    Volume(Volume),
    /// Print how a virtual machine uses a volume of a running store: over NBD, or as a vhost-user disk, which is served at a
    /// socket from then on. docs/VIRTUAL-MACHINES.md says what to expect.
    Attach(Attach),
    /// End a vhost-user disk of a running store. Its virtual machine waits until there is one again.
    Detach(Detach),
    /// Have a running store read every copy of all that it stores, and repair what can be repaired. It does so by itself
    /// every 15 days. Waits until that is done; exits 1 if anything is in no copy any more.
    Scrub(Scrub),
    /// Show the state of a running store on one screen: health, clients, space, copies, scrubbing, and who waits. Exits 0
    /// if all is well, 1 if something is wrong, 2 if no store answers.
    Status(Status),
    /// Show what each volume does right now, again and again, until Ctrl-C: operations and bytes per second, and how
    /// long they take.
    Top(Top),
    /// Run a server: it has segments of volumes, over a store that several servers share. Or look after servers that run.
    /// docs/CLUSTER.md says how the roles fit together.
    Server(Server),
    /// Run an agent: it serves volumes over NBD, wherever their segments are. Or measure what it needs to know of this machine.
    Agent(Agent),
    /// Run a manager: of several, one decides which server has which segment, and all of them answer the control API.
    Manager(ManagerOptions),
    /// Move segments of volumes from server to server.
    #[command(subcommand)]
    Segment(Segment),
    /// Show who shares the loops that serve clients: owners with their volumes, and volumes without one.
    #[command(subcommand)]
    Tenant(Tenant),
    /// Make a small certificate authority, and the certificates with which the processes of a cluster, and their clients, speak
    /// TLS with each other. docs/SECURITY.md has more.
    #[command(subcommand)]
    Pki(Pki),
    /// Print the completions of a shell. For bash: source <(levee completions bash).
    Completions(Completions),
    /// Look into a store that is not running: lists volumes, segments, files and space, and checks every checksum.
    /// Changes nothing. Exits 1 if anything is damaged.
    Inspect(Inspect),
    /// Measure what the disks of a store that is not running take before their latency takes off, and print the lines for
    /// its configuration. Says what it will write and for how long, and asks. Leaves nothing behind. The default,
    /// bandwidth = "auto", needs no calibration.
    Calibrate(Calibrate),
    /// Test this very build in a simulated world, or other processes of it against a double.
    #[command(subcommand)]
    Lab(Lab),
}

/// `levee attach`.
#[derive(Args)]
pub struct Attach {
    /// The name of the volume.
    pub volume: String,
    /// Serve it at this Unix socket, to a hypervisor on this machine. It is served until levee detach, also
    /// after a restart of the store.
    #[arg(long, value_name = "PATH")]
    pub vhost_user: Option<PathBuf>,
    /// Where the store is.
    #[command(flatten)]
    pub api: Api,
}

/// `levee detach`.
#[derive(Args)]
pub struct Detach {
    /// The Unix socket where it is served.
    #[arg(long, value_name = "PATH")]
    pub vhost_user: PathBuf,
    /// Where the store is.
    #[command(flatten)]
    pub api: Api,
}

/// A volume and the socket of its disk.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The name of the volume.
    pub volume: String,
    /// The path of the socket.
    pub path: PathBuf,
}

fn disk(text: &str) -> Result<Disk, String> {
    match text.split_once('=') {
        Some((volume, path)) if !volume.is_empty() && !path.is_empty() => {
            let path = std::path::absolute(path).map_err(|error| format!("{path}: {error}"))?;
            Ok(Disk { volume: volume.into(), path })
        }
        _ => Err("write VOLUME=PATH, such as vm-1=/run/levee/vm-1.sock".into()),
    }
}

/// `levee status`.
#[derive(Args)]
pub struct Status {
    /// Where the store is.
    #[command(flatten)]
    pub api: Api,
}

/// `levee top`.
#[derive(Args)]
pub struct Top {
    /// Between two looks, in seconds from 0.1 to 3600, such as 1s or 0.5.
    #[arg(long, value_name = "S", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// End after so many screens.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Where the store is.
    #[command(flatten)]
    pub api: Api,
}

/// `levee completions`.
#[derive(Args)]
pub struct Completions {
    /// Which shell.
    pub shell: Shell,
}

/// The shells that have completions.
#[derive(Clone, Copy, ValueEnum)]
pub enum Shell {
    /// GNU Bash.
    Bash,
    /// Zsh.
    Zsh,
    /// fish.
    Fish,
}

/// `levee scrub`.
#[derive(Args)]
pub struct Scrub {
    /// Do not wait until it is done.
    #[arg(long)]
    pub no_wait: bool,
    /// Where the store is.
    #[command(flatten)]
    pub api: Api,
}

fn bandwidth(text: &str) -> Result<Size, String> {
    match text {
        "auto" | "none" => Ok(Size::Text(text.into())),
        _ => parse_size(text).map(Size::Bytes).map_err(|error| format!("{error}, and neither auto nor none")),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || "write seconds from 0.1 to 3600, such as 1s or 0.5".to_owned();
    let seconds: f64 = text.strip_suffix('s').unwrap_or(text).parse().map_err(|_| wrong())?;
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(wrong()),
    }
}

/// `levee inspect`.
#[derive(Args)]
pub struct Inspect {
    /// The store's directories, all of them.
    #[arg(value_name = "DIR", required = true)]
    pub directories: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `levee calibrate`.
#[derive(Args)]
pub struct Calibrate {
    /// A directory of the store, or an empty one on the disk. Give it once per directory. Default: those of --config,
    /// else the one that `levee up` uses.
    #[arg(long = "dir", value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// Take directories, copies, takeoff_percent and operation_cost from this TOML file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The scratch file in each directory: the larger, the less of it is in caches of the disk.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub size: u64,
    /// How long all takes, about; from 10 to 3600. Slow disks need more to be judged.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3600))]
    pub seconds: u64,
    /// What is asked for, at random places: sizes (powers of two) and the share of reads in percent.
    #[arg(long, value_name = "SIZE-SIZE:READS", default_value = "4K-64K:50", value_parser = Mix::parse)]
    pub mix: Mix,
    /// Everything random depends on it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Draw the plot there. Default: here; with --json nowhere.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Say what would be done, and do nothing.
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `levee up`.
#[derive(Args)]
pub struct Up {
    /// Where the store lives: a directory, made if it does not exist. Give it once per disk for copies over several.
    /// Default: levee in the user's data directory (~/.local/share/levee).
    #[arg(long = "dir", value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// Serve NBD over TCP here; port 0 takes a free one. Default: 127.0.0.1:10809.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Serve the control API here; port 0 takes a free one. Default: 127.0.0.1:7400.
    #[arg(long, value_name = "ADDR")]
    pub api_listen: Option<SocketAddr>,
    /// Have this volume: it is created, or found with the same size.
    #[arg(long, value_name = "NAME", requires = "size")]
    pub volume: Option<String>,
    /// The size of --volume, such as 10G.
    #[arg(long, value_name = "SIZE", requires = "volume", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Serve this volume as a disk of virtual machines, at this Unix socket; may be given several times.
    #[arg(long = "vhost-user", value_name = "VOLUME=PATH", value_parser = disk)]
    pub disks: Vec<Disk>,
    /// Read settings from this TOML file; flags win over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Keep memory below this. Default: 512M.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Keep so many copies, at most one per directory. Default: 2 with several directories.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub copies: Option<u8>,
    /// Make a new store with so many loops, each on a thread of its own: 1, 2, 4 or 8. A store keeps its number.
    /// Default: 1.
    #[arg(long, value_name = "N")]
    pub loops: Option<u8>,
    /// Run so many servers in this process, over one store that they share, to try out how segments are spread, moved and
    /// taken over: 1 to 16. A store that was made so is started so. docs/CLUSTER.md has more.
    #[arg(long, value_name = "N", conflicts_with = "loops")]
    pub servers: Option<u8>,
    /// Start so many bytes of reads and writes per second, such as 500M, and let bursts wait for more; "auto": what the
    /// disks take before their latency takes off, learned while the store runs; "none": no limit. Default: auto.
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    pub bandwidth: Option<Size>,
    /// Start although acknowledged writes have rotted on disk, and go on without them.
    #[arg(long)]
    pub accept_data_loss: bool,
    /// Start although directories are missing, and give up what only they hold.
    #[arg(long)]
    pub accept_missing_directories: bool,
    /// Speak TLS with NBD clients, with the certificate in this directory: those of other machines have to. `levee pki` makes
    /// such directories.
    #[arg(long, value_name = "DIR")]
    pub tls: Option<PathBuf>,
    /// Print the addresses as one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// What every role is told.
#[derive(Args)]
pub struct RoleOptions {
    /// What it is called, other than every one of its role.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Listen here for the other roles: an address such as 10.0.0.5:7500, at which they reach it, or unix: and the path of
    /// a socket. Default: a free port of 127.0.0.1.
    #[arg(long, value_name = "ADDR|unix:PATH")]
    pub listen: Option<String>,
    /// All managers, with commas between them.
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    pub managers: Vec<String>,
    /// Read settings from this TOML file; flags win over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Show the certificate in this directory, and speak TLS only with those whose certificates are of the same authority.
    /// `levee pki` makes such directories.
    #[arg(long, value_name = "DIR")]
    pub tls: Option<PathBuf>,
    /// Print the addresses as one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// `levee server`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Server {
    /// What to do with servers that run; without it, this one is run.
    #[command(subcommand)]
    pub command: Option<ServerCommand>,
    #[command(flatten)]
    pub options: ServerOptions,
}

/// `levee server` by itself.
#[derive(Args)]
pub struct ServerOptions {
    #[command(flatten)]
    pub role: RoleOptions,
    /// The shared store: a pool of Ceph, as rados:POOL, rados:POOL/NAMESPACE?conf=FILE&user=NAME; or where a `levee lab files`
    /// listens. docs/CLUSTER.md has more.
    #[arg(long, value_name = "rados:POOL|ADDR|unix:PATH")]
    pub store: Option<String>,
    /// Keep memory below this. Default: 512M.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// As of levee up.
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    pub bandwidth: Option<Size>,
}

/// `levee server COMMAND`.
#[derive(Subcommand)]
pub enum ServerCommand {
    /// List all servers, how they stand, and how many segments each has.
    List {
        #[command(flatten)]
        api: Api,
    },
    /// Have a server give all of its segments away, so that it can be stopped without a pause for anybody.
    Drain {
        /// Its name.
        name: String,
        #[command(flatten)]
        api: Api,
    },
    /// Let a server that was drained own segments again.
    Undrain {
        /// Its name.
        name: String,
        #[command(flatten)]
        api: Api,
    },
}

/// `levee tenant COMMAND`.
#[derive(Subcommand)]
pub enum Tenant {
    /// List those that have clients: what they were promised, what they did, and who had to wait.
    List {
        #[command(flatten)]
        api: Api,
    },
    /// Show one: an owner, or a volume that has none.
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        api: Api,
    },
}

/// `levee agent`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Agent {
    /// What to do instead of running one.
    #[command(subcommand)]
    pub command: Option<AgentCommand>,
    #[command(flatten)]
    pub options: AgentOptions,
}

/// `levee agent ...`.
#[derive(Subcommand)]
pub enum AgentCommand {
    /// Measure what requests take of this machine's processors, and keep it where agents find it. It takes some seconds, a
    /// processor or two and up to 4 GiB of room, and leaves nothing else behind. Without it, usual processors are assumed.
    Profile(Profile),
}

/// `levee agent profile`.
#[derive(Args)]
pub struct Profile {
    /// Keep it in this directory, the first one of the store or of the agent's configuration. Default: levee in the user's
    /// data directory (~/.local/share/levee).
    #[arg(long = "dir", value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// Read settings from this TOML file: its tenants.profile says where to keep it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How long to measure, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u64).range(2..=600))]
    pub seconds: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `levee agent` by itself.
#[derive(Args)]
pub struct AgentOptions {
    #[command(flatten)]
    pub role: RoleOptions,
    /// Serve NBD over TCP here; port 0 takes a free one. Default: 127.0.0.1:10809.
    #[arg(long, value_name = "ADDR")]
    pub nbd: Option<SocketAddr>,
    /// Serve NBD on this socket, too.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve this volume as a disk of virtual machines, at this Unix socket; may be given several times.
    #[arg(long = "vhost-user", value_name = "VOLUME=PATH", value_parser = disk)]
    pub disks: Vec<Disk>,
    /// Keep memory below this. Default: 512M.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
}

/// `levee manager`.
#[derive(Args)]
pub struct ManagerOptions {
    #[command(flatten)]
    pub role: RoleOptions,
    /// The shared store: a pool of Ceph, as rados:POOL, rados:POOL/NAMESPACE?conf=FILE&user=NAME; or where a `levee lab files`
    /// listens. docs/CLUSTER.md has more.
    #[arg(long, value_name = "rados:POOL|ADDR|unix:PATH")]
    pub store: Option<String>,
    /// The store of leases: an etcd, as etcd:HOST:PORT,HOST:PORT,...; or where a `levee lab files` listens. Default: where the
    /// shared store is, if that is no pool.
    #[arg(long, value_name = "etcd:ADDR,...|ADDR|unix:PATH")]
    pub leases: Option<String>,
    /// Serve the control API here; port 0 takes a free one. Default: 127.0.0.1:7400.
    #[arg(long, value_name = "ADDR")]
    pub api_listen: Option<SocketAddr>,
    /// The file with the token of the control API, made if there is none. Give all managers the same one, and changes may be
    /// asked of any of them. Default: api.token in the user's data directory (~/.local/share/levee).
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// `levee segment`.
#[derive(Subcommand)]
pub enum Segment {
    /// Have another server serve a segment. Its clients notice a pause of some milliseconds.
    Move {
        /// The volume and which one of its segments, such as vm-1/0.
        #[arg(value_name = "VOLUME/INDEX")]
        segment: String,
        /// The server that is to have it. Default: wherever there is room.
        #[arg(long, value_name = "SERVER")]
        to: Option<String>,
        #[command(flatten)]
        api: Api,
    },
}

/// `levee volume`.
#[derive(Subcommand)]
pub enum Volume {
    /// Create a volume. It is thin: it takes space as it is written.
    Create {
        /// 1 to 63 of a-z, A-Z, 0-9, '-', '_' and '.', beginning with a letter or digit.
        name: String,
        /// Its size, such as 512M, 10G or 1.5TiB.
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: u64,
        /// Its stripe unit, a power of two. Default: 128K.
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        data_sector: Option<u64>,
        /// Whose it is.
        #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
        owner: String,
        /// Succeed if a volume of that name and size exists already. It keeps its levels.
        #[arg(long)]
        allow_existing: bool,
        #[command(flatten)]
        changes: VolumeChanges,
        #[command(flatten)]
        api: Api,
    },
    /// List all volumes.
    List {
        #[command(flatten)]
        api: Api,
    },
    /// Show one volume.
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        api: Api,
    },
    /// Change what a volume is promised, the most that it gets, and whether its bursts are spread, also while it is in use.
    /// What is not named stays.
    #[command(group = ArgGroup::new("what changes").required(true).multiple(true).args(CHANGES))]
    Set {
        /// Its name.
        name: String,
        #[command(flatten)]
        changes: VolumeChanges,
        #[command(flatten)]
        api: Api,
    },
    /// Say why I/O of a volume waits or waited since the store started, and what can be done about it; and what its
    /// slowest requests waited for.
    Explain {
        /// Its name.
        name: String,
        #[command(flatten)]
        api: Api,
    },
    /// Delete a volume and its data.
    Delete {
        /// Its name.
        name: String,
        /// Delete it although clients are connected: their requests fail from then on.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        api: Api,
    },
}

/// The flags of [`VolumeChanges`].
const CHANGES: [&str; 7] =
    ["base_iops", "base_bandwidth", "burst_iops", "burst_bandwidth", "credit_seconds", "credit_percent", "forwarding"];

/// Base and burst levels, of which 0 takes one away, and where bursts go.
#[derive(Args)]
pub struct VolumeChanges {
    /// Promise so many operations per second: they come before everybody's bursts. At most 200000.
    #[arg(long, value_name = "N")]
    pub base_iops: Option<u64>,
    /// Promise so many bytes per second, such as 100M.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub base_bandwidth: Option<u64>,
    /// Allow no more operations per second, however idle the store is. At most 1000000.
    #[arg(long, value_name = "N")]
    pub burst_iops: Option<u64>,
    /// Allow no more bytes per second, such as 200M.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub burst_bandwidth: Option<u64>,
    /// Save what it does not use of its base level, up to so many seconds of it, and burst on what is saved only.
    #[arg(long, value_name = "S")]
    pub credit_seconds: Option<u32>,
    /// How much of what it does not use is saved, in percent.
    #[arg(long, value_name = "P")]
    pub credit_percent: Option<u32>,
    /// Whether bursts are spread over several servers: off, auto (where that costs no more than agents may spend), on, or
    /// default (as the agent is set).
    #[arg(long, value_name = "HOW", value_parser = parse_forwarding)]
    pub forwarding: Option<Forwarding>,
}

fn parse_forwarding(text: &str) -> Result<Forwarding, String> {
    Forwarding::named(text).ok_or_else(|| format!("choose {}", Forwarding::NAMES.map(|(_, name)| name).join(", ")))
}

/// How to reach a running store.
#[derive(Args)]
pub struct Api {
    /// The store's control address.
    #[arg(long = "api", value_name = "URL", env = "LEVEE_API", default_value = "http://127.0.0.1:7400")]
    pub url: String,
    /// The file with the store's token. Default: the environment's LEVEE_TOKEN, else the file that a store on this
    /// machine names.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

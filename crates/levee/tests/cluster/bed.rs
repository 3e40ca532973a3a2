//! Processes of each role over one shared store, in a directory of their own, where what they log is too. They are killed when
//! dropped; the directory stays where a test has failed, and the end of each log is printed.
//!
//! The store is `levee lab files`; or, where `LEVEE_TEST_ENGINES` names what `tests/cluster/engines` has started, a pool of Ceph
//! and an etcd: then "store" is an OSD and the leader of etcd, wherever it is killed; data files are in a pool with erasure coding,
//! but where there are detours. All of them speak TLS with each other.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long something may take that is waited for. No figure: a bound for a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// So many lines of each log are printed when a test has failed.
const LINES_PRINTED: usize = 40;

struct Process {
    child: Child,
    /// What it said when it was ready.
    ready: Value,
}

/// See the module.
pub struct Bed {
    directory: tempfile::TempDir,
    /// Every process that ran, by name: each has a log.
    logs: Vec<String>,
    engines: Option<Engines>,
    managers: usize,
    /// Where a process looks for others, if not where they are.
    detours: BTreeMap<String, String>,
    processes: BTreeMap<String, Process>,
}

/// A pool of Ceph and an etcd that run.
pub struct Engines {
    directory: String,
    pub pool: String,
    pub data_pool: String,
    leases: String,
}

impl Engines {
    /// Those of the environment, with a part of them that nobody has used.
    pub fn named() -> Option<Engines> {
        let variable = |name: &str| std::env::var(name).ok();
        let (pool, leases) = (variable("LEVEE_TEST_POOL")?, variable("LEVEE_TEST_ETCD")?);
        let own = format!("cluster-{}", std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        let (name, how) = pool.split_once('?').unwrap_or((&pool, ""));
        Some(Engines {
            directory: variable("LEVEE_TEST_ENGINES")?,
            data_pool: variable("LEVEE_TEST_DATA_POOL")?,
            pool: format!("{name}/{own}?{how}"),
            leases: {
                let (members, how) = leases.split_once('?').unwrap_or((&leases, ""));
                format!("{members}/{own}?{how}")
            },
        })
    }

    /// The same with data files in the other pool.
    fn coded(mut self) -> Engines {
        self.pool = format!("{}&data={}", self.pool, self.data_pool);
        self
    }

    /// What `tests/cluster/engines` is to do with them.
    pub fn script(&self, action: &str) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cluster/engines");
        let done = Command::new(script).args([action, &self.directory]).output().unwrap();
        assert!(done.status.success(), "{action}: {}{}", text(&done.stdout), text(&done.stderr));
    }
}

pub fn say_that_there_are_no_engines() {
    eprintln!("skipped: LEVEE_TEST_POOL names no pool (make test-cluster starts a cluster that has one)");
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `levee` with nothing of the caller's environment that would change what it does.
pub fn levee() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_levee"));
    command.env_remove("LEVEE_TOKEN").env_remove("LEVEE_API").env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Sends a signal to a process of ours.
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

impl Bed {
    /// A shared store, and so many managers, servers and agents: `store`, `m1`, `s1`, `a1` and so on.
    pub fn start(managers: usize, servers: usize, agents: usize) -> Bed {
        let engines = Engines::named().map(Engines::coded);
        Bed::start_over(engines, [managers, servers, agents], BTreeMap::new(), |_| ()).0
    }

    /// The same with detours: `s1-store`, for the way of s1 to the store, and so on; `begin` has them ready.
    pub fn start_with_proxies<P>(
        managers: usize,
        servers: usize,
        agents: usize,
        detours: BTreeMap<String, String>,
        begin: impl FnOnce(&Bed) -> P,
    ) -> (Bed, P) {
        Bed::start_over(Engines::named(), [managers, servers, agents], detours, begin)
    }

    fn start_over<P>(
        engines: Option<Engines>,
        [managers, servers, agents]: [usize; 3],
        detours: BTreeMap<String, String>,
        begin: impl FnOnce(&Bed) -> P,
    ) -> (Bed, P) {
        let directory = tempfile::tempdir().unwrap();
        let mut bed = Bed { directory, logs: vec![], engines, managers, detours, processes: BTreeMap::new() };
        bed.issue();
        let proxies = begin(&bed);
        if bed.engines.is_none() {
            bed.run("store");
        }
        for (letter, count) in [("m", managers), ("s", servers), ("a", agents)] {
            (1..=count).for_each(|number| bed.run(&format!("{letter}{number}")));
        }
        bed.wait("all servers are in touch", |bed| bed.servers().len() == servers);
        (bed, proxies)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.log"))
    }

    /// The address of the socket of this name.
    pub fn socket(&self, name: &str) -> String {
        format!("unix:{}", self.path(&format!("{name}.sock")).display())
    }

    /// Makes an authority, and a certificate for each role: processes of one role share it here.
    fn issue(&self) {
        let pki = |arguments: &[&str]| {
            let done = levee().args(arguments).arg("--dir").arg(self.path("pki")).output().unwrap();
            assert!(done.status.success(), "{}", text(&done.stderr));
        };
        pki(&["pki", "init"]);
        for role in ["store", "manager", "server", "agent"] {
            pki(&["pki", "issue", role, "test"]);
        }
    }

    /// Starts a process that does not run, and waits until it is ready.
    pub fn run(&mut self, name: &str) {
        if let (Some(engines), "store") = (&self.engines, name) {
            return engines.script("mend");
        }
        let detour = |wanted: &str| {
            self.detours.get(&format!("{name}-{wanted}")).cloned().unwrap_or_else(|| self.socket(wanted))
        };
        let managers: Vec<String> = (1..=self.managers).map(|number| detour(&format!("m{number}"))).collect();
        let managers = managers.join(",");
        let (store, leases) = match &self.engines {
            Some(engines) => (engines.pool.clone(), vec!["--leases".to_owned(), engines.leases.clone()]),
            None => (detour("store"), vec![]),
        };
        let path = |file: &str| self.path(file).display().to_string();
        let arguments: Vec<String> = match name.as_bytes()[0] {
            b's' if name == "store" => {
                vec!["lab".into(), "files".into(), "--dir".into(), path("disk"), "--listen".into(), self.socket(name)]
            }
            b'm' => [["manager", "--listen", &self.socket(name)], ["--json", "--api-listen", "127.0.0.1:0"]]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .chain(["--token-file".into(), path("api.token"), "--store".into(), store])
                .chain(leases)
                .collect(),
            b's' => ["server", "--json", "--listen", "127.0.0.1:0", "--store", &store].map(str::to_owned).into(),
            _ => ["agent", "--json", "--nbd", "127.0.0.1:0"].map(str::to_owned).into(),
        };
        let mut command = levee();
        let log = OpenOptions::new().append(true).create(true).open(self.log(name)).unwrap();
        command.args(arguments).stdout(Stdio::piped()).stderr(log);
        if !self.logs.iter().any(|known| known == name) {
            self.logs.push(name.to_owned());
        }
        let role = match name.as_bytes()[0] {
            _ if name == "store" => "store",
            b'm' => "manager",
            b's' => "server",
            _ => "agent",
        };
        command.arg("--tls").arg(self.path(&format!("pki/{role}-test")));
        if name != "store" {
            command.args(["--name", name, "--managers", &managers]);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{name} did not start");
        // The pipe stays open, and nobody waits for a full one.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let ready = if name == "store" { Value::Null } else { serde_json::from_str(&line).unwrap() };
        assert!(self.processes.insert(name.to_owned(), Process { child, ready }).is_none(), "{name} runs already");
    }

    /// Kills a process, as `kill -9` does.
    pub fn kill(&mut self, name: &str) {
        if let (Some(engines), "store") = (&self.engines, name) {
            return engines.script("break");
        }
        let mut process = self.processes.remove(name).unwrap();
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }

    /// Asks a process to stop, and waits until it has. It has to do so cleanly.
    pub fn stop(&mut self, name: &str) {
        let mut process = self.processes.remove(name).unwrap();
        signal(&process.child, "TERM");
        assert_eq!(process.child.wait().unwrap().code(), Some(0), "{name}");
    }

    /// Stops a process where it is; `CONT` lets it go on.
    pub fn signal(&self, name: &str, signal_name: &str) {
        signal(&self.processes[name].child, signal_name);
    }

    /// Where a volume is attached at an agent.
    pub fn uri(&self, agent: &str, volume: &str) -> String {
        format!("{}/{volume}", self.processes[agent].ready["nbd"][0].as_str().unwrap())
    }

    /// What `levee` says to a manager.
    pub fn output(&self, manager: &str, arguments: &[&str]) -> Output {
        let api = self.processes[manager].ready["api"].as_str().unwrap();
        let token = self.path("api.token");
        let mut command = levee();
        command.args(arguments).args(["--api", api, "--token-file"]).arg(token).output().unwrap()
    }

    /// What its API answers.
    pub fn get(&self, manager: &str, path: &str) -> String {
        let api = self.processes[manager].ready["api"].as_str().unwrap();
        ureq::get(format!("{api}{path}")).call().unwrap().body_mut().read_to_string().unwrap()
    }

    /// The same by any manager that runs, again while nobody is in charge.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let manager = self.processes.keys().find(|name| name.starts_with('m')).unwrap().clone();
            let output = self.output(&manager, arguments);
            if output.status.success() {
                return text(&output.stdout);
            }
            let said = text(&output.stderr);
            assert!(begun.elapsed() < PATIENCE, "{arguments:?}: {said}");
            assert!(said.contains("try again") || said.contains("in charge"), "{arguments:?}: {said}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Servers by name, with how many segments each has; nothing while nobody is in charge.
    pub fn servers(&self) -> BTreeMap<String, u64> {
        let manager = self.processes.keys().find(|name| name.starts_with('m')).unwrap();
        let output = self.output(manager, &["server", "list", "--json"]);
        let listed: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let healthy = listed.iter().filter(|server| {
            server["engines"]
                .as_array()
                .is_some_and(|engines| engines.iter().all(|engine| engine["state"] == "healthy"))
        });
        healthy
            .map(|server| (server["name"].as_str().unwrap().to_owned(), server["segments"].as_u64().unwrap()))
            .collect()
    }

    /// Waits until something is so.
    pub fn wait(&self, what: &str, so: impl Fn(&Bed) -> bool) {
        let begun = Instant::now();
        while !so(self) {
            assert!(begun.elapsed() < PATIENCE, "{what} has not come about: {:?}", self.servers());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until so many servers are well, and have all segments between them: `segments` of volumes, and those of logs.
    pub fn settle(&self, servers: usize, segments: u64) {
        self.wait("everything is settled", |bed| {
            let (found, manager) = (bed.servers(), bed.processes.keys().find(|name| name.starts_with('m')).unwrap());
            let output = bed.output(manager, &["status", "--json"]);
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let all = status["cluster"]["segments"].as_u64().filter(|all| *all >= segments);
            let is_calm = status["cluster"]["segments_on_the_way"] == 0;
            found.len() == servers && is_calm && Some(found.values().sum()) == all
        });
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        if !std::thread::panicking() {
            return;
        }
        for name in &self.logs {
            let log = std::fs::read_to_string(self.log(name)).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(LINES_PRINTED).collect();
            eprintln!("the last of {name}:");
            last.iter().rev().for_each(|line| eprintln!("  {line}"));
        }
        self.directory.disable_cleanup(true);
        eprintln!("all of it is in {}", self.directory.path().display());
    }
}

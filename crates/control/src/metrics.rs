//! Snapshots as Prometheus text (format 0.0.4).
//!
//! Where there are several servers, every process is shown by itself, under the labels of its [`Role`]: a sum would go
//! backwards when one of them is missing, and a counter that goes backwards is read as one that began anew.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use wire::api;
use wire::observe::{Distribution, FIRST_POWER, Metric, RequestCounters, Role, Snapshot};

/// The whole page.
pub fn render(snapshot: &Snapshot) -> String {
    let alone = Role::Alone;
    let sources: Vec<Seen<'_>> = match &snapshot.cluster {
        None => vec![Seen::new(&alone, snapshot)],
        Some(_) => snapshot.sources.iter().map(|source| Seen::new(&source.role, &source.snapshot)).collect(),
    };
    let mut page = Page { text: String::new(), sources };
    page.info(snapshot);
    page.processes();
    page.traffic();
    page.throttling();
    page.disks();
    page.scrub();
    page.others();
    page.text
}

/// What one process said.
struct Seen<'a> {
    role: &'a Role,
    labels: Vec<(&'static str, String)>,
    snapshot: &'a Snapshot,
}

impl<'a> Seen<'a> {
    fn new(role: &'a Role, snapshot: &'a Snapshot) -> Self {
        Seen { role, labels: role.labels(), snapshot }
    }
}

struct Page<'a> {
    text: String,
    sources: Vec<Seen<'a>>,
}

type Labels<'a> = &'a [(&'a str, &'a str)];

/// Samples of one family, from one process.
struct Samples<'a> {
    text: &'a mut String,
    name: &'a str,
    of: &'a [(&'static str, String)],
}

impl Samples<'_> {
    fn put(&mut self, labels: Labels<'_>, value: impl Display) {
        self.put_as("", labels, value);
    }

    fn put_as(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) {
        let of = self.of.iter().map(|(label, text)| (*label, text.as_str()));
        put(self.text, &format!("{}{suffix}", self.name), of.chain(labels.iter().copied()), value);
    }

    fn histogram(&mut self, labels: Labels<'_>, values: &Distribution) {
        for (index, below) in values.below.iter().enumerate() {
            let bound = (1u64 << (FIRST_POWER as usize + index)) as f64 / 1e9;
            self.put_as("_bucket", &[labels, &[("le", &bound.to_string())]].concat(), below);
        }
        self.put_as("_bucket", &[labels, &[("le", "+Inf")]].concat(), values.count);
        self.put_as("_sum", labels, values.sum_ns as f64 / 1e9);
        self.put_as("_count", labels, values.count);
    }
}

fn put<'a>(text: &mut String, name: &str, labels: impl Iterator<Item = (&'a str, &'a str)>, value: impl Display) {
    let _ = write!(text, "levee_{name}");
    let mut opening = '{';
    for (label, content) in labels {
        let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{opening}{label}=\"{content}\"");
        opening = ',';
    }
    let _ = writeln!(text, "{} {value}", if opening == '{' { "" } else { "}" });
}

impl Page<'_> {
    fn header(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP levee_{name} {help}\n# TYPE levee_{name} {kind}");
    }

    /// A family that has samples of all processes for which `is_shown`.
    fn family(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        is_shown: impl Fn(&Role) -> bool,
        sample: impl Fn(&mut Samples<'_>, &Snapshot),
    ) {
        self.header(name, kind, help);
        for seen in self.sources.iter().filter(|seen| is_shown(seen.role)) {
            sample(&mut Samples { text: &mut self.text, name, of: &seen.labels }, seen.snapshot);
        }
    }

    fn single(&mut self, (name, kind, help): (&str, &str, &str), labels: Labels<'_>, value: impl Display) {
        self.header(name, kind, help);
        put(&mut self.text, name, labels.iter().copied(), value);
    }

    fn info(&mut self, snapshot: &Snapshot) {
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("store", &snapshot.store)];
        self.single(("info", "gauge", "What runs here."), &labels, 1);
        self.single(("volumes", "gauge", "Volumes that exist."), &[], snapshot.volumes);
        if let Some(cluster) = &snapshot.cluster {
            self.cluster(cluster);
        }
    }

    /// What the manager in charge knows of several servers.
    fn cluster(&mut self, cluster: &api::Cluster) {
        let term = cluster.manager.as_ref().map_or(0, |manager| manager.term);
        self.single(("term", "gauge", "The term of the manager in charge."), &[], term);
        self.single(("segments", "gauge", "Segments of all volumes."), &[], cluster.segments);
        let help = "Segments that nobody serves, or that are to go elsewhere.";
        self.single(("segments_on_the_way", "gauge", help), &[], cluster.segments_on_the_way);
        type Value = fn(&api::Engine) -> usize;
        for (name, help, value) in [
            ("engine_segments", "Segments whose last word is in the log of an engine.", (|e| e.segments) as Value),
            ("engine_healthy", "Whether an engine lives and is in touch.", |e| usize::from(e.state == "healthy")),
            ("engine_answers", "Whether an engine has told its metrics.", |e| usize::from(e.work.is_some())),
        ] {
            self.header(name, "gauge", help);
            for server in &cluster.servers {
                for engine in &server.engines {
                    let labels = [("server", server.name.as_str()), ("engine", &engine.id.to_string())];
                    put(&mut self.text, name, labels.into_iter(), value(engine));
                }
            }
        }
    }

    fn processes(&mut self) {
        type Value = fn(&Snapshot) -> f64;
        for (name, help, value) in [
            ("uptime_seconds", "Seconds since this life of the store began.", (|s| s.uptime_seconds) as Value),
            ("memory_bytes", "Bytes that the store holds in memory by its own account.", |s| {
                s.memory.used_bytes as f64
            }),
            ("memory_limit_bytes", "The bound of the store's memory.", |s| s.memory.limit_bytes as f64),
        ] {
            self.family((name, "gauge", help), |_| true, |to, snapshot| to.put(&[], value(snapshot)));
        }
        let incarnation = ("incarnation", "gauge", "The number of this life of the store.");
        self.family(incarnation, Role::has_segments, |to, snapshot| to.put(&[], snapshot.incarnation));
    }

    fn scrub(&mut self) {
        type Value = fn(&api::Scrub) -> u64;
        for (name, kind, help, value) in [
            (
                "damaged_copies_total",
                "counter",
                "Copies of blocks that held wrong bytes.",
                (|s| s.damaged_copies) as Value,
            ),
            ("repaired_copies_total", "counter", "Those that were repaired.", |s| s.repaired_copies),
            ("scrubbed_bytes_total", "counter", "Bytes that scrubbing read.", |s| s.read_bytes),
            ("scrub_rounds_total", "counter", "Rounds of scrubbing that came through.", |s| s.rounds),
            ("scrub_late_rounds_total", "counter", "Those that took too long.", |s| s.late_rounds),
            ("scrub_lost_blocks_total", "counter", "Blocks that scrubbing found in no copy.", |s| s.lost_blocks),
            ("scrub_running", "gauge", "Whether a round of scrubbing is under way.", |s| u64::from(s.is_running)),
            ("scrub_segments", "gauge", "Segments of the present round, or the last one.", |s| s.segments),
            ("scrub_segments_done", "gauge", "Those of them that are done.", |s| s.segments_done),
        ] {
            self.family((name, kind, help), Role::has_segments, |to, snapshot| to.put(&[], value(&snapshot.scrub)));
        }
    }

    fn traffic(&mut self) {
        type Value = fn(&RequestCounters) -> u64;
        let counters = [
            ("requests_total", "Requests answered, errors included.", (|c| c.requests) as Value),
            ("bytes_total", "Bytes that requests moved.", |c| c.bytes),
            ("errors_total", "Requests answered with an error.", |c| c.errors),
        ];
        for (name, help, value) in counters {
            self.family((&format!("volume_{name}"), "counter", help), Role::has_clients, |to, snapshot| {
                each_of_volumes(snapshot, |labels, requests| to.put(labels, value(requests)));
            });
        }
        let name = "volume_latency_seconds";
        let help = "From the arrival of a request to its reply.";
        self.family((name, "histogram", help), Role::has_clients, |to, snapshot| {
            each_of_volumes(snapshot, |labels, requests| to.histogram(labels, &requests.latency));
        });
        for (name, help, value) in counters {
            let help = format!("{} Of all volumes, at their block servers; retries are counted, too.", help);
            self.family((&format!("served_{name}"), "counter", &help), Role::has_segments, |to, snapshot| {
                let served = snapshot.served.iter();
                served.for_each(|counters| to.put(&[("operation", &counters.operation)], value(counters)));
            });
        }
        let name = "stage_latency_seconds";
        let help = "How long requests spent in a stage of their life.";
        self.family(
            (name, "histogram", help),
            |_| true,
            |to, snapshot| {
                snapshot.stages.iter().for_each(|(stage, latency)| to.histogram(&[("stage", stage)], latency));
            },
        );
    }

    /// What requests of volumes waited for, at agents and at servers; only reasons that occurred.
    fn throttling(&mut self) {
        type Value = fn(&api::Waiting) -> f64;
        for (name, help, value) in [
            ("throttled_requests_total", "Requests that waited for tokens.", (|w| w.requests as f64) as Value),
            ("throttled_seconds_total", "How long requests waited for tokens, added up.", |w| w.total_ns as f64 / 1e9),
        ] {
            self.family(
                (name, "counter", help),
                |_| true,
                |to, snapshot| {
                    for volume in &snapshot.traffic {
                        for wait in volume.waits.iter().filter(|wait| wait.requests > 0) {
                            to.put(&[("volume", &volume.name), ("reason", &wait.reason)], value(wait));
                        }
                    }
                },
            );
        }
        let help = "Requests among the slowest 0.1% of their time, by what they waited for.";
        self.family(("slow_requests_total", "counter", help), Role::has_clients, |to, snapshot| {
            for volume in &snapshot.traffic {
                for slow in &volume.slow {
                    let labels =
                        [("volume", volume.name.as_str()), ("operation", &slow.operation), ("reason", &slow.reason)];
                    to.put(&labels, slow.requests);
                }
            }
        });
    }

    fn disks(&mut self) {
        let space = ("space_bytes", "gauge", "Room of the store, for one copy of new data.");
        self.family(space, Role::has_segments, |to, snapshot| {
            let space = &snapshot.space;
            for (state, bytes) in
                [("capacity", space.capacity_bytes), ("used", space.used_bytes), ("free", space.free_bytes)]
            {
                to.put(&[("state", state)], bytes);
            }
        });
        let healthy = ("directory_healthy", "gauge", "Whether a directory of the store serves.");
        self.family(healthy, Role::has_segments, |to, snapshot| {
            for directory in &snapshot.directories {
                let labels = [("directory", directory.path.as_str()), ("state", directory.state.as_str())];
                to.put(&labels, u64::from(directory.state == "healthy"));
            }
        });
        type Value = fn(&api::Directory) -> u64;
        for (name, help, value) in [
            ("directory_free_bytes", "Free bytes in a directory's file system.", (|d| d.free_bytes) as Value),
            ("directory_behind_bytes", "Bytes that still have to be copied to a directory.", |d| d.behind_bytes),
        ] {
            self.family((name, "gauge", help), Role::has_segments, |to, snapshot| {
                let directories = snapshot.directories.iter();
                directories.for_each(|directory| to.put(&[("directory", &directory.path)], value(directory)));
            });
        }
    }

    /// Metrics of one name stand together, under one header.
    fn others(&mut self) {
        let mut by_name: BTreeMap<&str, Vec<(usize, &Metric)>> = BTreeMap::new();
        for (at, seen) in self.sources.iter().enumerate() {
            for metric in &seen.snapshot.metrics {
                by_name.entry(&metric.name).or_default().push((at, metric));
            }
        }
        let said: Vec<String> =
            self.text.lines().filter_map(|line| line.strip_prefix("# TYPE levee_")).map(first_word).collect();
        for (name, metrics) in by_name {
            // A process of another version may call something else so.
            if said.iter().any(|said| said == name) {
                continue;
            }
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            let help = metrics.first().map_or("", |(_, metric)| &metric.help);
            let _ = writeln!(self.text, "# HELP levee_{name} {help}\n# TYPE levee_{name} {kind}");
            for (at, metric) in metrics {
                let labels: Vec<(&str, &str)> =
                    metric.labels.iter().map(|(label, value)| (label.as_ref(), value.as_str())).collect();
                Samples { text: &mut self.text, name, of: &self.sources[at].labels }.put(&labels, metric.value);
            }
        }
    }
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}

fn each_of_volumes(snapshot: &Snapshot, mut each: impl FnMut(Labels<'_>, &RequestCounters)) {
    for volume in &snapshot.traffic {
        for requests in &volume.requests {
            each(&[("volume", volume.name.as_str()), ("operation", &requests.operation)], requests);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Histogram, VolumeId};
    use wire::observe::{Source, VolumeCounters};

    use super::*;

    /// A snapshot with something of everything.
    fn snapshot() -> Snapshot {
        let mut latency = Histogram::new();
        [9_000, 100_000, 120_000, 20_000_000_000].into_iter().for_each(|ns| latency.record(ns));
        let requests = RequestCounters {
            operation: "write".into(),
            requests: 4,
            bytes: 16_384,
            errors: 1,
            latency: Distribution::from(&latency),
            latency_ns: latency.buckets().collect(),
        };
        let waits = api::Waiting {
            reason: "hot_segment".into(),
            requests: 2,
            total_ns: 250_000_000,
            longest_ns: 1,
            waiting_requests: 0,
        };
        let slow = api::SlowReason {
            operation: "write".into(),
            reason: "append".into(),
            requests: 5,
            total_ns: 1,
            longest_ns: 1,
        };
        Snapshot {
            store: "00ff".into(),
            incarnation: 3,
            uptime_seconds: 1.5,
            volumes: 1,
            traffic: vec![VolumeCounters {
                volume: VolumeId(1),
                name: "vm-1".into(),
                clients: 1,
                requests: vec![requests.clone()],
                waits: vec![waits],
                slow: vec![slow],
            }],
            served: vec![RequestCounters { requests: 6, ..requests.clone() }],
            stages: vec![("journal".into(), requests.latency)],
            directories: vec![api::Directory {
                path: "/disk \"a\"".into(),
                state: "healthy".into(),
                free_bytes: 5,
                behind_bytes: 0,
            }],
            metrics: vec![
                Metric::labelled("queue_depth", "Requests that wait.", "queue", "journal", 3.0),
                Metric::plain("gc_moves_total", "Blocks that GC moved.", 7.0),
                Metric::labelled("queue_depth", "Requests that wait.", "queue", "dump", 1.0),
            ],
            ..Snapshot::default()
        }
    }

    fn has(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|found| found == *line), "missing: {line}\n{page}");
        }
        let (mut families, mut samples) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
        for line in page.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                assert!(families.insert(family.to_owned()), "{family} twice");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(samples.insert(name.to_owned()), "{name} twice");
            }
        }
    }

    #[test]
    fn every_line_is_what_prometheus_reads() {
        let page = render(&snapshot());
        has(
            &page,
            &[
                "levee_incarnation 3",
                "levee_uptime_seconds 1.5",
                "levee_volumes 1",
                r#"levee_volume_requests_total{volume="vm-1",operation="write"} 4"#,
                r#"levee_volume_latency_seconds_bucket{volume="vm-1",operation="write",le="0.000016384"} 1"#,
                r#"levee_volume_latency_seconds_bucket{volume="vm-1",operation="write",le="0.000131072"} 3"#,
                r#"levee_volume_latency_seconds_bucket{volume="vm-1",operation="write",le="8.589934592"} 3"#,
                r#"levee_volume_latency_seconds_bucket{volume="vm-1",operation="write",le="+Inf"} 4"#,
                r#"levee_volume_latency_seconds_sum{volume="vm-1",operation="write"} 20.000229"#,
                r#"levee_stage_latency_seconds_count{stage="journal"} 4"#,
                r#"levee_directory_healthy{directory="/disk \"a\"",state="healthy"} 1"#,
                r#"levee_queue_depth{queue="dump"} 1"#,
                r#"levee_throttled_seconds_total{volume="vm-1",reason="hot_segment"} 0.25"#,
                r#"levee_slow_requests_total{volume="vm-1",operation="write",reason="append"} 5"#,
                r#"levee_served_requests_total{operation="write"} 6"#,
                "levee_gc_moves_total 7",
                "# TYPE levee_gc_moves_total counter",
            ],
        );
    }

    /// Of two engines and an agent; a third engine has not answered.
    #[test]
    fn each_process_of_several_is_shown_by_itself() {
        let engine = |id| api::Engine { id, state: "healthy".into(), segments: 2, ..api::Engine::default() };
        let answered = |id| api::Engine { work: Some(api::EngineWork::default()), ..engine(id) };
        let server =
            |name: &str, engine| api::Server { name: name.into(), engines: vec![engine], ..api::Server::default() };
        let servers = vec![server("s1", answered(5)), server("s2", answered(6)), server("s3", engine(7))];
        let role = |server: &str, engine| Role::Engine { server: server.into(), engine };
        let agent = Role::Agent { agent: "a1".into() };
        let sources = [role("s1", 5), role("s2", 6), agent].map(|role| Source { role, snapshot: snapshot() });
        let cluster = api::Cluster { servers, segments: 6, ..api::Cluster::default() };
        let all = Snapshot { cluster: Some(cluster), sources: sources.into(), ..snapshot() };
        let page = render(&all);
        has(
            &page,
            &[
                "levee_segments 6",
                r#"levee_engine_answers{server="s1",engine="5"} 1"#,
                r#"levee_engine_answers{server="s3",engine="7"} 0"#,
                r#"levee_incarnation{server="s2",engine="6"} 3"#,
                r#"levee_volume_requests_total{agent="a1",volume="vm-1",operation="write"} 4"#,
                r#"levee_served_requests_total{server="s1",engine="5",operation="write"} 6"#,
                r#"levee_throttled_requests_total{server="s1",engine="5",volume="vm-1",reason="hot_segment"} 2"#,
                r#"levee_stage_latency_seconds_count{agent="a1",stage="journal"} 4"#,
                r#"levee_queue_depth{server="s2",engine="6",queue="dump"} 1"#,
            ],
        );
        // No number stands for all of them, of which it would be a sum.
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let of_all = ["info{", "volumes ", "term ", "segments ", "segments_on_the_way "];
            let is_of_all = of_all.iter().any(|name| line.starts_with(&format!("levee_{name}")));
            assert!(is_of_all || line.contains("engine=") || line.contains("agent="), "{line}");
        }
        assert!(!page.contains(r#"volume_requests_total{server"#), "servers have no clients");
    }
}

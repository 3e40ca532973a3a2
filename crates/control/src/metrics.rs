//! Snapshots as Prometheus text (format 0.0.4).

use std::fmt::{Display, Write};

use files::FileKind;
use wire::api;

use crate::observe::{Distribution, FIRST_POWER, Metric, RequestCounters, Snapshot};

/// Every kind of file, with its name in metrics.
const KINDS: [(FileKind, &str); 6] = [
    (FileKind::Journal, "journal"),
    (FileKind::Transaction, "transaction"),
    (FileKind::Data, "data"),
    (FileKind::Table, "table"),
    (FileKind::Log, "log"),
    (FileKind::Incarnation, "incarnation"),
];

/// The whole page.
pub fn render(snapshot: &Snapshot) -> String {
    let mut page = Page(String::new());
    page.store(snapshot);
    page.traffic(snapshot);
    page.disks(snapshot);
    page.scrub(&snapshot.scrub);
    page.others(&snapshot.metrics);
    page.0
}

struct Page(String);

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    fn store(&mut self, snapshot: &Snapshot) {
        self.family("info", "gauge", "What runs here.");
        self.sample("info", &[("version", env!("CARGO_PKG_VERSION")), ("store", &snapshot.store)], 1);
        for (name, help, value) in [
            ("incarnation", "The number of this life of the store.", snapshot.incarnation as f64),
            ("uptime_seconds", "Seconds since this life of the store began.", snapshot.uptime_seconds),
            ("volumes", "Volumes that exist.", snapshot.volumes as f64),
            ("memory_bytes", "Bytes that the store holds in memory by its own account.", snapshot.memory_bytes as f64),
            ("memory_limit_bytes", "The bound of the store's memory.", snapshot.memory_bytes_max as f64),
        ] {
            self.family(name, "gauge", help);
            self.sample(name, &[], value);
        }
    }

    fn scrub(&mut self, scrub: &api::Scrub) {
        for (name, kind, help, value) in [
            ("damaged_copies_total", "counter", "Copies of blocks that held wrong bytes.", scrub.damaged_copies),
            ("repaired_copies_total", "counter", "Those that were repaired.", scrub.repaired_copies),
            ("scrubbed_bytes_total", "counter", "Bytes that scrubbing read.", scrub.read_bytes),
            ("scrub_rounds_total", "counter", "Rounds of scrubbing that came through.", scrub.rounds),
            ("scrub_late_rounds_total", "counter", "Those that took too long.", scrub.late_rounds),
            ("scrub_lost_blocks_total", "counter", "Blocks that scrubbing found in no copy.", scrub.lost_blocks),
            ("scrub_running", "gauge", "Whether a round of scrubbing is under way.", u64::from(scrub.is_running)),
            ("scrub_segments", "gauge", "Segments of the present round, or the last one.", scrub.segments),
            ("scrub_segments_done", "gauge", "Those of them that are done.", scrub.segments_done),
        ] {
            self.family(name, kind, help);
            self.sample(name, &[], value);
        }
    }

    fn traffic(&mut self, snapshot: &Snapshot) {
        type Value = fn(&RequestCounters) -> u64;
        for (name, help, value) in [
            ("volume_requests_total", "Requests answered, errors included.", (|c| c.requests) as Value),
            ("volume_bytes_total", "Bytes that requests moved.", |c| c.bytes),
            ("volume_errors_total", "Requests answered with an error.", |c| c.errors),
        ] {
            self.family(name, "counter", help);
            for volume in &snapshot.traffic {
                for requests in &volume.requests {
                    self.sample(name, &[("volume", &volume.name), ("operation", requests.operation)], value(requests));
                }
            }
        }
        let name = "volume_latency_seconds";
        self.family(name, "histogram", "From the arrival of a request to its reply.");
        for volume in &snapshot.traffic {
            for requests in &volume.requests {
                let labels = [("volume", volume.name.as_str()), ("operation", requests.operation)];
                self.histogram(name, &labels, &requests.latency);
            }
        }
        let name = "stage_latency_seconds";
        self.family(name, "histogram", "How long requests spent in a stage of their life.");
        for (stage, latency) in &snapshot.stages {
            self.histogram(name, &[("stage", stage)], latency);
        }
    }

    fn disks(&mut self, snapshot: &Snapshot) {
        for (name, help, bytes) in [
            ("disk_written_bytes_total", "Bytes written to files, all copies together.", snapshot.files.written_bytes),
            ("disk_read_bytes_total", "Bytes read from files.", snapshot.files.read_bytes),
        ] {
            self.family(name, "counter", help);
            for (kind, label) in KINDS {
                self.sample(name, &[("kind", label)], bytes[kind as usize]);
            }
        }
        let name = "disk_zeroed_bytes_total";
        self.family(name, "counter", "Zeros written ahead to space for data files, which count as written, too.");
        self.sample(name, &[], snapshot.files.zeroed_bytes);
        self.family("disk_copy_errors_total", "counter", "Reads and writes that failed in one copy.");
        self.sample("disk_copy_errors_total", &[], snapshot.files.copy_errors);
        self.family("space_bytes", "gauge", "Room of the store, for one copy of new data.");
        let space = snapshot.space;
        for (state, bytes) in [("capacity", space.capacity), ("used", space.used), ("free", space.free)] {
            self.sample("space_bytes", &[("state", state)], bytes);
        }
        self.family("directory_healthy", "gauge", "Whether a directory of the store serves.");
        for directory in &snapshot.files.directories {
            let labels = [("directory", directory.path.as_str()), ("state", directory.state)];
            self.sample("directory_healthy", &labels, u64::from(directory.state == "healthy"));
        }
        self.family("directory_free_bytes", "gauge", "Free bytes in a directory's file system.");
        for directory in &snapshot.files.directories {
            self.sample("directory_free_bytes", &[("directory", &directory.path)], directory.free_bytes);
        }
        self.family("directory_behind_bytes", "gauge", "Bytes that still have to be copied to a directory.");
        for directory in &snapshot.files.directories {
            self.sample("directory_behind_bytes", &[("directory", &directory.path)], directory.behind_bytes);
        }
    }

    /// Metrics of one name stand together, under one header.
    fn others(&mut self, metrics: &[Metric]) {
        let mut last = "";
        let mut sorted: Vec<&Metric> = metrics.iter().collect();
        sorted.sort_by_key(|metric| metric.name);
        for metric in sorted {
            if metric.name != last {
                let kind = if metric.name.ends_with("_total") { "counter" } else { "gauge" };
                self.family(metric.name, kind, metric.help);
                last = metric.name;
            }
            let labels: Vec<(&str, &str)> =
                metric.labels.iter().map(|(label, value)| (*label, value.as_str())).collect();
            self.sample(metric.name, &labels, metric.value);
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP levee_{name} {help}\n# TYPE levee_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let _ = write!(self.0, "levee_{name}");
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if index == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn histogram(&mut self, name: &str, labels: Labels<'_>, values: &Distribution) {
        let bucket = format!("{name}_bucket");
        for (index, below) in values.below.iter().enumerate() {
            let bound = (1u64 << (FIRST_POWER as usize + index)) as f64 / 1e9;
            self.sample(&bucket, &[labels, &[("le", &bound.to_string())]].concat(), below);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), values.count);
        self.sample(&format!("{name}_sum"), labels, values.sum_ns as f64 / 1e9);
        self.sample(&format!("{name}_count"), labels, values.count);
    }
}

#[cfg(test)]
mod tests {
    use base::{Histogram, VolumeId};
    use files::DirectoryStatus;
    use policies::admission::Waits;

    use super::*;
    use crate::observe::VolumeCounters;

    /// A snapshot with something of everything.
    pub fn snapshot() -> Snapshot {
        let mut latency = Histogram::new();
        [9_000, 100_000, 120_000, 20_000_000_000].into_iter().for_each(|ns| latency.record(ns));
        let requests = RequestCounters {
            operation: "write",
            requests: 4,
            bytes: 16_384,
            errors: 1,
            latency: Distribution::from(&latency),
            latency_ns: latency.buckets().collect(),
        };
        let mut files = files::Statistics { copy_errors: 2, zeroed_bytes: 4096, ..files::Statistics::default() };
        files.written_bytes[FileKind::Journal as usize] = 8192;
        files.directories.push(DirectoryStatus {
            path: "/disk \"a\"".into(),
            state: "healthy",
            free_bytes: 5,
            behind_bytes: 0,
        });
        Snapshot {
            store: "00ff".into(),
            incarnation: 3,
            uptime_seconds: 1.5,
            volumes: 1,
            traffic: vec![VolumeCounters {
                volume: VolumeId(1),
                name: "vm-1".into(),
                requests: vec![requests.clone()],
                waits: Waits::default(),
            }],
            stages: vec![("journal", requests.latency)],
            files,
            metrics: vec![
                Metric::labelled("queue_depth", "Requests that wait.", "queue", "journal", 3.0),
                Metric::plain("gc_moves_total", "Blocks that GC moved.", 7.0),
                Metric::labelled("queue_depth", "Requests that wait.", "queue", "dump", 1.0),
                Metric {
                    labels: vec![("volume", "vm-1".into()), ("reason", "hot_segment".into())],
                    ..Metric::plain("throttled_seconds_total", "How long requests waited.", 0.25)
                },
            ],
            ..Snapshot::default()
        }
    }

    #[test]
    fn every_line_is_what_prometheus_reads() {
        let page = render(&snapshot());
        for line in [
            "levee_incarnation 3",
            "levee_uptime_seconds 1.5",
            r#"levee_volume_requests_total{volume="vm-1",operation="write"} 4"#,
            r#"levee_volume_latency_seconds_bucket{volume="vm-1",operation="write",le="0.000016384"} 1"#,
            r#"levee_volume_latency_seconds_bucket{volume="vm-1",operation="write",le="0.000131072"} 3"#,
            r#"levee_volume_latency_seconds_bucket{volume="vm-1",operation="write",le="8.589934592"} 3"#,
            r#"levee_volume_latency_seconds_bucket{volume="vm-1",operation="write",le="+Inf"} 4"#,
            r#"levee_volume_latency_seconds_sum{volume="vm-1",operation="write"} 20.000229"#,
            r#"levee_stage_latency_seconds_count{stage="journal"} 4"#,
            r#"levee_disk_written_bytes_total{kind="journal"} 8192"#,
            "levee_disk_zeroed_bytes_total 4096",
            r#"levee_directory_healthy{directory="/disk \"a\"",state="healthy"} 1"#,
            r#"levee_queue_depth{queue="dump"} 1"#,
            r#"levee_throttled_seconds_total{volume="vm-1",reason="hot_segment"} 0.25"#,
            "levee_gc_moves_total 7",
            "# TYPE levee_gc_moves_total counter",
        ] {
            assert!(page.lines().any(|found| found == line), "missing: {line}\n{page}");
        }
        let mut families = std::collections::BTreeSet::new();
        for line in page.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                assert!(families.insert(family.to_owned()), "{family} twice");
            } else if !line.starts_with('#') {
                let (_, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
    }
}

//! `levee volume explain`: why a volume waits, in sentences. The reason first, then what can be done about it, then what
//! its slowest requests waited for, then the numbers.

use base::units::format_size;
use wire::api::{
    Admission, ExplainedEngine, Explanation, ForwardedBursts, Latency, Levels, SlowReason, SlowRequest, Waiting,
};

/// Slow requests that are told one by one; `--json` has all that are kept.
const TOLD_MAX: usize = 5;

/// Everything that a person should know.
pub fn sentences(found: &Explanation) -> String {
    let mut parts: Vec<String> = found.waits.iter().map(|wait| wait_for(found, wait)).collect();
    if parts.is_empty() {
        parts.push(nothing_waited(found));
    }
    parts.extend(slowest(found));
    parts.push(numbers(found).join("\n"));
    parts.join("\n\n")
}

/// What a volume was promised, if anything.
pub fn base_level(levels: &Levels) -> Option<String> {
    rate(levels.base_iops, levels.base_bytes_per_second)
}

/// The most that a volume gets, if it has a bound.
pub fn burst_level(levels: &Levels) -> Option<String> {
    rate(levels.burst_iops, levels.burst_bytes_per_second)
}

fn rate(iops: Option<u64>, bytes: Option<u64>) -> Option<String> {
    match (iops, bytes.map(per_second)) {
        (Some(iops), Some(bytes)) => Some(format!("{iops} IOPS and {bytes}")),
        (Some(iops), None) => Some(format!("{iops} IOPS")),
        (None, bytes) => bytes,
    }
}

fn nothing_waited(found: &Explanation) -> String {
    let name = &found.volume;
    let why_not = match (found.server.as_ref().map_or("", |server| &server.throttle), found.started_requests) {
        ("off", _) => " The store's throttle is off: its disks hold nobody back.".into(),
        (_, 0) => " It had no reads or writes since the store started.".into(),
        (_, started) => {
            let count = count(started, "read or write", "reads and writes");
            format!(" Since the store started, its {count} all started at once.")
        }
    };
    format!("Nothing of {name} has waited for tokens.{why_not}")
}

/// One reason, what it came to, and what can be done.
fn wait_for(found: &Explanation, wait: &Waiting) -> String {
    let (name, waits) = (&found.volume, if wait.waiting_requests > 0 { "waits" } else { "has waited" });
    let mut lines = vec![format!("{name} {waits} because {}.", because(found, &wait.reason))];
    let requests = count(wait.requests, "request", "requests");
    let mut amount = format!("{requests} waited for this {} in all", duration(wait.total_ns));
    if wait.requests > 1 {
        amount.push_str(&format!(", the longest {}", duration(wait.longest_ns)));
    }
    if wait.waiting_requests > 0 {
        amount.push_str(&format!("; {} now", count(wait.waiting_requests, "waits", "wait")));
    }
    lines.push(format!("  {amount}."));
    lines.extend(advice(found, &wait.reason).into_iter().map(|advice| format!("  {advice}")));
    lines.join("\n")
}

fn because(found: &Explanation, reason: &str) -> String {
    let server = found.server.as_ref();
    let limit = server.and_then(|server| server.bandwidth_bytes_per_second).map_or("bandwidth".into(), per_second);
    let cap = server.and_then(|server| server.cap_bytes_per_second);
    let cap = cap.map_or("cap".into(), |cap| format!("cap of {}", per_second(cap)));
    let level = |level: Option<String>| level.map(|level| format!(" of {level}")).unwrap_or_default();
    match reason {
        "hot_segment" => format!(
            "it bursts: it asks for more than its share of the {limit} that the store gives out, and those who do not \
             go first"
        ),
        "main_bucket_empty" => format!("all volumes together ask for more than the {limit} that the store gives out"),
        "base_level" => format!(
            "it has used up its base level{}, and {}",
            level(base_level(&found.levels)),
            match found.levels.credit_seconds {
                Some(_) => "has saved nothing that it could burst on",
                None => "its burst level gives it no more",
            }
        ),
        "burst_level" => format!("it has used up its burst level{}", level(burst_level(&found.levels))),
        "client_cap" => format!("the volumes of its owner together have used up the {cap} for each client"),
        "segment_cap" => format!("one of its segments has used up the {cap} for each segment"),
        "tenant_level" => {
            "the volumes of its owner together have used up what each tenant of the agent gets (tenants.burst_iops and \
             burst_bandwidth in --config)"
                .into()
        }
        "tenant_share" => "others want the agent's loop, too, and it asks for more than its share of that".into(),
        other => format!("of {other}"),
    }
}

/// What the slowest 0.1% waited for, and the last of them.
fn slowest(found: &Explanation) -> Option<String> {
    let in_all: u64 = found.slow_reasons.iter().map(|reason| reason.requests).sum();
    if in_all == 0 {
        return None;
    }
    let above: Vec<String> = found.latency.iter().filter_map(threshold_of).collect();
    let above = if above.is_empty() { String::new() } else { format!(" ({} at present)", above.join(", ")) };
    let mut lines = vec![format!("The slowest 0.1% of its requests{above} waited most of all for")];
    lines.extend(found.slow_reasons.iter().map(|reason| reason_line(reason, in_all)));
    lines.push("The last of them:".into());
    lines.extend(found.slow_requests.iter().take(TOLD_MAX).map(request_line));
    Some(lines.join("\n"))
}

fn threshold_of(latency: &Latency) -> Option<String> {
    let slow_ns = latency.slow_ns.filter(|_| latency.requests > 0)?;
    Some(format!("{}s beyond {}", latency.operation, duration(slow_ns)))
}

fn reason_line(reason: &SlowReason, in_all: u64) -> String {
    let SlowReason { operation, requests, longest_ns, .. } = reason;
    let share = requests * 100 / in_all;
    let what = stage(&reason.reason, None);
    format!("  {share:3}%  {operation:5}  {what}: {requests}, the longest {}", duration(*longest_ns))
}

fn request_line(slow: &SlowRequest) -> String {
    let SlowRequest { operation, offset, bytes, ago_ns, total_ns, reason, detail, stages, .. } = slow;
    let took = stages.iter().find(|took| took.stage == *reason).map_or(0, |took| took.ns);
    let (ago, total, took) = (duration(*ago_ns), duration(*total_ns), duration(took));
    let (size, what) = (format_size(*bytes), stage(reason, detail.as_deref()));
    format!("  {ago} ago: {operation} of {size} at {offset}, {total}, of which {took} for {what}")
}

/// What a request waited for, in words.
fn stage(name: &str, detail: Option<&str>) -> String {
    let words = match name {
        "intake" => "its connection, which had too much in flight",
        "payload" => "the client to send its payload",
        "overlap" => "an earlier write that it overlaps",
        "other_loop" => "the loop of its segment",
        "tokens" => "tokens",
        "engine_slot" => "a slot of the engine",
        "memory" => "memory, because dumps were behind",
        "space" => "space, because collection was behind",
        "room" => "room in index or log, or a new data file",
        "journal_file" => "a journal file, because dumps were behind or a disk was slow to give one",
        "gather" => "appends of the journal that were in flight",
        "retry" => "another try, after something failed",
        "append" => "the disk, with the append",
        "journal_order" => "an append before its own",
        "segment_order" => "an earlier write of its segment",
        "index" => "pages of the index",
        "disk_read" => "the disk, with the read",
        "read_repair" => "another copy, because one was wrong",
        "turn" => "requests that its loop did before",
        "reply" => "the client to take its reply",
        "busy_loop" => "its loop, which was busy",
        other => other,
    };
    match (name, detail) {
        ("tokens", Some(reason)) => format!("{words} ({reason})"),
        ("busy_loop", Some(task)) => format!("{words} (longest with: {task})"),
        _ => words.into(),
    }
}

fn advice(found: &Explanation, reason: &str) -> Vec<String> {
    let name = &found.volume;
    let first = format!("To let it go before other bursts, raise its base level: {}", set(name, "base", &found.levels));
    let disks = match found.server.as_ref().is_some_and(|server| server.is_learned) {
        true => "What the disks take is learned. To let them be slower for more, raise admission.takeoff_percent",
        false => "If the disks take more, raise the limit: levee up --bandwidth SIZE, or admission.bandwidth",
    };
    let disks = disks.to_owned();
    let burst = set(name, "burst", &found.levels);
    match reason {
        "hot_segment" => vec![first, disks],
        "main_bucket_empty" => {
            let others = "To hold others back, bound them: levee volume set OTHER --burst-bandwidth SIZE".to_owned();
            vec![first, others, disks]
        }
        "base_level" | "burst_level" => vec![format!("Raise its burst level (0: no bound): {burst}")],
        "tenant_level" => {
            vec!["Raise tenants.burst_iops or tenants.burst_bandwidth in --config (left out: no bound)".into()]
        }
        "tenant_share" => vec![
            format!("To let it go before other bursts, raise its base level: {}", set(name, "base", &found.levels)),
            "levee tenant list says who shares the loop".into(),
        ],
        "client_cap" | "segment_cap" => vec![format!("Raise the cap: admission.{reason} in --config")],
        _ => Vec::new(),
    }
}

/// The command that changes a level, in the dimensions that it has; in operations where it has none.
fn set(name: &str, level: &str, levels: &Levels) -> String {
    let (iops, bytes) = match level {
        "base" => (levels.base_iops, levels.base_bytes_per_second),
        _ => (levels.burst_iops, levels.burst_bytes_per_second),
    };
    let mut command = format!("levee volume set {name}");
    if iops.is_some() || bytes.is_none() {
        command.push_str(&format!(" --{level}-iops N"));
    }
    if bytes.is_some() {
        command.push_str(&format!(" --{level}-bandwidth SIZE"));
    }
    command
}

fn numbers(found: &Explanation) -> Vec<String> {
    let levels = match (base_level(&found.levels), burst_level(&found.levels)) {
        (None, None) => "none: no promise, and no bound".into(),
        (base, burst) => {
            format!("base {}, burst {}", base.unwrap_or("none".into()), burst.unwrap_or("without a bound".into()))
        }
    };
    let mut lines = vec![format!("levels   {levels}")];
    lines.extend(found.latency.iter().filter(|latency| latency.requests > 0).map(latency_of));
    if !found.hot_segments.is_empty() {
        let indexes: Vec<String> = found.hot_segments.iter().map(u32::to_string).collect();
        lines.push(format!("hot      segments {}", indexes.join(", ")));
    }
    if let Some(server) = &found.server {
        lines.push(format!("store    {}", store_of(server)));
        lines.extend(disks_of(server).map(|disks| format!("disks    {disks}")));
    }
    lines.extend(found.engines.iter().map(|engine| format!("server   {}", engine_of(engine))));
    let bursts = found.forwarding.as_ref().filter(|bursts| bursts.has_logs || bursts.mode != "off");
    lines.extend(bursts.map(|bursts| format!("bursts   {}", bursts_of(bursts))));
    lines
}

/// Where bursts go, and what of them is still there.
fn bursts_of(bursts: &ForwardedBursts) -> String {
    let percent = |part: u64| format!("{}%", part.saturating_mul(100) / bursts.written_bytes.max(1));
    let mut parts = vec![
        match bursts.spread_percent.filter(|_| bursts.has_logs) {
            Some(percent) => format!("forwarding {}, bursts spread {percent}% of the time", bursts.mode),
            None => format!("forwarding {}", bursts.mode),
        },
        format!("{} of {} written went to logs", percent(bursts.burst_bytes), format_size(bursts.written_bytes)),
    ];
    if bursts.rescheduled_bytes > 0 {
        parts.push(format!("{} followed there", percent(bursts.rescheduled_bytes)));
    }
    parts.push(match bursts.waiting_entries {
        0 => "nothing waits there".into(),
        entries => format!(
            "{} in {} wait to come home, since {}",
            format_size(bursts.waiting_bytes),
            count(entries, "entry", "entries"),
            duration(bursts.lag_ns)
        ),
    });
    if bursts.waits > 0 {
        parts.push(format!("{} for that", count(bursts.waits, "write waited", "writes waited")));
    }
    if bursts.failed_merges > 0 {
        parts.push(format!("{} by an owner", count(bursts.failed_merges, "batch was refused", "batches were refused")));
    }
    parts.join(", ")
}

fn latency_of(latency: &Latency) -> String {
    let Latency { operation, requests, p50_ns, p99_ns, .. } = latency;
    let count = count(*requests, "request", "requests");
    format!("{operation:7}  half within {}, 99% within {} ({count})", duration(*p50_ns), duration(*p99_ns))
}

fn store_of(server: &Admission) -> String {
    let mut parts = vec![match server.bandwidth_bytes_per_second {
        Some(limit) if server.is_learned => {
            format!("throttle {} at {}, as learned", server.throttle, per_second(limit))
        }
        Some(limit) => format!("throttle {} at {}", server.throttle, per_second(limit)),
        None if server.is_learned => format!("throttle {}, bandwidth not learned so far", server.throttle),
        None => format!("throttle {}, no --bandwidth", server.throttle),
    }];
    let bucket = |name, tokens: Option<i64>, size: Option<u64>| {
        let (tokens, size) = (tokens?, size.filter(|size| *size > 0)?);
        let held = format_size(tokens.unsigned_abs());
        let debt = if tokens < 0 { "a debt of " } else { "" };
        Some(format!("{name} bucket {debt}{held} of {}", format_size(size)))
    };
    parts.extend(bucket("main", server.main_bytes, server.main_size_bytes));
    parts.extend(bucket("cheque", server.cheque_bytes, server.cheque_size_bytes));
    parts.push(count(server.waiting_requests, "request waits", "requests wait"));
    parts.push(format!("{} of {} active segments hot", server.hot_segments, server.active_segments));
    parts.join(", ")
}

/// What one server of several has of the volume, and what is waited for there.
fn engine_of(engine: &ExplainedEngine) -> String {
    let ExplainedEngine { server, segments, silent, started_requests, waits, .. } = engine;
    let segments = count(*segments as u64, "segment", "segments");
    if let Some(why) = silent {
        return format!("{server}: {segments}; what is waited for there is not known: {why}");
    }
    let started = count(*started_requests, "request", "requests");
    let first = waits.first().map_or("nothing waited".into(), |wait| {
        let times = count(wait.requests, "request", "requests");
        format!("{} for {times} and {}", wait.reason, duration(wait.total_ns))
    });
    format!("{server}: {segments}, {started}, {first}")
}

fn disks_of(server: &Admission) -> Option<String> {
    let (p95, p99999) = (duration(server.p95_ns?), duration(server.p99999_ns?));
    let left = server.available_bytes_per_second.map(|left| format!(", about {} left", per_second(left)));
    Some(format!("95% within {p95}, 99.999% within {p99999} as predicted{}", left.unwrap_or_default()))
}

/// A number of things, in words.
pub fn count(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// A rate of bytes for people.
pub fn per_second(bytes: u64) -> String {
    format!("{}/s", format_size(bytes))
}

/// A span of time for people: `850 ns`, `1.2 ms`, `75 s`.
pub fn duration(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        1_000_000_000..600_000_000_000 => (1_000_000_000, "s"),
        _ => (60_000_000_000, "min"),
    };
    match (ns / unit, ns % unit * 10 / unit) {
        (whole @ 0..10, tenths @ 1..) => format!("{whole}.{tenths} {name}"),
        (whole, _) => format!("{whole} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> Explanation {
        Explanation {
            volume: "vm-1".into(),
            clients: 1,
            levels: Levels::default(),
            started_requests: 7,
            waits: Vec::new(),
            hot_segments: Vec::new(),
            latency: Vec::new(),
            slow_reasons: Vec::new(),
            slow_requests: Vec::new(),
            server: Some(Admission {
                throttle: "dual-buckets".into(),
                bandwidth_bytes_per_second: None,
                is_learned: false,
                cap_bytes_per_second: None,
                main_bytes: None,
                main_size_bytes: None,
                cheque_bytes: None,
                cheque_size_bytes: None,
                waiting_requests: 0,
                active_segments: 1,
                hot_segments: 0,
                started_bytes: 4096,
                overdrawn_bytes: 0,
                p95_ns: None,
                p99999_ns: None,
                available_bytes_per_second: None,
            }),
            engines: Vec::new(),
            forwarding: None,
        }
    }

    fn wait(reason: &str, requests: u64, waiting_requests: u64) -> Waiting {
        let (total_ns, longest_ns) = (requests * 1_500_000, 2_000_000);
        Waiting { reason: reason.into(), requests, total_ns, longest_ns, waiting_requests }
    }

    #[test]
    fn nothing_waited() {
        let text = sentences(&quiet());
        assert!(
            text.starts_with("Nothing of vm-1 has waited for tokens. Since the store started, its 7 reads"),
            "{text}"
        );
        assert!(
            text.ends_with(
                "store    throttle dual-buckets, no --bandwidth, 0 requests wait, 0 of 1 active segments hot"
            )
        );
        assert!(text.contains("\nlevels   none: no promise, and no bound\n"));
        let unused = sentences(&Explanation { started_requests: 0, ..quiet() });
        assert!(unused.contains("It had no reads or writes"), "{unused}");
        let mut off = quiet();
        off.server.as_mut().unwrap().throttle = "off".into();
        assert!(sentences(&off).contains("throttle is off"));
    }

    #[test]
    fn a_burst_with_everything() {
        let mut found = quiet();
        found.waits = vec![wait("hot_segment", 2_000, 3), wait("main_bucket_empty", 1, 0)];
        found.hot_segments = vec![0, 3];
        found.levels.base_bytes_per_second = Some(10 << 20);
        found.latency = vec![
            Latency { operation: "write".into(), requests: 1, p50_ns: 950, p99_ns: 12_345_678, slow_ns: None },
            Latency { operation: "read".into(), requests: 0, p50_ns: 0, p99_ns: 0, slow_ns: None },
        ];
        found.server = Some(Admission {
            bandwidth_bytes_per_second: Some(20 << 20),
            main_bytes: Some(-4096),
            main_size_bytes: Some(209_715),
            cheque_bytes: Some(1024),
            cheque_size_bytes: Some(41_943),
            waiting_requests: 3,
            active_segments: 2,
            hot_segments: 1,
            p95_ns: Some(1_200_000),
            p99999_ns: Some(4_600_000),
            available_bytes_per_second: Some(5 << 20),
            ..found.server.unwrap()
        });
        let expected = "\
vm-1 waits because it bursts: it asks for more than its share of the 20 MiB/s that the store gives out, and those who do not go first.
  2000 requests waited for this 3 s in all, the longest 2 ms; 3 wait now.
  To let it go before other bursts, raise its base level: levee volume set vm-1 --base-bandwidth SIZE
  If the disks take more, raise the limit: levee up --bandwidth SIZE, or admission.bandwidth

vm-1 has waited because all volumes together ask for more than the 20 MiB/s that the store gives out.
  1 request waited for this 1.5 ms in all.
  To let it go before other bursts, raise its base level: levee volume set vm-1 --base-bandwidth SIZE
  To hold others back, bound them: levee volume set OTHER --burst-bandwidth SIZE
  If the disks take more, raise the limit: levee up --bandwidth SIZE, or admission.bandwidth

levels   base 10 MiB/s, burst without a bound
write    half within 950 ns, 99% within 12 ms (1 request)
hot      segments 0, 3
store    throttle dual-buckets at 20 MiB/s, main bucket a debt of 4 KiB of 204.7 KiB, cheque bucket 1 KiB of 40.9 KiB, 3 requests wait, 1 of 2 active segments hot
disks    95% within 1.2 ms, 99.999% within 4.6 ms as predicted, about 5 MiB/s left";
        assert_eq!(sentences(&found), expected);
    }

    #[test]
    fn the_slowest_are_told_with_what_they_waited_for() {
        let mut found = quiet();
        let latency = Latency {
            operation: "write".into(),
            requests: 9_000,
            p50_ns: 90_000,
            p99_ns: 200_000,
            slow_ns: Some(1_500_000),
        };
        found.latency = vec![latency];
        let reason = |reason: &str, requests| SlowReason {
            operation: "write".into(),
            reason: reason.into(),
            requests,
            total_ns: 9_000_000,
            longest_ns: 4_100_000,
        };
        found.slow_reasons = vec![reason("append", 7), reason("busy_loop", 2)];
        let took = |stage: &str, ns| wire::api::StageTime { stage: stage.into(), ns };
        let last = SlowRequest {
            operation: "write".into(),
            offset: 4096,
            bytes: 4096,
            ago_ns: 3_000_000_000,
            total_ns: 4_100_000,
            reason: "busy_loop".into(),
            beyond_ns: 4_000_000,
            detail: Some("merge".into()),
            stages: vec![took("append", 100_000), took("busy_loop", 4_000_000)],
        };
        found.slow_requests = vec![last; 9];
        let text = sentences(&found);
        let part = "
The slowest 0.1% of its requests (writes beyond 1.5 ms at present) waited most of all for
   77%  write  the disk, with the append: 7, the longest 4.1 ms
   22%  write  its loop, which was busy: 2, the longest 4.1 ms
The last of them:
  3 s ago: write of 4 KiB at 4096, 4.1 ms, of which 4 ms for its loop, which was busy (longest with: merge)
";
        assert!(text.contains(part), "{text}");
        assert_eq!(text.matches(" ago: ").count(), TOLD_MAX);
    }

    /// Every stage has words of its own, so that nobody reads its name.
    #[test]
    fn every_stage_is_told_in_words() {
        let told: std::collections::BTreeSet<String> =
            base::Stage::ALL.iter().map(|one| stage(one.name(), None)).collect();
        assert_eq!(told.len(), base::Stage::ALL.len());
        assert!(base::Stage::ALL.iter().all(|one| one.name() == "tokens" || !told.contains(one.name())));
        assert_eq!(stage("tokens", Some("burst_level")), "tokens (burst_level)");
        assert_eq!(stage("moon_phase", None), "moon_phase", "a newer store knows more");
    }

    #[test]
    fn each_reason_comes_with_what_can_be_done() {
        let mut found = quiet();
        found.levels = Levels { burst_iops: Some(200), burst_bytes_per_second: Some(1 << 20), ..Levels::default() };
        found.server.as_mut().unwrap().cap_bytes_per_second = Some(60 << 20);
        for (reason, because, advice) in [
            ("burst_level", "burst level of 200 IOPS and 1 MiB/s", "set vm-1 --burst-iops N --burst-bandwidth SIZE"),
            ("base_level", "used up its base level, and", "set vm-1 --burst-iops N --burst-bandwidth SIZE"),
            ("hot_segment", "it bursts", "levee volume set vm-1 --base-iops N"),
            ("main_bucket_empty", "all volumes together", "set OTHER --burst-bandwidth"),
            ("client_cap", "owner together have used up the cap of 60 MiB/s for each client", "admission.client_cap"),
            ("segment_cap", "one of its segments has used up the cap of 60 MiB/s", "admission.segment_cap"),
        ] {
            found.waits = vec![wait(reason, 2, 0)];
            let text = sentences(&found);
            let mut lines = text.lines();
            let first = lines.next().unwrap();
            assert!(first.starts_with("vm-1 has waited because ") && first.contains(because), "{text}");
            assert!(lines.nth(1).is_some() && text.contains(advice), "{text}");
        }
        // Whatever a newer store calls it is named.
        found.waits = vec![wait("tax_return", 0, 1)];
        assert!(sentences(&found).starts_with("vm-1 waits because of tax_return.\n  0 requests waited"));
    }

    #[test]
    fn where_bursts_go_is_told() {
        let mut found = quiet();
        assert!(!sentences(&found).contains("bursts"));
        // Nothing is spread, and nothing was.
        found.forwarding = Some(ForwardedBursts { mode: "off".into(), ..ForwardedBursts::default() });
        assert!(!sentences(&found).contains("bursts"));
        let bursts = ForwardedBursts {
            mode: "auto".into(),
            written_bytes: 4 << 20,
            has_logs: true,
            ..ForwardedBursts::default()
        };
        found.forwarding = Some(bursts.clone());
        let text = sentences(&found);
        let line = "bursts   forwarding auto, 0% of 4 MiB written went to logs, nothing waits there";
        assert!(text.ends_with(line), "{text}");
        found.forwarding = Some(ForwardedBursts {
            burst_bytes: 1 << 20,
            rescheduled_bytes: 100 << 10,
            waiting_bytes: 64 << 10,
            waiting_entries: 1,
            lag_ns: 1_200_000_000,
            waits: 3,
            failed_merges: 1,
            spread_percent: Some(98),
            ..bursts
        });
        let text = sentences(&found);
        let line = "bursts   forwarding auto, bursts spread 98% of the time, 25% of 4 MiB written went to logs, 2% followed there, 64 KiB \
                    in 1 entry wait to come home, since 1.2 s, 3 writes waited for that, 1 batch was refused by an owner";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn of_several_servers_each_is_told() {
        let mut found = quiet();
        found.waits = vec![wait("burst_level", 3, 0)];
        let engine = ExplainedEngine {
            server: "s1".into(),
            engine: 4,
            segments: 2,
            started_requests: 7,
            waits: vec![wait("burst_level", 3, 0)],
            ..ExplainedEngine::default()
        };
        let silent = Some("it has not answered within 1 s".into());
        let other =
            ExplainedEngine { server: "s2".into(), engine: 5, segments: 1, silent, ..ExplainedEngine::default() };
        let idle = ExplainedEngine { server: "s3".into(), segments: 1, ..ExplainedEngine::default() };
        found.engines = vec![engine, other, idle];
        let part = "
server   s1: 2 segments, 7 requests, burst_level for 3 requests and 4.5 ms
server   s2: 1 segment; what is waited for there is not known: it has not answered within 1 s
server   s3: 1 segment, 0 requests, nothing waited";
        assert!(sentences(&found).ends_with(part), "{}", sentences(&found));
        // Nobody has answered: what the levels are is known all the same.
        found.server = None;
        assert!(sentences(&found).contains("\nlevels ") && !sentences(&found).contains("\nstore "));
    }

    #[test]
    fn spans_of_time() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1 us"),
            (1_234_567, "1.2 ms"),
            (12_345_678, "12 ms"),
            (3_000_000_000, "3 s"),
            (599_999_999_999, "599 s"),
            (600_000_000_000, "10 min"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }
}

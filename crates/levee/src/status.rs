//! `levee status`: how a running store stands, on one screen.

use std::cmp::Reverse;
use std::process::ExitCode;

use base::Result;
use base::units::format_size;
use wire::api::{self, VolumeTraffic};

use crate::cli::Status;
use crate::client::{self, Client};
use crate::explain::{count, duration, per_second};
use crate::{console, servers};

/// Volumes that fit on the screen.
pub const ROWS_MAX: usize = 20;

/// Shows it. 0: all is well; 1: something is wrong; 2: nobody knows.
pub fn run(options: Status) -> ExitCode {
    match shown(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn shown(options: &Status) -> Result<bool> {
    let status: api::Status = Client::new(&options.api)?.get(client::STATUS)?;
    match options.api.json {
        true => console::print_json(&status)?,
        false => console::print(&format!("{}\n\n{}", summary(&status), volumes(&status))),
    }
    Ok(status.is_healthy)
}

/// Everything but the volumes.
pub fn summary(status: &api::Status) -> String {
    let mut lines = vec![match status.is_healthy {
        true => "health   well".to_owned(),
        false => format!("health   degraded: {}", count(status.problems.len() as u64, "problem", "problems")),
    }];
    lines.extend(status.problems.iter().map(|problem| format!("  {}: {}", problem.kind, problem.message)));
    let uptime = duration((status.uptime_seconds * 1e9) as u64);
    lines.push(format!(
        "store    {}, Levee {}, up {uptime} in life {}",
        status.store, status.version, status.incarnation
    ));
    if let Some(cluster) = &status.cluster {
        lines.extend(servers_of(cluster, status));
        return lines.join("\n");
    }
    let clients = count(status.connections, "connection", "connections");
    lines.push(format!("clients  {clients}, {}", count(status.volumes as u64, "volume", "volumes")));
    let space = &status.space;
    let [used, garbage, free, kept] =
        [space.used_bytes, space.garbage_bytes, space.free_bytes, space.kept_bytes].map(format_size);
    lines.push(format!("space    {used} used ({garbage} garbage), {free} free ({kept} kept for reuse)"));
    let [memory, limit] = [status.memory.used_bytes, status.memory.limit_bytes].map(format_size);
    lines.push(format!("memory   {memory} of {limit}"));
    lines.extend(status.directories.iter().map(|directory| {
        let behind = match directory.behind_bytes {
            0 => String::new(),
            bytes => format!(", {} to copy", format_size(bytes)),
        };
        format!("copies   {} {}, {} free{behind}", directory.path, directory.state, format_size(directory.free_bytes))
    }));
    lines.push(format!("scrub    {}", scrub(&status.scrub)));
    lines.extend(status.admission.as_ref().map(|admission| format!("throttle {}", throttle(admission))));
    lines.join("\n")
}

/// Several servers: who decides, who has how much, what is on its way.
fn servers_of(cluster: &api::Cluster, status: &api::Status) -> Vec<String> {
    let in_charge = cluster.manager.as_ref();
    let in_charge =
        in_charge.map_or("nobody".to_owned(), |manager| format!("{} in term {}", manager.name, manager.term));
    let servers = count(cluster.servers.len() as u64, "server", "servers");
    let segments = count(cluster.segments as u64, "segment", "segments");
    let volumes = count(status.volumes as u64, "volume", "volumes");
    let agents = count(cluster.agents.len() as u64, "agent", "agents");
    let clients = count(status.connections, "connection", "connections");
    let mut lines = vec![
        format!("manager  {in_charge}"),
        format!("cluster  {servers}, {volumes}, {segments}, {} of them on the way", cluster.segments_on_the_way),
        format!("clients  {clients}, {agents}"),
        format!(
            "space    {} used ({} garbage)",
            format_size(status.space.used_bytes),
            format_size(status.space.garbage_bytes)
        ),
        format!("scrub    {}", scrub(&status.scrub)),
    ];
    lines.extend(status.admission.as_ref().map(|admission| format!("throttle {}", throttle(admission))));
    lines.extend([String::new(), servers::table(cluster)]);
    let moving = |segment: &api::SegmentMove| {
        let name = |server: &Option<String>| server.clone().unwrap_or_else(|| "nobody".into());
        let (from, to) = (name(&segment.from), name(&segment.to));
        format!("  {}/{} from {from} to {to}: waits for {}", segment.volume, segment.index, segment.waits_for)
    };
    lines.extend(cluster.moving.iter().take(ROWS_MAX).map(moving));
    lines
}

fn scrub(scrub: &api::Scrub) -> String {
    let api::Scrub { segments, segments_done, rounds, damaged_copies, repaired_copies, .. } = scrub;
    let now = match scrub.is_running {
        true => format!("running, {segments_done} of {segments} segments done"),
        false => format!("resting, {}", count(*rounds, "round done", "rounds done")),
    };
    let silent = match scrub.silent_engines {
        0 => String::new(),
        engines => format!("; {} not answered", count(engines, "server has", "servers have")),
    };
    format!("{now}, {damaged_copies} bad copies met, {repaired_copies} repaired{silent}")
}

fn throttle(admission: &api::Admission) -> String {
    let limit = match admission.bandwidth_bytes_per_second {
        Some(limit) if admission.is_learned => format!("at {}, as learned", per_second(limit)),
        Some(limit) => format!("at {}", per_second(limit)),
        None if admission.is_learned => "with nothing learned so far".into(),
        None => "without a limit".into(),
    };
    let waiting = count(admission.waiting_requests, "request waits", "requests wait");
    format!("{} {limit}, {waiting}, {} hot", admission.throttle, count(admission.hot_segments, "segment", "segments"))
}

fn volumes(status: &api::Status) -> String {
    if status.traffic.is_empty() {
        return "There are no volumes. Create one with: levee volume create NAME --size 10G".into();
    }
    let mut sorted: Vec<&VolumeTraffic> = status.traffic.iter().collect();
    sorted.sort_by_key(|volume| (Reverse(waiting_now(volume)), Reverse(volume.clients), &volume.volume));
    let rows: Vec<Vec<String>> = sorted
        .iter()
        .take(ROWS_MAX)
        .map(|volume| {
            let size = format_size(volume.size_bytes);
            vec![volume.volume.clone(), size, volume.clients.to_string(), errors(volume).to_string(), waits_for(volume)]
        })
        .collect();
    with_rest(console::table(&["VOLUME", "SIZE", "CLIENTS", "ERRORS", "WAITS FOR"], &rows), sorted.len())
}

/// Names what does not fit on the screen.
pub fn with_rest(table: String, volumes: usize) -> String {
    match volumes.saturating_sub(ROWS_MAX) {
        0 => table,
        more => format!("{table}\nand {more} more: levee volume list"),
    }
}

fn errors(volume: &VolumeTraffic) -> u64 {
    volume.operations.iter().map(|operation| operation.errors).sum()
}

fn waiting_now(volume: &VolumeTraffic) -> u64 {
    volume.waits.iter().map(|wait| wait.waiting_requests).sum()
}

/// What it waits for now, else what cost it most: the first of its reasons.
pub fn waits_for(volume: &VolumeTraffic) -> String {
    match volume.waits.first() {
        None => "nothing".into(),
        Some(wait) if wait.waiting_requests > 0 => format!("{} ({} now)", wait.reason, wait.waiting_requests),
        Some(wait) => format!("nothing now; {} for {} in all", wait.reason, duration(wait.total_ns)),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A store with a volume `a`, that two requests wait on.
    pub fn status() -> api::Status {
        let wait = |waiting_requests| api::Waiting {
            reason: "burst_level".into(),
            requests: 3,
            total_ns: 1_500_000,
            longest_ns: 1_000_000,
            waiting_requests,
        };
        let volume = |name: &str, waits| VolumeTraffic {
            volume: name.into(),
            size_bytes: 1 << 30,
            clients: 1,
            waits,
            operations: Vec::new(),
        };
        api::Status {
            tenants: Vec::new(),
            version: "1".into(),
            store: "00ff".into(),
            incarnation: 2,
            uptime_seconds: 90.0,
            volumes: 3,
            is_healthy: false,
            problems: vec![api::Problem { kind: "directory_failed".into(), message: "/b has failed".into() }],
            cluster: None,
            connections: 2,
            space: api::Space {
                capacity_bytes: 30 << 20,
                used_bytes: 10 << 20,
                garbage_bytes: 1 << 20,
                free_bytes: 20 << 20,
                kept_bytes: 2 << 20,
            },
            memory: api::Memory { used_bytes: 1 << 20, limit_bytes: 512 << 20 },
            directories: vec![
                api::Directory { path: "/a".into(), state: "healthy".into(), free_bytes: 1 << 30, behind_bytes: 0 },
                api::Directory { path: "/b".into(), state: "failed".into(), free_bytes: 0, behind_bytes: 4096 },
            ],
            scrub: api::Scrub { is_running: true, segments: 4, segments_done: 1, ..api::Scrub::default() },
            admission: None,
            traffic: vec![volume("idle", Vec::new()), volume("past", vec![wait(0)]), volume("slow", vec![wait(2)])],
            nbd: Vec::new(),
            token_file: String::new(),
        }
    }

    #[test]
    fn the_screen_of_a_degraded_store() {
        let expected = "\
health   degraded: 1 problem
  directory_failed: /b has failed
store    00ff, Levee 1, up 90 s in life 2
clients  2 connections, 3 volumes
space    10 MiB used (1 MiB garbage), 20 MiB free (2 MiB kept for reuse)
memory   1 MiB of 512 MiB
copies   /a healthy, 1 GiB free
copies   /b failed, 0 B free, 4 KiB to copy
scrub    running, 1 of 4 segments done, 0 bad copies met, 0 repaired";
        assert_eq!(summary(&status()), expected);
        let expected = "\
VOLUME  SIZE   CLIENTS  ERRORS  WAITS FOR
slow    1 GiB  1        0       burst_level (2 now)
idle    1 GiB  1        0       nothing
past    1 GiB  1        0       nothing now; burst_level for 1.5 ms in all";
        assert_eq!(volumes(&status()), expected);
        assert_eq!(with_rest("x".into(), ROWS_MAX + 2), "x\nand 2 more: levee volume list");
    }
}

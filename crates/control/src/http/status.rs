//! The state of a store as the API says it, and what is wrong with it.

use wire::api;
use wire::observe::Snapshot;

use crate::service::VolumeView;
use crate::table::VolumeState;

/// The answer.
pub fn status(snapshot: &Snapshot, volumes: &[VolumeView], nbd: Vec<String>, token_file: String) -> api::Status {
    let mut problems = problems(snapshot);
    problems.extend(snapshot.cluster.iter().flat_map(problems_of_servers));
    api::Status {
        version: env!("CARGO_PKG_VERSION").into(),
        store: snapshot.store.clone(),
        incarnation: snapshot.incarnation,
        uptime_seconds: snapshot.uptime_seconds,
        volumes: snapshot.volumes,
        is_healthy: problems.is_empty(),
        problems,
        connections: snapshot.connections,
        space: snapshot.space.clone(),
        memory: snapshot.memory.clone(),
        directories: snapshot.directories.clone(),
        scrub: snapshot.scrub,
        admission: snapshot.admission.clone(),
        traffic: traffic(snapshot, volumes),
        tenants: snapshot.tenants.clone(),
        cluster: snapshot.cluster.clone(),
        nbd: nbd.into_iter().chain(snapshot.nbd.iter().cloned()).collect(),
        token_file,
    }
}

fn traffic(snapshot: &Snapshot, volumes: &[VolumeView]) -> Vec<api::VolumeTraffic> {
    let used: base::Map<_, _> = snapshot.traffic.iter().map(|counters| (counters.volume, counters)).collect();
    let active = volumes.iter().filter(|view| view.row.state == VolumeState::Active);
    let traffic = active.map(|view| {
        let used = used.get(&view.row.id);
        api::VolumeTraffic {
            volume: view.row.name.clone(),
            size_bytes: view.row.size,
            clients: view.clients,
            waits: used.map(|counters| counters.waits.clone()).unwrap_or_default(),
            operations: used
                .map(|counters| counters.requests.iter().map(|counters| counters.traffic()).collect())
                .unwrap_or_default(),
        }
    });
    traffic.collect()
}

/// What a person should see to, the worst first.
fn problems(snapshot: &Snapshot) -> Vec<api::Problem> {
    let problem = |kind: &str, message: String| api::Problem { kind: kind.into(), message };
    let mut found = Vec::new();
    let lost = snapshot.scrub.lost_blocks + snapshot.lost_reads;
    if lost > 0 {
        let message =
            "reads or scrubbing met blocks that no copy has right: stop the store, and levee inspect names them";
        found.push(problem("lost_data", message.into()));
    }
    if snapshot.broken_logs > 0 {
        let message = "a transaction log takes no more records: see the store's log, mend its disk, start it again";
        found.push(problem("log_broken", message.into()));
    }
    if snapshot.full_engines > 0 {
        let message = "there is no room for writes: delete or discard something, or give the store more";
        found.push(problem("full", message.into()));
    }
    for directory in &snapshot.directories {
        let path = &directory.path;
        found.extend(match directory.state.as_str() {
            "healthy" => None,
            "slow" => Some(problem(
                "store_slow",
                format!("{path} answers slowly, and others are asked in its place: see what is wrong with its disk"),
            )),
            "resynchronizing" => Some(problem(
                "directory_resynchronizing",
                format!("{path} is being repaired: copies are missing until then"),
            )),
            "missing" => {
                Some(problem("directory_missing", format!("{path} is missing: bring it back, and start again")))
            }
            _ => Some(problem("directory_failed", format!("{path} has failed: mend its disk, and start again"))),
        });
    }
    // A pool that several servers are in is slow to each of them.
    found.dedup();
    found
}

/// What is wrong with servers.
fn problems_of_servers(cluster: &api::Cluster) -> Vec<api::Problem> {
    let problem = |kind: &str, message: String| api::Problem { kind: kind.into(), message };
    let mut found = Vec::new();
    if cluster.servers.is_empty() {
        found.push(problem("no_servers", "no server is in touch: start one with levee server".into()));
    }
    for server in &cluster.servers {
        for engine in &server.engines {
            let name = &server.name;
            if let Some(why) = &engine.no_answer {
                found.push(problem("server_mute", format!("{name} does not say how it stands: {why}")));
            }
            if engine.state == "healthy" {
                continue;
            }
            found.push(match engine.state.as_str() {
                "silent" => {
                    problem("server_silent", format!("{name} was not heard of: see whether it runs, and the network"))
                }
                _ => problem("server_dead", format!("{name} is dead, and its segments go to others: start it again")),
            });
        }
    }
    match cluster.segments_on_the_way {
        0 => {}
        1 => found.push(problem("segments_on_the_way", "a segment is on its way from one server to another".into())),
        count => {
            found.push(problem(
                "segments_on_the_way",
                format!("{count} segments are on their way from server to server"),
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_named_and_a_store_without_any_is_healthy() {
        let quiet = Snapshot::default();
        assert!(status(&quiet, &[], Vec::new(), String::new()).is_healthy);
        let directories = ["healthy", "failed", "missing", "resynchronizing", "slow"].map(|state| api::Directory {
            path: format!("/{state}"),
            state: state.into(),
            free_bytes: 1,
            behind_bytes: 2,
        });
        // Two servers are in the same pool.
        let directories = directories.iter().chain(&directories[4..]).cloned().collect();
        let bad = Snapshot { lost_reads: 1, broken_logs: 1, full_engines: 1, directories, ..quiet };
        let found = status(&bad, &[], Vec::new(), String::new());
        let kinds: Vec<&str> = found.problems.iter().map(|problem| problem.kind.as_str()).collect();
        assert_eq!(
            kinds,
            [
                "lost_data",
                "log_broken",
                "full",
                "directory_failed",
                "directory_missing",
                "directory_resynchronizing",
                "store_slow"
            ]
        );
        assert!(!found.is_healthy && found.problems[3].message.starts_with("/failed has failed"), "{found:?}");
    }
}

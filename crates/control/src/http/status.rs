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

/// So many agents are named that find a server slow.
const AGENTS_NAMED: usize = 3;

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
            if let Some(agents) = slow_for(engine, "server") {
                let message = format!(
                    "{name} answers {agents} more slowly than others do: see its processors and its way to the store, or drain it \
                     (levee server drain {name})"
                );
                found.push(problem("server_slow", message));
            }
            if let Some(agents) = slow_for(engine, "link") {
                found.push(problem(
                    "link_slow",
                    format!("the network between {name} and {agents} is slow: see both ends"),
                ));
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

/// For whom a part of an engine is slow; none: for nobody.
fn slow_for(engine: &api::Engine, part: &str) -> Option<String> {
    let agents: Vec<&str> =
        engine.slow.iter().filter(|slow| slow.part == part).map(|slow| slow.agent.as_str()).collect();
    match agents[..] {
        [] => None,
        [.., last] if agents.len() <= AGENTS_NAMED => {
            let first = agents[..agents.len() - 1].join(", ");
            Some(if first.is_empty() { last.to_owned() } else { format!("{first} and {last}") })
        }
        _ => Some(format!("{} and {} more agents", agents[..AGENTS_NAMED].join(", "), agents.len() - AGENTS_NAMED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_slow_is_named_with_those_who_say_so() {
        let slow = |agents: &[&str], part: &str| {
            let of = |agent: &&str| api::SlowFor { agent: (*agent).to_owned(), part: part.to_owned() };
            agents.iter().map(of).collect::<Vec<_>>()
        };
        let of = |slow: Vec<api::SlowFor>| {
            let engine = api::Engine { state: "healthy".into(), slow, ..api::Engine::default() };
            let server = api::Server { name: "s2".into(), engines: vec![engine], ..api::Server::default() };
            let cluster = api::Cluster { servers: vec![server], ..api::Cluster::default() };
            problems_of_servers(&cluster).into_iter().map(|found| (found.kind, found.message)).collect::<Vec<_>>()
        };
        assert_eq!(of(vec![]), []);
        let found = of([slow(&["a1"], "server"), slow(&["a1", "a2"], "link")].concat());
        assert_eq!((found[0].0.as_str(), found[1].0.as_str()), ("server_slow", "link_slow"));
        assert!(found[0].1.starts_with("s2 answers a1 more slowly"), "{found:?}");
        assert!(found[1].1.starts_with("the network between s2 and a1 and a2 is slow"), "{found:?}");
        let found = of(slow(&["a1", "a2", "a3", "a4", "a5"], "server"));
        assert!(found[0].1.starts_with("s2 answers a1, a2, a3 and 2 more agents more slowly"), "{found:?}");
        assert_eq!(of(slow(&["a1"], "of a newer version")), []);
    }

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

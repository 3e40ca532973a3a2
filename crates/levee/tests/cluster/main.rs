//! Several servers as processes: they are killed, stopped and continued, drained and restarted, and their links are cut, while
//! fio writes through an agent and reads back what it wrote. Clients meet no error, and nothing is lost.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]
#![allow(clippy::disallowed_methods, reason = "real processes have the clock and the threads of this one")]

mod bed;
mod certificates;
mod fio;
mod proxy;

use std::collections::BTreeMap;

use self::bed::{Bed, levee, text};
use self::fio::pause;
use self::proxy::Proxy;

#[test]
fn each_role_is_killed_and_clients_meet_no_error() {
    if !fio::is_there() {
        return;
    }
    let mut bed = Bed::start(3, 3, 2);
    bed.ask(&["volume", "create", "vm-1", "--size", "1G"]);
    bed.settle(3, 4);
    let uri = bed.uri("a1", "vm-1");
    fio::fill(&uri);
    // To mend a pool takes a while.
    let mut client = fio::begin(&uri, if bed::Engines::named().is_some() { 75 } else { 30 });
    pause(2);
    for name in ["s1", "m1", "s2", "m2", "store", "s3", "m3"] {
        bed.kill(name);
        pause(1);
        client.goes_on();
        bed.run(name);
        pause(2);
    }
    bed.settle(3, 4);
    client.end();
    // Without the agent its clients have nobody; another one has all that they were told is there.
    bed.kill("a1");
    fio::check(&bed.uri("a2", "vm-1"));
    bed.run("a1");
    fio::check(&bed.uri("a1", "vm-1"));
    bed.ask(&["volume", "delete", "vm-1"]);
    assert!(bed.ask(&["volume", "list"]).contains("no volumes"));
}

#[test]
fn who_is_stopped_and_goes_on_later_does_no_harm() {
    if !fio::is_there() {
        return;
    }
    let bed = Bed::start(3, 3, 1);
    bed.ask(&["volume", "create", "vm-1", "--size", "1G"]);
    bed.settle(3, 4);
    let uri = bed.uri("a1", "vm-1");
    let mut client = fio::begin(&uri, 30);
    pause(1);
    bed.signal("s1", "STOP");
    // Its requests in flight are late writes when it goes on: others have its segments by then.
    bed.settle(2, 4);
    pause(8);
    client.goes_on();
    bed.signal("s1", "CONT");
    bed.wait("it begins another life", |bed| bed.servers().len() == 3);
    for manager in ["m1", "m2", "m3"] {
        bed.signal(manager, "STOP");
        pause(2);
        bed.signal(manager, "CONT");
    }
    bed.settle(3, 4);
    client.end();
}

#[test]
fn a_server_is_drained_and_all_are_started_again_one_after_another() {
    if !fio::is_there() {
        return;
    }
    let mut bed = Bed::start(3, 3, 1);
    bed.ask(&["volume", "create", "vm-1", "--size", "1G"]);
    bed.settle(3, 4);
    let uri = bed.uri("a1", "vm-1");
    fio::fill(&uri);
    let client = fio::begin(&uri, 20);
    for server in ["s1", "s2", "s3"] {
        bed.ask(&["server", "drain", server]);
        bed.wait("it has nothing", |bed| bed.servers().get(server) == Some(&0));
        bed.stop(server);
        bed.run(server);
        // A manager that has just come into charge may not have heard of it yet, and says so.
        bed.wait("it is in touch", |bed| bed.output("m1", &["server", "undrain", server]).status.success());
        bed.settle(3, 4);
    }
    for manager in ["m1", "m2", "m3"] {
        bed.stop(manager);
        bed.run(manager);
    }
    // Whoever is asked, whoever is in charge.
    for manager in ["m1", "m2", "m3"] {
        bed.wait("everybody answers", |bed| bed.output(manager, &["volume", "show", "vm-1"]).status.success());
    }
    bed.ask(&["segment", "move", "vm-1/0"]);
    bed.settle(3, 4);
    client.end();
    fio::check(&uri);
}

#[test]
fn a_second_agent_takes_a_volume_and_the_first_says_so_to_its_clients() {
    if !fio::is_there() {
        return;
    }
    let bed = Bed::start(1, 2, 2);
    bed.ask(&["volume", "create", "vm-1", "--size", "1G"]);
    bed.settle(2, 4);
    let client = fio::begin(&bed.uri("a1", "vm-1"), 60);
    pause(1);
    fio::fill(&bed.uri("a2", "vm-1"));
    let done = client.ended();
    assert!(!done.status.success(), "a former holder goes on: {}", text(&done.stdout));
    fio::check(&bed.uri("a2", "vm-1"));
    let in_use = bed.output("m1", &["volume", "delete", "none"]);
    assert!(text(&in_use.stderr).contains("there is no volume"), "{in_use:?}");
}

/// Whoever is asked, it is what the servers and the agent have counted.
#[test]
fn any_manager_tells_what_servers_and_agents_do() {
    if !fio::is_there() {
        return;
    }
    let mut bed = Bed::start(2, 2, 1);
    bed.ask(&["volume", "create", "vm-1", "--size", "1G", "--burst-iops", "100"]);
    bed.settle(2, 4);
    let uri = bed.uri("a1", "vm-1");
    fio::fill(&uri);
    for manager in ["m1", "m2"] {
        let ask = |arguments: &[&str]| {
            let output = bed.output(manager, arguments);
            assert!(output.status.success(), "{manager}: {arguments:?}: {}", text(&output.stderr));
            text(&output.stdout)
        };
        let explained = ask(&["volume", "explain", "vm-1"]);
        let wanted = ["burst level of 100 IOPS", "server   s1: 2 segments", "server   s2: 2 segments", "write    half"];
        assert!(wanted.iter().all(|part| explained.contains(part)), "{explained}");
        assert!(ask(&["volume", "show", "vm-1"]).contains(&format!("attach       {uri}")));
        assert!(ask(&["volume", "list"]).contains(&uri));
        assert!(ask(&["scrub"]).contains("were read, all copies counted"));
        let top = ask(&["top", "--count", "1", "--interval", "0.5"]);
        assert!(top.contains("SERVER  SEGMENTS  READ/S") && top.contains("vm-1"), "{top}");
        let metrics = bed.get(manager, "/metrics");
        let series =
            ["levee_volume_requests_total{agent=\"a1\",volume=\"vm-1\"", "levee_served_requests_total{server=\"s2\""];
        assert!(series.iter().all(|series| metrics.contains(series)), "{metrics}");
    }
    bed.kill("a1");
    bed.kill("s1");
    bed.wait("both are missed", |bed| {
        !bed.ask(&["volume", "list"]).contains(&uri) && bed.ask(&["server", "list"]).contains("gone for")
    });
}

#[test]
fn links_are_cut_one_way_and_both() {
    if !fio::is_there() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    // The detours of s1: to the only manager, and to the store. Where those are is known when they run.
    let detours: BTreeMap<String, String> = ["m1", "store"]
        .iter()
        .map(|wanted| (format!("s1-{wanted}"), format!("unix:{}", at(wanted).display())))
        .collect();
    let (bed, proxies) = Bed::start_with_proxies(1, 2, 1, detours, |bed| {
        ["m1", "store"].map(|wanted| Proxy::start(&at(wanted), bed.path(&format!("{wanted}.sock"))))
    });
    let [manager, store] = &proxies;
    // A pool is not reached by way of a proxy: there only the manager is out of reach.
    let store = if bed::Engines::named().is_some() { manager } else { store };
    bed.ask(&["volume", "create", "vm-1", "--size", "1G"]);
    bed.settle(2, 4);
    let uri = bed.uri("a1", "vm-1");
    fio::fill(&uri);
    let mut client = fio::begin(&uri, 45);
    for (link, there, back) in
        [(manager, true, true), (store, true, true), (manager, true, false), (store, false, true)]
    {
        link.cut(there, back);
        // Longer than its lease.
        pause(4);
        client.goes_on();
        link.cut(false, false);
        bed.settle(2, 4);
    }
    client.end();
    fio::check(&uri);
}

/// All of it in one process: to try it out.
#[test]
fn several_servers_run_in_one_process() {
    if !fio::is_there() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("store");
    let start = |more: &[&str]| {
        let mut up = levee();
        up.args(["up", "--json", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--dir"]).arg(&directory);
        up.args(more).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = up.spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
        (child, serde_json::from_str::<serde_json::Value>(&line).unwrap_or_default())
    };
    let several = ["--servers", "3", "--volume", "vm-1", "--size", "1G"];
    for life in 0..3 {
        let (mut child, ready) = start(&several);
        let uri = format!("{}/vm-1", ready["nbd"].as_str().unwrap());
        if life == 0 {
            fio::fill(&uri);
        }
        fio::check(&uri);
        let listed =
            levee().args(["server", "list", "--json", "--api", ready["api"].as_str().unwrap()]).output().unwrap();
        let servers: Vec<serde_json::Value> = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(servers.len(), 3, "{servers:?}");
        if life == 0 {
            child.kill().unwrap();
            child.wait().unwrap();
        } else {
            bed::signal(&child, "TERM");
            let done = child.wait_with_output().unwrap();
            assert!(done.status.success(), "{}", text(&done.stderr));
        }
    }
    let (child, _) = start(&[]);
    let refused = child.wait_with_output().unwrap();
    assert!(text(&refused.stderr).contains("--servers"), "{}", text(&refused.stderr));
}

/// What becomes of clients while a pool takes nothing, and after that. Errors say why, reads go on, and nothing is lost.
#[test]
fn a_pool_that_is_full_takes_writes_again_when_it_is_not() {
    let Some(engines) = bed::Engines::named() else { return bed::say_that_there_are_no_engines() };
    let mut bed = Bed::start(1, 2, 1);
    bed.ask(&["volume", "create", "vm-1", "--size", "1G"]);
    bed.settle(2, 4);
    let uri = bed.uri("a1", "vm-1");
    fio::fill(&uri);
    // What is large goes to data files at once; what is not, to the journal, of which there is one for use.
    for piece in ["128k", "16k"] {
        engines.script("fill");
        let said = fio::refused(&uri, piece);
        assert!(said.contains("No space left on device"), "{said}");
        fio::check(&uri);
        // Whoever dies meanwhile is followed.
        bed.kill("s1");
        bed.run("s1");
        bed.settle(2, 4);
        fio::check(&uri);
        engines.script("empty");
        bed.wait("it takes writes again", |_| fio::is_taken(&uri, piece));
        fio::begin(&uri, 5).end();
        fio::check(&uri);
    }
    bed.settle(2, 4);
}

/// Too few OSDs for `min_size`: requests wait, for longer than one operation of the pool may take, and meet no error. A manager
/// that logs something meanwhile, and does not come to know whether that is there, is in charge again afterwards.
#[test]
fn a_pool_below_its_min_size_holds_clients_up() {
    let Some(engines) = bed::Engines::named() else { return bed::say_that_there_are_no_engines() };
    let mut bed = Bed::start(1, 2, 1);
    for volume in ["vm-1", "vm-2"] {
        bed.ask(&["volume", "create", volume, "--size", "1G"]);
    }
    bed.settle(2, 8);
    let [uri, other] = ["vm-1", "vm-2"].map(|volume| bed.uri("a1", volume));
    fio::fill(&uri);
    // Servers that have just begun have nothing in memory that could be read.
    for server in ["s1", "s2"] {
        bed.stop(server);
        bed.run(server);
        bed.settle(2, 8);
    }
    // Small writes wait in the journal, large ones and reads for the pool itself.
    let mut clients = [fio::begin(&uri, 45), fio::begin_in_pieces(&other, "128k", 45)];
    pause(2);
    engines.script("starve");
    std::thread::scope(|scope| {
        // What is said of it may be that nobody knows.
        scope.spawn(|| bed.output("m1", &["volume", "create", "vm-3", "--size", "1G"]));
        scope.spawn(|| fio::check(&uri));
        // Longer than one operation of the pool may take.
        pause(35);
        clients.iter_mut().for_each(fio::Fio::goes_on);
        engines.script("mend");
    });
    clients.into_iter().for_each(fio::Fio::end);
    bed.wait("all of them go on, in this life or another one", |bed| bed.servers().len() == 2);
    bed.wait("it can be attached", |_| fio::is_taken(&uri, "4k"));
    fio::check(&uri);
}

/// Where the store is a pool of Ceph, and the leases are in an etcd.
#[test]
fn what_is_wrong_with_a_pool_is_said_in_one_sentence() {
    let Some(engines) = bed::Engines::named() else { return bed::say_that_there_are_no_engines() };
    let refused = |store: &str, what: &str| {
        let output =
            levee().args(["server", "--name", "x", "--managers", "127.0.0.1:1", "--store", store]).output().unwrap();
        let said = text(&output.stderr);
        let is_one = said.lines().filter(|line| line.starts_with("error: ")).count() == 1;
        assert!(!output.status.success() && is_one && said.contains(what), "{store}: {said}");
    };
    let (place, how) = engines.pool.split_once('?').unwrap();
    let pool = place.split('/').next().unwrap();
    refused(&format!("{pool}-none?{how}"), "ceph osd pool create levee-none");
    refused(&format!("{pool}?{how}&user=nobody"), "ceph auth get-or-create client.nobody");
    refused(&format!("{pool}?conf=/nowhere/ceph.conf"), "?conf=FILE");
    refused("rados:", "write rados:POOL");
    // A pool with erasure coding does for data files only, and the other way round it has to be named always.
    refused(
        &format!("rados:{data}/none?{how}", data = engines.data_pool),
        &format!("rados:POOL?data={}", engines.data_pool),
    );
    refused(&format!("{pool}?{how}&data={}-none", engines.data_pool), "ceph osd pool create levee-data-none");
    refused(&format!("{pool}?{how}&colour=red"), "user=NAME");
    // A manager goes on trying: an etcd may come back.
    let scratch = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", scratch.path().join("m1.sock").display());
    let mut manager = levee();
    manager.args([
        "manager",
        "--json",
        "--name",
        "m1",
        "--listen",
        &socket,
        "--managers",
        &socket,
        "--store",
        &engines.pool,
    ]);
    manager.args(["--leases", "etcd:127.0.0.1:1", "--api-listen", "127.0.0.1:0", "--token-file"]);
    manager.arg(scratch.path().join("token")).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = manager.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    pause(1);
    let status = levee().args(["status", "--api", ready["api"].as_str().unwrap()]).output().unwrap();
    let said = text(&status.stderr) + &text(&status.stdout);
    assert!(!status.status.success() && said.contains("in charge"), "{said}");
    child.kill().unwrap();
    let log = text(&child.wait_with_output().unwrap().stderr);
    assert!(log.contains("etcd at 127.0.0.1:1"), "{log}");
}

#[test]
fn what_is_wrong_with_a_role_is_said_in_one_sentence() {
    let refused = |arguments: &[&str]| {
        let output = levee().args(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.starts_with("error: "), "{arguments:?}: {said}");
        said
    };
    let named = ["--name", "x", "--managers", "127.0.0.1:1"];
    assert!(refused(&["server", "--managers", "127.0.0.1:1"]).contains("--name"));
    assert!(refused(&["server", "--name", "a b", "--managers", "127.0.0.1:1"]).contains("--name"));
    assert!(refused(&["agent", "--name", "x"]).contains("--managers"));
    assert!(refused(&["agent", "--name", "x", "--managers", "127.0.0.1:1,127.0.0.1:1"]).contains("twice"));
    assert!(refused(&["agent", "--name", "x", "--managers", "nowhere"]).contains("127.0.0.1:7500"));
    assert!(refused(&[&["server"], &named[..]].concat()).contains("--store"));
    assert!(refused(&[&["manager", "--store", "127.0.0.1:9"], &named[..]].concat()).contains("not among --managers"));
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("levee.toml");
    std::fs::write(&config, "[cluster]\nname = \"x\"\nroll = \"server\"\n").unwrap();
    let said = refused(&["server", "--config", config.to_str().unwrap()]);
    assert!(said.contains("roll") && said.contains("levee.toml"), "{said}");
    // A store by itself has no others.
    let mut up = levee();
    up.args(["up", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--json", "--dir"])
        .arg(scratch.path().join("s"));
    let mut child = up.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let said = refused(&["server", "list", "--api", ready["api"].as_str().unwrap()]);
    assert!(said.contains("one server by itself"), "{said}");
    let said = refused(&["segment", "move", "vm-1", "--api", ready["api"].as_str().unwrap()]);
    assert!(said.contains("VOLUME/INDEX"), "{said}");
    child.kill().unwrap();
    child.wait().unwrap();
}

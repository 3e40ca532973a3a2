//! The command line on real processes: each store in a directory of its own, on ports that the kernel chose.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use store::{LEVEE, Store, levee, output, refused, text};

mod calibrate;
mod files;
mod inspect;
mod profile;
mod status;
mod store;
mod traces;

fn volume(id: u64, name: &str, size: u64, found: &Value, store: &Store) -> Value {
    let socket = store.directory.join("nbd.sock");
    let tcp = store.lines.iter().find_map(|line| line.strip_prefix("NBD      ")).unwrap();
    json!({
        "id": id, "name": name, "size_bytes": size, "data_sector_bytes": 131072, "segments": 4, "state": "active",
        "generation": found["generation"], "clients": 0, "owner": "", "created_ms": found["created_ms"],
        "levels": {
            "base_iops": null, "base_bytes_per_second": null, "burst_iops": null, "burst_bytes_per_second": null,
            "credit_seconds": null, "credit_percent": null,
        },
        "forwarding": "default",
        "uris": [format!("nbd+unix:///{name}?socket={}", socket.display()), format!("{tcp}/{name}")],
    })
}

#[test]
fn a_store_from_its_start_to_its_end() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("new/store");
    let store = Store::start(&directory, &["--volume", "vm-1", "--size", "1G"]);

    // The last lines: control address, socket, NBD address, each with a command that works when it is pasted.
    let labels: Vec<&str> =
        store.lines.iter().filter_map(|line| line.split_once("  ")).map(|(label, _)| label).collect();
    assert_eq!(
        labels.iter().filter(|label| !label.is_empty()).collect::<Vec<_>>(),
        [&"control", &"socket", &"NBD     ".trim()]
    );
    for label in ["control", "socket", "NBD"] {
        let example = store.example(label);
        let program = example.split_whitespace().next().unwrap();
        if program != LEVEE && Command::new(program).arg("--version").output().is_err() {
            continue;
        }
        let done = Command::new("sh").args(["-c", example]).output().unwrap();
        assert!(done.status.success(), "{example}: {}", text(&done.stderr));
    }

    let shown = store.json(&["volume", "show", "vm-1"]);
    assert_eq!(shown, volume(1, "vm-1", 1 << 30, &shown, &store));
    let created = store.json(&["volume", "create", "two", "--size", "1.5TiB"]);
    assert_eq!(created["size_bytes"], 3u64 << 39);
    let list = store.json(&["volume", "list"]);
    let names: Vec<&Value> = list["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]).collect();
    assert_eq!(names, ["two", "vm-1"]);
    let deleted = store.json(&["volume", "delete", "two"]);
    assert_eq!(deleted, json!({"volume": created, "is_dropped": true}));

    let pid = store.child.id().to_string();
    let second = refused(
        1,
        &["up", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--dir", directory.to_str().unwrap()],
    );
    assert!(second.contains("in use by levee up") && second.contains(&pid), "{second}");
    let looked = refused(1, &["inspect", directory.to_str().unwrap()]);
    assert!(looked.contains(&pid) && looked.contains("stop it first"), "{looked}");
    assert_eq!(store.stop("TERM").code(), Some(0));
    assert!(!directory.join("nbd.sock").exists());

    // Again, with the same volume, stopped by Ctrl-C; then with another size.
    let store = Store::start(&directory, &["--volume", "vm-1", "--size", "1024M"]);
    assert_eq!(store.json(&["volume", "show", "vm-1"])["id"], 1);
    assert_eq!(store.stop("INT").code(), Some(0));
    let addresses =
        ["up", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--dir", directory.to_str().unwrap()];
    let other = refused(1, &[&addresses[..], &["--volume", "vm-1", "--size", "2G"]].concat());
    assert!(other.contains("1073741824 bytes instead of 2147483648"), "{other}");
}

#[test]
fn a_killed_store_starts_again() {
    let scratch = tempfile::tempdir().unwrap();
    for life in 1..=3 {
        let mut store = Store::start(scratch.path(), &[]);
        assert_eq!(store.json(&["volume", "list"])["volumes"].as_array().unwrap().len(), life - 1);
        store.json(&["volume", "create", &format!("v{life}"), "--size", "1G"]);
        store.child.kill().unwrap();
        assert!(!store.child.wait().unwrap().success());
    }
}

#[test]
fn addresses_as_json() {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = levee(&["up", "--json", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--dir"]);
    let mut child = command.arg(scratch.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let _ = child.kill();
    let _ = child.wait();
    let addresses: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(addresses["socket"], scratch.path().join("nbd.sock").to_str().unwrap());
    assert!(addresses["api"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{line}");
    assert!(addresses["nbd"].as_str().unwrap().starts_with("nbd://127.0.0.1:"), "{line}");
}

#[test]
fn levels_are_set_shown_and_explained() {
    let scratch = tempfile::tempdir().unwrap();
    let store = Store::start(scratch.path(), &["--bandwidth", "20MiB"]);
    let said = |arguments: &[&str]| {
        let output = output(&[&["volume"], arguments, &["--api", &store.api]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let created = store.json(&[
        "volume",
        "create",
        "vm-1",
        "--size",
        "1G",
        "--owner",
        "ops",
        "--base-iops",
        "100",
        "--base-bandwidth",
        "1M",
        "--burst-iops",
        "200",
        "--credit-seconds",
        "60",
        "--credit-percent",
        "50",
    ]);
    assert_eq!((&created["owner"], &created["levels"]["base_bytes_per_second"]), (&json!("ops"), &json!(1 << 20)));
    let shown = said(&["show", "vm-1"]);
    for line in [
        "base level   100 IOPS and 1 MiB/s",
        "burst level  200 IOPS",
        "credits      50% of what it leaves over, up to 60 s of its base level",
    ] {
        assert!(shown.lines().any(|found| found == line), "{line}: {shown}");
    }
    let set = store.json(&["volume", "set", "vm-1", "--burst-iops", "0", "--burst-bandwidth", "2M"]);
    assert_eq!((&set["levels"]["burst_iops"], &set["levels"]["base_iops"]), (&Value::Null, &json!(100)));
    assert!(said(&["set", "vm-1", "--credit-percent", "0"]).contains("burst level  2 MiB/s"));
    let too_low = refused(1, &["volume", "set", "vm-1", "--burst-bandwidth", "1K", "--api", &store.api]);
    assert!(too_low.contains("choose that or more"), "{too_low}");

    let explained = store.json(&["volume", "explain", "vm-1"]);
    assert_eq!(
        (&explained["waits"], &explained["server"]["bandwidth_bytes_per_second"]),
        (&json!([]), &json!(20 << 20))
    );
    let sentences = said(&["explain", "vm-1"]);
    assert!(sentences.starts_with("Nothing of vm-1 has waited") && sentences.contains("at 20 MiB/s"), "{sentences}");
    let unknown = refused(1, &["volume", "explain", "vm-2", "--api", &store.api]);
    assert!(unknown.contains("did you mean \"vm-1\"?"), "{unknown}");
}

#[test]
fn what_a_volume_cannot_be_is_said() {
    let scratch = tempfile::tempdir().unwrap();
    let store = Store::start(scratch.path(), &[]);
    let api = ["--api", &store.api];
    let volume = |arguments: &[&str]| refused(1, &[&["volume"], arguments, &api[..]].concat());
    assert!(volume(&["create", "a b", "--size", "1G"]).contains("is not a volume name"));
    assert!(volume(&["create", "a", "--size", "1"]).contains("choose from 1 MiB to 64 TiB"));
    assert!(volume(&["create", "a", "--size", "1G", "--data-sector", "5000"]).contains("power of two"));
    store.json(&["volume", "create", "database", "--size", "1G"]);
    assert!(volume(&["create", "database", "--size", "1G"]).contains("already"));
    store.json(&["volume", "create", "database", "--size", "1G", "--allow-existing"]);
    assert!(volume(&["show", "databose"]).contains("did you mean \"database\"?"));
    assert!(volume(&["delete", "../x"]).contains("is not a volume name"));

    // The token: a wrong one, a file that others can read.
    let wrong =
        levee(&["volume", "delete", "database", "--api", &store.api]).env("LEVEE_TOKEN", "wrong").output().unwrap();
    assert!(wrong.status.code() == Some(1) && text(&wrong.stderr).contains("not this store's"), "{wrong:?}");
    let token = scratch.path().join("api.token");
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(volume(&["delete", "database"]).contains("chmod 600"));
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    store.json(&["volume", "delete", "database", "--token-file", token.to_str().unwrap()]);
    let nobody = refused(1, &["volume", "list", "--api", "http://127.0.0.1:1"]);
    assert!(nobody.contains("no store answers") && nobody.contains("levee up"), "{nobody}");
}

#[test]
fn wrong_usage_exits_2() {
    for arguments in [
        &["volume", "create", "a"][..],
        &["volume", "create", "a", "--size", "ten"],
        &["volume", "set", "a"],
        &["volume", "set", "a", "--base-iops", "many"],
        &["volume", "set", "a", "--size", "2G"],
        &["volume", "explain"],
        &["top", "--interval", "0"],
        &["top", "--count", "0"],
        &["completions", "tcsh"],
        &["up", "--volume", "a"],
        &["up", "--bandwidth", "fast"],
        &["up", "--listen", "nowhere"],
        &["up", "--copies", "0"],
        &["inspect"],
        &["frobnicate"],
        &[],
    ] {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let none = refused(2, &["volume", "set", "a"]);
    assert!(none.contains("--base-iops") && none.contains("--credit-percent"), "{none}");
    let size = refused(2, &["volume", "create", "a", "--size", "ten"]);
    assert!(size.contains("'ten' is not a size") && size.contains("10G"), "{size}");
    assert!(output(&["--help"]).status.success() && output(&["--version"]).status.success());
}

#[test]
fn what_keeps_a_store_from_starting_is_said_with_what_to_do() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let up =
        |more: &[&str]| refused(1, &[&["up", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"], more].concat());
    std::fs::write(path("file"), "content").unwrap();
    std::fs::create_dir(path("full")).unwrap();
    std::fs::write(path("full/photo.jpg"), "content").unwrap();
    assert!(up(&["--dir", &path("file")]).contains("file"));
    assert!(up(&["--dir", &path("file/below")]).contains("file/below"));
    assert!(up(&["--dir", &path("full")]).contains("photo.jpg"));
    assert!(std::fs::read_dir(path("full")).unwrap().count() == 1, "nothing was changed");
    assert!(up(&["--dir", &path(&"x".repeat(100))]).contains("nbd.socket"));
    assert!(up(&["--dir", &path("a"), "--dir", &path("a")]).contains("twice"));
    assert!(up(&["--dir", &path("a"), "--memory", "1M"]).contains("64 MiB"));
    assert!(up(&["--dir", &path("a"), "--bandwidth", "1K"]).contains("choose from 1 MiB to 1 TiB"));

    assert!(up(&["--config", &path("none.toml")]).contains("none.toml"));
    std::fs::write(path("wrong.toml"), "[api]\nlistn = \"127.0.0.1:0\"\n").unwrap();
    let wrong = up(&["--config", &path("wrong.toml")]);
    assert!(wrong.contains("wrong.toml") && wrong.contains("did you mean api.listen?"), "{wrong}");
    assert!(refused(1, &["up", "--log", "a=b=c"]).contains("is not a log filter"));

    let store = Store::start(&scratch.path().join("running"), &[]);
    let api = store.api.strip_prefix("http://").unwrap();
    let taken = refused(1, &["up", "--dir", &path("other"), "--listen", "127.0.0.1:0", "--api-listen", api]);
    assert!(taken.contains(api) && taken.contains("--api-listen"), "{taken}");
    assert!(!scratch.path().join("other").exists(), "nothing was made");
    let nbd = store.lines.iter().find_map(|line| line.strip_prefix("NBD      nbd://")).unwrap();
    let taken = refused(1, &["up", "--dir", &path("other"), "--listen", nbd, "--api-listen", "127.0.0.1:0"]);
    assert!(taken.contains(nbd) && taken.contains("--listen"), "{taken}");
}

#[test]
fn settings_come_from_a_file_and_flags_win() {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("levee.toml");
    let socket = scratch.path().join("other.sock");
    let text = format!("memory = \"128M\"\n[nbd]\nsocket = {:?}\nlisten = \"127.0.0.1:1\"\n", socket.to_str().unwrap());
    std::fs::write(&config, text).unwrap();
    let store = Store::start(&scratch.path().join("store"), &["--config", config.to_str().unwrap()]);
    assert!(store.lines.contains(&format!("socket   {}", socket.display())), "{:?}", store.lines);
    assert!(socket.exists());
}

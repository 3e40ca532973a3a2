//! `levee status`, `levee top` and `levee completions`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::store::{Store, output, refused, text};

#[test]
fn a_healthy_store_of_two_loops() {
    let scratch = tempfile::tempdir().unwrap();
    let store = Store::start(scratch.path(), &["--volume", "vm-1", "--size", "1G", "--loops", "2"]);
    let status = store.json(&["status"]);
    assert_eq!((&status["is_healthy"], &status["problems"]), (&json!(true), &json!([])));
    assert_eq!(status["traffic"][0]["volume"], "vm-1");
    assert_eq!(status["directories"].as_array().unwrap().len(), 2, "one of each loop");

    let shown = output(&["status", "--api", &store.api]);
    let screen = text(&shown.stdout);
    assert_eq!(shown.status.code(), Some(0), "{screen}");
    assert!(screen.starts_with("health   well\n"), "{screen}");
    let path = scratch.path().display().to_string();
    for part in ["\nspace    ", &format!("\ncopies   {path} healthy"), "\nscrub    resting", "\nvm-1    1 GiB  0"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }

    let top = output(&["top", "--interval", "0.1s", "--count", "2", "--api", &store.api]);
    let screens = text(&top.stdout);
    assert!(top.status.success() && !screens.contains('\x1b'), "{screens}");
    assert_eq!(screens.matches("health   well\n").count(), 2, "{screens}");
    assert_eq!(screens.lines().filter(|line| line.starts_with("vm-1 ")).count(), 2, "{screens}");
    let line = output(&["top", "--interval", "0.1", "--count", "1", "--json", "--api", &store.api]);
    let interval: Value = serde_json::from_slice(&line.stdout).unwrap();
    assert_eq!(
        (&interval["volumes"][0]["volume"], &interval["volumes"][0]["write"]["iops"]),
        (&json!("vm-1"), &json!(0))
    );
}

/// No disk fails on command: a store's own answer, with a problem added, comes from somebody else.
#[test]
fn a_degraded_store_exits_1() {
    let scratch = tempfile::tempdir().unwrap();
    let mut status = Store::start(scratch.path(), &[]).json(&["status"]);
    status["is_healthy"] = json!(false);
    status["problems"] = json!([{"kind": "directory_failed", "message": "/b has failed"}]);
    let (api, asked) = answer_once(status.to_string());
    let shown = output(&["status", "--api", &api]);
    let screen = text(&shown.stdout);
    assert_eq!(shown.status.code(), Some(1), "{screen}");
    assert!(screen.starts_with("health   degraded: 1 problem\n  directory_failed: /b has failed\n"), "{screen}");
    assert!(asked()[0].starts_with("GET /v1/status "));
    // Beyond loopback reading needs a token, too: whoever has one shows it.
    let (api, asked) = answer_once(status.to_string());
    let token = "0123456789abcdef".repeat(4);
    let file = scratch.path().join("token");
    std::fs::write(&file, &token).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    output(&["status", "--api", &api, "--token-file", file.to_str().unwrap()]);
    assert!(asked().contains(&format!("authorization: Bearer {token}")));
}

/// Somebody who answers one request; gives where, and what asks for the lines of the request's head.
fn answer_once(body: String) -> (String, impl FnOnce() -> Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = format!("http://{}", listener.local_addr().unwrap());
    let answering = std::thread::Builder::new().spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(&stream).lines().map(|line| line.unwrap());
        let asked = lines.take_while(|line| !line.is_empty()).collect();
        let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        (&stream).write_all(format!("{head}{body}").as_bytes()).unwrap();
        asked
    });
    (api, move || answering.unwrap().join().unwrap())
}

#[test]
fn a_store_that_does_not_answer_is_neither_well_nor_degraded() {
    let nobody = refused(2, &["status", "--api", "http://127.0.0.1:1"]);
    assert!(nobody.contains("no store answers"), "{nobody}");
    refused(1, &["top", "--api", "http://127.0.0.1:1"]);
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = output(&["completions", shell]);
        let found = text(&script.stdout);
        assert!(script.status.success() && found.contains("inspect") && found.contains("explain"), "{shell}: {found}");
    }
}

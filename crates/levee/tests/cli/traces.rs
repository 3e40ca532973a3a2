//! `levee lab traces`: what it says of traces of each kind, and of files that are none.

use super::store::{output, refused, text};

#[test]
fn a_trace_of_each_kind_is_described() {
    let scratch = tempfile::tempdir().unwrap();
    let written = |name: &str, lines: &[&str]| {
        let path = scratch.path().join(name);
        std::fs::write(&path, lines.join("\n")).unwrap();
        path.display().to_string()
    };
    let files = [
        written("cut", &["0.5 1 0 4096 0", "1.5 1 8192 4096 1", "700.0 1 4096 8192 0"]),
        written(
            "msr",
            &["5000,hm,1,Write,0,4096,413", "15000,hm,1,Read,8192,4096,1", "7000000,hm,1,Write,4096,8192,1"],
        ),
        written("alibaba", &["1,W,0,4096,500", "1,R,8192,4096,1500", "1,W,4096,8192,700000"]),
    ];
    let mut arguments = vec!["lab", "traces", "stat", "--json"];
    arguments.extend(files.iter().map(String::as_str));
    let printed = output(&arguments);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let described: Vec<serde_json::Value> = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(described.len(), 3);
    for one in &described {
        assert_eq!(one["writes"], serde_json::json!({ "requests": 2, "bytes": 12288 }), "{one}");
        assert_eq!(one["reads"]["requests"], 1);
        assert!((one["seconds"].as_f64().unwrap() - 0.6995).abs() < 1e-6, "{one}");
    }
    let tencent = written("tencent", &["1538323200,0,8,1,7", "1538323201,16,8,0,7", "1538323203,8,16,1,7"]);
    let shown = text(&output(&["lab", "traces", "stat", &tencent]).stdout);
    assert!(shown.contains("Tencent CBS") && shown.contains("its times are whole seconds"), "{shown}");
}

#[test]
fn what_is_no_trace_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("trace");
    let file = path.display().to_string();
    assert!(refused(1, &["lab", "traces", "stat", &file]).contains("cannot read the trace"));
    for (content, what) in [
        ("", "it is empty"),
        ("hello\n", "line 1: it has 1 fields"),
        ("0 0 0 512 0\n5 0 0 512 0\n4 0 0 512 0\n", "sort the file by time"),
        ("0 0 0 512 1\n5 0 0 512 1\n", "nothing to say"),
        ("0\0\0\0\0\0\0", "the file was cut off"),
    ] {
        std::fs::write(&path, content).unwrap();
        let error = refused(1, &["lab", "traces", "stat", &file]);
        assert!(error.contains(&file) && error.contains(what), "{error}");
    }
}

#[test]
fn traffic_is_made_as_a_trace_that_is_read() {
    let make = |workload: &str, share: &str, seed: &str| {
        let few = ["--set", "volumes=50", "--set", "seconds=4", "--share", share, "--seed", seed];
        let printed = output(&[&["lab", "traces", "make", workload][..], &few].concat());
        assert!(printed.status.success(), "{}", text(&printed.stderr));
        text(&printed.stdout)
    };
    let made = |seed: &str| make("w1", "0.5", seed);
    let lines = |text: String| text.lines().count() as f64;
    let part = lines(made("3")) / lines(make("w1", "1", "3"));
    assert!((0.45..0.55).contains(&part), "{part} of all writes");
    assert_ne!(made("3"), make("W2", "0.5", "3"));
    assert_eq!(made("3"), made("3"));
    assert_ne!(made("3"), made("4"));
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("w1");
    std::fs::write(&path, made("3")).unwrap();
    let described = output(&["lab", "traces", "stat", "--json", &path.display().to_string()]);
    let described: serde_json::Value = serde_json::from_slice(&described.stdout).unwrap();
    assert!(described[0]["format"].as_str().unwrap().contains("Alibaba"), "{described}");
    assert_eq!(described[0]["reads"]["requests"], 0, "{described}");
    assert!(described[0]["seconds"].as_f64().unwrap() <= 4.0, "{described}");
    let wrong = |more: &[&str]| refused(2, &[&["lab", "traces", "make", "w2"][..], more].concat());
    assert!(wrong(&["--share", "0"]).contains("above 0 and at most 1"));
    let error = refused(1, &["lab", "traces", "make", "w2", "--set", "volumes=3"]);
    assert!(error.contains("these parameters make no experiment"), "{error}");
}

#[test]
fn a_trace_is_replayed_with_each_policy() {
    let scratch = tempfile::tempdir().unwrap();
    let written = |name: &str, text: &str| {
        let path = scratch.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    // A write each 50 ms, and each 3 s a burst of 40 at once.
    let write = |at_ms: u64, stripe: u64, bytes: u64| format!("1,W,{},{bytes},{}\n", stripe * 65_536, at_ms * 1000);
    let at = |ms: u64| {
        let of_burst = if ms.is_multiple_of(3_000) { 40 } else { 0 };
        let burst = (0..of_burst).map(move |number| write(ms, (ms / 50 + number * 29) % 997, 65_536));
        std::iter::once(write(ms, ms / 50 % 16, 4_096)).chain(burst).collect::<String>()
    };
    let trace = written("bursts", &(0..600).map(|tick| at(tick * 50)).collect::<String>());
    let plot = scratch.path().join("plot.svg").display().to_string();
    let asked =
        ["lab", "replay", &trace, "--utilization", "0.1", "--copies", "2", "--segment", "32G", "--segment", "0"];
    let printed = output(&[&asked[..], &["--json", "--plot", &plot]].concat());
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let all: Vec<serde_json::Value> = serde_json::from_slice(&printed.stdout).unwrap();
    let policies: Vec<&str> = all.iter().map(|one| one["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["owners", "migration", "auto", "spread", "spread-less"].repeat(2));
    let number = |one: usize, key: &str| all[one][key].as_f64().unwrap();
    assert!(number(3, "p99_ms") < number(0, "p99_ms") && number(3, "logged") > 0.3, "{all:?}");
    assert!(number(5, "p99_ms") > number(0, "p99_ms") && all[5]["cut"] == "volumes not cut", "{all:?}");
    let drawn = std::fs::read_to_string(&plot).unwrap();
    assert_eq!(drawn.matches("<title>").count(), 3 * 10, "{drawn}");
    let shown = output(&["lab", "replay", &trace, "--policy", "spread", "--utilization", "0.1"]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("of 1 volumes in 30 s, on 5 servers") && shown.lines().count() == 3, "{shown}");

    let wrong = |content: &str| refused(1, &["lab", "replay", &written("wrong", content)]);
    assert!(wrong("1,W,0,4096,0\n1,W,0,4096,5000000\n").contains("give a trace of 20 s at least"));
    assert!(wrong("1,W,0,4096,9\n1,W,0,4096,5\n").contains("sort the file by time"));
    assert!(wrong("hello\n").contains("line 1"));
    assert!(refused(1, &["lab", "replay", "/nowhere"]).contains("cannot read the trace"));
    assert!(refused(2, &["lab", "replay", &trace, "--policy", "best"]).contains("there are owners, migration, auto"));
    assert!(refused(2, &["lab", "replay", &trace, "--segment", "3M"]).contains("whole GiB"));
}

//! `levee tenant list` and `show`: who shares the loops that serve clients, and who had to wait.

use base::{Error, Result};
use wire::api;

use crate::cli::Tenant;
use crate::client::{self, Client};
use crate::console;
use crate::explain::{count, duration, per_second};

/// Shows tenants.
///
/// # Errors
/// What the store or a manager answers; `NotFound` for one that has no clients.
pub fn run(command: Tenant) -> Result<()> {
    let (name, api) = match command {
        Tenant::List { api } => (None, api),
        Tenant::Show { name, api } => (Some(name), api),
    };
    let status: api::Status = Client::new(&api)?.get(client::STATUS)?;
    let mut tenants = status.tenants;
    let Some(name) = name else {
        return match api.json {
            true => console::print_json(&tenants),
            false => {
                console::print(&table(&tenants));
                Ok(())
            }
        };
    };
    tenants.retain(|tenant| tenant.name == name);
    if tenants.is_empty() {
        return Err(Error::not_found(format!(
            "nobody called {name:?} has clients: levee tenant list names those that have, and levee volume list all volumes"
        )));
    }
    if api.json {
        return console::print_json(&tenants);
    }
    for tenant in &tenants {
        console::print(&sentences(tenant));
    }
    Ok(())
}

fn base(tenant: &api::Tenant) -> String {
    match (tenant.base_iops, tenant.base_bytes_per_second) {
        (0, 0) => "an equal part".into(),
        (iops, 0) => format!("{iops} operations per second"),
        (0, bytes) => per_second(bytes),
        (iops, bytes) => format!("{iops} operations and {} per second", base::units::format_size(bytes)),
    }
}

fn burst(tenant: &api::Tenant) -> Option<String> {
    match (tenant.burst_iops, tenant.burst_bytes_per_second) {
        (0, 0) => None,
        (iops, 0) => Some(format!("{iops} operations per second")),
        (0, bytes) => Some(per_second(bytes)),
        (iops, bytes) => Some(format!("{iops} operations and {} per second", base::units::format_size(bytes))),
    }
}

/// What a level held back.
fn held(wait: &api::Waiting) -> String {
    let what = match wait.reason.as_str() {
        "base_level" => "a base level beyond which there was nothing",
        "burst_level" => "a burst level",
        "tenant_level" => "the level of the tenant",
        other => other,
    };
    let (requests, longest) = (count(wait.requests, "request", "requests"), duration(wait.longest_ns));
    let now = match wait.waiting_requests {
        0 => String::new(),
        waiting => format!(", and {} now", count(waiting, "waits", "wait")),
    };
    format!("  {requests} waited for {what}, at most {longest}{now}.")
}

/// Who bursts with it, if anybody does often enough to be told.
fn companions(tenant: &api::Tenant) -> Option<String> {
    const OFTEN_PERCENT: f64 = 10.0;
    const SHOWN: usize = 3;
    let often = tenant.bursts_with.iter().filter(|other| other.percent >= OFTEN_PERCENT).take(SHOWN);
    let named: Vec<String> = often.map(|other| format!("{} ({:.0}%)", other.name, other.percent)).collect();
    let of_time = "of the time in which it bursts itself: they would burst higher apart";
    (!named.is_empty()).then(|| format!("  It bursts together with {}, {of_time}.", named.join(", ")))
}

fn table(tenants: &[api::Tenant]) -> String {
    let row = |tenant: &api::Tenant| {
        let longest = if tenant.longest_ns == 0 { String::new() } else { duration(tenant.longest_ns) };
        vec![
            tenant.name.clone(),
            tenant.agent.clone(),
            tenant.volumes.len().to_string(),
            base(tenant),
            tenant.started.to_string(),
            tenant.waits.iter().map(|wait| wait.requests).sum::<u64>().to_string(),
            tenant.throttled.to_string(),
            tenant.waiting.to_string(),
            longest,
        ]
    };
    let rows: Vec<Vec<String>> = tenants.iter().map(row).collect();
    match rows.is_empty() {
        true => "Nobody has clients.".into(),
        false => console::table(
            &["TENANT", "AGENT", "VOLUMES", "BASE", "REQUESTS", "HELD", "THROTTLED", "WAITING", "LONGEST WAIT"],
            &rows,
        ),
    }
}

fn sentences(tenant: &api::Tenant) -> String {
    let at = if tenant.agent.is_empty() { String::new() } else { format!(" at agent {}", tenant.agent) };
    let mut lines =
        vec![format!("{}{at}: {}", tenant.name, tenant.volumes.join(", ")), format!("  Its base is {}.", base(tenant))];
    if tenant.base_percent < 99.95 && (tenant.base_iops > 0 || tenant.base_bytes_per_second > 0) {
        lines.push(format!(
            "  Of that it has {:.0}%: more was promised than this agent can do. Promise less, or attach volumes elsewhere.",
            tenant.base_percent
        ));
    }
    lines.push(format!(
        "  {} started, {} of them with what others had lent and {} from the reserve.",
        count(tenant.started, "request", "requests"),
        tenant.reclaimed,
        tenant.from_reserve
    ));
    lines.push(match tenant.throttled {
        0 => "  None had to wait for a share of the loop.".into(),
        throttled => format!(
            "  {throttled} had to wait for a share of the loop, at most {}. It asked for more than its base while others wanted theirs.",
            duration(tenant.longest_ns)
        ),
    });
    let (burst, at_most) = (burst(tenant), "It gets at most");
    lines.extend(burst.map(|burst| format!("  {at_most} {burst}, all its volumes on this agent together.")));
    if tenant.marked_base + tenant.marked_burst > 0 {
        let (base, burst) = (tenant.marked_base, tenant.marked_burst);
        lines.push(format!("  Of volumes with levels, {base} were within the base level and {burst} beyond."));
    }
    lines.extend(tenant.waits.iter().map(held));
    lines.extend(companions(tenant));
    if tenant.waiting > 0 {
        lines.push(format!("  {} now.", count(tenant.waiting, "request waits", "requests wait")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_is_said_and_what_can_be_done() {
        let quiet = api::Tenant {
            name: "shop".into(),
            volumes: vec!["db".into(), "log".into()],
            base_iops: 5000,
            base_percent: 60.0,
            started: 1,
            ..api::Tenant::default()
        };
        let loud =
            api::Tenant { name: "batch".into(), started: 9, throttled: 7, longest_ns: 2_000_000, ..quiet.clone() };
        let loud = api::Tenant { base_iops: 0, volumes: vec!["batch".into()], ..loud };
        assert!(sentences(&quiet).contains("Of that it has 60%"), "{}", sentences(&quiet));
        assert!(sentences(&quiet).contains("None had to wait"));
        let wait = api::Waiting {
            reason: "burst_level".into(),
            requests: 3,
            total_ns: 9_000,
            longest_ns: 5_000,
            waiting_requests: 2,
        };
        let held = api::Tenant { burst_iops: 700, marked_base: 5, marked_burst: 4, waits: vec![wait], ..quiet.clone() };
        let told = sentences(&held);
        assert!(told.contains("It gets at most 700 operations per second, all its volumes"), "{told}");
        assert!(told.contains("5 were within the base level and 4 beyond."), "{told}");
        assert!(told.contains("3 requests waited for a burst level, at most 5 us, and 2 wait now."), "{told}");
        assert!(!told.contains("bursts together"));
        let with = |name: &str, percent| api::BurstsWith { name: name.into(), percent };
        let companions = vec![with("batch", 62.4), with("web", 10.0), with("mail", 9.0)];
        let told = sentences(&api::Tenant { bursts_with: companions, ..quiet.clone() });
        assert!(told.contains("It bursts together with batch (62%), web (10%), of the time in which it"), "{told}");
        assert!(sentences(&loud).contains("Its base is an equal part.") && sentences(&loud).contains("7 had to wait"));
        let shown = table(&[quiet, loud]);
        assert!(shown.contains("5000 operations per second") && shown.contains("2 ms"), "{shown}");
        assert_eq!(table(&[]), "Nobody has clients.");
    }
}

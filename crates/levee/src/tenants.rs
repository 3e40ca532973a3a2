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

fn table(tenants: &[api::Tenant]) -> String {
    let row = |tenant: &api::Tenant| {
        let longest = if tenant.longest_ns == 0 { String::new() } else { duration(tenant.longest_ns) };
        vec![
            tenant.name.clone(),
            tenant.agent.clone(),
            tenant.volumes.len().to_string(),
            base(tenant),
            tenant.started.to_string(),
            tenant.throttled.to_string(),
            tenant.waiting.to_string(),
            longest,
        ]
    };
    let rows: Vec<Vec<String>> = tenants.iter().map(row).collect();
    match rows.is_empty() {
        true => "Nobody has clients.".into(),
        false => console::table(
            &["TENANT", "AGENT", "VOLUMES", "BASE", "REQUESTS", "THROTTLED", "WAITING", "LONGEST WAIT"],
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
        assert!(sentences(&loud).contains("Its base is an equal part.") && sentences(&loud).contains("7 had to wait"));
        let shown = table(&[quiet, loud]);
        assert!(shown.contains("5000 operations per second") && shown.contains("2 ms"), "{shown}");
        assert_eq!(table(&[]), "Nobody has clients.");
    }
}

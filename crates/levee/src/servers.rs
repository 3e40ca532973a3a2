//! `levee server list`, `drain` and `undrain`, `levee segment move`: several servers, through the control API.

use base::{Error, Result};
use serde_json::json;
use ureq::http::Method;
use wire::api;

use crate::cli::{Segment, ServerCommand};
use crate::client::{self, Client};
use crate::explain::duration;
use crate::{console, volume};

/// Does what was asked of a server.
///
/// # Errors
/// What a manager answers.
pub fn run(command: ServerCommand) -> Result<()> {
    match command {
        ServerCommand::List { api } => {
            let status: api::Status = Client::new(&api)?.get(client::STATUS)?;
            let cluster = status.cluster.ok_or_else(|| {
                Error::invalid(format!("{} is one server by itself, of levee up: it has no others", api.url))
            })?;
            match api.json {
                true => console::print_json(&cluster.servers),
                false => {
                    console::print(&table(&cluster));
                    Ok(())
                }
            }
        }
        ServerCommand::Drain { name, api } => {
            drain(&Client::new(&api)?, &name, true)?;
            console::print(&format!("{name} gives its segments away. It has none when levee server list says so."));
            Ok(())
        }
        ServerCommand::Undrain { name, api } => {
            drain(&Client::new(&api)?, &name, false)?;
            console::print(&format!("{name} may own segments again."));
            Ok(())
        }
    }
}

fn drain(client: &Client, name: &str, is_drained: bool) -> Result<()> {
    let body = json!({ "drained": is_drained }).to_string();
    node::rules::check_server(name)?;
    let path = format!("/v1/servers/{name}");
    client.change::<api::Decided>(Method::PATCH, &path, &body).map(drop)
}

/// Does what was asked of a segment.
///
/// # Errors
/// What a manager answers.
pub fn segment(command: Segment) -> Result<()> {
    let Segment::Move { segment, to, api } = command;
    let wrong = || Error::invalid(format!("'{segment}' is no segment: write VOLUME/INDEX, such as vm-1/0"));
    let (name, index) = segment.rsplit_once('/').ok_or_else(wrong)?;
    let index: u32 = index.parse().map_err(|_| wrong())?;
    let path = format!("{}/segments/{index}/move", volume::path_of(name)?);
    let body = match &to {
        Some(to) => json!({ "to": to }).to_string(),
        None => json!({}).to_string(),
    };
    Client::new(&api)?.change::<api::Decided>(Method::POST, &path, &body)?;
    let whereto = to.map_or("another server".to_owned(), |to| format!("server {to}"));
    console::print(&format!("{segment} moves to {whereto}: levee status says when it is there."));
    Ok(())
}

/// Servers with their engines.
pub fn table(cluster: &api::Cluster) -> String {
    let row = |server: &api::Server| {
        let states: Vec<&str> = server.engines.iter().map(|engine| engine.state.as_str()).collect();
        let addresses: Vec<&str> = server.engines.iter().map(|engine| engine.address.as_str()).collect();
        let drained = if server.is_drained { "drained" } else { "" };
        vec![
            server.name.clone(),
            states.join(", "),
            server.segments.to_string(),
            drained.to_owned(),
            addresses.join(", "),
        ]
    };
    let gone = |server: &api::GoneServer| {
        let since = duration((server.silent_seconds * 1e9) as u64);
        vec![server.name.clone(), format!("gone for {since}"), "0".into(), String::new(), String::new()]
    };
    let rows: Vec<Vec<String>> = cluster.servers.iter().map(row).chain(cluster.gone.iter().map(gone)).collect();
    match rows.is_empty() {
        true => "No server is in touch. Start one with: levee server".into(),
        false => console::table(&["SERVER", "STATE", "SEGMENTS", "DRAINED", "ADDRESS"], &rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_gone_is_named() {
        let engine = api::Engine { state: "healthy".into(), address: "host:1".into(), ..api::Engine::default() };
        let server = api::Server { name: "s1".into(), segments: 4, engines: vec![engine], ..api::Server::default() };
        let gone = api::GoneServer { name: "s2".into(), silent_seconds: 90.0 };
        let cluster = api::Cluster { servers: vec![server], gone: vec![gone], ..api::Cluster::default() };
        let expected = "\
SERVER  STATE          SEGMENTS  DRAINED  ADDRESS
s1      healthy        4                  host:1
s2      gone for 90 s  0";
        let shown = table(&cluster);
        let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
        assert_eq!(lines.join("\n"), expected);
    }
}

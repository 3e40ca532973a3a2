//! `levee volume`: through the control API.

use base::units::format_size;
use base::{Error, Result};
use serde::Serialize;
use ureq::http::Method;
use wire::api::{self, Size};

use crate::cli::{Volume as Command, VolumeChanges};
use crate::client::Client;
use crate::{console, explain};

/// Does what was asked.
///
/// # Errors
/// What the store answers.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Create { name, size, data_sector, owner, allow_existing, changes, api } => {
            let data_sector = data_sector.map(Size::Bytes);
            let (size, changes) = (Size::Bytes(size), wanted(&changes));
            let body = json(&api::CreateVolume { name, size, data_sector, owner, allow_existing, changes })?;
            let volume: api::Volume = Client::new(&api)?.change(Method::POST, "/v1/volumes", &body)?;
            match api.json {
                true => console::print_json(&volume),
                false => {
                    console::print(&format!("{} is there, with {}.", volume.name, size_of(&volume)));
                    volume.uris.iter().for_each(|uri| console::print(&format!("  attach it at \"{uri}\"")));
                    Ok(())
                }
            }
        }
        Command::List { api } => {
            let list: api::VolumeList = Client::new(&api)?.get("/v1/volumes")?;
            match api.json {
                true => console::print_json(&list),
                false => {
                    console::print(&list_of(&list));
                    Ok(())
                }
            }
        }
        Command::Show { name, api } => {
            let volume: api::Volume = Client::new(&api)?.get(&path_of(&name)?)?;
            match api.json {
                true => console::print_json(&volume),
                false => {
                    console::print(&details_of(&volume));
                    Ok(())
                }
            }
        }
        Command::Set { name, changes, api } => {
            let body = json(&wanted(&changes))?;
            let volume: api::Volume = Client::new(&api)?.change(Method::PATCH, &path_of(&name)?, &body)?;
            match api.json {
                true => console::print_json(&volume),
                false => {
                    console::print(&details_of(&volume));
                    Ok(())
                }
            }
        }
        Command::Explain { name, api } => {
            let path = format!("{}/explain", path_of(&name)?);
            let found: api::Explanation = Client::new(&api)?.get(&path)?;
            match api.json {
                true => console::print_json(&found),
                false => {
                    console::print(&explain::sentences(&found));
                    Ok(())
                }
            }
        }
        Command::Delete { name, force, api } => {
            let query = if force { "?force=true" } else { "" };
            let path = format!("{}{query}", path_of(&name)?);
            let deleted: api::Deleted = Client::new(&api)?.change(Method::DELETE, &path, "")?;
            match api.json {
                true => console::print_json(&deleted),
                false => {
                    let later = if deleted.is_dropped { "" } else { " Its space comes back later." };
                    console::print(&format!("{} is deleted.{later}", deleted.volume.name));
                    Ok(())
                }
            }
        }
    }
}

/// The path of a volume. A name that the rules forbid would need escaping, and names nothing.
pub fn path_of(name: &str) -> Result<String> {
    node::rules::check_name(name)?;
    Ok(format!("/v1/volumes/{name}"))
}

fn wanted(changes: &VolumeChanges) -> api::SetVolume {
    api::SetVolume {
        base_iops: changes.base_iops,
        base_bandwidth: changes.base_bandwidth.map(Size::Bytes),
        burst_iops: changes.burst_iops,
        burst_bandwidth: changes.burst_bandwidth.map(Size::Bytes),
        credit_seconds: changes.credit_seconds,
        credit_percent: changes.credit_percent,
        forwarding: changes.forwarding.map(|forwarding| forwarding.name().to_owned()),
    }
}

fn json(body: &impl Serialize) -> Result<String> {
    serde_json::to_string(body).map_err(|error| Error::internal(error.to_string()))
}

fn size_of(volume: &api::Volume) -> String {
    format!("{} ({} bytes)", format_size(volume.size_bytes), volume.size_bytes)
}

fn list_of(list: &api::VolumeList) -> String {
    if list.volumes.is_empty() {
        return "There are no volumes. Create one with: levee volume create NAME --size 10G".into();
    }
    let rows: Vec<Vec<String>> = list
        .volumes
        .iter()
        .map(|volume| {
            vec![
                volume.name.clone(),
                format_size(volume.size_bytes),
                volume.state.clone(),
                volume.clients.to_string(),
                console::date(volume.created_ms),
                volume.owner.clone(),
                attach_at(&volume.uris),
            ]
        })
        .collect();
    console::table(&["NAME", "SIZE", "STATE", "CLIENTS", "CREATED", "OWNER", "ATTACH AT"], &rows)
}

/// One of the places; `levee volume show` has all of them.
fn attach_at(uris: &[String]) -> String {
    match uris {
        [] => String::new(),
        [uri] => uri.clone(),
        [uri, others @ ..] => format!("{uri} and {} more", others.len()),
    }
}

fn details_of(volume: &api::Volume) -> String {
    let mut lines = vec![
        format!("name         {}", volume.name),
        format!("id           {}", volume.id),
        format!("size         {}", size_of(volume)),
        format!("state        {}", volume.state),
        format!("clients      {}", volume.clients),
        format!("attachments  {}", volume.generation),
        format!("data sector  {}", format_size(volume.data_sector_bytes)),
        format!("segments     {}", volume.segments),
        format!("created      {}", console::date(volume.created_ms)),
    ];
    if !volume.owner.is_empty() {
        lines.push(format!("owner        {}", volume.owner));
    }
    let levels = &volume.levels;
    let [base, burst] = [explain::base_level(levels), explain::burst_level(levels)];
    lines.extend(base.map(|base| format!("base level   {base}")));
    lines.extend(burst.map(|burst| format!("burst level  {burst}")));
    if let (Some(seconds), Some(percent)) = (levels.credit_seconds, levels.credit_percent) {
        lines.push(format!("credits      {percent}% of what it leaves over, up to {seconds} s of its base level"));
    }
    if !matches!(volume.forwarding.as_str(), "" | "default") {
        lines.push(format!("forwarding   {}", volume.forwarding));
    }
    lines.extend(volume.uris.iter().map(|uri| format!("attach       {uri}")));
    lines.join("\n")
}

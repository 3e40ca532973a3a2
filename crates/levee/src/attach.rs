//! `levee attach` and `levee detach`: volumes for virtual machines, through the control API.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use serde_json::json;
use ureq::http::Method;
use wire::api;

use crate::cli::{Attach, Detach};
use crate::client::Client;
use crate::{console, volume};

/// Where disks of virtual machines are asked for.
const DEVICES: &str = "/v1/devices";

/// Prints how a virtual machine uses a volume; as a vhost-user disk it is served from then on.
///
/// # Errors
/// What the store answers.
pub fn attach(options: &Attach) -> Result<()> {
    let client = Client::new(&options.api)?;
    let Some(path) = &options.vhost_user else {
        let found: api::Volume = client.get(&volume::path_of(&options.volume)?)?;
        let Some(uri) = found.uris.first() else {
            return Err(Error::invalid(format!("{} cannot be attached: it is being deleted", found.name)));
        };
        return match options.api.json {
            true => console::print_json(&json!({ "volume": found.name, "uri": uri, "qemu": nbd_arguments(uri) })),
            false => {
                console::print(&format!("{} is at {uri}. With QEMU:\n", found.name));
                console::print(&lines(&nbd_arguments(uri)));
                Ok(())
            }
        };
    };
    let path = absolute(path)?;
    let body = json!({ "volume": options.volume, "path": path }).to_string();
    let devices: api::DeviceList = client.change(Method::POST, DEVICES, &body)?;
    let arguments = vhost_user_arguments(&path);
    match options.api.json {
        true => console::print_json(&json!({ "devices": devices.devices, "qemu": arguments })),
        false => {
            let name = &options.volume;
            console::print(&format!(
                "{name} is a disk at {} until levee detach, also after a restart of the store. With QEMU, as much memory as \
                 the machine has, and as many queues as it has processors:\n",
                path.display()
            ));
            console::print(&lines(&arguments));
            Ok(())
        }
    }
}

/// Ends a vhost-user disk.
///
/// # Errors
/// What the store answers.
pub fn detach(options: &Detach) -> Result<()> {
    let path = absolute(&options.vhost_user)?;
    let body = json!({ "path": path }).to_string();
    let devices: api::DeviceList = Client::new(&options.api)?.change(Method::POST, "/v1/devices/detach", &body)?;
    match options.api.json {
        true => console::print_json(&devices),
        false => {
            console::print(&format!("{} is served no longer.", path.display()));
            Ok(())
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::from_io(path.display().to_string(), &error))
}

fn nbd_arguments(uri: &str) -> Vec<String> {
    let drive = format!("driver=raw,node-name=levee0,discard=unmap,file.driver=nbd,{}", nbd_server(uri));
    [
        "-blockdev",
        &format!("{drive},file.reconnect-delay=30"),
        "-device",
        "virtio-blk-pci,drive=levee0,discard=on,write-zeroes=on",
    ]
    .map(str::to_owned)
    .into()
}

/// A URI as QEMU's options have it.
fn nbd_server(uri: &str) -> String {
    let unix = uri.strip_prefix("nbd+unix:///").and_then(|rest| rest.split_once("?socket="));
    let tcp = uri.strip_prefix("nbd://").and_then(|rest| rest.rsplit_once('/'));
    match (unix, tcp) {
        (Some((name, path)), _) => format!("file.server.type=unix,file.server.path={},file.export={name}", comma(path)),
        (None, Some((address, name))) => {
            let (host, port) = address.rsplit_once(':').unwrap_or((address, "10809"));
            format!("file.server.type=inet,file.server.host={host},file.server.port={port},file.export={name}")
        }
        (None, None) => format!("file.uri={}", comma(uri)),
    }
}

fn vhost_user_arguments(path: &Path) -> Vec<String> {
    [
        "-object",
        "memory-backend-memfd,id=mem0,size=2G,share=on",
        "-machine",
        "memory-backend=mem0",
        "-chardev",
        &format!("socket,id=levee0,path={},reconnect=1", comma(&path.display().to_string())),
        "-device",
        "vhost-user-blk-pci,chardev=levee0,num-queues=2,queue-size=256",
    ]
    .map(str::to_owned)
    .into()
}

/// A value within options of QEMU, where commas part them.
fn comma(value: &str) -> String {
    value.replace(',', ",,")
}

/// Options and their values, for a shell.
fn lines(arguments: &[String]) -> String {
    let pairs: Vec<String> = arguments.chunks(2).map(|pair| format!("  {}", pair.join(" "))).collect();
    pairs.join(" \\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_options_of_qemu() {
        let unix = nbd_server("nbd+unix:///vm-1?socket=/s/a,b.sock");
        assert_eq!(unix, "file.server.type=unix,file.server.path=/s/a,,b.sock,file.export=vm-1");
        let tcp = nbd_server("nbd://127.0.0.1:10809/vm-1");
        assert_eq!(tcp, "file.server.type=inet,file.server.host=127.0.0.1,file.server.port=10809,file.export=vm-1");
    }
}

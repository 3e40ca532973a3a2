//! Addresses of a process that was killed a moment ago: they are free when the kernel has closed what it had.

use std::path::Path;
use std::time::Duration;

use agent::Agent;
use base::{ErrorKind, Result};
use runtime::{Address, Handle};
use wire::DeviceHost;

/// How long to wait for an address that somebody seems to have, and between two looks.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// Listens at an address, also at that of a process that was killed a moment ago: the kernel closes its sockets after it is
/// gone.
pub(crate) async fn listen_when_free(handle: &Handle, address: &Address) -> std::io::Result<runtime::Listener> {
    let begun = handle.now();
    loop {
        match handle.listen(address).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && handle.now() - begun < PATIENCE => {
                handle.sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// Serves a volume as a disk of virtual machines, also at the path of a process that was killed a moment ago.
pub(crate) async fn add_device_when_free(handle: &Handle, agent: &Agent, volume: &str, path: &Path) -> Result<()> {
    let begun = handle.now();
    loop {
        match agent.add_device(volume, path).await {
            Err(error) if error.kind == ErrorKind::Conflict && handle.now() - begun < PATIENCE => {
                handle.sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

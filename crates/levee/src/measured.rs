//! What `levee agent profile` has measured, as every start of an agent finds it.

#![allow(clippy::disallowed_methods, reason = "files outside of the simulated worlds")]

use std::fs;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use node::Settings;
use node::profile::{FILES, MachineProfile};

/// Has the settings of an agent know what was measured on this machine, where that was; usually it is in `beside`.
///
/// # Errors
/// The file that the configuration names cannot be used. One that only lies where it usually does is passed over with a note.
pub fn find(settings: &mut Settings, beside: &Path) -> Result<()> {
    let is_named = settings.tenants.profile.is_some();
    let path = file_of(settings, beside);
    let read = fs::read_to_string(&path).map_err(|error| Error::from_io(path.display().to_string(), &error));
    let found = read.and_then(|text| MachineProfile::parse(&text).map_err(|error| error.context(path.display())));
    let again = "measure again with levee agent profile";
    match found {
        Ok(profile) if profile.machine == this_machine() => {
            tracing::info!(path = %path.display(), "requests are priced by what was measured on this machine");
            settings.tenants.measured = Some(profile.profile()?);
        }
        Ok(profile) => eprintln!(
            "note: {} was measured on another machine ({}; this one is {}) and is not used: {again}",
            path.display(),
            profile.machine,
            this_machine()
        ),
        Err(error) if is_named => return Err(error.context(format!("tenants.profile ({again})"))),
        Err(_) if !path.exists() => {}
        Err(error) => eprintln!("note: what requests take was not read, {again}: {error}"),
    }
    Ok(())
}

/// Where it is kept, if that is usually beside what is in `beside`.
pub fn file_of(settings: &Settings, beside: &Path) -> PathBuf {
    settings.tenants.profile.clone().unwrap_or_else(|| beside.join(FILES[0]))
}

/// This machine, as far as its processors go.
pub fn this_machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let values = |key: &str| {
        let of_key = move |line: &str| {
            Some(line.split_once(':')?).filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
        };
        text.lines().filter_map(of_key).collect::<Vec<_>>()
    };
    let model = values("model name").into_iter().next().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let count = values("processor").len().max(1);
    format!("{model}, {count} {}", if count == 1 { "processor" } else { "processors" })
}

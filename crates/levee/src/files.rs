//! `levee lab files`: directories of this machine as a store that several processes share, a test double.

use base::{Error, Result};
use node::settings::TlsSettings;
use node::shared_files::{SharedFiles, SharedFilesOptions};
use runtime::Handle;
use runtime::uring::{self, process};

use crate::cli::Files;
use crate::{console, pki};

/// Serves the store until a signal stops it.
///
/// # Errors
/// One sentence that says why it does not start.
pub fn run(options: Files) -> Result<()> {
    let mut directories = options.directories;
    for directory in &mut directories {
        // The address that is printed must work from anywhere.
        *directory = std::path::absolute(&directory)
            .map_err(|error| Error::from_io(format!("--dir {}", directory.display()), &error))?;
    }
    let mut tls = TlsSettings::default();
    pki::secure(&mut tls, options.tls.as_deref())?;
    let options = SharedFilesOptions {
        copies: directories.len().clamp(1, 2) as u8,
        directories,
        listen: options.listen,
        neighbours: vec![],
        tls,
        holder: format!("levee lab files, process {}", std::process::id()),
    };
    // Before any other thread: they inherit which signals they do not take.
    let signals = process::stop_signals().map_err(|error| Error::from_io("cannot wait for signals", &error))?;
    let main = move |handle: Handle| async move {
        let store = SharedFiles::start(&handle, &options).await?;
        store.notes().iter().for_each(|note| eprintln!("note: {note}"));
        console::print(&format!("A shared store for tests is ready at {}. Stop it with Ctrl-C.", store.address()));
        // The sender lives as long as the process.
        let _ = signals.recv().await;
        store.stop().await;
        Ok(())
    };
    uring::run(uring::Options::default(), main).map_err(|error| Error::from_io("cannot run an event loop", &error))?
}

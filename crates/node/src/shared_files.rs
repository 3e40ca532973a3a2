//! Directories of this machine as a store of files that processes share: what a store over many machines is to several
//! servers, for tests of them on one. It has no more machines than this one, so nothing is safe from its loss. Leases of
//! managers are there, too, in memory: a start ends all of them, which costs a change of managers and no data.
//!
//! Start: the directories are opened, the store is shared (lives of before are there again), the address is taken. Stop:
//! what was asked is done, then nobody is served any more. Lives do not end by that: they go on when it starts again.

use std::path::PathBuf;
use std::rc::Rc;

use base::{Error, Result};
use control::lease::{self, Leases};
use files::FileKind;
use files::local::{self, LocalOptions};
use files::served::Served;
use files::shared::{LifeInfo, Shared, SharedOptions};
use link::stream::{FarEnd, Options, Services};
use link::tls::Role;
use runtime::{Address, Handle};

use crate::cluster::{self, shown};
use crate::settings::TlsSettings;

/// The socket in the first directory, where no other address is wanted.
const SOCKET: &str = "files.sock";

/// What is shared, and where.
#[derive(Clone, Debug)]
pub struct SharedFilesOptions {
    /// The directories, at least one: those of a shared store, or empty ones.
    pub directories: Vec<PathBuf>,
    /// Where it is served; on a socket in the first directory, if nowhere.
    pub listen: Option<Address>,
    /// What it shows those who use it.
    pub tls: TlsSettings,
    /// Copies of what the store itself writes, and by which space is counted.
    pub copies: u8,
    /// Names besides the store's own files that may stand in a directory.
    pub neighbours: Vec<String>,
    /// Who we are, for others who want the directories.
    pub holder: String,
}

/// A shared store that is served.
pub struct SharedFiles {
    handle: Handle,
    far: Rc<FarEnd>,
    address: Address,
    notes: Vec<String>,
    shared: Shared,
}

impl SharedFiles {
    /// Opens the directories, and serves them on the loop of `handle`.
    ///
    /// # Errors
    /// One sentence that says what was wrong and what to do: a directory, an address.
    pub async fn start(handle: &Handle, options: &SharedFilesOptions) -> Result<SharedFiles> {
        let Some(first) = options.directories.first() else {
            return Err(Error::invalid("name a directory with --dir"));
        };
        let local = LocalOptions {
            copies: options.copies,
            holder: options.holder.clone(),
            neighbours: [vec![SOCKET.to_owned()], options.neighbours.clone()].concat(),
            ..LocalOptions::new(options.directories.clone())
        };
        let (below, report) = local::open(handle, local).await?;
        let files = below.list();
        if !files.is_empty() && files.iter().all(|info| info.kind != FileKind::Incarnation) {
            let first = first.display();
            return Err(Error::conflict(format!(
                "{first} holds a store that is not shared, of levee up for one: give another directory"
            )));
        }
        let shared = SharedOptions { copies: options.copies, ..SharedOptions::default() };
        let shared = Shared::open(handle, below, shared).await?;
        let wanted = options.listen.clone().unwrap_or_else(|| Address::Unix(first.join(SOCKET)));
        let credentials = cluster::credentials(handle, &options.tls).await?;
        let listener = cluster::listen(handle, &wanted).await?;
        let address = listener.address().clone();
        let lease: Rc<dyn wire::LeaseStore> = Leases::new(handle, lease::Options::default());
        let services = Services { files: Some(Served::new(shared.clone())), lease: Some(lease), ..Services::default() };
        let stream_options = Options::new(format!("the shared store of {}", first.display()));
        // It dials nobody.
        let far = FarEnd::new(handle, services, stream_options.secured(credentials.as_ref(), Role::Store));
        far.serve(listener);
        let damaged = report.damaged.iter().map(|damaged| format!("damaged: {damaged}"));
        let notes = report.notes.iter().cloned().chain(damaged).collect();
        Ok(SharedFiles { handle: handle.clone(), far, address, notes, shared })
    }

    /// Where it is served, as `HOST:PORT` or `unix:PATH`.
    pub fn address(&self) -> String {
        shown(&self.address)
    }

    /// Every life of which there is something here, by number.
    pub fn lives(&self) -> Vec<LifeInfo> {
        self.shared.lives()
    }

    /// What a person should know about the start.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Does what was asked, and serves nobody any more.
    pub async fn stop(self) {
        self.far.stop().await;
        if let Address::Unix(path) = &self.address {
            // A stale socket would be replaced; without one it is known at once that nobody is there.
            let _ = self.handle.remove(path).await;
        }
    }
}

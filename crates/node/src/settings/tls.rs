//! TLS: the section `[tls]`.

use std::path::PathBuf;

use agent::nbd::{Demand, NbdTls};
use serde::{Deserialize, Serialize};

/// What a process shows others, and whether clients have to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSettings {
    /// The directory with the certificates of this process. Default: none, and everything is said in the open.
    pub directory: Option<PathBuf>,
    /// Who has to come under TLS over NBD.
    pub nbd: NbdDemand,
    /// Only clients come under TLS. Not for a file: where one process plays all roles, no certificate makes it all of them.
    #[serde(skip)]
    pub only_clients: bool,
}

/// See [`Demand`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NbdDemand {
    /// Clients of other machines have to; where NBD listens at a loopback address, they may.
    #[default]
    Remote,
    /// All have to who come over TCP.
    Required,
    /// All who come over TCP may.
    Offered,
}

impl TlsSettings {
    /// For the agent.
    pub fn of_clients(&self) -> Option<NbdTls> {
        let demand = match self.nbd {
            NbdDemand::Remote => Demand::Remote,
            NbdDemand::Required => Demand::All,
            NbdDemand::Offered => Demand::Nobody,
        };
        self.directory.clone().map(|directory| NbdTls { directory, demand })
    }
}

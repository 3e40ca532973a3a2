//! What a certificate makes of its holder.

use rustls::pki_types::{CertificateDer, DnsName, ServerName};
use rustls::server::ParsedCertificate;

/// What those names end with that say a role. Nobody has it in the DNS (the domain is reserved for private use).
const DOMAIN: &str = "levee.internal";

/// What a process is for others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// It has files, and leases, for servers and managers.
    Store,
    /// It decides who has what.
    Manager,
    /// It owns segments.
    Server,
    /// It has volumes, for clients.
    Agent,
    /// It uses volumes: a machine with a disk, over NBD.
    Client,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 5] = [Role::Store, Role::Manager, Role::Server, Role::Agent, Role::Client];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Store => "store",
            Role::Manager => "manager",
            Role::Server => "server",
            Role::Agent => "agent",
            Role::Client => "client",
        }
    }

    /// The DNS name that a certificate has for it.
    pub fn dns_name(self) -> String {
        format!("{}.{DOMAIN}", self.name())
    }

    /// The same, as TLS looks for it.
    pub(super) fn server_name(self) -> ServerName<'static> {
        ServerName::DnsName(DnsName::try_from(self.dns_name()).expect("names of roles are DNS names"))
    }

    /// Whether the certificate, which was verified, makes this of its holder.
    pub(super) fn is_of(self, certificate: &CertificateDer<'_>) -> bool {
        let parsed = ParsedCertificate::try_from(certificate);
        parsed.is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, &self.server_name()).is_ok())
    }
}

//! What can be asked of `levee pki`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use node::tls::Role;

/// `levee pki COMMAND`.
#[derive(Subcommand)]
pub enum Pki {
    /// Make an authority: a certificate, and the key that makes those of others.
    Init(PkiInit),
    /// Make the certificate of a process or a client, as a directory for --tls. Once more: another one in its place, which a
    /// running process takes by itself.
    Issue(PkiIssue),
}

/// `levee pki init`.
#[derive(Args)]
pub struct PkiInit {
    /// The authority's directory.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    pub dir: PathBuf,
    /// It is good for so many days.
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub days: u32,
}

/// `levee pki issue`.
#[derive(Args)]
pub struct PkiIssue {
    /// What the certificate makes of its holder: manager, server, agent (levee up, too), client (of NBD), or store (levee lab
    /// files).
    #[arg(value_name = "ROLE", value_parser = role)]
    pub role: Role,
    /// What it is called, for people.
    pub name: String,
    /// A name or an address at which clients find it, besides those of this machine for an agent; may be given several times.
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// It is good for so many days.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub days: u32,
    /// The authority's directory.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    pub dir: PathBuf,
    /// Where to put it. Default: ROLE-NAME in the authority's directory.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

fn role(text: &str) -> Result<Role, String> {
    let names = || Role::ALL.map(Role::name).join(", ");
    Role::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| format!("roles are {}", names()))
}

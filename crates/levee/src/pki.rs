//! `levee pki`: a small certificate authority, for who has none.
//!
//! An authority is two files of a directory: its certificate, and the key that makes others. Each process gets a directory of
//! its own with what [`link::tls`] reads; the key of the authority stays where it is, best on a machine that serves nobody.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base::{Error, Result};
use node::settings::TlsSettings;
use node::tls::{AUTHORITY, CERTIFICATE, KEY, Role};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::cli::{Pki, PkiInit, PkiIssue};
use crate::console;

/// The key of an authority, beside its certificate.
const AUTHORITY_KEY: &str = "ca-key.pem";
/// What an authority is called. The same for all: which one it is says its key.
const AUTHORITY_NAME: &str = "Levee certificate authority";
/// The files of a client as QEMU and libnbd look for them.
const CLIENT: [&str; 2] = ["client-cert.pem", "client-key.pem"];
/// Who compares clocks that are not quite right finds a certificate valid all the same.
const EARLIER: Duration = Duration::from_secs(24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Makes an authority, or a certificate.
///
/// # Errors
/// One sentence that says what was wrong and what to do.
pub fn run(command: &Pki) -> Result<()> {
    match command {
        Pki::Init(options) => init(options),
        Pki::Issue(options) => issue(options),
    }
}

fn init(options: &PkiInit) -> Result<()> {
    let directory = &options.dir;
    let (certificate, key) = (directory.join(AUTHORITY), directory.join(AUTHORITY_KEY));
    if certificate.exists() || key.exists() {
        let shown = directory.display();
        return Err(Error::conflict(format!(
            "{shown} holds an authority already; processes believe only one, so keep it, or give another --dir"
        )));
    }
    make_directory(directory)?;
    let new_key = KeyPair::generate().map_err(failed)?;
    let mut params = authority();
    valid_for(&mut params, options.days);
    let made = params.self_signed(&new_key).map_err(failed)?;
    write(&key, &new_key.serialize_pem(), SECRET)?;
    write(&certificate, &made.pem(), PUBLIC)?;
    console::print(&format!(
        "{} is the authority of a cluster now, for {} days. Its key, {AUTHORITY_KEY}, makes anybody anything: keep it away from \
         the machines of the cluster.\nNext: levee pki issue manager m1 --dir {0}",
        directory.display(),
        options.days,
    ));
    Ok(())
}

fn issue(options: &PkiIssue) -> Result<()> {
    let (directory, name, role) = (&options.dir, &options.name, options.role);
    node::rules::check_server(name).map_err(|error| error.context(format!("'{name}' cannot be a name")))?;
    let read = |file: &str| {
        let path = directory.join(file);
        fs::read_to_string(&path).map_err(|error| {
            let mut refusal = Error::from_io(format!("cannot read {}", path.display()), &error);
            if error.kind() == std::io::ErrorKind::NotFound {
                refusal
                    .message
                    .push_str(&format!("; make an authority with levee pki init --dir {}", directory.display()));
            }
            refusal
        })
    };
    let authority_certificate = read(AUTHORITY)?;
    let authority_key = KeyPair::from_pem(&read(AUTHORITY_KEY)?)
        .map_err(|error| Error::invalid(format!("{}: {error}", directory.join(AUTHORITY_KEY).display())))?;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = certificate(role, name, &options.hosts, options.days, &key, authority_key)?;
    let to = options.to.clone().unwrap_or_else(|| directory.join(format!("{}-{name}", role.name())));
    make_directory(&to)?;
    let [certificate_file, key_file] = if role == Role::Client { CLIENT } else { [CERTIFICATE, KEY] };
    write(&to.join(AUTHORITY), &authority_certificate, PUBLIC)?;
    // Who reads them in between finds that they do not fit, and reads them again.
    write(&to.join(key_file), &key.serialize_pem(), SECRET)?;
    write(&to.join(certificate_file), &certificate.pem(), PUBLIC)?;
    let shown = to.display();
    let next = match role {
        Role::Client => format!("QEMU and libnbd take it as tls-creds-x509,dir={shown} and tls-certificates={shown}."),
        role => format!("Bring it to the machine of that {}, and start it with --tls {shown}.", role.name()),
    };
    console::print(&format!("{shown} holds what {} {name} shows, for {} days. {next}", role.name(), options.days));
    Ok(())
}

fn certificate(
    role: Role,
    name: &str,
    hosts: &[String],
    days: u32,
    key: &KeyPair,
    authority_key: KeyPair,
) -> Result<Certificate> {
    let mut names = vec![role.dns_name()];
    if role == Role::Agent {
        // Clients look for the name or the address that they connected to.
        names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    }
    names.extend(hosts.iter().cloned());
    let mut params = CertificateParams::new(names)
        .map_err(|error| Error::invalid(format!("--host takes names and addresses of machines: {error}")))?;
    params.distinguished_name.push(DnType::CommonName, format!("{} {name}", role.name()));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    valid_for(&mut params, days);
    params.signed_by(key, &Issuer::new(authority(), authority_key)).map_err(failed)
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

#[allow(clippy::disallowed_methods, reason = "no loop runs here, and a certificate is good by the calendar of people")]
fn valid_for(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - EARLIER).into();
    params.not_after = (now + DAY * days).into();
}

/// Takes over what `--tls` says, and checks the directory: who can read its key can be this process.
///
/// # Errors
/// `Invalid`: others can read the key.
pub fn secure(tls: &mut TlsSettings, flag: Option<&Path>) -> Result<()> {
    let directory = flag.or(tls.directory.as_deref()).map(checked).transpose()?;
    tls.directory = directory;
    Ok(())
}

fn checked(directory: &Path) -> Result<PathBuf> {
    let directory = std::path::absolute(directory)
        .map_err(|error| Error::from_io(format!("--tls {}", directory.display()), &error))?;
    let key = directory.join(KEY);
    // One that is not there is missed where it is read.
    match fs::metadata(&key) {
        Ok(metadata) if metadata.permissions().mode() & 0o007 != 0 => {
            let shown = key.display();
            Err(Error::invalid(format!(
                "the key {shown} can be read by everybody on this machine: run chmod 600 {shown}"
            )))
        }
        _ => Ok(directory),
    }
}

const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;

fn make_directory(directory: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| Error::from_io(format!("cannot make {}", directory.display()), &error))
}

/// Writes a file in one step: it is there as it was, or as it is to be.
fn write(path: &Path, content: &str, mode: u32) -> Result<()> {
    let failed = |error: std::io::Error| Error::from_io(format!("cannot write {}", path.display()), &error);
    let temporary = path.with_extension("new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).map_err(failed)?;
    file.write_all(content.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}

fn failed(error: rcgen::Error) -> Error {
    Error::internal(format!("a certificate could not be made: {error}"))
}

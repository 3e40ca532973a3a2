//! What a process shows, and whom it believes.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use runtime::{Handle, OpenOptions, Stream};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ServerConfig, ServerConnection, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{Connection, RootCertStore};

use super::channel::Channel;
use super::reasons;
use super::role::Role;
use super::secure::{Failure, Secure};

/// The file with the certificates of those whom a process believes.
pub const AUTHORITY: &str = "ca-cert.pem";
/// The file with the certificate that a process shows, and those between it and its authority.
pub const CERTIFICATE: &str = "cert.pem";
/// The file with the key of that certificate.
pub const KEY: &str = "key.pem";
/// So long what was read from the files is taken for what they hold.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// Most bytes of a file.
const FILE_MAX: usize = 1 << 20;

/// See the module.
pub struct Credentials {
    handle: Handle,
    directory: PathBuf,
    /// It may be that it has nothing to show.
    may_show_nothing: bool,
    /// What the files held when they were last read, and when that was.
    read: RefCell<Option<(Instant, Files, Configs)>>,
    clock: Arc<Clock>,
}

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
struct Files {
    authority: Vec<u8>,
    /// The certificate and its key; none with whoever shows nothing.
    own: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone)]
struct Configs {
    /// None with whoever shows nothing, and so is believed by nobody.
    accepts: Option<Arc<ServerConfig>>,
    connects: Arc<ClientConfig>,
}

/// Who has connected, and is believed.
pub enum Accepted {
    /// It is what it has to be.
    Believed(Channel, Role),
    /// Its certificate makes something else of it. What is wrong may be said to it.
    Other(Channel, Error),
}

/// Why a connection did not become secure.
#[derive(Debug)]
pub struct Refused {
    /// What is wrong, and what to do.
    pub error: Error,
    /// The other side speaks TLS; else it may be told in the open.
    pub speaks_tls: bool,
}

/// The time of the loop, for a library that asks for it by itself.
#[derive(Debug, Default)]
struct Clock(AtomicU64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(self.0.load(Ordering::Relaxed))))
    }
}

impl Credentials {
    /// Those in `directory`, which is read now.
    ///
    /// # Errors
    /// `Io`, `Invalid`: a file, what is wrong with it, and what to do.
    pub async fn open(handle: &Handle, directory: &Path) -> Result<Rc<Credentials>> {
        Self::open_as(handle, directory, false).await
    }

    /// The same to ask others than processes of Levee: they may want no certificate, and then there need not be one.
    ///
    /// # Errors
    /// As [`Credentials::open`].
    pub async fn open_to_ask(handle: &Handle, directory: &Path) -> Result<Rc<Credentials>> {
        Self::open_as(handle, directory, true).await
    }

    async fn open_as(handle: &Handle, directory: &Path, may_show_nothing: bool) -> Result<Rc<Credentials>> {
        let credentials = Rc::new(Credentials {
            handle: handle.clone(),
            directory: directory.to_owned(),
            may_show_nothing,
            read: RefCell::default(),
            clock: Arc::default(),
        });
        credentials.look().await?;
        Ok(credentials)
    }

    /// Comes to terms with who has connected. Its certificate has to make it one of `roles`.
    ///
    /// # Errors
    /// The connection has failed; it speaks no TLS, shows nothing, or is not believed.
    pub async fn accept(&self, stream: Stream, roles: &[Role]) -> std::result::Result<Accepted, Refused> {
        let failed = |error| Refused { error, speaks_tls: true };
        let accepts = self.configs().await.accepts;
        let accepts = accepts.ok_or_else(|| failed(Error::internal("who shows nothing accepts nobody")))?;
        let session = ServerConnection::new(accepts).map_err(|error| failed(internal(error)))?;
        let secure = self.agree(stream, session.into(), true).await?;
        let certificate = secure.certificate();
        let role = roles.iter().find(|role| certificate.as_ref().is_some_and(|shown| role.is_of(shown)));
        match role {
            Some(role) => Ok(Accepted::Believed(Channel::Secure(Rc::new(secure)), *role)),
            None => Ok(Accepted::Other(Channel::Secure(Rc::new(secure)), Error::invalid(reasons::of_role(roles)))),
        }
    }

    /// Comes to terms with who was connected to, which has to be a `role`.
    ///
    /// # Errors
    /// `Io`: the connection has failed. `Invalid`: it speaks no TLS, shows nothing, or is not believed; and why.
    pub async fn connect(&self, stream: Stream, role: Role) -> Result<Channel> {
        self.connect_to(stream, role.server_name()).await
    }

    /// The same with one that is no process of Levee: its certificate has to be of that address.
    ///
    /// # Errors
    /// As [`Credentials::connect`].
    pub async fn connect_at(&self, stream: Stream, address: IpAddr) -> Result<Channel> {
        self.connect_to(stream, ServerName::IpAddress(address.into())).await
    }

    async fn connect_to(&self, stream: Stream, name: ServerName<'static>) -> Result<Channel> {
        let session = ClientConnection::new(self.configs().await.connects, name).map_err(internal)?;
        let secure = self.agree(stream, session.into(), false).await.map_err(|refused| refused.error)?;
        Ok(Channel::Secure(Rc::new(secure)))
    }

    async fn agree(
        &self,
        stream: Stream,
        mut session: Connection,
        accepts: bool,
    ) -> std::result::Result<Secure, Refused> {
        // Whoever sends says how much at a time.
        session.set_buffer_limit(None);
        self.clock.0.store(self.handle.wall_ms(), Ordering::Relaxed);
        Secure::agree(stream, session).await.map_err(|failure| match failure {
            Failure::Stream(error) => {
                let error = Error::io(format!("the connection was lost before it was secure: {error}"));
                Refused { error, speaks_tls: true }
            }
            Failure::Session(error, first) => {
                let speaks_tls = reasons::speaks_tls(first);
                Refused { error: Error::invalid(reasons::of(&error, speaks_tls, accepts)), speaks_tls }
            }
        })
    }

    /// What holds now. Files that are wrong hold nothing new, and the log says so.
    async fn configs(&self) -> Configs {
        let now = self.handle.now();
        let is_old =
            self.read.borrow().as_ref().is_none_or(|(read, ..)| now.nanos_since(*read) > READ_AGAIN.as_nanos() as u64);
        if is_old && let Err(error) = self.look().await {
            tracing::warn!(%error, "new certificates are not used; the former ones still are");
            if let Some((read, ..)) = &mut *self.read.borrow_mut() {
                *read = now;
            }
        }
        let read = self.read.borrow();
        let (_, _, configs) = read.as_ref().expect("they were read when they were opened");
        configs.clone()
    }

    /// Reads the files, and takes what is new.
    async fn look(&self) -> Result<()> {
        let files = Files {
            authority: self.file(AUTHORITY).await?,
            own: match (self.file(CERTIFICATE).await, self.file(KEY).await) {
                (Ok(certificate), Ok(key)) => Some((certificate, key)),
                (Err(certificate), Err(key)) if self.may_show_nothing && both_missing(&certificate, &key) => None,
                (certificate, key) => Some((certificate?, key?)),
            },
        };
        let now = self.handle.now();
        if let Some((read, former, _)) = &mut *self.read.borrow_mut()
            && *former == files
        {
            *read = now;
            return Ok(());
        }
        let configs = self.configs_of(&files)?;
        if self.read.replace(Some((now, files, configs))).is_some() {
            tracing::info!(directory = %self.directory.display(), "new certificates are used from now on");
        }
        Ok(())
    }

    async fn file(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.directory.join(name);
        let failed = |error: io::Error| {
            let mut refusal = Error::from_io(format!("cannot read {}", path.display()), &error);
            if error.kind() == io::ErrorKind::NotFound {
                refusal.message.push_str("; `levee pki issue ROLE NAME` makes a directory of certificates");
            }
            refusal
        };
        let file = self.handle.open(&path, OpenOptions::default()).await.map_err(failed)?;
        let length = file.length().await.map_err(failed)? as usize;
        if length > FILE_MAX {
            return Err(Error::invalid(format!("{} has {length} bytes, which is no certificate", path.display())));
        }
        file.read_up_to(0, length).await.map(|content| content.to_vec()).map_err(failed)
    }

    fn configs_of(&self, files: &Files) -> Result<Configs> {
        let wrong = |name: &str, what: &str| {
            let path = self.directory.join(name);
            Error::invalid(format!("{}: {what}; `levee pki issue ROLE NAME` makes another one", path.display()))
        };
        let certificates = |name: &str, content: &[u8]| -> Result<Vec<CertificateDer<'static>>> {
            let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(content).collect();
            match found {
                Ok(found) if !found.is_empty() => Ok(found),
                Ok(_) => Err(wrong(name, "it holds no certificate in PEM")),
                Err(error) => Err(wrong(name, &error.to_string())),
            }
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(AUTHORITY, &files.authority)? {
            roots.add(authority).map_err(|error| wrong(AUTHORITY, &error.to_string()))?;
        }
        let mismatch = |error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => wrong(KEY, "it is the key of another certificate"),
            error => wrong(CERTIFICATE, &error.to_string()),
        };
        let (roots, provider): (_, Arc<CryptoProvider>) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let asking = ClientConfig::builder_with_details(provider.clone(), self.clock.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(internal)?
            .with_root_certificates(roots.clone());
        let Some((certificate, key)) = &files.own else {
            return Ok(Configs { accepts: None, connects: Arc::new(plain(asking.with_no_client_auth())) });
        };
        let chain = certificates(CERTIFICATE, certificate)?;
        let key = || PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong(KEY, &error.to_string()));
        let believed = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
        let believed = believed.map_err(|error| wrong(AUTHORITY, &error.to_string()))?;
        let mut accepts = ServerConfig::builder_with_details(provider, self.clock.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(internal)?
            .with_client_cert_verifier(believed)
            .with_single_cert(chain.clone(), key()?)
            .map_err(mismatch)?;
        accepts.session_storage = Arc::new(NoServerSessionStorage {});
        accepts.send_tls13_tickets = 0;
        accepts.max_early_data_size = 0;
        let connects = asking.with_client_auth_cert(chain, key()?).map_err(mismatch)?;
        Ok(Configs { accepts: Some(Arc::new(accepts)), connects: Arc::new(plain(connects)) })
    }
}

/// No resumption, no early data; and what it looks for is a role, which nobody on the way has to know.
fn plain(mut connects: ClientConfig) -> ClientConfig {
    connects.resumption = Resumption::disabled();
    connects.enable_early_data = false;
    connects.enable_sni = false;
    connects
}

fn both_missing(one: &Error, other: &Error) -> bool {
    one.kind == ErrorKind::NotFound && other.kind == ErrorKind::NotFound
}

fn internal(error: rustls::Error) -> Error {
    Error::internal(format!("TLS: {error}"))
}

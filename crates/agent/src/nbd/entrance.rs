//! How clients get in: in the open, or under TLS.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use base::Result;
use link::tls::{Accepted, Credentials, Role};
use runtime::{Address, Handle};

use super::end::End;
use super::intake::Intake;

/// Whether clients have to come under TLS, where there are certificates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Demand {
    /// Those of other machines have to; those of this one may.
    #[default]
    Remote,
    /// All have to who come over TCP.
    All,
    /// All who come over TCP may.
    Nobody,
}

/// The certificates for clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdTls {
    /// The directory with them, as [`Credentials::open`] reads it.
    pub directory: PathBuf,
    /// Who has to come under TLS.
    pub demand: Demand,
}

/// What a listener says to those who connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entrance {
    /// There is no TLS: nobody has certificates, or it is a socket of this machine, whose file says who may connect.
    Open,
    /// TLS may be asked for.
    Offers,
    /// TLS has to be asked for.
    Demands,
}

impl Entrance {
    /// That of who listens at `address`.
    pub(crate) fn of(address: &Address, tls: Option<&NbdTls>) -> Entrance {
        match (address, tls) {
            (Address::Unix(_), _) | (_, None) => Entrance::Open,
            (Address::Tcp(address), Some(tls)) => match tls.demand {
                Demand::All => Entrance::Demands,
                Demand::Remote if !address.ip().is_loopback() => Entrance::Demands,
                Demand::Remote | Demand::Nobody => Entrance::Offers,
            },
        }
    }
}

/// Whether clients have to come under TLS who connect to `address`.
pub fn demands_tls(address: &Address, tls: Option<&NbdTls>) -> bool {
    Entrance::of(address, tls) == Entrance::Demands
}

/// The certificates as one loop has them: read when the first client asks for TLS.
#[derive(Default)]
pub(crate) struct Certificates(RefCell<Option<Rc<Credentials>>>);

impl Certificates {
    async fn get(&self, handle: &Handle, tls: &NbdTls) -> Result<Rc<Credentials>> {
        let known = self.0.borrow().clone();
        match known {
            Some(credentials) => Ok(credentials),
            None => {
                let credentials = Credentials::open(handle, &tls.directory).await?;
                Ok(self.0.borrow_mut().insert(credentials).clone())
            }
        }
    }

    /// Goes on under TLS, after the client was told so. It has to be a client, by its certificate.
    pub(super) async fn secure(&self, handle: &Handle, tls: Option<&NbdTls>, intake: &mut Intake) -> Result<(), End> {
        let (Some(tls), Some(stream)) = (tls, intake.open()) else {
            unreachable!("TLS is offered where there are certificates, in the open");
        };
        let credentials = self.get(handle, tls).await.map_err(End::Distrusted)?;
        match credentials.accept(stream, &[Role::Client]).await {
            Ok(Accepted::Believed(channel, _)) => {
                intake.secured(channel);
                Ok(())
            }
            // NBD has no word for it after the handshake of TLS.
            Ok(Accepted::Other(channel, error)) => {
                channel.shutdown();
                Err(End::Distrusted(error))
            }
            Err(refused) => Err(End::Distrusted(refused.error)),
        }
    }
}

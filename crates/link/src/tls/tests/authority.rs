//! A certificate authority for tests.

use std::path::Path;
use std::rc::Rc;

use base::Bytes;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use runtime::sim::World;
use runtime::{Handle, OpenOptions};

use crate::tls::{AUTHORITY, CERTIFICATE, Credentials, KEY, Role};

/// See the module.
pub struct Authority {
    params: CertificateParams,
    key: KeyPair,
}

/// The years in which a certificate is good: all, unless a test is about that.
pub const ALWAYS: [i32; 2] = [2000, 2200];

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        // As `levee pki` has it: all are called the same.
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        Authority { params, key: KeyPair::generate().unwrap() }
    }

    /// The files of one who is a `role` in those years.
    pub fn issue(&self, role: Role, [from, until]: [i32; 2]) -> [(&'static str, String); 3] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![role.dns_name()]).unwrap();
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let authority = self.params.self_signed(&self.key).unwrap();
        [(AUTHORITY, authority.pem()), (CERTIFICATE, certificate.pem()), (KEY, key.serialize_pem())]
    }

    /// A node's credentials as a `role`.
    pub fn credentials(&self, world: &World, handle: &Handle, role: Role, years: [i32; 2]) -> Rc<Credentials> {
        put(world, handle, "/disk/tls", &self.issue(role, years));
        let inside = handle.clone();
        world.block_on(handle, async move { Credentials::open(&inside, Path::new("/disk/tls")).await.unwrap() })
    }
}

/// Puts files into a directory of a node.
pub fn put(world: &World, handle: &Handle, directory: &'static str, files: &[(&'static str, String)]) {
    let (inside, files) = (handle.clone(), files.to_vec());
    world.block_on(handle, async move {
        let _ = inside.create_directory(Path::new(directory)).await;
        for (name, content) in files {
            let path = Path::new(directory).join(name);
            let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
            let file = inside.open(&path, options).await.unwrap();
            file.set_len(0).await.unwrap();
            file.write_at(0, Bytes::from(content.into_bytes())).await.unwrap();
        }
    });
}

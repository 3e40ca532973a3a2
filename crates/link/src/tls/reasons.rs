//! Why two processes did not come to terms, for a person.

use rustls::{AlertDescription, CertificateError, Error};

use super::role::Role;

/// The kinds of records, the first byte of each: from a change of ciphers to data.
const CHANGE: u8 = 20;
const APPLICATION: u8 = 23;

/// Whether what came may have been TLS, by how it began.
pub(super) fn speaks_tls(first: Option<u8>) -> bool {
    first.is_none_or(|first| (CHANGE..=APPLICATION).contains(&first))
}

/// What `error` means, and what to do. `accepts`: this side was connected to.
pub(super) fn of(error: &Error, speaks_tls: bool, accepts: bool) -> String {
    match error {
        _ if !speaks_tls && accepts => {
            "it does not speak TLS, and this process takes nothing else; start it with --tls DIR".into()
        }
        _ if !speaks_tls => {
            "it does not speak TLS, and this process does; start it with --tls DIR, or this one without".into()
        }
        Error::InvalidCertificate(wrong) => of_certificate(wrong),
        Error::NoCertificatesPresented => "it shows no certificate; give it one of this cluster's authority".into(),
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::PeerIncompatible(_) => format!("it speaks no TLS 1.3 as this process does ({error})"),
        error => format!("TLS failed: {error}"),
    }
}

/// No certificate of one that is needed.
pub(super) fn of_role(wanted: &[Role]) -> String {
    let names: Vec<String> = wanted.iter().map(|role| format!("{} ({})", role.name(), role.dns_name())).collect();
    format!("its certificate makes it none of those that may ask here: {}", names.join(", "))
}

fn of_certificate(wrong: &CertificateError) -> String {
    const ISSUE: &str = "`levee pki issue ROLE NAME` makes another one";
    match wrong {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("its certificate has expired ({wrong}), or a clock is wrong; {ISSUE}")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("its certificate is not valid yet ({wrong}): compare the clocks of both machines")
        }
        // All authorities may be called the same: which one has signed it says the signature.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("its certificate is of another authority; {ISSUE} with this cluster's")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("its certificate is of another role ({wrong}); its address may be that of another process")
        }
        wrong => format!("its certificate is not believed: {wrong}; {ISSUE}"),
    }
}

/// What the other side says of this one.
fn of_alert(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::CertificateExpired => {
            "it finds that this process's certificate has expired, or its clock is wrong"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it finds this process's certificate to be of another authority"
        }
        AlertDescription::CertificateRequired => "it asks for a certificate, and this process has shown none",
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            "it does not believe this process's certificate; its log says why"
        }
        _ => return format!("it ended the handshake: {alert:?}"),
    };
    why.into()
}

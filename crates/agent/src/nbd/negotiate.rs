//! The handshake with the world: options are answered from the volume directory until one of them takes a volume.

use std::rc::Rc;

use base::{Bytes, Error, ErrorKind, Result, VolumeId, units::format_size};
use policies::tenants::Frontend;
use wire::{VolumeDescriptor, VolumeDirectory};

use super::end::End;
use super::entrance::Entrance;
use super::handshake::*;
use super::intake::Intake;
use super::protocol::{Violation, info, option, option_reply};
use super::request::Export;
use crate::peers::Peer;
use crate::shared::Shared;
use crate::volume::Volume;

/// Answers above this are lists of many volumes, which connections share.
const SHARED_MIN: usize = 16 * 1024;

/// What a handshake came to.
pub(super) struct Negotiated {
    pub(super) volume: Rc<Volume>,
    pub(super) export: Export,
}

/// What was agreed on so far.
#[derive(Default)]
struct Terms {
    structured: bool,
    /// The volume for which base:allocation was selected.
    allocation: Option<VolumeId>,
}

impl Terms {
    fn export(&self, volume: &VolumeDescriptor) -> Export {
        Export {
            size: volume.size,
            read_only: volume.read_only,
            structured: self.structured,
            block_status: self.allocation == Some(volume.id),
        }
    }
}

/// Goes through a handshake up to the first request.
pub(super) async fn negotiate(
    shared: &Rc<Shared>,
    peer: &Peer,
    intake: &mut Intake,
    entrance: Entrance,
) -> Result<Negotiated, End> {
    let (mut parser, mut terms) = (HandshakeParser::new(), Terms::default());
    send(intake, Bytes::from_owner(greeting())).await?;
    loop {
        let (taken, option) = parser.parse(intake.bytes())?;
        intake.consume(taken);
        let Some(option) = option else {
            if taken == 0 {
                intake.fill().await.map_err(End::Stream)?;
            }
            continue;
        };
        let mut out = Vec::new();
        if !intake.channel().is_secure() {
            match (entrance, &option) {
                (Entrance::Offers | Entrance::Demands, ClientOption::StartTls) => {
                    put_reply(&mut out, option::STARTTLS, option_reply::ACK, b"");
                    send(intake, out.into()).await?;
                    shared.certificates.secure(&shared.handle, shared.options().tls.as_ref(), intake).await?;
                    // What was agreed on in the open may not have been agreed on by the client.
                    terms = Terms::default();
                    continue;
                }
                (Entrance::Demands, ClientOption::ExportName(_)) => {
                    let error = "it did not ask for TLS, without which no client gets a volume here";
                    return Err(End::Distrusted(Error::invalid(error)));
                }
                (Entrance::Demands, other) if *other != ClientOption::Abort => {
                    let reason = b"TLS comes first: give the client its certificate";
                    put_reply(&mut out, other.number(), option_reply::ERR_TLS_REQD, reason);
                    send(intake, out.into()).await?;
                    continue;
                }
                _ => {}
            }
        }
        let entered = answer(shared, &parser, &mut terms, option, &mut out).await;
        let out = if out.len() > SHARED_MIN { shared.share_listing(out) } else { Bytes::from(out) };
        match entered {
            Ok(None) => send(intake, out).await?,
            Ok(Some(negotiated)) => {
                // From here on the connection is a user of the volume, and the caller sees to it that it leaves.
                peer.volume.set(Some(negotiated.volume.descriptor().id));
                if negotiated.volume.turns_away() {
                    shared.drain(peer.volume.get());
                }
                // A peer that is gone already is noticed at the first receive.
                send(intake, out).await.ok();
                return Ok(negotiated);
            }
            Err(end) => {
                send(intake, out).await.ok();
                return Err(end);
            }
        }
    }
}

async fn send(intake: &Intake, out: Bytes) -> Result<(), End> {
    intake.channel().send(vec![out]).await.map_err(End::Stream)
}

/// Answers one option; the volume if the option took one.
async fn answer(
    shared: &Rc<Shared>,
    parser: &HandshakeParser,
    terms: &mut Terms,
    option: ClientOption,
    out: &mut Vec<u8>,
) -> Result<Option<Negotiated>, End> {
    let directory = &*shared.directory;
    match option {
        ClientOption::Refused { option, reply, reason } => put_reply(out, option, reply, reason.as_bytes()),
        ClientOption::Abort => {
            put_reply(out, option::ABORT, option_reply::ACK, b"");
            return Err(End::Clean);
        }
        ClientOption::StartTls => {
            let reason = "this connection does not go over to TLS: it has it, or there are no certificates for it";
            put_reply(out, option::STARTTLS, option_reply::ERR_POLICY, reason.as_bytes());
        }
        ClientOption::StructuredReply => {
            terms.structured = true;
            put_reply(out, option::STRUCTURED_REPLY, option_reply::ACK, b"");
        }
        ClientOption::List => match directory.list().await {
            Ok(names) => {
                names.iter().for_each(|name| put_server(out, name));
                put_reply(out, option::LIST, option_reply::ACK, b"");
            }
            Err(error) => put_error(out, option::LIST, &error),
        },
        ClientOption::MetaContext { set, export, queries } => {
            answer_meta_context(directory, terms, set, &export, &queries, out).await;
        }
        ClientOption::Info { go: false, export, wanted } => match find_export(directory, &export).await {
            Ok(volume) => put_description(out, option::INFO, &volume, terms.export(&volume), &wanted),
            Err(error) => put_error(out, option::INFO, &error),
        },
        ClientOption::Info { go: true, export, wanted } => match enter(shared, terms, &export).await {
            Ok(negotiated) => {
                put_description(out, option::GO, negotiated.volume.descriptor(), negotiated.export, &wanted);
                return Ok(Some(negotiated));
            }
            Err(error) => put_error(out, option::GO, &error),
        },
        ClientOption::ExportName(export) => match enter(shared, terms, &export).await {
            Ok(negotiated) => {
                put_export(out, negotiated.export.size, negotiated.export.flags(), parser.no_zeroes());
                return Ok(Some(negotiated));
            }
            // The protocol has no other way to refuse.
            Err(error) => return Err(End::Refused(error)),
        },
    }
    Ok(None)
}

/// Attaches the volume behind an export's name.
async fn enter(shared: &Rc<Shared>, terms: &Terms, export: &str) -> Result<Negotiated> {
    if shared.is_stopping() {
        return Err(Error::internal("the server is stopping"));
    }
    let found = find_export(&*shared.directory, export).await?;
    let volume = shared.enter(&found, Frontend::Nbd).await?;
    let export = terms.export(volume.descriptor());
    Ok(Negotiated { volume, export })
}

async fn answer_meta_context(
    directory: &dyn VolumeDirectory,
    terms: &mut Terms,
    set: bool,
    export: &str,
    queries: &[String],
    out: &mut Vec<u8>,
) {
    let option = if set { option::SET_META_CONTEXT } else { option::LIST_META_CONTEXT };
    if set {
        terms.allocation = None;
    }
    if !terms.structured {
        return put_reply(out, option, option_reply::ERR_INVALID, b"structured replies come first");
    }
    match find_export(directory, export).await {
        Ok(volume) => {
            if selects_allocation(set, queries) {
                put_meta_context(out, set);
                terms.allocation = if set { Some(volume.id) } else { terms.allocation };
            }
            put_reply(out, option, option_reply::ACK, b"");
        }
        Err(error) => put_error(out, option, &error),
    }
}

/// The volume behind an export's name. The empty name is the only volume, if there is exactly one.
async fn find_export(directory: &dyn VolumeDirectory, export: &str) -> Result<VolumeDescriptor> {
    if !export.is_empty() {
        return directory.resolve(export).await;
    }
    match directory.list().await?.as_slice() {
        [only] => directory.resolve(only).await,
        [] => Err(Error::not_found("there is no volume yet; make one with `levee volume create NAME --size SIZE`")),
        [first, rest @ ..] => {
            let others = rest.len();
            Err(Error::not_found(format!("name a volume, such as '{first}': there are {others} others")))
        }
    }
}

fn put_error(out: &mut Vec<u8>, option: u32, error: &Error) {
    let reply = match error.kind {
        ErrorKind::NotFound => option_reply::ERR_UNKNOWN,
        ErrorKind::Internal => option_reply::ERR_SHUTDOWN,
        ErrorKind::Invalid => option_reply::ERR_INVALID,
        _ => option_reply::ERR_POLICY,
    };
    put_reply(out, option, reply, error.message.as_bytes());
}

/// Everything about an export: size and limits always, the rest if it is wanted; and the acknowledgement.
fn put_description(out: &mut Vec<u8>, option: u32, volume: &VolumeDescriptor, export: Export, wanted: &[u16]) {
    put_info_export(out, option, export.size, export.flags());
    put_info_block_size(out, option);
    if wanted.contains(&info::NAME) {
        put_info(out, option, info::NAME, volume.name.as_bytes());
    }
    if wanted.contains(&info::DESCRIPTION) {
        let read_only = if export.read_only { ", read-only" } else { "" };
        let text = format!("Levee volume {}, {}{read_only}", volume.name, format_size(volume.size));
        put_info(out, option, info::DESCRIPTION, text.as_bytes());
    }
    put_reply(out, option, option_reply::ACK, b"");
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        End::Violation(violation)
    }
}

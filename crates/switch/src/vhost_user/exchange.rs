//! One message: taken, checked, handled, answered.
//!
//! ```text
//!  header ─▶ taken ─▶ door ─▶ negotiated? ─▶ Request ─▶ [ MessageHandler ] ─▶ reply, or acknowledgement
//!               └─ what came with it is given up when it is done
//! ```
//!
//! Two types handle messages: a [connection](super::connection), and a front end's [heir](super::heir), which
//! has no port yet.

use super::door;
use super::features;
use super::reply::{Rejection, Reply};
use super::request::{self, Request};
use super::service::Service;
use super::wire::{self, Header, Message};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost::vhost_user::message::VhostUserU64;

/// A receiver of a front end's messages.
pub trait MessageHandler {
    /// Whether the message's feature was negotiated.
    ///
    /// # Errors
    /// It is not.
    fn allows(&self, header: &Header) -> Result<(), Rejection>;
    /// Whether the front end may ask for acknowledgements.
    fn acknowledges(&self) -> bool;
    /// Does what a message asks; `None` if it needs no reply.
    ///
    /// # Errors
    /// It is refused, with the reason.
    fn handle(&mut self, request: Request) -> Result<Option<Reply>, Rejection>;
}

/// Most regions of a memory table, and most descriptors of a message.
pub(super) const MAX_MEM_SLOTS: usize = 32;

/// Takes a complete message, has it handled, and answers it.
///
/// # Errors
/// The connection has to end, with the reason.
pub fn exchange(
    stream: &UnixStream,
    service: &Service,
    header: Header,
    to: &mut dyn MessageHandler,
) -> Result<(), Rejection> {
    let (message, taken) = wire::take(stream, header);
    let done = taken.map_err(Rejection::from).and_then(|()| answer(stream, service, header, &message, to));
    let Message { descriptors, unexpected_descriptors, .. } = message;
    // One by one, so that each counts among those that wait to be closed. Until then others have fewer.
    for descriptor in descriptors.into_iter().chain(unexpected_descriptors) {
        let charge = service.account.received(1);
        service.errands.give_up((descriptor, charge));
    }
    done
}

/// Obeys a message and replies; also to a refused one if the front end asked for it (REPLY_ACK).
fn answer(
    stream: &UnixStream,
    service: &Service,
    header: Header,
    message: &Message,
    to: &mut dyn MessageHandler,
) -> Result<(), Rejection> {
    let handled = handle(service, header, message, to);
    let is_acknowledged = header.need_reply && !header.form.is_answered && to.acknowledges();
    let replied = match &handled {
        Ok(Some(Reply { payload, descriptor })) => {
            let descriptor = descriptor.as_ref().map(AsFd::as_fd);
            wire::reply(stream, header.code, payload, descriptor)
        }
        _ if is_acknowledged => {
            // Zero for success (vhost-user, "VHOST_USER_PROTOCOL_F_REPLY_ACK").
            let failed = u64::from(handled.is_err()).to_ne_bytes();
            wire::reply(stream, header.code, &failed, None)
        }
        _ => Ok(()),
    };
    handled?;
    Ok(replied.map_err(|why| format!("socket: {why}"))?)
}

fn handle(
    service: &Service,
    header: Header,
    message: &Message,
    to: &mut dyn MessageHandler,
) -> Result<Option<Reply>, Rejection> {
    door::check_descriptors(header, message, &service.errands)?;
    to.allows(&header)?;
    to.handle(request::decode(header.code, &message.payload, &message.descriptors)?)
}

/// Answers questions about the port that have the same answer for each front end; `None` for other
/// messages. Without IN_ORDER if its contract excludes that.
pub fn about_port(request: &Request, queue_pairs: u16, excludes_in_order: bool) -> Option<Reply> {
    let answer = match request {
        Request::GetFeatures => features::offered_to(queue_pairs, excludes_in_order),
        Request::GetProtocolFeatures => features::offered_protocol().bits(),
        // In virtqueues, two for a pair. QEMU compares it with its queue pairs, and so starts a VM with too
        // many of them; its first message for one of those is then refused.
        Request::GetQueueNum => 2 * u64::from(queue_pairs),
        Request::GetMaxMemSlots => MAX_MEM_SLOTS as u64,
        _ => return None,
    };
    Some(Reply::of(&VhostUserU64::new(answer)))
}

/// Whether a message belongs to a protocol feature that was negotiated, or to none.
///
/// # Errors
/// It was not.
pub fn belongs(header: &Header, negotiated: u64) -> Result<(), String> {
    let (code, needs) = (header.code, header.form.needs);
    if has(negotiated, needs) {
        return Ok(());
    }
    let names: Vec<_> = needs.iter_names().map(|(name, _)| name).collect();
    Err(format!("{code:?}: protocol feature {} was not negotiated", names.join(", ")))
}

/// Whether all of `features` were negotiated.
pub fn has(negotiated: u64, features: VhostUserProtocolFeatures) -> bool {
    negotiated & features.bits() == features.bits()
}

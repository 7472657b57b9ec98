//! The heir: a front end that waits while another is served.
//!
//! ```text
//!  GET_FEATURES, SET_PROTOCOL_FEATURES, SET_VRING_CALL, ... ─▶ answered, and kept: Kept + descriptors ─▶ session
//!  SET_FEATURES, SET_MEM_TABLE, SET_VRING_KICK, ...         ─▶ stays in the socket until it has the place
//! ```
//!
//! QEMU asks for the port's features when it starts, also when it waits for a guest's migration, and is not
//! ready before the answers. So messages that change only the heir's own state are answered. The first that
//! asks for the port is not even read: its bytes and descriptors stay in the kernel, charged to the sender.
//!
//! An heir's resources are bounded: two counters for each queue, which no thread signals while it waits; a
//! number of messages; and little time, if it is silent or wants the port while another uses it.

use super::config::PortConfig;
use super::connection::no_queue;
use super::end::{End, PARTIAL_POLL};
use super::exchange::{self, MessageHandler};
use super::features;
use super::reply::{Rejection, Reply, exceeded};
use super::request::Request;
use super::saved::{Number, Numbered, SavedConnection, SavedVring, SharedFd};
use super::service::Service;
use super::wire::{self, DisconnectedStream, Glance, Header};
use crate::stats::ThrownOut;
use rustix::event::PollFlags;
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost::vhost_user::message::FrontendReq;

/// Messages that QEMU may need, for each queue and in addition, several times over.
const MESSAGES: (u32, u32) = (32, 64);

/// A front end that waits.
#[derive(Debug)]
pub struct Heir {
    stream: UnixStream,
    state: HeirState,
    messages: u32,
    next: Next,
    /// How long it may be silent at first, or want the port.
    patience: Duration,
    /// How long a message may take.
    stalled: Duration,
}

/// Its next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// None since then; whether it has spoken before.
    Silent(Instant),
    /// An incomplete message, since then.
    Partial(Instant),
    /// A message that asks for the port, since then.
    WantsPort(Instant),
}

/// An heir's state.
#[derive(Debug)]
struct HeirState {
    protocol_features: u64,
    vrings: Vec<Vring>,
}

/// The state of one of its queues.
#[derive(Clone, Debug, Default)]
struct Vring {
    call: Option<Numbered>,
    err: Option<Numbered>,
    enabled: bool,
}

/// The beginning of a connection that has a state already.
pub struct InitialState {
    /// Its state.
    pub saved: SavedConnection,
    /// The descriptors in it.
    pub descriptors: HashMap<Number, SharedFd>,
    /// Their present charges, until they are charged anew.
    pub charged: Vec<Numbered>,
}

impl Heir {
    /// Returns an heir without state.
    pub fn new(stream: UnixStream, config: &PortConfig, now: Instant) -> Self {
        let vrings = vec![Vring::default(); 2 * usize::from(config.queue_pairs)];
        let state = HeirState { protocol_features: 0, vrings };
        let (patience, stalled) = (config.heir_timeout, config.message_timeout);
        Self { stream, state, messages: 0, next: Next::Silent(now), patience, stalled }
    }

    /// Returns what to poll: not for unread messages.
    pub fn poll_target(&self) -> (&UnixStream, PollFlags) {
        let events = match self.next {
            Next::Silent(_) => PollFlags::IN,
            Next::Partial(_) | Next::WantsPort(_) => PollFlags::empty(),
        };
        (&self.stream, events)
    }

    /// Returns the time until it has to be looked at.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        match self.next {
            Next::Silent(_) if self.messages > 0 => None,
            Next::Silent(since) | Next::WantsPort(since) => {
                Some((since + self.patience).saturating_duration_since(now))
            }
            Next::Partial(_) => Some(PARTIAL_POLL),
        }
    }

    /// Whether it asks for the port.
    pub fn wants_port(&self) -> bool {
        matches!(self.next, Next::WantsPort(_))
    }

    /// Reads at most one message; `excludes_in_order` is the contract's.
    ///
    /// # Errors
    /// It must not wait any longer.
    pub fn read_message(
        &mut self,
        service: &Service,
        excludes_in_order: bool,
        hung_up: bool,
        now: Instant,
    ) -> Result<(), End> {
        if let Next::WantsPort(since) = self.next {
            return match now >= since + self.patience {
                _ if hung_up => Err(End::Closed),
                true => throw_out("the front end asked for the port, which another front end uses"),
                false => Ok(()),
            };
        }
        match wire::glance(&self.stream) {
            Ok(Glance::Closed) => Err(End::Closed),
            Ok(Glance::Nothing) => match self.next {
                Next::Silent(since) if self.messages == 0 && now >= since + self.patience => {
                    throw_out(format!("the front end sent no message for {:?}", self.patience))
                }
                Next::Silent(_) => Ok(()),
                Next::Partial(_) | Next::WantsPort(_) => {
                    self.next = Next::Silent(now);
                    Ok(())
                }
            },
            Ok(Glance::Partial) if hung_up => throw_out("closed in the middle of a message"),
            Ok(Glance::Partial) => {
                let since = match self.next {
                    Next::Partial(since) => since,
                    Next::Silent(_) | Next::WantsPort(_) => now,
                };
                self.next = Next::Partial(since);
                if now > since + self.stalled {
                    let reason = format!("stalled in the middle of a message for {:?}", self.stalled);
                    return Err(End::ThrownOut(Rejection { kind: ThrownOut::Stalled, reason }));
                }
                Ok(())
            }
            Ok(Glance::Whole(header)) if !is_harmless(header.code) => {
                tracing::debug!(
                    port = service.name,
                    "the waiting front end wants the port with {:?}",
                    header.code
                );
                self.next = Next::WantsPort(now);
                Ok(())
            }
            Ok(Glance::Whole(header)) => {
                self.next = Next::Silent(now);
                self.messages += 1;
                if self.messages > MESSAGES.0 * self.state.vrings.len() as u32 + MESSAGES.1 {
                    return throw_out(format!(
                        "the front end sent {} messages before its turn",
                        self.messages
                    ));
                }
                tracing::debug!(port = service.name, "the waiting front end sends {:?}", header.code);
                let mut to = Waiting { state: &mut self.state, service, excludes_in_order };
                exchange::exchange(&self.stream, service, header, &mut to).map_err(End::ThrownOut)
            }
            Err(reason) => throw_out(reason),
        }
    }

    /// Ends the wait: returns its socket and state.
    pub fn into_connection(self) -> (UnixStream, InitialState) {
        let mut descriptors = HashMap::new();
        let mut charged = Vec::new();
        let mut number = |counter: Option<Numbered>| {
            counter.map(|counter| {
                let number = counter.number();
                descriptors.insert(number, counter.shared_fd());
                charged.push(counter);
                number
            })
        };
        let vrings = self.state.vrings.into_iter().map(|Vring { call, err, enabled }| SavedVring {
            call: number(call),
            err: number(err),
            enabled,
            ..SavedVring::default()
        });
        let saved = SavedConnection {
            // Not among the descriptors: it is this one.
            stream: 0,
            features: None,
            protocol_features: self.state.protocol_features,
            regions: Vec::new(),
            memory_is_alive: false,
            vrings: vrings.collect(),
            inflight: None,
            log: None,
        };
        (self.stream, InitialState { saved, descriptors, charged })
    }

    /// Ends the wait without the port: the front end sees the end of its socket, and an errand closes all
    /// it has.
    pub fn disconnect(self, service: &Service) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        service.errands.give_up((DisconnectedStream(self.stream), self.state));
    }
}

fn throw_out<T>(reason: impl Into<Rejection>) -> Result<T, End> {
    Err(End::ThrownOut(reason.into()))
}

/// Whether a message concerns only its sender's own state.
fn is_harmless(code: FrontendReq) -> bool {
    use FrontendReq as Req;
    matches!(
        code,
        Req::GET_FEATURES
            | Req::GET_PROTOCOL_FEATURES
            | Req::SET_PROTOCOL_FEATURES
            | Req::GET_QUEUE_NUM
            | Req::GET_MAX_MEM_SLOTS
            | Req::SET_OWNER
            | Req::SET_VRING_CALL
            | Req::SET_VRING_ERR
            | Req::SET_VRING_ENABLE
    )
}

/// An heir that obeys a message.
struct Waiting<'a> {
    state: &'a mut HeirState,
    service: &'a Service,
    excludes_in_order: bool,
}

impl Waiting<'_> {
    /// Stores a counter, and gives the one before up. Whether it is quick to signal is tested when the heir
    /// has the port.
    fn counter(
        &mut self,
        message: &str,
        queue: u8,
        event: Option<SharedFd>,
        place: impl FnOnce(&mut Vring) -> &mut Option<Numbered>,
    ) -> Result<(), Rejection> {
        let charged = event.map(|event| Numbered::charged(event, &self.service.account)).transpose();
        let counter = charged.map_err(|why| exceeded(message, why))?;
        let before = std::mem::replace(place(self.vring(message, queue.into())?), counter);
        if before.is_some() {
            self.service.errands.give_up(before);
        }
        Ok(())
    }

    fn vring(&mut self, message: &str, index: u32) -> Result<&mut Vring, Rejection> {
        let queues = self.state.vrings.len();
        let vring = self.state.vrings.get_mut(index as usize);
        vring.ok_or_else(|| no_queue(message, index, queues as u16 / 2).into())
    }
}

impl MessageHandler for Waiting<'_> {
    fn allows(&self, header: &Header) -> Result<(), Rejection> {
        Ok(exchange::belongs(header, self.state.protocol_features)?)
    }

    fn acknowledges(&self) -> bool {
        exchange::has(self.state.protocol_features, VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn handle(&mut self, request: Request) -> Result<Option<Reply>, Rejection> {
        let queue_pairs = self.state.vrings.len() as u16 / 2;
        if let Some(reply) = exchange::about_port(&request, queue_pairs, self.excludes_in_order) {
            return Ok(Some(reply));
        }
        match request {
            Request::SetProtocolFeatures(wanted) => {
                features::check_protocol(wanted)?;
                self.state.protocol_features = wanted;
            }
            Request::SetVringCall((queue, event)) => {
                self.counter("SET_VRING_CALL", queue, event, |vring| &mut vring.call)?;
            }
            Request::SetVringErr((queue, event)) => {
                self.counter("SET_VRING_ERR", queue, event, |vring| &mut vring.err)?;
            }
            Request::SetVringEnable(index, enabled) => {
                self.vring("SET_VRING_ENABLE", index)?.enabled = enabled;
            }
            // SET_OWNER: it does, once it is served. No other message comes here.
            _ => {}
        }
        Ok(None)
    }
}

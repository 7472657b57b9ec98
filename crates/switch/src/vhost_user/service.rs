//! What a port has for its front ends, from one to the next.
//!
//! ```text
//!            ┌ errands   what may take long is done there
//!  Service ──┼ account   what its front ends may take
//!            └ conduct   what their objects did; the quarantine ─▶ mailbox: the connection ends
//! ```

use super::conduct::{Conduct, Event};
use super::errands::Errands;
use super::listener::PortConfig;
use super::mailbox::Mailbox;
use super::notifier::Report;
use crate::log_limit::LogLimit;
use crate::quota::Account;
use crate::stats::ThrownOut;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Of one port.
pub struct Service {
    /// The vNIC's name, for logs.
    pub name: String,
    /// What may take long is done there.
    pub errands: Errands,
    /// What front ends may take.
    pub account: Account,
    /// What their objects did.
    pub conduct: Arc<Conduct>,
    /// Tells the conduct, and ends the connection where a quarantine begins.
    pub report: Report,
}

impl Service {
    /// That of a port whose thread reads `mailbox`.
    pub fn new(config: &PortConfig, mailbox: &Arc<Mailbox>) -> Self {
        let conduct = Arc::new(Conduct::default());
        let lines = Mutex::new(LogLimit::new(Instant::now()));
        let (name, record, mailbox) = (config.name.clone(), conduct.clone(), mailbox.clone());
        let report = move |event: Event| {
            let now = Instant::now();
            let line = lines.lock().unwrap_or_else(PoisonError::into_inner).line(now);
            if let Some(suppressed) = line {
                tracing::warn!(port = name, suppressed, "a thread of the switch was held up: it {event}");
            }
            if let Some(reason) = record.record(event, now) {
                mailbox.post(|inbox| inbox.throw_out = Some((ThrownOut::Held, reason)));
            }
        };
        Self {
            name: config.name.clone(),
            errands: config.errands.clone(),
            account: config.account.clone(),
            conduct,
            report: Arc::new(report),
        }
    }
}

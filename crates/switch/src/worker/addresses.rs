//! Which link-local addresses own ports use.
//!
//! ```text
//!  frame ─▶ decide ─▶ Refused::Claim ─▶ room? another's by contract or MAC? claimed? ─▶ held from now on
//! ```
//!
//! Every change of what a port holds happens here, on the worker that owns it. It is written down in the
//! statistics region too, where the next process finds it.

use super::Worker;
use crate::claims::Named;
use crate::fdb::PortIndex;
use crate::frame::LinkLocals;
use crate::frame::policy::link_local::mac_of;
use crate::port::Port;
use std::net::Ipv6Addr;
use std::sync::Arc;

impl Worker {
    /// A port uses a link-local address for the first time: from now on it holds it. `false` where it may not.
    #[inline(never)]
    pub(super) fn claim(&self, port: &mut Port, ip: Ipv6Addr) -> bool {
        let claimed = !port.held.is_full()
            && !self.is_anothers(port, ip)
            && self.claims.claim(port.segment, ip, port.index)
            && port.held.insert(ip);
        if claimed {
            port.stats.set_link_local(&port.held);
        }
        claimed
    }

    /// Whether contracts say that it is not this port's: one names it, or it is made from the MAC of another.
    fn is_anothers(&self, port: &Port, ip: Ipv6Addr) -> bool {
        let owner = || mac_of(ip).and_then(|mac| self.fdb.pinned(port.segment, mac));
        self.named.get(usize::from(port.segment.0)).is_some_and(|named| named.contain(ip))
            || owner().is_some_and(|owner| owner != port.index.into())
    }

    /// The link-local addresses that contracts name, by segment. Own ports give up what is another's now.
    pub fn set_named(&mut self, named: Arc<[Named]>) {
        self.named = named;
        for index in self.owned.clone() {
            self.review_addresses(index);
        }
    }

    /// An own port gives up what it may not hold any more.
    pub(super) fn review_addresses(&mut self, index: PortIndex) {
        let Some(mut port) = self.ports[index as usize].take() else { return };
        if port.contract.policy.holds_addresses() {
            self.give_up(&mut port, |worker, port, ip| worker.is_anothers(port, ip));
        } else {
            self.release_addresses(&mut port);
        }
        self.ports[index as usize] = Some(port);
    }

    /// A port gives up all that it holds.
    pub(super) fn release_addresses(&self, port: &mut Port) {
        self.give_up(port, |_, _, _| true);
    }

    fn give_up(&self, port: &mut Port, which: impl Fn(&Self, &Port, Ipv6Addr) -> bool) {
        let mut held = std::mem::take(&mut port.held);
        if held == LinkLocals::default() {
            return;
        }
        held.retain(|ip| {
            let goes = which(self, port, ip);
            if goes {
                self.claims.release(port.segment, ip, port.index);
            }
            !goes
        });
        port.held = held;
        port.stats.set_link_local(&port.held);
    }

    /// An own port forgets what it holds, until it is [restored](Self::restore_addresses) from what is written
    /// down.
    pub fn forget_addresses(&mut self, index: PortIndex) {
        let Some(port) = &mut self.ports[index as usize] else { return };
        for ip in std::mem::take::<LinkLocals>(&mut port.held).iter() {
            self.claims.release(port.segment, ip, port.index);
        }
    }

    /// An own port holds again what is written down of it, without what is another's by now.
    pub fn restore_addresses(&mut self, index: PortIndex) {
        let Some(mut port) = self.ports[index as usize].take() else { return };
        let written: Vec<Ipv6Addr> = port.stats.link_local().collect();
        if port.contract.policy.holds_addresses() {
            for ip in written {
                if !port.held.contains(ip) {
                    self.claim(&mut port, ip);
                }
            }
        }
        port.stats.set_link_local(&port.held);
        self.ports[index as usize] = Some(port);
    }
}

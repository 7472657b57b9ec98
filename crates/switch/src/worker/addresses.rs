//! The link-local addresses that own ports use.
//!
//! ```text
//!  frame ─▶ decide ─▶ Refused::Claim ─▶ room? another's by contract or MAC? claimed? ─▶ held from now on
//! ```
//!
//! Only the worker that owns a port changes the port's addresses, here. It also writes them to the
//! statistics region for the next process.

use super::Worker;
use crate::claims::NamedAddresses;
use crate::fdb::PortIndex;
use crate::frame::LinkLocals;
use crate::frame::policy::link_local::mac_of;
use crate::port::Port;
use std::net::Ipv6Addr;
use std::sync::Arc;

impl Worker {
    /// Claims a link-local address at its first use by a port. `false` if the port may not have it.
    #[inline(never)]
    pub(super) fn claim(&self, port: &mut Port, ip: Ipv6Addr) -> bool {
        let claimed = !port.claimed.is_full()
            && !self.belongs_to_other(port, ip)
            && self.claims.claim(port.segment, ip, port.index)
            && port.claimed.insert(ip);
        if claimed {
            port.stats.set_link_local(&port.claimed);
        }
        claimed
    }

    /// Whether the address belongs to another port: a contract names it, or it is made from another port's
    /// MAC.
    fn belongs_to_other(&self, port: &Port, ip: Ipv6Addr) -> bool {
        let owner = || mac_of(ip).and_then(|mac| self.fdb.pinned(port.segment, mac));
        self.named.get(usize::from(port.segment.0)).is_some_and(|named| named.contain(ip))
            || owner().is_some_and(|owner| owner != port.index.into())
    }

    /// Sets the link-local addresses that contracts name, by segment. Own ports release addresses that now
    /// belong to others.
    pub fn set_named(&mut self, named: Arc<[NamedAddresses]>) {
        self.named = named;
        for index in self.owned.clone() {
            self.review_addresses(index);
        }
    }

    /// Releases an own port's addresses that belong to others now.
    pub(super) fn review_addresses(&mut self, index: PortIndex) {
        let Some(mut port) = self.ports[index as usize].take() else { return };
        if port.contract.policy.holds_addresses() {
            self.give_up(&mut port, |worker, port, ip| worker.belongs_to_other(port, ip));
        } else {
            self.release_addresses(&mut port);
        }
        self.ports[index as usize] = Some(port);
    }

    /// Releases all addresses of a port.
    pub(super) fn release_addresses(&self, port: &mut Port) {
        self.give_up(port, |_, _, _| true);
    }

    fn give_up(&self, port: &mut Port, which: impl Fn(&Self, &Port, Ipv6Addr) -> bool) {
        let mut claimed = std::mem::take(&mut port.claimed);
        if claimed == LinkLocals::default() {
            return;
        }
        claimed.retain(|ip| {
            let goes = which(self, port, ip);
            if goes {
                self.claims.release(port.segment, ip, port.index);
            }
            !goes
        });
        port.claimed = claimed;
        port.stats.set_link_local(&port.claimed);
    }

    /// Forgets an own port's addresses until [`restore_addresses`](Self::restore_addresses).
    pub fn forget_addresses(&mut self, index: PortIndex) {
        let Some(port) = &mut self.ports[index as usize] else { return };
        for ip in std::mem::take::<LinkLocals>(&mut port.claimed).iter() {
            self.claims.release(port.segment, ip, port.index);
        }
    }

    /// Restores an own port's addresses from the statistics region, without those that belong to others
    /// now.
    pub fn restore_addresses(&mut self, index: PortIndex) {
        let Some(mut port) = self.ports[index as usize].take() else { return };
        let written: Vec<Ipv6Addr> = port.stats.link_local().collect();
        if port.contract.policy.holds_addresses() {
            for ip in written {
                if !port.claimed.contains(ip) {
                    self.claim(&mut port, ip);
                }
            }
        }
        port.stats.set_link_local(&port.claimed);
        self.ports[index as usize] = Some(port);
    }
}

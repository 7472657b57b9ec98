//! Limits on the process's address space, mappings and descriptors that front ends use.
//!
//! ```text
//!              ┌ up to its own share: always granted
//!  Need ─▶ port┤
//!              └ beyond: from what all share, up to the port's limit ─▶ Charge, given back when dropped
//! ```
//!
//! Address space costs a front end nothing: a file without a page can be 8 EiB long. So each port has its own
//! share, large enough for an ordinary guest, which no other port can use up. All ports share one pool for
//! more, first come, first served.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const GIB: u64 = 1 << 30;

/// Largest guest memory of one front end (bytes), without `--guest-memory`.
pub const PORT_MEMORY: u64 = 1024 * GIB;
/// Each port's own share (bytes): for 1024 ports 32 TiB of the 128 TiB of a process (x86-64).
const OWN_MEMORY: u64 = 32 * GIB;
/// Most regions of one memory table. QEMU has at most 509 memory slots, and uses 2 or 3.
pub const MAX_REGIONS: usize = 64;
/// The common pool (bytes).
const COMMON_MEMORY: u64 = 64 * 1024 * GIB;
/// Regions of each port's own share; QEMU uses two or three.
const OWN_REGIONS: u64 = 8;
/// Regions of the common pool. All regions together stay below vm.max_map_count (65530).
const COMMON_REGIONS: u64 = 32 << 10;

/// One amount of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Bytes of mappings.
    pub bytes: u64,
    /// Mappings.
    pub regions: u64,
    /// File descriptors.
    pub descriptors: u64,
}

impl Amounts {
    fn each(self) -> [(Resource, u64); 3] {
        [
            (Resource::Bytes, self.bytes),
            (Resource::Regions, self.regions),
            (Resource::Descriptors, self.descriptors),
        ]
    }

    fn zip(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            bytes: with(self.bytes, other.bytes),
            regions: with(self.regions, other.regions),
            descriptors: with(self.descriptors, other.descriptors),
        }
    }

    fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    fn minus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_sub)
    }

    fn first_exceeded(self, limit: Self) -> Option<Resource> {
        let over = self.each().into_iter().zip(limit.each()).find(|((_, amount), (_, limit))| amount > limit);
        over.map(|((resource, _), _)| resource)
    }

    fn of(self, resource: Resource) -> u64 {
        match resource {
            Resource::Bytes => self.bytes,
            Resource::Regions => self.regions,
            Resource::Descriptors => self.descriptors,
        }
    }
}

/// A kind of amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Bytes of mappings.
    Bytes,
    /// Mappings.
    Regions,
    /// File descriptors.
    Descriptors,
}

impl Resource {
    fn show(self, amount: u64) -> String {
        match self {
            // Rounded up, so that an amount above the limit never looks equal to it.
            Self::Bytes if amount >= GIB => {
                format!("{:.1} GiB", (amount as f64 / GIB as f64 * 10.0).ceil() / 10.0)
            }
            Self::Bytes => format!("{amount} bytes"),
            Self::Regions | Self::Descriptors => amount.to_string(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bytes => "of guest memory",
            Self::Regions => "memory regions",
            Self::Descriptors => "descriptors",
        }
    }
}

/// The limit that a request exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// Limit of one request.
    Once,
    /// Limit of the port.
    Port,
    /// Limit of the own shares of all ports.
    Ports,
    /// Limit of the common pool.
    Common,
}

/// A request above a front end's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    resource: Resource,
    wanted: u64,
    /// What the port, or all ports together, have already.
    in_use: u64,
    limit: u64,
    scope: Limit,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, wanted, in_use, limit, scope } = *self;
        let (wanted, in_use, limit) = (resource.show(wanted), resource.show(in_use), resource.show(limit));
        write!(f, "{wanted} {} requested", resource.name())?;
        match scope {
            Limit::Once => write!(f, ": a front end may have {limit} (--guest-memory of the switch)"),
            Limit::Port => write!(f, ", but the port has {in_use} already and may have {limit}"),
            Limit::Ports => write!(
                f,
                ", but other ports may need {in_use} and there are {limit} (LimitNOFILE= of \
                 tidegate-switch.service)"
            ),
            Limit::Common => {
                write!(
                    f,
                    "beyond the port's own share: all ports together have {in_use} beyond their shares and \
                     may have {limit}"
                )?;
                match resource {
                    Resource::Descriptors => write!(f, " (LimitNOFILE= of tidegate-switch.service)"),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for Exceeded {}

/// The accounts of all ports.
#[derive(Debug)]
pub struct Ledger {
    port_memory: u64,
    /// Descriptors for all ports.
    descriptors: u64,
    books: Mutex<Balances>,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Balances {
    /// Descriptors of all ports' own shares.
    own_descriptors: u64,
    /// Amounts in use from the common pool.
    common: Amounts,
}

/// The resources of one port. It closes when its last [`Charge`] is gone, too.
#[derive(Clone, Debug)]
pub struct Account(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Arc<Ledger>,
    /// Descriptors of the port itself, without any front end's.
    own_descriptors: u64,
    own: Amounts,
    most: Amounts,
    /// Changed only under the ledger's lock.
    used: Mutex<Amounts>,
}

impl Ledger {
    /// Returns a ledger without accounts. One front end may share `port_memory` bytes; all ports have `descriptors`.
    pub fn new(port_memory: u64, descriptors: u64) -> Arc<Self> {
        Arc::new(Self { port_memory, descriptors, books: Mutex::default(), refused: AtomicU64::new(0) })
    }

    /// Opens a port's account: `own_descriptors` descriptors for the port, `own` reserved for its front ends, which
    /// may have up to `most`.
    ///
    /// # Errors
    /// Too few descriptors remain.
    pub fn open(self: &Arc<Self>, own_descriptors: u64, own: u64, most: u64) -> Result<Account, Exceeded> {
        let mut books = self.lock();
        let (wanted, taken) = (own_descriptors + own, books.own_descriptors + books.common.descriptors);
        if taken + wanted > self.descriptors {
            let (resource, limit, scope) = (Resource::Descriptors, self.descriptors, Limit::Ports);
            return Err(Exceeded { resource, wanted, in_use: taken, limit, scope });
        }
        books.own_descriptors += wanted;
        drop(books);
        let own = Amounts { bytes: OWN_MEMORY, regions: OWN_REGIONS, descriptors: own };
        let regions = 2 * MAX_REGIONS as u64;
        let most = Amounts { bytes: self.port_memory.saturating_mul(2), regions, descriptors: most };
        Ok(Account(Arc::new(Inner {
            ledger: self.clone(),
            own_descriptors,
            own,
            most,
            used: Mutex::default(),
        })))
    }

    /// Returns the number of refused requests of front ends.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Balances> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn common(&self, books: &Balances) -> Amounts {
        let descriptors = self.descriptors.saturating_sub(books.own_descriptors);
        Amounts { bytes: COMMON_MEMORY, regions: COMMON_REGIONS, descriptors }
    }
}

impl Account {
    /// Takes `need` until the result is dropped.
    ///
    /// # Errors
    /// A limit would be exceeded.
    pub fn charge(&self, need: Amounts) -> Result<Charge, Exceeded> {
        let Inner { ledger, own, most, used, .. } = &*self.0;
        let mut books = ledger.lock();
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        let after = used.plus(need);
        let beyond = after.minus(*own).minus(used.minus(*own));
        let common = books.common.plus(beyond);
        let exceeded = |resource: Resource, held: Amounts, limit: Amounts, scope: Limit| {
            ledger.refused.fetch_add(1, Ordering::Relaxed);
            Exceeded {
                resource,
                wanted: need.of(resource),
                in_use: held.of(resource),
                limit: limit.of(resource),
                scope,
            }
        };
        if need.bytes > ledger.port_memory {
            let limit = Amounts { bytes: ledger.port_memory, ..Amounts::default() };
            return Err(exceeded(Resource::Bytes, *used, limit, Limit::Once));
        }
        if let Some(resource) = after.first_exceeded(*most) {
            return Err(exceeded(resource, *used, *most, Limit::Port));
        }
        // The port's own share is never refused, whatever other ports use.
        let limit = ledger.common(&books);
        let wanted = beyond.zip(common, |beyond, common| if beyond > 0 { common } else { 0 });
        if let Some(resource) = wanted.first_exceeded(limit) {
            return Err(exceeded(resource, books.common, limit, Limit::Common));
        }
        (*used, books.common) = (after, common);
        Ok(Charge { account: self.clone(), amounts: need })
    }

    /// Counts descriptors that a front end sent unasked; until the result is dropped, other ports have fewer.
    pub fn received(&self, descriptors: usize) -> Charge {
        let need = Amounts { descriptors: descriptors as u64, ..Amounts::default() };
        let Inner { ledger, own, used, .. } = &*self.0;
        let mut books = ledger.lock();
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        let after = used.plus(need);
        books.common = books.common.plus(after.minus(*own).minus(used.minus(*own)));
        *used = after;
        Charge { account: self.clone(), amounts: need }
    }

    /// Returns the resources in use by the port.
    pub fn used(&self) -> Amounts {
        *self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.ledger.lock().own_descriptors -= self.own_descriptors + self.own.descriptors;
    }
}

/// Resources in use; returned when dropped.
#[derive(Debug)]
pub struct Charge {
    account: Account,
    amounts: Amounts,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Inner { ledger, own, used, .. } = &*self.account.0;
        let mut books = ledger.lock();
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        let after = used.minus(self.amounts);
        books.common = books.common.minus(used.minus(*own).minus(after.minus(*own)));
        *used = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(bytes: u64) -> Amounts {
        Amounts { bytes, ..Amounts::default() }
    }

    #[test]
    fn a_port_has_a_limit_and_its_refusal_names_the_limit() {
        let ledger = Ledger::new(PORT_MEMORY, 1000);
        let account = ledger.open(0, 10, 20).unwrap();
        // Two tables, while one replaces the other.
        let tables = [(); 2].map(|()| account.charge(bytes(PORT_MEMORY)).unwrap());
        let refused = |need| account.charge(need).unwrap_err().to_string();
        assert_eq!(
            refused(bytes(GIB)),
            "1.0 GiB of guest memory requested, but the port has 2048.0 GiB already and may have 2048.0 GiB"
        );
        drop(tables);
        assert_eq!(
            refused(bytes(PORT_MEMORY + GIB)),
            "1025.0 GiB of guest memory requested: a front end may have 1024.0 GiB (--guest-memory of the switch)"
        );
        assert_eq!(account.used(), Amounts::default());
        drop(account.charge(bytes(GIB)).unwrap());
        let regions = Amounts { regions: 129, ..Amounts::default() };
        assert_eq!(
            refused(regions),
            "129 memory regions requested, but the port has 0 already and may have 128"
        );
        assert_eq!(ledger.refused(), 3);
    }

    #[test]
    fn no_port_uses_up_the_own_share_of_another_port() {
        let ledger = Ledger::new(PORT_MEMORY, 1 << 20);
        let hostile: Vec<_> = (0..100).map(|_| ledger.open(9, 36, 100).unwrap()).collect();
        let twice = hostile.iter().chain(&hostile);
        let taken: Vec<_> = twice.filter_map(|port| port.charge(bytes(PORT_MEMORY)).ok()).collect();
        assert_eq!(taken.len(), 66, "a TiB each, less what is their own");
        let honest = ledger.open(9, 36, 100).unwrap();
        let own = honest.charge(bytes(OWN_MEMORY)).unwrap();
        let refused = honest.charge(bytes(PORT_MEMORY)).unwrap_err();
        assert!(
            refused.scope == Limit::Common && refused.to_string().contains("all ports together"),
            "{refused}"
        );
        drop((taken, own));
        assert!(honest.charge(bytes(PORT_MEMORY)).is_ok());
    }

    #[test]
    fn a_port_is_not_made_without_its_descriptors() {
        let ledger = Ledger::new(PORT_MEMORY, 100);
        let few = |descriptors| Amounts { descriptors, ..Amounts::default() };
        let a = ledger.open(10, 30, 90).unwrap();
        let beyond = a.charge(few(50)).unwrap();
        let refused = ledger.open(10, 31, 90).unwrap_err().to_string();
        assert!(
            refused.contains("41 descriptors requested") && refused.contains("there are 100"),
            "{refused}"
        );
        let b = ledger.open(10, 30, 90).unwrap();
        assert!(b.charge(few(30)).is_ok() && b.charge(few(31)).is_err());
        drop(beyond);
        let own = b.charge(few(50)).unwrap();
        drop(b);
        drop(a);
        assert!(ledger.open(10, 30, 90).is_ok(), "beside what the other holds, though its port is gone");
        assert!(ledger.open(10, 31, 90).is_err());
        drop(own);
        assert!(ledger.open(10, 60, 90).is_ok());
    }

    #[test]
    fn unrequested_descriptors_are_counted() {
        let ledger = Ledger::new(PORT_MEMORY, 100);
        let few = |descriptors| Amounts { descriptors, ..Amounts::default() };
        let (a, b) = (ledger.open(0, 20, 60).unwrap(), ledger.open(0, 20, 60).unwrap());
        let received = a.received(253);
        assert!(b.charge(few(20)).is_ok(), "its own");
        assert!(b.charge(few(21)).is_err());
        drop(received);
        assert!(b.charge(few(60)).is_ok());
        assert_eq!((a.used(), b.used()), (Amounts::default(), Amounts::default()));
    }

    proptest! {
        /// After any sequence of charges and returns, own shares are available to all ports, and at the end
        /// nothing is charged.
        #[test]
        fn the_books_are_right(steps in prop::collection::vec((0usize..4, any::<bool>(), 0u64..1500), 1..200)) {
            let ledger = Ledger::new(PORT_MEMORY, 1 << 20);
            let accounts: Vec<_> = (0..4).map(|_| ledger.open(9, 36, 100).unwrap()).collect();
            let mut charges: Vec<(usize, u64, Charge)> = Vec::new();
            for (port, take, gib) in steps {
                if take {
                    if let Ok(charge) = accounts[port].charge(bytes(gib * GIB)) {
                        charges.push((port, gib * GIB, charge));
                    }
                } else if !charges.is_empty() {
                    charges.swap_remove(port % charges.len());
                }
                let held = |port| charges.iter().filter(|(of, ..)| *of == port).map(|(_, n, _)| n).sum::<u64>();
                let beyond: u64 = (0..4).map(|port| held(port).saturating_sub(OWN_MEMORY)).sum();
                prop_assert_eq!(ledger.lock().common.bytes, beyond);
                for (port, account) in accounts.iter().enumerate() {
                    prop_assert_eq!(account.used().bytes, held(port));
                    let own = OWN_MEMORY.saturating_sub(held(port));
                    prop_assert!(account.charge(bytes(own)).is_ok());
                }
            }
            charges.clear();
            prop_assert_eq!(ledger.lock().common, Amounts::default());
        }
    }
}

//! A chain of foreign nftables rules at the ingress of devices.

use std::fmt;

/// A chain at the ingress of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressChain {
    /// `netdev` or `inet`.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its name in the table.
    pub name: String,
    /// The devices.
    pub devices: Vec<Devices>,
    /// The handles of its rules, in their order.
    pub rules: Vec<u64>,
    /// Whether frames are dropped that no rule decides.
    pub drops: bool,
}

/// Devices of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// One.
    Named(String),
    /// All with names beginning so, from Linux 6.16 on.
    Beginning(String),
}

impl Devices {
    fn has(&self, name: &str) -> bool {
        match self {
            Self::Named(named) => named == name,
            Self::Beginning(prefix) => name.starts_with(prefix),
        }
    }
}

impl IngressChain {
    /// Whether it affects frames that a device receives.
    pub fn decides(&self, device: &str) -> bool {
        (self.drops || !self.rules.is_empty()) && self.devices.iter().any(|devices| devices.has(device))
    }
}

impl fmt::Display for IngressChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, table, name, rules, .. } = self;
        let rules: Vec<_> = rules.iter().map(u64::to_string).collect();
        match &rules[..] {
            [] => write!(f, "the policy drop")?,
            [rule] => write!(f, "rule {rule}")?,
            rules => write!(f, "rules {}", rules.join(", "))?,
        }
        write!(f, " of chain {name} in table {family} {table} (nft -a list chain {family} {table} {name})")
    }
}

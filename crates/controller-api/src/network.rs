//! What operators see of the network.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A host in the controller's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Where its uplink is plugged in, such as `s1:2`.
    pub port: String,
    /// Address of its outer frames.
    pub address: IpAddr,
    /// Whether its lease holds.
    pub registered: bool,
    /// Until the lease ends, ns.
    pub lease_left: u64,
    /// How many vNICs it announces.
    pub vnics: u64,
}

/// All hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hosts {
    /// In order of their names.
    pub hosts: Vec<Host>,
}

/// A switch in the controller's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// 16 hexadecimal digits.
    pub datapath: String,
    /// By OpenFlow.
    pub connected: bool,
    /// Whether its queues are in force.
    pub database: bool,
    /// Why it does not hold what it is to hold.
    pub error: Option<String>,
}

/// One direction of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkUse {
    /// Such as `s1:2>s2:1`.
    pub name: String,
    /// A switch or host.
    pub source: String,
    /// A switch or host.
    pub target: String,
    /// Whether it works.
    pub up: bool,
    /// bit/s.
    pub capacity: u64,
    /// Of it, for paths, bit/s.
    pub reservable: u64,
    /// Taken by paths, bit/s.
    pub reserved: u64,
    /// The most urgent first.
    pub levels: Vec<LevelUse>,
}

/// A priority level of one direction of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelUse {
    /// Its fixed delay, ns.
    pub delay: u64,
    /// What is reached with today's paths, ns.
    pub bound: u64,
    /// Reserved, bit/s.
    pub rate: u64,
}

/// The network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// In order of their names.
    pub switches: Vec<Switch>,
    /// In order of their names, with hosts' uplinks.
    pub links: Vec<LinkUse>,
    /// In order of their names.
    pub hosts: Vec<Host>,
}

/// The outcome of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The path has what was asked for.
    Admitted,
    /// Nothing was changed.
    Refused,
    /// The path is gone.
    Released,
    /// A queue on its way got a greater minimum.
    RateRaised,
    /// It has a more urgent level.
    LevelRaised,
    /// It takes another way.
    Moved,
    /// Nothing helps.
    Violated,
    /// Nothing is changed, so that paths do not flap.
    Kept,
}

/// What was decided, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Counts from 1.
    pub number: u64,
    /// Unix time, s.
    pub time: f64,
    /// The path's name.
    pub path: String,
    /// A request, a miss, a link that went down.
    pub cause: String,
    /// The outcome.
    pub verdict: Verdict,
    /// Sentences with numbers.
    pub reasons: Vec<String>,
}

/// Decisions in order of their numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decisions {
    /// At most as many as were asked for.
    pub decisions: Vec<Decision>,
    /// Number of the last decision of all.
    pub last: u64,
}

/// How a controller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Whether it leads.
    pub leader: bool,
    /// Its term.
    pub term: u64,
    /// Connected switches.
    pub switches: u64,
}

//! What is promised: the delay bounds with their derivations, and what each egress has left.

use crate::{Bytes, Nanos, Rate};
use serde::{Deserialize, Serialize};
use std::{fmt, ops::Not};

/// The result if every promise fits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Bounds, one per real-time vNIC and egress, by egress, then in the order of the vNICs.
    pub bounds: Vec<DelayBound>,
    /// Summaries, one per egress of promises, by name.
    pub egresses: Vec<EgressSummary>,
}

/// The delay bound of a real-time vNIC's frames at one egress, and its derivation.
///
/// The bound is B = d - min over t >= d of slack(t) / C, with slack(t) = C (t - H) - demand(t) - L and
/// demand(t) = sum over d_i <= t of (b_i + r_i (t - d_i)), rounded up to a nanosecond.
///
/// Proof: take a frame that conforms at `a` and must be out by D = a + d. Let t0 be the last moment up to `a` before
/// which no frame due by D waited. From t0 until our frame is out, EDF sends only frames due by D that conformed from
/// t0 on, at most demand(D - t0), after at most one frame (L) under way and the host's latency (H). So our frame is
/// out by t0 + H + (L + demand(D - t0)) / C = D - slack(D - t0) / C. As t0 <= a, the interval D - t0 is at least d,
/// hence the minimum over t >= d. It is attained at a deadline, because between two deadlines the slack never falls
/// while the rates' sum is at most C.
///
/// Proof for strict priorities, with t = d: let t0 be the last moment up to `a` before which no frame of the source's
/// level or a higher one waited. Until the frame is out at D, the egress sends at most one frame (L), b + r (a - t0) of
/// its own source and b_j + r_j (D - t0) of each other source. With all rates' sum at most C, D - a is largest for
/// t0 = a. As the others' rates are below C, d - slack(d) / C is not before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayBound {
    /// The sender: a vNIC, or a remote.
    pub vnic: String,
    /// The egress: a vNIC, or an uplink.
    pub egress: String,
    /// d, the promise, or this host's part of one between hosts.
    pub deadline: Nanos,
    /// B, the proven bound; at most `deadline`.
    pub bound: Nanos,
    /// The interval t at which the slack is least.
    pub critical_t: Nanos,
    /// demand(t) there, rounded up to a byte.
    pub demand: Bytes,
    /// C.
    pub capacity: Rate,
    /// L.
    pub blocking: Bytes,
    /// H.
    pub host_latency: Nanos,
    /// At an uplink, the rest of the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond: Option<Beyond>,
}

/// What a frame may take after it has left this host, by declaration; of several peers the longest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beyond {
    /// The other host.
    pub peer: String,
    /// The latency of the network.
    pub latency: Nanos,
    /// The time from arrival at the peer to delivery.
    pub arrival_budget: Nanos,
    /// Whether the latency is not declared, but asked from a controller: half of what the peer leaves.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub asked: bool,
}

/// The promised and the remaining rate of an egress (bit/s).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressSummary {
    /// The name of a vNIC or an uplink.
    pub egress: String,
    /// C.
    pub capacity: Rate,
    /// Sum of `tx.max` of the real-time vNICs; at an uplink as on the wire.
    pub realtime_bits: u64,
    /// Sum of `tx.min` of the other vNICs; at an uplink as on the wire.
    pub guaranteed_bits: u64,
    /// Rate that is not promised.
    pub remaining_bits: u64,
    /// The senders with promises, in the order of the vNICs.
    pub vnics: Vec<String>,
}

impl Admission {
    /// Returns the delay bounds of one vNIC, one per egress.
    pub fn bounds_of<'a>(&'a self, vnic: &'a str) -> impl Iterator<Item = &'a DelayBound> {
        self.bounds.iter().filter(move |bound| bound.vnic == vnic)
    }

    /// Returns the summary of one egress; `None` without promises there.
    pub fn egress(&self, name: &str) -> Option<&EgressSummary> {
        self.egresses.iter().find(|egress| egress.egress == name)
    }
}

impl DelayBound {
    /// Returns the deadline minus the bound.
    pub fn margin(&self) -> Nanos {
        Nanos::new(self.deadline.get() - self.bound.get())
    }
}

impl Beyond {
    /// Returns the time besides this host's.
    pub fn total(&self) -> Nanos {
        Nanos::new(self.latency.get().saturating_add(self.arrival_budget.get()))
    }
}

/// The derivation, as `vnic show` prints it.
impl fmt::Display for DelayBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            vnic,
            egress,
            deadline,
            bound,
            critical_t,
            demand,
            capacity,
            blocking,
            host_latency,
            beyond,
        } = self;
        writeln!(f, "{vnic} to {egress}: at most {bound} of {deadline}, margin {}", self.margin())?;
        let mut line = |name: &str, value: &dyn fmt::Display, meaning: &str| {
            writeln!(f, "  {name:<6} = {value:<10} {meaning}")
        };
        line("t", critical_t, "the interval with the least slack")?;
        line("demand", demand, "real-time traffic that may be due within t")?;
        line("L", blocking, "the largest frame that may be under way")?;
        line("C", capacity, "the capacity of the egress")?;
        line("H", host_latency, "the host's latency budget")?;
        if let Some(away) = beyond {
            let with = |here: &Nanos| Nanos::new(here.get().saturating_add(away.total().get()));
            let net =
                if away.asked { "what the controller is asked for, for" } else { "the declared latency of" };
            line("net", &away.latency, &format!("{net} the network to {}", away.peer))?;
            line("there", &away.arrival_budget, &format!("the arrival budget of {}", away.peer))?;
            line(
                "total",
                &with(bound),
                &format!("of {} from host to host: bound + net + there", with(deadline)),
            )?;
        }
        write!(f, "  bound  = deadline - (t - H - (demand + L) / C)")
    }
}

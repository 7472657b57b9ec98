//! Checks whether the contracts in force fit with another `host-latency`, with the agent's own arithmetic.
//! Pure.

use tidegate_agent::views::{HostView, State, VnicView};
use tidegate_contract::{ContractSet, Host, Nanos, Remote, Uplink, Vnic, admit};

/// Longest `host-latency` that a contract may have (ns).
const LONGEST: u64 = 10_000_000_000;

/// The accepted contracts, in force or pending.
#[derive(Clone, Debug)]
pub struct Fits {
    host: Host,
    vnics: Vec<Vnic>,
    uplinks: Vec<Uplink>,
    remotes: Vec<Remote>,
}

impl Fits {
    /// Takes the accepted contracts of a host without uplinks.
    pub fn new(host: Host, vnics: &[VnicView]) -> Self {
        let accepted = vnics.iter().filter(|vnic| vnic.state != State::Refused);
        let vnics = accepted.filter_map(|vnic| vnic.contract.clone()).collect();
        Self { host, vnics, uplinks: vec![], remotes: vec![] }
    }

    /// Takes the accepted contracts from the agent's answers.
    pub fn of(host: &HostView, vnics: &[VnicView]) -> Self {
        let HostView { host, uplinks, remotes, .. } = host;
        Self { uplinks: uplinks.clone(), remotes: remotes.clone(), ..Self::new(host.clone(), vnics) }
    }

    pub fn deadlines(&self) -> usize {
        self.vnics.iter().filter(|vnic| vnic.is_realtime()).count()
    }

    /// Returns why the contracts do not fit with this `host-latency`; empty if they fit.
    pub fn refusals(&self, host_latency: Nanos) -> Vec<String> {
        let host = Host { host_latency, ..self.host.clone() };
        let Self { vnics, uplinks, remotes, .. } = self;
        admit(&ContractSet { host: &host, vnics, uplinks, remotes })
            .err()
            .into_iter()
            .flatten()
            .map(|refusal| refusal.to_string())
            .collect()
    }

    /// Returns the largest `host-latency` (whole microseconds) with which the contracts fit; `None` if no
    /// vNIC has a deadline, or if no value fits.
    pub fn largest(&self) -> Option<Nanos> {
        let fits = |us: u64| self.refusals(Nanos::new(us * 1000)).is_empty();
        if self.deadlines() == 0 || !fits(1) {
            return None;
        }
        // Contracts that fit with one latency fit with every smaller one.
        let (mut fitting, mut refused) = (1, LONGEST / 1000 + 1);
        while refused - fitting > 1 {
            let middle = fitting.midpoint(refused);
            if fits(middle) { fitting = middle } else { refused = middle }
        }
        Some(Nanos::new(fitting * 1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples;

    fn fits() -> Fits {
        let mut sink = samples::idle();
        sink.contract = sink.contract.map(|contract| Vnic { name: "sink".into(), ..contract });
        let contract = sink.contract.as_mut().unwrap();
        contract.rx.max = Some("1gbit".parse().unwrap());
        Fits::new(Host::default(), &[samples::voice(), sink])
    }

    #[test]
    fn the_largest_fits_and_a_microsecond_more_does_not() {
        let fits = fits();
        assert_eq!(fits.deadlines(), 1);
        let largest = fits.largest().unwrap();
        assert!(largest.get() > 500_000 && largest.get() < 1_000_000, "{largest}");
        assert_eq!(fits.refusals(largest), Vec::<String>::new());
        let refusals = fits.refusals(Nanos::new(largest.get() + 1000));
        assert!(refusals[0].contains("sink") && refusals[0].contains("voice"), "{refusals:?}");
    }

    #[test]
    fn without_a_deadline_no_host_latency_is_required() {
        let fits = Fits::new(Host::default(), &[samples::idle()]);
        assert_eq!((fits.deadlines(), fits.largest()), (0, None));
    }
}

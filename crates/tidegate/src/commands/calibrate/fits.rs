//! Whether the contracts in force fit with another `host-latency`: the agent's own arithmetic, asked here. Pure.

use tidegate_agent::views::{State, VnicView};
use tidegate_contract::{Host, Nanos, Vnic, admit};

/// Longest `host-latency` of a contract, ns.
const LONGEST: u64 = 10_000_000_000;

/// The contracts that are accepted, in force or about to be.
#[derive(Clone, Debug)]
pub struct Fits {
    host: Host,
    vnics: Vec<Vnic>,
}

impl Fits {
    /// Of what the agent says.
    pub fn new(host: Host, vnics: &[VnicView]) -> Self {
        let accepted = vnics.iter().filter(|vnic| vnic.state != State::Refused);
        Self { host, vnics: accepted.filter_map(|vnic| vnic.contract.clone()).collect() }
    }

    /// How many vNICs have a deadline.
    pub fn deadlines(&self) -> usize {
        self.vnics.iter().filter(|vnic| vnic.is_realtime()).count()
    }

    /// Why they do not fit with this `host-latency`; empty where they do.
    pub fn refusals(&self, host_latency: Nanos) -> Vec<String> {
        let host = Host { host_latency, ..self.host.clone() };
        admit(&host, &self.vnics).err().into_iter().flatten().map(|refusal| refusal.to_string()).collect()
    }

    /// The largest `host-latency` with which they fit, to a microsecond; `None` where no deadline asks for one, or none
    /// fits.
    pub fn largest(&self) -> Option<Nanos> {
        let fits = |us: u64| self.refusals(Nanos::new(us * 1000)).is_empty();
        if self.deadlines() == 0 || !fits(1) {
            return None;
        }
        // What fits with more latency fits with less.
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
    fn without_a_deadline_none_is_asked_for() {
        let fits = Fits::new(Host::default(), &[samples::idle()]);
        assert_eq!((fits.deadlines(), fits.largest()), (0, None));
    }
}

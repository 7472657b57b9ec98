//! A policer in the kernel, under traffic and while it is changed.

mod netns;

use netns::load::{Traffic, under};
use netns::*;
use std::time::{Duration, Instant};
use tidegate_contract::testing::envelope::Envelope;
use tidegate_contract::{Method, Rate, Tx};
use tidegate_place_kernel::ebpf::{Bucket, Policed};
use tidegate_place_kernel::tc::handle::Handle;
use tidegate_place_kernel::tc::network::Rule;
use tidegate_place_kernel::tc::owner;
use tidegate_place_kernel::tc::{Kernel, Shaping, Ways};

const RATE: f64 = 20e6;
const BURST: u64 = 65_536;
/// By how much one super-frame may be over, bytes.
const SUPER_FRAME: u64 = tidegate_contract::frame::SUPER_FRAME_ON_WIRE;

fn policing(netdev: &str, mbit: u64) -> Shaping {
    let bucket = Bucket { rate: mbit * 125_000, burst: BURST };
    Shaping { netdev: netdev.into(), tx_police: Some(bucket), ..Shaping::default() }
}

#[track_caller]
fn policed(netdev: &str) -> Policed {
    let network = observe();
    let filters = &network.by_name(netdev).unwrap().1.filters;
    let map = filters.iter().find_map(|f| match f.rule {
        Rule::Police { program, .. } => Some(program.map),
        _ => None,
    });
    Policed::read(map.expect("a policer")).unwrap()
}

/// What passes a policer, look by look; the look before is that of [`Passing::since`].
struct Passing {
    /// When the first look began: zero of the envelope's clock.
    zero: Instant,
    /// When the last look began, and what had passed, bytes.
    last: (Instant, u64),
    /// At 1.01 times the rate: a rate that is higher by less is not told from it.
    envelope: Envelope,
}

impl Passing {
    fn since(zero: Instant, passed: u64) -> Self {
        Self { zero, last: (zero, passed), envelope: Envelope::new((1.01 * RATE) as u64) }
    }

    /// Watches for half a second, with a look each 10 ms. Fails where more passed than burst and rate allow in any window, however
    /// short. The share of the rate that passed.
    #[track_caller]
    fn share(&mut self, netdev: &str) -> f64 {
        let (began, passed) = self.last;
        while self.last.0.duration_since(began) < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(10));
            let (before, now) = (Instant::now(), policed(netdev).bytes);
            let nanos = |at: Instant| at.duration_since(self.zero).as_nanos() as u64;
            // The frames came after the look before began, and before this one ended.
            self.envelope.observe(nanos(self.last.0), nanos(Instant::now()), now - self.last.1);
            self.last = (before, now);
            let (_, beyond) = self.envelope.excess();
            assert!(beyond <= (BURST + SUPER_FRAME) as f64, "{beyond:.0} bytes beyond the rate");
        }
        (self.last.1 - passed) as f64 * 8.0 / self.last.0.duration_since(began).as_secs_f64() / RATE
    }
}

#[test]
fn a_policer_passes_at_most_its_rate_and_no_fewer_datagrams() {
    in_namespace("a_policer_passes_at_most_its_rate_and_no_fewer_datagrams", || {
        let guest = Guest::new("vnet3", 1);
        settle(&[policing("vnet3", 20)]);
        for traffic in [Traffic::UdpOut, Traffic::TcpOut] {
            under(traffic, &guest, || {
                // A sender that is not scheduled for longer than the burst lasts does not use all of it.
                let mut seen = Vec::new();
                // TCP waits for its own timers where a whole window was lost.
                let least = if matches!(traffic, Traffic::UdpOut) { 0.95 } else { 0.03 };
                let mut passing = Passing::since(Instant::now(), policed("vnet3").bytes);
                while !seen.last().is_some_and(|share| *share > least) {
                    seen.push(passing.share("vnet3"));
                    assert!(seen.len() < 20, "{traffic:?}: {seen:?} of the rate passed");
                }
            });
            assert!(policed("vnet3").dropped > 0, "{traffic:?}");
        }
    });
}

#[test]
fn tcp_reaches_its_rate_through_the_default_burst() {
    in_namespace("tcp_reaches_its_rate_through_the_default_burst", || {
        let guest = Guest::new("vnet3", 1);
        for mbit in [37, 900] {
            let rate = Rate::from_bits(mbit * 1_000_000).unwrap();
            let tx = Tx { max: Some(rate), method: Method::Police, ..Tx::default() };
            let bucket = Bucket::new(rate, tx.burst_or_default(rate)).unwrap();
            settle(&[Shaping { tx_police: Some(bucket), ..policing("vnet3", mbit) }]);
            let share = under(Traffic::TcpOut, &guest, || {
                // The burst is used up, and the connection has found its rate.
                std::thread::sleep(Duration::from_secs(2));
                let (before, begin) = (policed("vnet3").bytes, Instant::now());
                std::thread::sleep(Duration::from_secs(3));
                (policed("vnet3").bytes - before) as f64 / begin.elapsed().as_secs_f64() / bucket.rate as f64
            });
            assert!(share > 0.7, "{mbit} Mbit/s: TCP got {share:.3} of it");
            settle(&[]);
        }
    });
}

#[test]
fn a_changed_policer_continues_its_counts_and_a_removed_one_leaves_no_objects() {
    in_namespace("a_changed_policer_continues_its_counts_and_a_removed_one_leaves_no_objects", || {
        let guest = Guest::new("vnet3", 1);
        settle(&[policing("vnet3", 20)]);
        under(Traffic::UdpOut, &guest, || {
            eventually("some pass and some do not", || policed("vnet3").dropped > 100);
            let before = policed("vnet3");
            settle(&[policing("vnet3", 40)]);
            let after = policed("vnet3");
            assert!(after.bytes >= before.bytes && after.dropped >= before.dropped, "{before:?} {after:?}");
        });
        // To shaping and back, in one plan each.
        settle(&[shaping("vnet3", "40mbit", "-")]);
        assert!(observe().by_name(owner::IFB).is_some());
        settle(&[policing("vnet3", 40)]);
        let network = observe();
        assert!(network.by_name(owner::IFB).is_none(), "nothing waits any more");
        assert_eq!(network.by_name("vnet3").unwrap().1.filters_at(Handle::INGRESS).count(), 1);

        // Another program deletes it, and what they put in its place.
        tc("filter del dev vnet3 ingress");
        let owned = Shaping { owned: Ways::BOTH, ..policing("vnet3", 40) };
        let mut kernel = Kernel::open().unwrap();
        assert_eq!(kernel.settle(&[owned]).unwrap().steps.len(), 1);
        settle(&[]);
        let network = observe();
        let link = network.by_name("vnet3").unwrap().1;
        assert!(link.filters.is_empty() && link.ingress().is_none(), "{link:?}");
    });
}

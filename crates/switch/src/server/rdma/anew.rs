//! When an uplink is worth making anew, since its device could do more for it than when its lane was made.
//!
//! ```text
//!  what vNICs want (bytes of a datagram) ─┐
//!  what the lane gives: 0 without one ────┼─▶ more, as much for 10 s, not too often ─▶ a lane, as a trial ─▶ broken ─▶ agent
//!  what the device offers: 0 without GID ─┘
//! ```
//!
//! To make an uplink anew costs the frames that are in it, and all that come until it is there again. It gives datagrams to
//! frames that go as VXLAN, or not at all by RDMA. So it happens only if a vNIC's frames gain, and the more rarely the more often
//! it happened: a port whose MTU flaps costs one uplink in hours.

use super::wanted::datagrams_of;
use crate::server::Switch;
use crate::server::lane::Lane;
use crate::server::table::Table;
use crate::server::uplink::UplinkEntry;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate_contract::Uplink;

/// Time between two looks at devices (ns).
const LOOK_EVERY: u64 = 2_000_000_000;
/// How long a device has to offer the same (ns).
const STEADY_FOR: u64 = 10_000_000_000;
/// Time after an uplink was made anew until it is again (ns); each time twice as long ...
const PAUSE: u64 = 600_000_000_000;
/// ... up to this.
const PAUSE_MAX: u64 = 64 * PAUSE;

/// What is known of one uplink. Outlives the uplink, so that the next one of its name waits.
#[derive(Clone, Copy, Debug, Default)]
struct Offers {
    /// What the device offers, of what is wanted (bytes), and since when (ns).
    offered: (u32, u64),
    pause: u64,
    /// When it was made anew, or a trial failed (ns).
    last: Option<u64>,
}

impl Offers {
    /// Notes at `now` (ns) what the lane gives and the device offers (bytes of a datagram), of those that are wanted. Returns
    /// whether it is time for another lane.
    fn look(&mut self, wants: u32, gives: u32, offers: u32, now: u64) -> bool {
        let (gives, offers) = (gives.min(wants), offers.min(wants));
        if offers != self.offered.0 {
            self.offered = (offers, now);
        }
        let is_steady = now.saturating_sub(self.offered.1) >= STEADY_FOR;
        offers > gives && is_steady && !self.pauses(now)
    }

    /// Notes that another lane was tried at `now` (ns).
    fn tried(&mut self, now: u64) {
        let held = self.last.is_some_and(|last| now.saturating_sub(last) >= 2 * self.pause);
        self.pause = if held { PAUSE } else { (2 * self.pause).clamp(PAUSE, PAUSE_MAX) };
        self.last = Some(now);
    }

    /// Whether it is too soon for another try.
    fn pauses(&self, now: u64) -> bool {
        self.last.is_some_and(|last| now.saturating_sub(last) < self.pause)
    }

    /// Whether a pause is still to double.
    fn is_of_use(&self, now: u64) -> bool {
        self.last.is_some_and(|last| now.saturating_sub(last) < 2 * self.pause)
    }
}

/// An uplink with vNICs that want RDMA.
struct Candidate {
    uplink: Uplink,
    lane: Option<Arc<Lane>>,
    /// Bytes of the longest datagram that their frames need.
    wants: u32,
}

impl Candidate {
    fn of(table: &Table, entry: &UplinkEntry) -> Option<Self> {
        let lane = entry.rdma.as_ref()?.as_ref().ok().cloned();
        let wants = datagrams_of(table, entry).filter(|_| entry.broken.is_none())?;
        Some(Self { uplink: entry.uplink.clone(), lane, wants })
    }

    /// Whether it is the uplink that is in the table now.
    fn is_of(&self, entry: &UplinkEntry) -> bool {
        match (&entry.rdma, &self.lane) {
            (Some(Ok(lane)), Some(own)) => Arc::ptr_eq(lane, own),
            (Some(Err(_)), None) => true,
            _ => false,
        }
    }

    /// Returns what its lane gives (bytes of a datagram); `None` if another lane gives no more: the port is down, or as it was.
    fn gives(&self) -> Option<u32> {
        let Some(lane) = &self.lane else { return Some(0) };
        let port = lane.setup.device.port().ok().filter(|port| port.is_active)?;
        match port.mtu.cmp(&lane.setup.mtu) {
            // It is down for this lane.
            Ordering::Less => Some(0),
            Ordering::Equal => None,
            Ordering::Greater => Some(lane.setup.mtu),
        }
    }
}

/// The uplinks that may be worth making anew.
#[derive(Default)]
pub(super) struct Anew {
    candidates: Vec<Candidate>,
    offers: BTreeMap<String, Offers>,
    look_at: u64,
}

impl Anew {
    /// Takes the uplinks of the table. Asks no device.
    pub(super) fn set(&mut self, table: &Table) {
        self.candidates = table.uplinks.values().filter_map(|entry| Candidate::of(table, entry)).collect();
    }
}

impl Switch {
    /// Looks at the devices, if that is due at `now` (ns), and has the agent make those uplinks anew that gain. Returns the pause
    /// until the next look; `None` if no uplink can gain.
    pub(super) fn look_for_more(&self, anew: &mut Anew, now: u64) -> Option<Duration> {
        if now >= anew.look_at {
            anew.look_at = now + LOOK_EVERY;
            let Anew { candidates, offers, .. } = anew;
            let is_there = |name: &String| candidates.iter().any(|candidate| candidate.uplink.name == *name);
            offers.retain(|name, offers| is_there(name) || offers.is_of_use(now));
            for candidate in &*candidates {
                let offers = offers.entry(candidate.uplink.name.clone()).or_default();
                self.look_at_device(candidate, offers, now);
            }
        }
        let wait = anew.look_at.saturating_sub(now);
        (!anew.candidates.is_empty()).then(|| Duration::from_nanos(wait))
    }

    fn look_at_device(&self, candidate: &Candidate, offers: &mut Offers, now: u64) {
        let find = |name: &str| self.rdma.devices.find(name);
        // A device tells its GIDs one by one, up to 1,024 of them: it is not asked in vain.
        let gives = candidate.gives();
        let offered = gives.map_or(0, |_| Lane::offered(&candidate.uplink, find));
        let gives = gives.unwrap_or(0);
        if !offers.look(candidate.wants, gives, offered, now) {
            return;
        }
        offers.tried(now);
        // The device may offer what it does not have.
        match Lane::of(&candidate.uplink, find) {
            Some(Ok(_)) => self.tell_more(candidate, gives, offered),
            Some(Err(why)) => tracing::warn!(uplink = candidate.uplink.name, "RDMA cannot begin: {why}"),
            None => {}
        }
    }

    /// Has the agent make an uplink anew.
    fn tell_more(&self, candidate: &Candidate, gives: u32, offered: u32) {
        let name = &candidate.uplink.name;
        let mut table = self.lock();
        let Some(entry) = table.uplinks.get_mut(name).filter(|entry| candidate.is_of(entry)) else { return };
        if entry.broken.is_none() {
            let device = candidate.uplink.rdma.as_deref().unwrap_or_default();
            let why = format!(
                "the RDMA device {device} takes datagrams of {offered} bytes for it now, and of {gives} bytes before: the agent \
                 makes it anew"
            );
            tracing::info!(uplink = name, "{why}");
            entry.broken = Some(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Returns the seconds at which an uplink is made anew, whose device offers `mtu(second)` to vNICs that want 1,500.
    fn times(seconds: std::ops::Range<u64>, mtu: impl Fn(u64) -> u32) -> Vec<u64> {
        let (mut offers, mut lane) = (Offers::default(), 0);
        let mut times = vec![];
        for second in seconds.step_by(2) {
            let (now, mtu) = (second * SECOND, mtu(second));
            // A port with a smaller MTU than the lane's is down for it.
            let gives = if lane <= mtu { lane } else { 0 };
            if offers.look(1500, gives, mtu, now) {
                offers.tried(now);
                lane = mtu;
                times.push(second);
            }
        }
        times
    }

    #[test]
    fn an_uplink_is_made_anew_once_its_device_offers_more_for_a_while() {
        assert!(times(0..1000, |_| 0).is_empty(), "no GID");
        assert_eq!(times(0..1000, |second| if second < 100 { 0 } else { 4096 }), [110]);
        let grows = |second| if second < 100 { 1024 } else { 4096 };
        assert_eq!(times(0..3000, grows), [10, 610], "not twice within ten minutes");
        assert_eq!(times(0..1000, |second| 2048 + 2048 * (second as u32 / 100 % 2)), [10], "2,048 is enough");
        let short = |second| if second / 8 % 2 == 0 { 0 } else { 4096 };
        assert!(times(0..1000, short).is_empty(), "never for long");
    }

    #[test]
    fn a_flapping_mtu_costs_an_uplink_more_and_more_rarely() {
        let flaps = |second| if second / 60 % 2 == 0 { 512 } else { 1024 };
        let all = times(0..5 * 24 * 3600, flaps);
        assert_eq!(all.len(), 17, "{all:?}");
        let apart: Vec<_> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(apart.iter().all(|apart| *apart >= 600) && apart.last() >= Some(&38_400), "{apart:?}");
        // What was long ago does not count.
        let (mut offers, minute) = (Offers::default(), 60 * SECOND);
        for now in [0, 10, 30, 400] {
            offers.tried(now * minute);
        }
        assert_eq!(offers.pause, PAUSE);
        assert!(offers.is_of_use(419 * minute) && !offers.is_of_use(420 * minute));
    }
}

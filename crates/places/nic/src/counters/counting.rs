//! Which source counts the VFs of a PF, and reading it.
//!
//! ```text
//!  VF statistics, once one of them is not 0 ──▶ else registers, where they can be mapped ──▶ else representors ──▶ else unknown
//! ```

use super::accumulator::{Accumulator, Count, Most, Reading, Value};
use super::counted::{Counted, Figure, Traffic};
use super::mapping::Registers;
use super::window::Layout;
use crate::device::Source;
use crate::device::abilities::Ability;
use crate::device::nic::Nic;
use crate::device::pf::{Mode, Pf};
use crate::device::sysfs;
use crate::device::vf::Statistics;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_netlink::NetlinkError;

/// Greatest delay of a NIC's counters: frames of one interval may be counted in the next.
const LATE: Duration = Duration::from_millis(100);

type Readings = BTreeMap<u16, Reading>;

/// The readings of one look.
struct Taken {
    source: Source,
    readings: Readings,
    /// The reason, if the readings are not trusted.
    unknown: Option<String>,
}

/// Totals of the VFs of a PF, and their source.
#[derive(Debug, Default)]
pub struct Counting {
    /// The source that is believed.
    source: Option<Source>,
    /// The source of the last readings, believed or not.
    last: Option<Source>,
    /// When the last readings were begun.
    counted_at: Option<Instant>,
    vfs: BTreeMap<u16, Accumulator>,
}

impl Counting {
    /// Reads the counters; totals by VF.
    pub fn read(&mut self, nic: &mut Nic, pf: &Pf) -> Result<BTreeMap<u16, Counted>, NetlinkError> {
        let begin = Instant::now();
        let taken = self.take(nic, pf)?;
        // As long as it can have been: from the beginning of the last look to the end of this one.
        let interval = self.counted_at.replace(begin).map(|before| before.elapsed());
        let most = interval.zip(pf.top_speed.max(pf.speed));
        let most = most.map(|(interval, speed)| Most::within(interval + LATE, speed));
        Ok(self.account(pf, &taken, most))
    }

    /// Adds readings to the totals.
    fn account(&mut self, pf: &Pf, taken: &Taken, most: Option<Most>) -> BTreeMap<u16, Counted> {
        let Taken { source, readings, unknown } = taken;
        self.vfs.retain(|vf, _| pf.vfs.contains_key(vf));
        if self.last.replace(*source) != Some(*source) {
            self.vfs.values_mut().for_each(Accumulator::change_source);
        }
        for (vf, reading) in readings {
            self.vfs.entry(*vf).or_default().add(reading, most);
        }
        let counted = |vf: &u16| {
            let absent = || format!("{source}: no values for VF {vf}");
            let unknown = unknown.clone().or_else(|| (!readings.contains_key(vf)).then(absent));
            match self.vfs.get(vf) {
                Some(accumulator) if unknown.is_none() => figures(accumulator, *source),
                _ => Counted { unknown, ..Counted::default() },
            }
        };
        pf.vfs.keys().map(|vf| (*vf, counted(vf))).collect()
    }

    /// Readings of the trusted source; without one, readings of the driver, with the reason for which it is not trusted.
    fn take(&mut self, nic: &mut Nic, pf: &Pf) -> Result<Taken, NetlinkError> {
        let believed = |source, readings| Ok(Taken { source, readings, unknown: None });
        match self.source {
            Some(Source::Registers) => match registers(pf) {
                Ok(readings) => return believed(Source::Registers, readings),
                Err(why) => {
                    self.source = None;
                    let unknown = Some(format!("registers: {why}"));
                    return Ok(Taken { source: Source::Registers, readings: Readings::new(), unknown });
                }
            },
            Some(Source::Representor) if pf.mode == Mode::Switchdev => {
                return believed(Source::Representor, representors(nic, pf)?);
            }
            _ => {}
        }
        let driver = driver(nic, pf)?;
        if self.source == Some(Source::VfStatistics) || counts(&driver) {
            self.source = Some(Source::VfStatistics);
            return believed(Source::VfStatistics, driver);
        }
        let why = match registers(pf) {
            Ok(readings) => {
                self.source = Some(Source::Registers);
                return believed(Source::Registers, readings);
            }
            Err(why) => why,
        };
        if has_representors(pf) {
            self.source = Some(Source::Representor);
            return believed(Source::Representor, representors(nic, pf)?);
        }
        self.source = None;
        let said = if driver.is_empty() {
            "are absent"
        } else {
            "are 0 for every VF: idle, or a driver that does not count"
        };
        let unknown = Some(format!("VF statistics {said}; registers: {why}; no representors"));
        Ok(Taken { source: Source::VfStatistics, readings: driver, unknown })
    }
}

/// Whether each source counts.
pub fn sources(nic: &mut Nic, pf: &Pf) -> Vec<(Source, Ability)> {
    let statistics = match driver(nic, pf) {
        Err(e) => Ability::Unknown(e.to_string()),
        Ok(_) if pf.vfs.is_empty() => Ability::Unknown(format!("{} has no VF that could be tried", pf.name)),
        Ok(readings) if readings.is_empty() => Ability::Lacks("the driver reports none".into()),
        Ok(readings) if counts(&readings) => Ability::Has,
        Ok(_) => Ability::Unknown("0 for every VF: idle, or a driver that does not count".into()),
    };
    let registers = registers(pf).map_or_else(Ability::Lacks, |_| Ability::Has);
    let representors = match pf.mode {
        Mode::Legacy => Ability::Lacks("not in switchdev mode".into()),
        Mode::Switchdev if has_representors(pf) => Ability::Has,
        Mode::Switchdev => Ability::Lacks("no netdev represents a VF".into()),
    };
    vec![
        (Source::VfStatistics, statistics),
        (Source::Registers, registers),
        (Source::Representor, representors),
    ]
}

fn counts(readings: &Readings) -> bool {
    readings.values().any(|reading| !reading.is_zero())
}

fn has_representors(pf: &Pf) -> bool {
    pf.mode == Mode::Switchdev && pf.vfs.values().any(|vf| vf.representor.is_some())
}

fn driver(nic: &mut Nic, pf: &Pf) -> Result<Readings, NetlinkError> {
    let link = nic.link(pf.index, true)?.unwrap_or_default();
    let statistics = link.vfs.into_iter().filter_map(|(vf, found)| Some((vf, found.statistics?)));
    Ok(statistics.map(|(vf, statistics)| (vf, of_function(&statistics))).collect())
}

/// Readings of registers; the error is for people.
fn registers(pf: &Pf) -> Result<Readings, String> {
    let id = pf.pci_id.ok_or("not a PCI device")?;
    let layout = Layout::of(id).ok_or_else(|| {
        format!("none are known for PCI device {:04x}:{:04x} (82576 and 82599 are)", id.0, id.1)
    })?;
    if !pf.up {
        return Err(format!("{} is down: its registers may be asleep", pf.name));
    }
    let file = sysfs::registers(&pf.address);
    let registers = Registers::open(&file).map_err(|e| {
        format!(
            "cannot map {}: {e} (it needs root and, where the kernel guards devices' memory, iomem=relaxed)",
            file.display()
        )
    })?;
    let read = pf.vfs.keys().filter_map(|vf| Some((*vf, layout.read(*vf, |offset| registers.read(offset))?)));
    let readings: Readings = read.collect();
    if readings.is_empty() && !pf.vfs.is_empty() {
        return Err(format!("the device does not answer ({})", file.display()));
    }
    Ok(readings)
}

fn representors(nic: &mut Nic, pf: &Pf) -> Result<Readings, NetlinkError> {
    let links = nic.link_statistics()?;
    let of = |index| links.get(index).map(of_representor);
    let read = pf.vfs.iter().filter_map(|(vf, found)| Some((*vf, of(&found.representor.as_ref()?.index)?)));
    Ok(read.collect())
}

fn of_function(s: &Statistics) -> Reading {
    let values = [
        (Count::TxFrames, s.tx_packets),
        (Count::TxBytes, s.tx_bytes),
        (Count::TxDropped, s.tx_dropped),
        (Count::RxFrames, s.rx_packets),
        (Count::RxBytes, s.rx_bytes),
        (Count::RxMulticast, s.rx_multicast),
        (Count::RxDropped, s.rx_dropped),
    ];
    reading(&values)
}

/// A representor receives the frames that the VM sends.
fn of_representor(s: &Statistics) -> Reading {
    let values = [
        (Count::TxFrames, s.rx_packets),
        (Count::TxBytes, s.rx_bytes),
        (Count::TxMulticast, s.rx_multicast),
        (Count::TxDropped, s.rx_dropped),
        (Count::RxFrames, s.tx_packets),
        (Count::RxBytes, s.tx_bytes),
        (Count::RxDropped, s.tx_dropped),
    ];
    reading(&values)
}

/// Bytes of netdevs are without FCS (Documentation/networking/statistics.rst).
fn reading(values: &[(Count, u64)]) -> Reading {
    values.iter().fold(Reading::default(), |reading, (count, now)| reading.with(*count, Value::wide(*now)))
}

fn figures(accumulator: &Accumulator, source: Source) -> Counted {
    let figure = |count| accumulator.total(count).map(|total| Figure { total, source });
    Counted {
        tx: Traffic {
            frames: figure(Count::TxFrames),
            bytes: figure(Count::TxBytes),
            multicast: figure(Count::TxMulticast),
            dropped: figure(Count::TxDropped),
        },
        rx: Traffic {
            frames: figure(Count::RxFrames),
            bytes: figure(Count::RxBytes),
            multicast: figure(Count::RxMulticast),
            dropped: figure(Count::RxDropped),
        },
        doubts: accumulator.doubts(),
        unknown: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::vf::Vf;

    fn look(
        counting: &mut Counting,
        source: Source,
        sent: &[(u16, u64)],
        unknown: Option<&str>,
    ) -> BTreeMap<u16, Counted> {
        let of = |n| of_function(&Statistics { tx_packets: n, tx_bytes: n * 100, ..Statistics::default() });
        let readings = sent.iter().map(|(vf, n)| (*vf, of(*n))).collect();
        let taken = Taken { source, readings, unknown: unknown.map(str::to_owned) };
        let pf = Pf { vfs: [0, 1].map(|vf| (vf, Vf::default())).into(), ..Pf::default() };
        counting.account(&pf, &taken, None)
    }

    #[test]
    fn doubted_statistics_are_counted_once_they_are_believed() {
        let mut counting = Counting::default();
        let idle = look(&mut counting, Source::VfStatistics, &[(0, 0), (1, 0)], Some("all zero"));
        assert!(idle.values().all(|counted| counted.unknown.as_deref() == Some("all zero")));
        assert!(idle.values().all(|counted| counted.tx == Traffic::default()), "unknown is not 0");
        let known = look(&mut counting, Source::VfStatistics, &[(0, 5), (1, 0)], None);
        let figure = |total| Some(Figure { total, source: Source::VfStatistics });
        assert_eq!((known[&0].tx.frames, known[&0].tx.bytes), (figure(5), figure(500)));
        assert_eq!((known[&1].tx.frames, known[&1].tx.multicast), (figure(0), None));
        assert_eq!(known[&0].doubts, super::super::counted::Doubts::default());
    }

    #[test]
    fn a_missing_vf_has_unknown_figures_and_a_change_of_source_is_a_doubt() {
        let mut counting = Counting::default();
        look(&mut counting, Source::Registers, &[(0, 7), (1, 7)], None);
        let half = look(&mut counting, Source::Registers, &[(0, 9)], None);
        assert_eq!(half[&1].unknown.as_deref(), Some("registers: no values for VF 1"));
        let other = look(&mut counting, Source::Representor, &[(0, 1_000), (1, 1_000)], None);
        assert_eq!(other[&0].tx.frames, Some(Figure { total: 2, source: Source::Representor }));
        assert_eq!(other[&0].doubts.resets, 1);
    }

    #[test]
    fn statistics_count_once_one_of_them_is_not_zero() {
        let readings = |n| [(0, of_function(&Statistics { rx_dropped: n, ..Statistics::default() }))].into();
        assert!(!counts(&readings(0)));
        assert!(counts(&readings(1)));
    }

    #[test]
    fn a_representor_counts_in_the_opposite_direction() {
        let seen =
            Statistics { rx_packets: 1, tx_packets: 2, rx_bytes: 3, tx_bytes: 4, ..Statistics::default() };
        let other =
            Statistics { rx_packets: 2, tx_packets: 1, rx_bytes: 4, tx_bytes: 3, ..Statistics::default() };
        let mut accumulators = [Accumulator::default(); 2];
        for (accumulator, reading) in
            accumulators.iter_mut().zip([of_representor(&seen), of_function(&other)])
        {
            accumulator.add(&of_function(&Statistics::default()), None);
            accumulator.add(&reading, None);
        }
        for count in [Count::TxFrames, Count::RxFrames, Count::TxBytes, Count::RxBytes] {
            assert_eq!(accumulators[0].total(count), accumulators[1].total(count), "{count:?}");
        }
    }
}

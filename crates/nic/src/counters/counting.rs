//! Which source counts the VFs of a PF, and reading it.
//!
//! ```text
//!  VF statistics, once one of them is not 0 ──▶ else registers, where they can be mapped ──▶ else representors ──▶ else unknown
//! ```

use super::accumulator::{Accumulator, Count, Most, Reading, Value};
use super::mapping::Registers;
use super::window::Layout;
use super::{Counted, Figure, Source, Traffic};
use crate::abilities::Ability;
use crate::nic::Nic;
use crate::pf::{Mode, Pf};
use crate::sysfs;
use crate::vf::Statistics;
use std::collections::BTreeMap;
use std::time::Instant;
use tidegate_netlink::NetlinkError;

type Readings = BTreeMap<u16, Reading>;

/// What the VFs of a PF counted so far.
#[derive(Debug, Default)]
pub struct Counting {
    /// The source that is believed.
    source: Option<Source>,
    /// The source of the last readings, believed or not.
    last: Option<Source>,
    /// When the last readings were begun.
    taken: Option<Instant>,
    vfs: BTreeMap<u16, Accumulator>,
}

impl Counting {
    /// Reads the counters; totals by VF.
    pub fn read(&mut self, nic: &mut Nic, pf: &Pf) -> Result<BTreeMap<u16, Counted>, NetlinkError> {
        self.vfs.retain(|vf, _| pf.vfs.contains_key(vf));
        let begin = Instant::now();
        let (source, readings, unknown) = self.take(nic, pf)?;
        // As long as it can have been: from the beginning of the last look to the end of this one.
        let interval = self.taken.map(|taken| taken.elapsed());
        let speed = pf.top_speed.max(pf.speed);
        let most = interval.zip(speed).map(|(interval, speed)| Most::within(interval, speed));
        if self.last != Some(source) {
            self.vfs.values_mut().for_each(Accumulator::change_source);
        }
        for (vf, reading) in &readings {
            self.vfs.entry(*vf).or_default().add(reading, most);
        }
        (self.last, self.taken) = (Some(source), Some(begin));
        let counted = pf.vfs.keys().map(|vf| {
            let why = match (&unknown, readings.contains_key(vf)) {
                (Some(why), _) => Some(why.clone()),
                (None, false) => Some(format!("{source}: nothing is said of VF {vf}")),
                (None, true) => None,
            };
            let known = self.vfs.get(vf).filter(|_| why.is_none());
            (
                *vf,
                known.map_or_else(|| Counted { unknown: why, ..Counted::default() }, |a| figures(a, source)),
            )
        });
        Ok(counted.collect())
    }

    /// Readings of the source that is believed, or else those of the driver with the reason why they are not.
    fn take(&mut self, nic: &mut Nic, pf: &Pf) -> Result<(Source, Readings, Option<String>), NetlinkError> {
        match self.source {
            Some(Source::Registers) => match registers(pf) {
                Ok(readings) => return Ok((Source::Registers, readings, None)),
                Err(why) => {
                    self.source = None;
                    return Ok((Source::Registers, Readings::new(), Some(format!("registers: {why}"))));
                }
            },
            Some(Source::Representor) if pf.mode == Mode::Switchdev => {
                return Ok((Source::Representor, representors(nic, pf)?, None));
            }
            _ => {}
        }
        let driver = driver(nic, pf)?;
        if self.source == Some(Source::VfStatistics) || counts(&driver) {
            self.source = Some(Source::VfStatistics);
            return Ok((Source::VfStatistics, driver, None));
        }
        let why = match registers(pf) {
            Ok(readings) => {
                self.source = Some(Source::Registers);
                return Ok((Source::Registers, readings, None));
            }
            Err(why) => why,
        };
        if has_representors(pf) {
            self.source = Some(Source::Representor);
            return Ok((Source::Representor, representors(nic, pf)?, None));
        }
        self.source = None;
        let said = if driver.is_empty() {
            "are absent"
        } else {
            "are 0 for every VF: idle, or a driver that does not count"
        };
        let why = format!("VF statistics {said}; registers: {why}; no representors");
        Ok((Source::VfStatistics, driver, Some(why)))
    }
}

/// What each source is good for.
pub fn sources(nic: &mut Nic, pf: &Pf) -> Vec<(Source, Ability)> {
    let statistics = match driver(nic, pf) {
        Err(e) => Ability::Unknown(e.to_string()),
        Ok(_) if pf.vfs.is_empty() => Ability::Unknown(format!("{} has no VF to ask of", pf.name)),
        Ok(readings) if readings.is_empty() => Ability::Lacks("the driver says none".into()),
        Ok(readings) if counts(&readings) => Ability::Has,
        Ok(_) => Ability::Unknown("0 for every VF: idle, or a driver that does not count".into()),
    };
    let registers = registers(pf).map_or_else(Ability::Lacks, |_| Ability::Has);
    let representors = match pf.mode {
        Mode::Legacy => Ability::Lacks("not in switchdev mode".into()),
        Mode::Switchdev if has_representors(pf) => Ability::Has,
        Mode::Switchdev => Ability::Lacks("no netdev stands for a VF".into()),
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

/// Why registers cannot be read is for people.
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

/// What a representor receives, the VM sent.
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

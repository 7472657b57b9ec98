//! All of a table but its entries, as the program reads it: `struct settings` of `flow.h`. Pure.

use crate::key::{Fields, LENGTH, mask_of};
use crate::table::MASKS;
use tidegate_cores::cpus::Cpus;

/// Parts of the unmatched flows: `PLACES` of `flow.h`.
pub(crate) const PLACES: usize = 1024;
/// Length of `struct settings`, bytes.
pub(crate) const SETTINGS: usize = NUMBERS + 4 * 6 + 4 * PLACES;
/// Where it has its seed, and its numbers behind that.
const SEED: usize = MASKS * LENGTH;
const NUMBERS: usize = SEED + 8;

/// Settings of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// In order, each with its number, which is not 0.
    pub masks: Vec<[u8; LENGTH]>,
    /// Of the hash of unmatched flows.
    pub seed: u64,
    /// Whether there are exact entries.
    pub exact: bool,
    /// CPUs for unmatched flows, in order.
    pub spread: Vec<u32>,
    pub vxlan_port: u16,
    /// Whether there are peers.
    pub peers: bool,
}

impl Settings {
    /// Returns the mask with this number for the program.
    pub fn mask(fields: &Fields, number: u32) -> [u8; LENGTH] {
        fields.key(number)
    }

    /// Returns the number of the mask that compares these fields.
    pub fn number(&self, fields: &Fields) -> Option<u32> {
        self.masks.iter().find(|mask| fields.key(mask_of(mask)) == **mask).map(mask_of)
    }

    /// Returns the structure's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.masks.concat();
        bytes.resize(SEED, 0);
        bytes.extend(self.seed.to_ne_bytes());
        let numbers = [
            self.masks.len() as u32,
            u32::from(self.exact),
            u32::from(!self.spread.is_empty()),
            self.vxlan_port.into(),
            self.peers.into(),
            0,
        ];
        bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        let round = self.spread.iter().cycle().chain(std::iter::repeat(&0));
        bytes.extend(round.take(PLACES).flat_map(|cpu| cpu.to_ne_bytes()));
        bytes
    }

    /// Reads the structure's bytes; `None` if they are none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != SETTINGS {
            return None;
        }
        let number = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (masked, spread) = (number(NUMBERS)? as usize, number(NUMBERS + 8)? != 0);
        let masks = bytes[..SEED].chunks_exact(LENGTH).take(masked);
        let places = (0..PLACES).map(|place| number(NUMBERS + 24 + 4 * place));
        let places: Option<Vec<u32>> = places.collect();
        let cpus: Cpus = places?.into_iter().map(|cpu| cpu as usize).collect();
        Some(Self {
            masks: masks.filter_map(|mask| mask.try_into().ok()).collect(),
            seed: u64::from_ne_bytes(bytes[SEED..NUMBERS].try_into().ok()?),
            exact: number(NUMBERS + 4)? != 0,
            spread: if spread { cpus.into_iter().map(|cpu| cpu as u32).collect() } else { vec![] },
            vxlan_port: number(NUMBERS + 12)?.try_into().ok()?,
            peers: number(NUMBERS + 16)? != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_back() {
        let mask = Fields { id: u32::MAX, ..Fields::default() };
        let settings = Settings {
            masks: vec![Settings::mask(&mask, 7)],
            seed: 0x1234_5678_9abc_def0,
            exact: true,
            spread: vec![1, 4, 9],
            vxlan_port: 4789,
            peers: true,
        };
        assert_eq!(settings.bytes().len(), SETTINGS);
        assert_eq!(Settings::parse(&settings.bytes()), Some(settings.clone()));
        assert_eq!(settings.number(&mask), Some(7));
        assert_eq!(settings.number(&Fields::default()), None);
        let none = Settings::default();
        assert_eq!(Settings::parse(&none.bytes()), Some(none));
        assert_eq!(Settings::parse(&[0; 9]), None);
    }
}

//! Links of a network, as an operator or the controller declares them.

use crate::frame::SMALLEST_FRAME;
use crate::{Bytes, Nanos, Rate};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::Display;
use thiserror::Error;

/// Most levels of a link. The best effort is one more queue.
pub const LEVELS: usize = 7;

// Bounds of a declaration, far from those of real links: with them no sum overflows.
const MOST_OVERHEAD: Bytes = Bytes::new(1_000);
const MOST_TIME: Nanos = Nanos::new(10_000_000_000);
const SHORTEST_DELAY: Nanos = Nanos::new(1);
const SMALLEST_LARGEST_FRAME: Bytes = Bytes::new(SMALLEST_FRAME);
const MOST_LARGEST_FRAME: Bytes = Bytes::new(64 * 1024);
const MOST_BUFFER: Bytes = Bytes::new(1_000_000_000_000);
const MOST_FRAMES: u64 = 1 << 32;

/// One direction of a cable: the queues of a port, and the way to the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Link {
    /// Name, unique in the network.
    pub name: String,
    /// The switch or host that sends.
    pub from: String,
    /// The switch or host that receives.
    pub to: String,
    /// C: what the port sends.
    pub capacity: Rate,
    /// Most that all reservations may have; at most the capacity.
    pub reservable: Rate,
    /// Bytes that a frame takes beyond its own: 24 where the capacity is that of an Ethernet line (preamble 8, FCS 4,
    /// gap 12: IEEE 802.3, 3.1.1 and 4.4.2), 0 where it counts frames only; at most 1 kB.
    pub overhead: Bytes,
    /// H: the longest time from the arrival of a frame at the switch until its port could send it; at most 10 s.
    pub latency: Nanos,
    /// Time on the cable; at most 10 s.
    pub propagation: Nanos,
    /// L: the longest frame that the link carries, with its tag, without FCS; 60 B to 64 KiB.
    pub largest_frame: Bytes,
    /// Real-time levels, the most urgent first; 1 to [`LEVELS`].
    pub levels: Vec<Level>,
}

/// The queue of a port for frames of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Level {
    /// D: from the arrival of a frame at the switch until its last bit has left; the same for ever. 1 ns to 10 s.
    pub delay: Nanos,
    /// What the queue holds.
    pub buffer: Buffer,
}

/// The length of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffer {
    /// In bytes of frames; at most 1 TB.
    Bytes(Bytes),
    /// In frames of any length; at most 2^32.
    Frames(u64),
}

/// Links that were checked, each by its index.
#[derive(Clone, Debug, Default)]
pub struct Network {
    links: Vec<Link>,
    by_name: HashMap<String, usize>,
}

/// A fault of a link's declaration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotANetwork {
    /// Two links have one name.
    #[error("link {0} is declared twice; give each link a name of its own")]
    Twice(String),
    /// A link leads to where it begins.
    #[error("link {0} begins and ends at {1}")]
    Loop(String, String),
    /// The number of levels is out of range.
    #[error("link {0} has {1} levels; it needs 1 to {LEVELS}")]
    Levels(String, usize),
    /// A number is out of its range.
    #[error("link {link}: {key} is {value}; it may be {least} to {most}")]
    Range {
        /// The link.
        link: String,
        /// The key, such as `overhead` or `levels[1].delay`.
        key: String,
        /// As declared.
        value: String,
        /// The least that is allowed.
        least: String,
        /// The most that is allowed.
        most: String,
    },
    /// More is to be reserved than is there.
    #[error("link {link}: {reservable} are reservable, and its capacity is {capacity}")]
    Reservable {
        /// The link.
        link: String,
        /// As declared.
        reservable: Rate,
        /// As declared.
        capacity: Rate,
    },
    /// A more urgent level has the longer delay.
    #[error("link {link}: level {level} has a delay of {delay}, and the more urgent one before it {before}")]
    Order {
        /// The link.
        link: String,
        /// The later level.
        level: usize,
        /// Its delay.
        delay: Nanos,
        /// The delay of the level before.
        before: Nanos,
    },
}

impl Network {
    /// Checks links.
    ///
    /// # Errors
    /// The first fault.
    pub fn new(links: Vec<Link>) -> Result<Self, NotANetwork> {
        let mut by_name = HashMap::with_capacity(links.len());
        for (index, link) in links.iter().enumerate() {
            if by_name.insert(link.name.clone(), index).is_some() {
                return Err(NotANetwork::Twice(link.name.clone()));
            }
            link.check()?;
        }
        Ok(Self { links, by_name })
    }

    /// Returns all links, by index.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns the index of a link.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
}

impl Link {
    fn check(&self) -> Result<(), NotANetwork> {
        let name = || self.name.clone();
        if self.from == self.to {
            return Err(NotANetwork::Loop(name(), self.from.clone()));
        }
        if !(1..=LEVELS).contains(&self.levels.len()) {
            return Err(NotANetwork::Levels(name(), self.levels.len()));
        }
        self.check_ranges()?;
        if self.reservable > self.capacity {
            let (reservable, capacity) = (self.reservable, self.capacity);
            return Err(NotANetwork::Reservable { link: name(), reservable, capacity });
        }
        for (level, pair) in self.levels.windows(2).enumerate() {
            let (before, delay) = (pair[0].delay, pair[1].delay);
            if delay < before {
                return Err(NotANetwork::Order { link: name(), level: level + 1, delay, before });
            }
        }
        Ok(())
    }
    fn check_ranges(&self) -> Result<(), NotANetwork> {
        let no_time = Nanos::new(0);
        self.within("overhead", self.overhead, Bytes::new(0), MOST_OVERHEAD)?;
        self.within("latency", self.latency, no_time, MOST_TIME)?;
        self.within("propagation", self.propagation, no_time, MOST_TIME)?;
        self.within("largest-frame", self.largest_frame, SMALLEST_LARGEST_FRAME, MOST_LARGEST_FRAME)?;
        for (number, level) in self.levels.iter().enumerate() {
            self.within(&format!("levels[{number}].delay"), level.delay, SHORTEST_DELAY, MOST_TIME)?;
            let key = format!("levels[{number}].buffer");
            match level.buffer {
                Buffer::Bytes(bytes) => self.within(&key, bytes, Bytes::new(0), MOST_BUFFER)?,
                Buffer::Frames(frames) => self.within(&key, frames, 0, MOST_FRAMES)?,
            }
        }
        Ok(())
    }

    fn within<T: PartialOrd + Display>(
        &self,
        key: &str,
        value: T,
        least: T,
        most: T,
    ) -> Result<(), NotANetwork> {
        if (&least..=&most).contains(&&value) {
            return Ok(());
        }
        Err(NotANetwork::Range {
            link: self.name.clone(),
            key: key.into(),
            value: value.to_string(),
            least: least.to_string(),
            most: most.to_string(),
        })
    }
}

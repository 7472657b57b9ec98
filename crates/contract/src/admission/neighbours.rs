//! The largest frame that can be under way to a vNIC.

use super::set::Routes;
use crate::{Segment, Vnic};
use std::collections::HashMap;

pub(super) struct Neighbours<'a> {
    routes: &'a Routes<'a>,
    /// By segment, the largest frame and its vNIC, and the largest frame of the other vNICs.
    largest: HashMap<Segment, Largest<'a>>,
}

#[derive(Clone, Copy, Default)]
struct Largest<'a> {
    frame: u64,
    sender: &'a str,
    frame_of_others: u64,
}

impl<'a> Largest<'a> {
    fn add(&mut self, name: &'a str, frame: u64) {
        if frame > self.frame {
            *self = Self { frame, sender: name, frame_of_others: self.frame };
        } else {
            self.frame_of_others = self.frame_of_others.max(frame);
        }
    }

    fn largest_of_others(&self, name: &str) -> u64 {
        if self.sender == name { self.frame_of_others } else { self.frame }
    }
}

impl<'a> Neighbours<'a> {
    pub(super) fn new(vnics: &'a [Vnic], routes: &'a Routes<'a>) -> Self {
        let mut largest = HashMap::<Segment, Largest<'_>>::new();
        for vnic in vnics {
            largest.entry(vnic.segment).or_default().add(&vnic.name, vnic.largest_frame());
        }
        Self { routes, largest }
    }

    /// Returns the largest frame (bytes) that other vNICs, and uplinks, can send to a `receiver` that hears only its own
    /// segment.
    pub(super) fn largest_frame(&self, receiver: &Vnic) -> u64 {
        let here = self
            .largest
            .get(&receiver.segment)
            .map_or(0, |largest| largest.largest_of_others(&receiver.name));
        let uplinks = self.routes.uplinks.iter().filter(|_| receiver.uses_uplinks());
        let carrying = uplinks.filter(|reach| reach.carries(receiver.segment));
        carrying.map(|reach| reach.uplink.largest_inner_frame()).fold(here, u64::max)
    }
}

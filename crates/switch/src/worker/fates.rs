//! How the frames of one loop ended, until they are settled.
//!
//! ```text
//!  begin(fate) ─▶ add, add, add ─▶ runs    │ ring a     │ ring a │ ring b │     one fate each
//!                                  frames  │ ▤ ▤ ▤      │ ▤      │ ▤ ▤    │
//!                                          └────── group ────────┴─ group ─┴─▶ settle: given back together
//! ```

use super::crossing::Fate;
use crate::fdb::PortIndex;
use crate::slots::{Frame, FrameRef, Owner};

/// Fates, in order.
#[derive(Default)]
pub(super) struct Fates {
    runs: Vec<Run>,
    /// Frames of all runs.
    frames: Vec<FrameRef>,
    /// Home of the last run.
    home: Option<Home>,
}

/// The place to give frames back together: a transmit ring, or the pool of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) source: PortIndex,
    queue: u16,
}

/// Frames with one fate, up to those of the next run.
struct Run {
    /// The home of all of them.
    home: Option<Home>,
    /// Number of the first.
    from: usize,
    /// The fate of the first.
    fate: Fate,
}

impl Fates {
    /// Returns room for this many frames; more are allocated for.
    pub(super) fn with_capacity(frames: usize) -> Self {
        Self { runs: Vec::with_capacity(frames), frames: Vec::with_capacity(frames), home: None }
    }

    /// Returns the number of frames.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns the last `count` frames.
    pub(super) fn last(&self, count: usize) -> &[FrameRef] {
        &self.frames[self.frames.len() - count..]
    }

    /// Adds the fate of one frame.
    pub(super) fn push(&mut self, fate: Fate) {
        self.begin(fate);
        self.frames.push(fate.frame);
    }

    /// Begins a run: `fate` holds for its first frame, and for the [added](Self::add) ones except for what
    /// concerns deadlines.
    #[inline]
    pub(super) fn begin(&mut self, fate: Fate) {
        self.home = home(fate.frame.get());
        self.runs.push(Run { home: self.home, from: self.frames.len(), fate });
    }

    /// Takes back the fate of the last frame.
    pub(super) fn pop(&mut self) -> Option<Fate> {
        let (frame, run) = (self.frames.pop()?, self.runs.last()?);
        let fate = Fate { frame, ..run.fate };
        if run.from == self.frames.len() {
            self.runs.pop();
            self.home = self.runs.last().and_then(|run| run.home);
        }
        Some(fate)
    }

    /// Adds a frame to the run that [began](Self::begin) last.
    #[inline]
    pub(super) fn add(&mut self, frame: FrameRef) {
        if home(frame.get()) != self.home
            && let Some(Run { fate, .. }) = self.runs.last()
        {
            self.begin(Fate { frame, ..*fate });
        }
        self.frames.push(frame);
    }

    /// Returns consecutive runs of one home together.
    pub(super) fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let mut rest = &self.runs[..];
        std::iter::from_fn(move || {
            let Run { home, from, .. } = *rest.first()?;
            let (runs, others) = rest.split_at(rest.iter().take_while(|run| run.home == home).count());
            rest = others;
            let end = others.first().map_or(self.frames.len(), |run| run.from);
            Some(Group { home, runs, frames: &self.frames[from..end] })
        })
    }

    /// Forgets all fates, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.frames.clear();
    }

    /// Takes all fates out, frame by frame.
    #[cfg(test)]
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Fate> + use<> {
        let all: Vec<_> = self.groups().flat_map(|group| group.fates().collect::<Vec<_>>()).collect();
        self.clear();
        all.into_iter()
    }
}

/// Consecutive runs with one home, or none.
pub(super) struct Group<'a> {
    pub(super) home: Option<Home>,
    runs: &'a [Run],
    pub(super) frames: &'a [FrameRef],
}

impl<'a> Group<'a> {
    /// Returns frames with their fate.
    #[inline]
    pub(super) fn runs(&self) -> impl Iterator<Item = (&'a Fate, &'a [FrameRef])> + use<'a> {
        let (mut runs, mut frames) = (self.runs, self.frames);
        std::iter::from_fn(move || {
            let (run, others) = runs.split_first()?;
            runs = others;
            let count = others.first().map_or(frames.len(), |next| next.from - run.from);
            let these;
            (these, frames) = frames.split_at(count);
            Some((&run.fate, these))
        })
    }

    /// Returns the fate of each frame.
    pub(super) fn fates(&self) -> impl Iterator<Item = Fate> + use<'a> {
        self.runs().flat_map(|(fate, frames)| frames.iter().map(|frame| Fate { frame: *frame, ..*fate }))
    }
}

/// Returns the home of a frame; `None` for a flooded copy, and for a piece, whose memory is the whole's.
#[inline]
fn home(frame: &Frame) -> Option<Home> {
    match frame.owner {
        Owner::Ring { queue, .. } => Some(Home { source: frame.source, queue }),
        Owner::Pool { .. } => Some(Home { source: frame.source, queue: 0 }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slots;
    use crate::worker::send::unqueued_fate;
    use proptest::prelude::*;
    use tidegate_evidence::DropReason;

    proptest! {
        /// Frames of three rings and of none, in runs of any length.
        #[test]
        fn each_frame_has_its_fate_in_order_and_those_of_one_home_are_together(
            runs in prop::collection::vec(prop::collection::vec(0..4u16, 1..6), 0..20),
        ) {
            let mut slots = Slots::new(128, 0, 0);
            let mut fates = Fates::default();
            let mut expected = Vec::new();
            for (at, run) in (0..).zip(&runs) {
                let frames: Vec<_> = run.iter().map(|queue| {
                    let frame = slots.take().unwrap();
                    if *queue < 3 {
                        frame.get_mut().owner = Owner::Ring { queue: *queue, head: 0 };
                    }
                    frame
                }).collect();
                fates.begin(unqueued_fate(frames[0], 1, DropReason::QueueFull, at));
                frames.iter().for_each(|frame| fates.add(*frame));
                expected.extend(frames.into_iter().map(|frame| (frame, at)));
            }
            prop_assert_eq!(fates.len(), expected.len());
            // The last one is taken back, and comes again.
            if let Some((last, at)) = expected.last().copied() {
                let fate = fates.pop().unwrap();
                prop_assert_eq!((fate.frame, fate.at, fates.len()), (last, at, expected.len() - 1));
                fates.push(fate);
            }
            let mut before = None;
            for group in fates.groups() {
                prop_assert!(group.frames.iter().all(|frame| home(frame.get()) == group.home));
                prop_assert_ne!(before.replace(group.home), Some(group.home), "together");
                prop_assert_eq!(group.fates().map(|fate| fate.frame).collect::<Vec<_>>(), group.frames);
            }
            let all: Vec<_> = fates.drain().map(|fate| (fate.frame, fate.at)).collect();
            prop_assert_eq!(&all, &expected);
            prop_assert_eq!(fates.len(), 0);
            expected.into_iter().for_each(|(frame, _)| slots.give(frame));
        }
    }
}

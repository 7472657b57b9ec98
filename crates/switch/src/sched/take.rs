//! Departures from an egress: the next turn, and its charges.

use super::run::{MOST, Rivals, Run};
use super::source::SourceIndex;
use super::{Backlog, EgressKind, Head, Keyed, Queued, Scheduler, SourceId, Tier, hold_limit};
use tidegate_contract::Discipline;

impl<F: Keyed> Scheduler<F> {
    /// Returns the next frame. Changes nothing: a second call at the same `now` returns the same.
    #[inline]
    pub fn head(&mut self, now: u64) -> Head<F> {
        self.picked = None;
        let Some((index, tier)) = self.pick(now) else {
            return Head::Empty;
        };
        let (source, queued, part) = self.front(index);
        let waits = tier != Tier::RealTime || self.config.kind != EgressKind::Virtual;
        if waits && let Some(bucket) = &self.bucket {
            let at = bucket.conforms_at(now, part.into());
            if at > now {
                // The frame that becomes eligible first may be smaller and go earlier, but not before a
                // real-time one.
                let eligible = self.minima.next_eligible().filter(|_| tier != Tier::RealTime);
                return Head::WaitUntil(at.min(eligible.unwrap_or(u64::MAX)));
            }
        }
        self.picked = Some((index, tier));
        Head::Ready { source, tier, queued, part }
    }

    /// Returns the frames that leave together if taken at `now`: the last ready [`head`](Self::head), and
    /// those behind it that [would be the head](super::run) then. Empty without a ready head, after a
    /// change, and if the first must be [judged](Self::judge).
    #[inline]
    pub fn run(&self, now: u64) -> impl Iterator<Item = &Queued<F>> {
        let nothing =
            Run { arena: &self.arena, next: None, frames: 0, bytes: 0, rivals: Rivals::None, turn: None };
        self.picked.and_then(|(index, tier)| self.run_of(now, index, tier)).unwrap_or(nothing)
    }

    fn run_of(&self, now: u64, index: SourceIndex, tier: Tier) -> Option<Run<'_, F>> {
        let source = self.sources[usize::from(index)].as_ref()?;
        let (arena, head, turn) = match &source.flows {
            None => (&self.arena, self.arena.front(&source.list)?, None),
            Some(flows) => (flows.arena(), flows.first()?, flows.turn(now, self.config.flow_part())),
        };
        let mut run = Run { arena, next: Some(head), frames: 1, bytes: u64::MAX, rivals: Rivals::None, turn };
        if source.list.frames == 1 || self.config.kind != EgressKind::Virtual {
            return Some(run);
        }
        run.rivals = match tier {
            Tier::RealTime => match (self.edf.lead(), source.config.deadline) {
                (Some(lead), Some(relative)) => Rivals::RealTime(lead, relative),
                _ => Rivals::None,
            },
            Tier::Fifo => self.fifo.lead().map_or(Rivals::None, Rivals::Fifo),
            Tier::Share if source.credit.is_none() => {
                self.shares.lead().map_or(Rivals::None, |lead| Rivals::Shares(lead, source.share.clone()))
            }
            _ => return Some(run),
        };
        run.frames = MOST;
        if tier != Tier::RealTime
            && let Some(bucket) = &self.bucket
        {
            let (mut bucket, bytes) = (bucket.clone(), u64::from(head.queued.bytes));
            bucket.charge_waiting(head.queued.enqueued, now, bytes);
            run.bytes = u64::try_from(bucket.available(now)).unwrap_or(0) + bytes;
        }
        Some(run)
    }

    /// Takes out the last ready [`head`](Self::head), and charges it; without one, or after a change, it
    /// asks first. `None` if no frame is ready.
    #[inline]
    pub fn take(&mut self, now: u64) -> Option<(SourceId, Tier, Queued<F>)> {
        let mut head = None;
        let (id, tier) = self.take_run(now, 1, |queued| head = Some(queued))?;
        Some((id, tier, head?))
    }

    /// Takes out the first `frames` of a [run](Self::run), at least one and at most all, like repeated
    /// [`take`](Self::take), into `taken`.
    #[inline]
    pub fn take_run(
        &mut self,
        now: u64,
        frames: u32,
        mut taken: impl FnMut(Queued<F>),
    ) -> Option<(SourceId, Tier)> {
        let (index, tier) = self.next_turn(now)?;
        debug_assert!(frames == 1 || frames <= self.run(now).count() as u32, "of a run");
        let source = self.sources[usize::from(index)].as_mut()?;
        let id = source.id;
        if source.flows.is_some() {
            self.take_turn(now, index, tier, frames, &mut taken)?;
            return Some((id, tier));
        }
        let first = self.arena.front(&source.list)?.queued;
        let mut last = first.bytes;
        let gone = self.arena.pop_front(&mut source.list, frames, |queued| {
            last = queued.bytes;
            taken(queued);
        });
        self.total.frames -= gone.frames;
        self.charge_run(now, index, tier, gone, (&first, last));
        Some((id, tier))
    }

    /// Charges frames that left a source: `first`, and perhaps others behind it, the last of `last` bytes.
    #[inline]
    pub(super) fn charge_run(
        &mut self,
        now: u64,
        index: SourceIndex,
        tier: Tier,
        gone: Backlog,
        (first, last): (&Queued<F>, u32),
    ) {
        self.charge_tier(now, index, tier, gone.bytes - u64::from(last), last);
        self.charge_waiting(now, first);
        if gone.frames > 1 {
            // As if each was charged at `now`: no tokens fall in meanwhile.
            self.charge(now, gone.bytes - u64::from(first.bytes));
        }
        self.note_removed(index, gone.bytes);
    }

    /// Takes at most so many bytes of the frame that [`take`](Self::take) would take. The rest stays in
    /// place; the result has the taken bytes.
    ///
    /// The caller chooses how many of the allowed [part](Head::Ready): whole segments. A segment longer
    /// than the part may go, and leaves a debt.
    pub fn take_part(&mut self, now: u64, bytes: u32) -> Option<(SourceId, Tier, Queued<F>)> {
        let (index, tier) = self.next_turn(now)?;
        let source = self.sources[usize::from(index)].as_mut()?;
        let id = source.id;
        if source.flows.is_some() {
            return Some((id, tier, self.take_flow(now, index, tier, bytes)?));
        }
        let Some(part) = self.arena.shrink_front(&mut source.list, bytes) else { return self.take(now) };
        self.charge_tier(now, index, tier, 0, part.bytes);
        self.charge_waiting(now, &part);
        self.note_removed(index, part.bytes.into());
        Some((id, tier, part))
    }

    /// Returns the next turn that the egress rate allows.
    #[inline]
    pub(super) fn next_turn(&mut self, now: u64) -> Option<(SourceIndex, Tier)> {
        if self.picked.is_none() {
            self.head(now);
        }
        self.picked
    }

    /// Charges a source's tier for `bytes` that leave behind others of `before` bytes.
    #[inline]
    pub(super) fn charge_tier(&mut self, now: u64, index: SourceIndex, tier: Tier, before: u64, bytes: u32) {
        let Some(source) = &mut self.sources[usize::from(index)] else { return };
        match (tier, &mut source.credit) {
            (Tier::Minimum, Some(credit)) => {
                credit.charge(now, before + u64::from(bytes), hold_limit(self.config.rate));
            }
            (Tier::Share, _) => self.shares.charge(&mut source.share, before, bytes),
            _ => {}
        }
    }

    /// Charges the egress rate for a frame that waited.
    #[inline]
    pub(super) fn charge_waiting(&mut self, now: u64, queued: &Queued<F>) {
        let Some(bucket) = &mut self.bucket else { return };
        match self.config.kind {
            EgressKind::Virtual => bucket.charge_waiting(queued.enqueued, now, queued.bytes.into()),
            // A wire's idle time is lost: a late frame is not made up for.
            EgressKind::Physical { .. } => bucket.charge(now, queued.bytes.into()),
        }
    }

    /// Returns the next turn, ignoring the egress rate.
    #[inline]
    fn pick(&mut self, now: u64) -> Option<(SourceIndex, Tier)> {
        if self.config.discipline == Discipline::Fifo {
            return self.fifo.first().map(|index| (index, Tier::Fifo));
        }
        if let Some(index) = self.edf.first() {
            return Some((index, Tier::RealTime));
        }
        if let Some(index) = self.minima.first(now) {
            return Some((index, Tier::Minimum));
        }
        self.shares.first().map(|index| (index, Tier::Share))
    }

    /// Returns the head of a source in a tier, and how much of it may be taken at once.
    #[inline]
    fn front(&self, index: SourceIndex) -> (SourceId, Queued<F>, u32) {
        let source = self.sources[usize::from(index)].as_ref();
        let head = source.and_then(|source| {
            if let Some(flows) = &source.flows {
                let part = flows.part(self.config.flow_part())?;
                return Some((source.id, *flows.head()?, part));
            }
            let queued = self.arena.front(&source.list)?.queued;
            Some((source.id, queued, self.config.kind.part(queued.bytes, &source.config)))
        });
        head.expect("a source in a tier has frames")
    }
}

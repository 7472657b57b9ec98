//! The loop itself: once a period from what was used to the limits to set.
//!
//! ```text
//!  step(usage) ─▶ observe ─▶ share ─▶ whole units ─▶ keep what is near enough ─▶ changes, lowered before raised
//!                                                                                  │ not_set: it stays as it was
//! ```
//!
//! **What holds after every step, and after each single change on the way**, where what is in force is known: the
//! limits' sum is at most the link's capacity, each tenant's at most its maximum, each limit at least one unit and at
//! most the member's hard limit.

use super::admission::{TermsError, admissible};
use super::demand::{Demand, FOLLOWED};
use super::share::{self, Aggregate, Claim};
use super::terms::{LinkTerms, Member, Tenant, Usage};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::fmt;
use tidegate_contract::Rate;

/// A member that uses little has this share of the capacity, so that it can show when it wants more.
const PROBE: f64 = 0.01;
/// All members' probing shares together are at most this share of the capacity.
const PROBES: f64 = 0.05;
/// A limit that is pressed against changes by more than this share of it, or not at all.
const NEAR: f64 = 0.02;
/// A limit that is not pressed against may be so far off.
const NEAR_ENOUGH: f64 = 0.25;

/// A limit to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose.
    pub id: u16,
    /// The limit in force; `None` if unknown.
    pub from: Option<Rate>,
    /// The limit to set: a whole number of the link's units, at least one.
    pub to: Rate,
}

/// The reason for a member's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitReason {
    /// No recent sample: the controller assumes that the member wants the whole link.
    Unmeasured,
    /// The member sends little or nothing; the rest of its minimum is lent to others.
    Idle,
    /// The member has all that it uses.
    Content,
    /// The member wants more, and is at its hard limit.
    Max,
    /// The member wants more, and its segment is at its maximum.
    Segment,
    /// The member wants more, and has its fair share of the link.
    Share,
    /// The member wants more, and its limit rises each period.
    Growing,
}

impl fmt::Display for LimitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unmeasured => "not measured: counts as if it wanted all",
            Self::Idle => "idle: its share is lent",
            Self::Content => "has what it wants",
            Self::Max => "wants more: at its hard limit",
            Self::Segment => "wants more: its segment is at its maximum",
            Self::Share => "wants more: has its fair share",
            Self::Growing => "wants more: growing",
        })
    }
}

/// How a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whose.
    pub id: u16,
    /// The limit of the last step; `None` before the first step, and while the limit in force is unknown.
    pub limit: Option<Rate>,
    /// Use in the last sample; `None` without a sample or without use.
    pub used: Option<Rate>,
    /// Why.
    pub reason: LimitReason,
    /// Samples missed since it is a member.
    pub missed: u64,
}

/// Counts since the controller was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Steps.
    pub steps: u64,
    /// Samples that were missing or doubtful.
    pub missed: u64,
    /// Limits given out to be set.
    pub changes: u64,
    /// Limits that were not taken.
    pub not_set: u64,
}

#[derive(Clone, Debug)]
struct State {
    member: Member,
    demand: Demand,
    /// In force; `None` where that is not known.
    limit: Option<u64>,
    /// In force before the last step.
    before: Option<u64>,
    next: u64,
    used: f64,
    reason: LimitReason,
    missed: u64,
}

impl State {
    fn new(member: Member) -> Self {
        Self {
            member,
            demand: Demand::default(),
            limit: None,
            before: None,
            next: 0,
            used: 0.0,
            reason: LimitReason::Unmeasured,
            missed: 0,
        }
    }
}

/// Governs the functions of one NIC. Deterministic: no clock, no randomness, nothing read or set.
#[derive(Clone, Debug)]
pub struct Controller {
    link: LinkTerms,
    states: Vec<State>,
    claims: Vec<Claim>,
    tenants: Vec<Aggregate>,
    /// The members by the fraction that rounding leaves, largest first.
    order: Vec<usize>,
    changes: Vec<Change>,
    counts: Counts,
}

impl Controller {
    /// A controller of these members; it knows of no limit in force, so its first step sets all.
    ///
    /// # Errors
    /// See [`admissible`].
    pub fn new(link: LinkTerms, members: &[Member], tenants: &[Tenant]) -> Result<Self, Vec<TermsError>> {
        let mut controller = Self {
            link,
            states: Vec::new(),
            claims: Vec::new(),
            tenants: Vec::new(),
            order: Vec::new(),
            changes: Vec::new(),
            counts: Counts::default(),
        };
        controller.reconfigure(link, members, tenants)?;
        Ok(controller)
    }

    /// Changes members, terms, tenants or the link; members that stay keep their state.
    ///
    /// The limit of one that goes is no longer counted: it has to be set to something else, or the function to be
    /// silent, before the next step's limits are set.
    ///
    /// # Errors
    /// See [`admissible`]; nothing has changed then.
    pub fn reconfigure(
        &mut self,
        link: LinkTerms,
        members: &[Member],
        tenants: &[Tenant],
    ) -> Result<(), Vec<TermsError>> {
        admissible(&link, members, tenants)?;
        let same_unit = link.unit == self.link.unit;
        let mut old = std::mem::take(&mut self.states);
        let keep = |&member: &Member| match old.iter().position(|s| s.member.id == member.id) {
            Some(at) if same_unit => State { member, ..old.swap_remove(at) },
            _ => State::new(member),
        };
        self.states = members.iter().map(keep).collect();
        self.claims = vec![Claim::default(); members.len()];
        self.order = (0..members.len()).collect();
        self.changes = Vec::with_capacity(members.len());
        self.tenants = tenants
            .iter()
            .map(|tenant| Aggregate {
                min: tenant.min.map_or(0.0, |min| link.units_up(min) as f64),
                max: tenant.max.map_or(f64::INFINITY, |max| link.units(max) as f64),
                members: (0..members.len()).filter(|&i| members[i].segment == tenant.segment).collect(),
            })
            .collect();
        for (index, tenant) in self.tenants.iter().enumerate() {
            for &member in &tenant.members {
                self.claims[member].tenant = Some(index);
            }
        }
        self.link = link;
        Ok(())
    }

    /// The link carries something else now, such as 1 instead of 10 Gbit/s. Minima that do not fit any more shrink in
    /// proportion until they do. Only with less than one unit per member is the limits' sum above the capacity.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.link.capacity = capacity;
    }

    /// One period: `usage` by member, in the order they were given; `None`, or no entry, where a counter could not be
    /// read, was reset, or is not to be believed. Returns what to set, in this order: lowered before raised. A
    /// caller that cannot set one of them says so by [`Controller::not_set`], also for all that follow, and leaves those as they are.
    pub fn step(&mut self, usage: &[Option<Usage>]) -> &[Change] {
        self.counts.steps += 1;
        self.observe(usage);
        let capacity = self.link.units(self.link.capacity) as f64;
        for (state, claim) in self.states.iter().zip(&mut self.claims) {
            let Member { max, weight, .. } = state.member;
            let min = self.link.units_of_min(&state.member).map_or(0.0, |min| min as f64);
            *claim = Claim {
                wanted: state.limit.map_or(f64::INFINITY, |limit| state.demand.wanted(limit as f64, min)),
                min,
                max: max.map_or(capacity, |max| self.link.units(max) as f64).clamp(1.0, capacity.max(1.0)),
                weight: f64::from(weight.max(1)),
                tenant: claim.tenant,
                ..Claim::default()
            };
        }
        let probe = self.probe();
        share::share(capacity, self.link.lending, probe, &mut self.claims, &self.tenants);
        self.explain(capacity, probe);
        self.round(capacity);
        self.keep_what_is_near(capacity);
        self.give_out()
    }

    /// A limit of the last step could not be set: the limit before is still in force.
    pub fn not_set(&mut self, id: u16) {
        if let Some(state) = self.states.iter_mut().find(|s| s.member.id == id) {
            state.limit = state.before;
            self.counts.not_set += 1;
        }
    }

    /// Another program set a member's limit to this.
    pub fn found(&mut self, id: u16, limit: Rate) {
        let units = self.link.units(limit).max(1);
        if let Some(state) = self.states.iter_mut().find(|s| s.member.id == id) {
            state.limit = Some(units);
        }
    }

    /// The limit in force of a member is unknown from now on: the next step sets it again.
    pub fn forget(&mut self, id: u16) {
        if let Some(state) = self.states.iter_mut().find(|s| s.member.id == id) {
            state.limit = None;
        }
    }

    /// How each member stands, in the order they were given.
    pub fn standings(&self) -> impl ExactSizeIterator<Item = Standing> {
        self.states.iter().map(|state| Standing {
            id: state.member.id,
            limit: state.limit.map(|limit| self.link.rate(limit)),
            used: Rate::from_bits(((state.used * self.link.unit.bits() as f64) as u64).min(Rate::MAX.bits())),
            reason: state.reason,
            missed: state.missed,
        })
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The link that the controller divides.
    pub fn link(&self) -> &LinkTerms {
        &self.link
    }

    fn observe(&mut self, usage: &[Option<Usage>]) {
        let unit = self.link.unit.bits() as f64;
        for (index, state) in self.states.iter_mut().enumerate() {
            let sample = usage.get(index).copied().flatten().filter(|usage| !usage.elapsed.is_zero());
            let Some(Usage { bytes, elapsed }) = sample else {
                state.demand.miss();
                state.used = 0.0;
                state.missed += 1;
                self.counts.missed += 1;
                continue;
            };
            let units = |bytes: u64| bytes as f64 * 8.0 / elapsed.as_secs_f64() / unit;
            state.used = units(bytes);
            // What was sent under an unknown limit says nothing about what is wanted above it.
            if let Some(limit) = state.limit {
                // A counter that is a period late tells of the limit before.
                let limit = state.before.map_or(limit, |before| before.min(limit));
                state.demand.observe(state.used, units(self.link.frame.get()), limit as f64, elapsed);
            }
        }
    }

    /// Limit of a member that uses little, in units.
    fn probe(&self) -> f64 {
        let capacity = self.link.units(self.link.capacity) as f64;
        let all = PROBES * capacity / self.states.len().max(1) as f64;
        (PROBE * capacity).min(all).floor().max(1.0)
    }

    fn explain(&mut self, capacity: f64, probe: f64) {
        for (state, claim) in self.states.iter_mut().zip(&self.claims) {
            let full = |tenant: usize| {
                let tenant = &self.tenants[tenant];
                tenant.members.iter().map(|&i| self.claims[i].fair).sum::<f64>() > tenant.max - 1.0
            };
            state.reason = if state.limit.is_none() || !state.demand.is_known() {
                LimitReason::Unmeasured
            } else if !state.demand.wants_more() {
                if claim.wanted <= probe { LimitReason::Idle } else { LimitReason::Content }
            } else if claim.limit >= claim.max && claim.max < capacity {
                LimitReason::Max
            } else if claim.tenant.is_some_and(full) {
                LimitReason::Segment
            } else if claim.fair < claim.wanted || claim.limit >= claim.max {
                LimitReason::Share
            } else {
                LimitReason::Growing
            };
        }
    }

    /// Whole units: rounded down; the remainder goes by the largest fraction, so that a share's rounding does not depend
    /// on who wants more at the moment.
    fn round(&mut self, capacity: f64) {
        let mut remaining = capacity;
        for (state, claim) in self.states.iter_mut().zip(&mut self.claims) {
            // A hair below a whole number is that number, within the error of these sums.
            let whole = (claim.limit + 1e-6).floor().max(1.0);
            state.next = whole as u64;
            // From here on the claim's limit is what is left of it: less than a unit.
            (claim.limit, remaining) = (claim.limit - whole, remaining - whole);
        }
        // Fractions that are equal but for the error of these sums go by index.
        let claims = &self.claims;
        let fraction = |&index: &usize| (Reverse((claims[index].limit * 1e6).round() as i64), index);
        self.order.sort_unstable_by_key(fraction);
        for &index in &self.order {
            let claim = &self.claims[index];
            let room = |tenant: usize| {
                let tenant = &self.tenants[tenant];
                let together: u64 = tenant.members.iter().map(|&i| self.states[i].next).sum();
                together as f64 + 1.0 <= tenant.max
            };
            if remaining >= 1.0 && claim.limit > 1e-6 && claim.tenant.is_none_or(room) {
                self.states[index].next += 1;
                remaining -= 1.0;
            }
        }
    }

    /// Leaves a limit near its goal unchanged, unless a promise or another member's limit depends on it.
    fn keep_what_is_near(&mut self, capacity: f64) {
        for (state, claim) in self.states.iter_mut().zip(&mut self.claims) {
            // From here on the claim's limit is its goal.
            claim.limit = state.next as f64;
            if let Some(limit) = state.limit
                && is_near(limit as f64, claim, &state.demand)
            {
                state.next = limit;
            }
        }
        for tenant in &self.tenants {
            let members = tenant.members.iter().copied();
            let over = members.clone().map(|i| self.states[i].next).sum::<u64>() as f64 - tenant.max;
            lower(over, members, &mut self.states, &self.claims);
        }
        let over = self.states.iter().map(|s| s.next).sum::<u64>() as f64 - capacity;
        lower(over, 0..self.claims.len(), &mut self.states, &self.claims);
    }

    fn give_out(&mut self) -> &[Change] {
        self.changes.clear();
        for raised in [false, true] {
            for state in &mut self.states {
                if raised == state.limit.is_none_or(|limit| state.next >= limit) {
                    state.before = state.limit;
                    if state.limit != Some(state.next) {
                        self.changes.push(Change {
                            id: state.member.id,
                            from: state.limit.map(|limit| self.link.rate(limit)),
                            to: self.link.rate(state.next),
                        });
                    }
                }
            }
        }
        for state in &mut self.states {
            state.limit = Some(state.next);
        }
        self.counts.changes += self.changes.len() as u64;
        &self.changes
    }
}

/// Whether a limit in force may stay although the goal is another.
fn is_near(limit: f64, claim: &Claim, demand: &Demand) -> bool {
    let off = (limit - claim.limit).abs();
    let within_terms = limit >= claim.guaranteed.floor() && limit <= claim.max;
    if !demand.is_known() || demand.wants_more() {
        within_terms && off <= NEAR * limit
    } else {
        within_terms && off <= NEAR_ENOUGH * limit && demand.peak() <= FOLLOWED * limit
    }
}

/// Lowers limits that were kept to their goals, until so much less is given out. All of them are enough: the goals fit.
fn lower(mut over: f64, members: impl Iterator<Item = usize>, states: &mut [State], claims: &[Claim]) {
    for index in members {
        if over <= 0.0 {
            return;
        }
        let goal = claims[index].limit as u64;
        if states[index].next > goal {
            over -= (states[index].next - goal) as f64;
            states[index].next = goal;
        }
    }
}

//! Every order against a list of chains, given back as each is done, or as the first is.

use super::{AnyOrder, ById, Counts, InOrder, Journal, Order};
use crate::virtio::Single;
use crate::virtio::inflight::Record;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Takes a chain of so many places.
    Take(u16),
    TakeSingle,
    /// Puts the last chains back: those taken one by one, or singles.
    Forget(usize),
    ForgetSingles(usize),
    Complete {
        which: usize,
        len: u32,
    },
    /// Completes so many singles that were taken together.
    Run {
        first: usize,
        n: usize,
    },
    Show,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u16..4).prop_map(Step::Take),
        4 => Just(Step::TakeSingle),
        1 => (1usize..4).prop_map(Step::Forget),
        1 => (1usize..4).prop_map(Step::ForgetSingles),
        4 => (0usize..32, any::<u32>()).prop_map(|(which, len)| Step::Complete { which, len }),
        2 => (0usize..4, 1usize..5).prop_map(|(first, n)| Step::Run { first, n }),
        2 => Just(Step::Show),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    number: u16,
    token: u16,
    record: Record,
    single: bool,
    done: bool,
}

/// The model of an order.
struct Model {
    in_order: bool,
    size: u16,
    /// Popped, and not given back.
    chains: Vec<Chain>,
    /// Given back, and not shown.
    returned: Vec<Record>,
    next: u16,
}

impl Model {
    /// Returns an unused id and free places.
    fn room(&self, places: u16) -> Option<u16> {
        let records = || self.chains.iter().map(|chain| chain.record).chain(self.returned.iter().copied());
        let taken: u16 = records().map(|record| record.places).sum();
        let id = (0..self.size).rev().find(|id| records().all(|record| record.id != *id));
        id.filter(|_| taken + places <= self.size)
    }

    fn take(&mut self, token: Option<u16>, id: u16, places: u16, single: bool) {
        let token = token.expect("an id that is free");
        assert_eq!(token, if self.in_order { self.next } else { id });
        let number = self.next;
        self.next = number.wrapping_add(1);
        let record = Record { id, places, len: 0 };
        self.chains.push(Chain { number, token, record, single, done: false });
    }

    /// Takes the last chains out, if possible: of one kind, none done, none popped since.
    fn forget(&mut self, n: usize, single: bool) -> Vec<Chain> {
        let last = |(i, chain): &(u16, &Chain)| {
            chain.single == single && !chain.done && chain.number == self.next.wrapping_sub(1 + i)
        };
        let n = (0..).zip(self.chains.iter().rev().take(n)).take_while(last).count();
        self.next = self.next.wrapping_sub(n as u16);
        self.chains.split_off(self.chains.len() - n)
    }

    /// Returns the chains given back by a completion.
    fn complete(&mut self, token: u16, len: u32) -> Vec<Record> {
        let at = self.chains.iter().position(|chain| chain.token == token).expect("in flight");
        let mut out = Vec::new();
        (self.chains[at].done, self.chains[at].record.len) = (true, len);
        if self.in_order {
            while self.chains.first().is_some_and(|chain| chain.done) {
                out.push(self.chains.remove(0).record);
            }
        } else {
            out.push(self.chains.remove(at).record);
        }
        self.returned.extend(&out);
        out
    }
}

/// `journal` checks the unshown chains, if the order knows them; `transmit`: no lengths.
fn holds<O: Order>(
    mut order: O,
    (size, first, transmit): (u16, u16, bool),
    most_places: u16,
    steps: Vec<Step>,
    journal: impl Fn(&O) -> Option<Vec<Record>>,
) -> Result<(), TestCaseError> {
    let mut model =
        Model { in_order: O::IN_ORDER, size, chains: Vec::new(), returned: Vec::new(), next: first };
    for step in steps {
        match step {
            Step::Take(places) => {
                let places = places.min(most_places);
                let Some(id) = model.room(places) else { continue };
                model.take(order.take(id, places), id, places, false);
            }
            Step::TakeSingle => {
                let Some(id) = model.room(1) else { continue };
                let token = order.take_single(0, id);
                order.count_singles(1);
                model.take(token, id, 1, true);
            }
            Step::Forget(n) => {
                let gone = model.forget(n, false);
                let mut ids = Vec::new();
                let places = order.forget(gone.len() as u16, |id| ids.push(id));
                prop_assert_eq!(places, gone.iter().map(|chain| chain.record.places).sum::<u16>());
                if !ids.is_empty() {
                    prop_assert!(ids.iter().eq(gone.iter().rev().map(|chain| &chain.record.id)));
                }
            }
            Step::ForgetSingles(n) => {
                let single = |chain: Chain| Single { head: chain.token, ..Single::EMPTY };
                let gone: Vec<Single> = model.forget(n, true).into_iter().map(single).collect();
                order.forget_singles(&gone);
            }
            Step::Complete { which, len } => {
                let open: Vec<u16> =
                    model.chains.iter().filter(|chain| !chain.done).map(|chain| chain.token).collect();
                if open.is_empty() {
                    continue;
                }
                let (token, len) = (open[which % open.len()], if transmit { 0 } else { len });
                let mut out = Vec::new();
                order.complete(std::iter::once((token, len)), |record| out.push(record));
                prop_assert_eq!(out, model.complete(token, len));
            }
            Step::Run { first, n } => {
                let run = model.chains.iter().skip(first).take(n);
                let run: Vec<Chain> = run.take_while(|chain| chain.single && !chain.done).copied().collect();
                let Some(oldest) = run.first() else { continue };
                let behind = model.chains.get(first + run.len());
                let alone = first == 0 && behind.is_none_or(|chain| !chain.done);
                let done = order.complete_run(oldest.token, run.len() as u16);
                prop_assert_eq!(done, O::IN_ORDER && transmit && alone);
                if done {
                    run.iter().for_each(|chain| _ = model.complete(chain.token, 0));
                }
            }
            Step::Show => {
                if !model.returned.is_empty() && O::IN_ORDER && transmit {
                    prop_assert_eq!(order.id_for_all(), model.returned.last().map(|record| record.id));
                } else if !(O::IN_ORDER && transmit) {
                    prop_assert_eq!(order.id_for_all(), None);
                }
                order.show();
                model.returned.clear();
            }
        }
        let Counts { popped, returned, shown } = order.counts();
        prop_assert_eq!(popped, model.next);
        prop_assert_eq!(usize::from(popped.wrapping_sub(returned)), model.chains.len());
        prop_assert_eq!(usize::from(returned.wrapping_sub(shown)), model.returned.len());
        let done = model.chains.iter().filter(|chain| chain.done).count() as u16;
        prop_assert_eq!(order.held_back(), O::IN_ORDER.then_some((returned, done)));
        for chain in &model.chains {
            prop_assert_eq!(order.id_of(chain.token), chain.record.id);
        }
        if let Some(unshown) = journal(&order) {
            prop_assert_eq!(&unshown, &model.returned);
        }
    }
    Ok(())
}

fn unshown<O: Journal>(order: &O) -> Option<Vec<Record>> {
    Some(order.unshown().map(Record::unpack).collect())
}

proptest! {
    #[test]
    fn an_order_is_a_list_of_chains(
        size in 1u16..20,
        split_size in 0u32..5,
        first in prop_oneof![any::<u16>(), u16::MAX - 8..=u16::MAX],
        transmit in any::<bool>(),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let (any, split, counts) = ((size, first, transmit), 1 << split_size, Counts::at(first));
        holds(AnyOrder::new(split, counts, transmit), (split, first, transmit), 1, steps.clone(), |_| None)?;
        holds(InOrder::<()>::new(split, counts, transmit), (split, first, transmit), 1, steps.clone(), unshown)?;
        holds(ById::new(size, counts, transmit), any, size, steps.clone(), unshown)?;
        holds(InOrder::<u16>::new(size, counts, transmit), any, size, steps, unshown)?;
    }

    /// Chains that a predecessor gave back are shown first.
    #[test]
    fn restored_chains_come_first(size in 2u16..20, count in 1u16..20, len in any::<u32>()) {
        let records: Vec<_> = (0..count.min(size)).map(|id| Record { id, places: 1, len }).collect();
        fn check<O: Journal>(mut order: O, records: &[Record]) -> Result<(), TestCaseError> {
            records.iter().for_each(|record| order.restore(*record));
            prop_assert_eq!(unshown(&order).unwrap(), records);
            prop_assert_eq!(order.counts().in_flight(), 0);
            let token = order.take(0, 1).unwrap();
            let mut out = Vec::new();
            order.complete(std::iter::once((token, 7)), |record| out.push(record));
            prop_assert_eq!(out, [Record { id: 0, places: 1, len: 7 }]);
            Ok(())
        }
        check(ById::new(size + 1, Counts::at(0), false), &records)?;
        check(InOrder::<u16>::new(size + 1, Counts::at(0), false), &records)?;
    }
}

#[test]
fn ids_that_cannot_be_are_refused() {
    let (mut by_id, mut in_order) =
        (ById::new(5, Counts::at(0), true), InOrder::<u16>::new(5, Counts::at(0), true));
    for id in [5, 7, 8, u16::MAX] {
        assert_eq!((by_id.take(id, 1), by_id.take_single(0, id), in_order.take(id, 1)), (None, None, None));
    }
    assert_eq!((by_id.take(4, 2), by_id.take(4, 1), by_id.take_single(0, 4)), (Some(4), None, None));
}

#[test]
fn the_oldest_holds_the_others_back() {
    let mut order = InOrder::<()>::new(5, Counts::at(u16::MAX - 1), false);
    let ids = |order: &mut InOrder<()>, number: u16| {
        let mut ids = Vec::new();
        order.complete(std::iter::once((number, 0)), |record| ids.push(record.id));
        ids
    };
    let [a, b, c] = [4, 2, 3].map(|id| order.take(id, 1).unwrap());
    assert_eq!((a, b, c), (u16::MAX - 1, u16::MAX, 0));
    assert_eq!(ids(&mut order, c), [0; 0]);
    assert_eq!(ids(&mut order, b), [0; 0]);
    assert_eq!((order.held_back(), order.counts().in_flight()), (Some((a, 2)), 3));
    let d = order.take(1, 1).unwrap();
    assert_eq!(ids(&mut order, a), [4, 2, 3]);
    assert_eq!((order.held_back(), order.counts().in_flight()), (Some((d, 0)), 1));
    assert_eq!(ids(&mut order, d), [1]);
}

/// Entries are as small as possible.
#[test]
fn an_entry_has_two_bytes_or_four() {
    use super::in_order::TakenChain;
    assert_eq!((size_of::<TakenChain<()>>(), size_of::<TakenChain<u16>>()), (2, 4));
}

/// A batch is numbered before it is counted.
#[test]
fn singles_are_taken_one_after_the_other() {
    let mut order = InOrder::<u16>::new(8, Counts::at(u16::MAX), true);
    let tokens: Vec<u16> = (0..4).map(|nth| order.take_single(nth, 7 - nth).unwrap()).collect();
    assert_eq!((tokens.as_slice(), order.counts().in_flight()), (&[u16::MAX, 0, 1, 2][..], 0));
    order.count_singles(3);
    assert_eq!(order.take(0, 2), Some(2), "the fourth was not counted");
    assert_eq!([tokens[0], tokens[1], tokens[2], 2].map(|token| order.id_of(token)), [7, 6, 5, 0]);
}

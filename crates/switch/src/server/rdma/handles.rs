//! Address handles of peers, kept while they are wanted. Pure: others make them.
//!
//! ```text
//!  wanted addresses, time ─▶ Handles ─ make ─▶ one for each traffic class ─▶ members of that peer
//!                              └▶ none: the reason, and a pause
//! ```
//!
//! A handle holds the link-layer address that its peer had when it was made, so each is made anew after a while. Making one may wait
//! for the network's answer: not for workers, and not under a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// How long a handle is used (ns).
const AGE: u64 = 60_000_000_000;
/// Pause after a failure (ns).
const PAUSE: u64 = 5_000_000_000;

/// Handles of peers, `N` for each.
#[derive(Debug)]
pub struct Handles<T, const N: usize>(BTreeMap<IpAddr, Entry<T, N>>);

#[derive(Debug)]
struct Entry<T, const N: usize> {
    made: Option<[T; N]>,
    /// Why the last attempt failed.
    error: Option<String>,
    /// When the next attempt is due (ns).
    due: u64,
}

impl<T, const N: usize> Default for Handles<T, N> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone, const N: usize> Handles<T, N> {
    /// Sets the peers whose handles are wanted, and forgets those of others.
    pub fn want(&mut self, wanted: &BTreeSet<IpAddr>) {
        self.0.retain(|address, _| wanted.contains(address));
        for address in wanted {
            self.0.entry(*address).or_insert(Entry { made: None, error: None, due: 0 });
        }
    }

    /// Makes the handles of one peer that are missing or old at `now` (ns), those that are due first. If they cannot be made
    /// anew, the old ones stay. Returns whether there are new ones.
    pub fn refresh<E: ToString>(&mut self, now: u64, make: impl Fn(IpAddr, usize) -> Result<T, E>) -> bool {
        let first = self.0.iter_mut().min_by_key(|(_, entry)| entry.due);
        let Some((address, entry)) = first.filter(|(_, entry)| entry.due <= now) else { return false };
        // The first failure ends the attempt: each may take a second.
        let made: Result<Vec<T>, E> = (0..N).map(|at| make(*address, at)).collect();
        match made.map(<[T; N]>::try_from) {
            Ok(Ok(made)) => *entry = Entry { made: Some(made), error: None, due: now + AGE },
            Ok(Err(_)) => return false,
            Err(error) => {
                (entry.error, entry.due) = (Some(error.to_string()), now + PAUSE);
                return false;
            }
        }
        true
    }

    /// Makes all anew at the next [`refresh`](Self::refresh).
    pub fn expire(&mut self) {
        self.0.values_mut().for_each(|entry| entry.due = 0);
    }

    /// Returns a peer's.
    ///
    /// # Errors
    /// Why it has none.
    pub fn of(&self, address: IpAddr) -> Result<&[T; N], &str> {
        let Some(entry) = self.0.get(&address) else { return Err("its address handles are not made yet") };
        let why = entry.error.as_deref().unwrap_or("its address handles are not made yet");
        entry.made.as_ref().ok_or(why)
    }

    /// Returns when the next attempt is due (ns).
    pub fn due(&self) -> Option<u64> {
        self.0.values().map(|entry| entry.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    #[test]
    fn handles_are_made_once_kept_made_anew_and_forgotten() {
        let [a, b] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let (made, works) = (RefCell::new(vec![]), Cell::new(true));
        let mut handles = Handles::<u64, 2>::default();
        let refresh = |handles: &mut Handles<u64, 2>, wanted: &[IpAddr], now| {
            let make = |address, at| {
                made.borrow_mut().push((address, at));
                if works.get() { Ok(now) } else { Err("no route") }
            };
            handles.want(&wanted.iter().copied().collect());
            (handles.refresh(now, make), made.take().len())
        };
        assert_eq!(refresh(&mut handles, &[a, b], 1), (true, 2), "one peer at a time");
        assert_eq!((handles.of(a), handles.of(b).is_err()), (Ok(&[1, 1]), true));
        assert_eq!(refresh(&mut handles, &[a, b], 2), (true, 2));
        assert_eq!(refresh(&mut handles, &[a, b], 3), (false, 0));
        assert_eq!((handles.of(a), handles.of(b)), (Ok(&[1, 1]), Ok(&[2, 2])));
        assert_eq!(refresh(&mut handles, &[a, b], 1 + AGE), (true, 2), "one is old");
        assert_eq!(handles.of(a), Ok(&[1 + AGE; 2]));
        works.set(false);
        assert_eq!(refresh(&mut handles, &[a, b], 2 + AGE), (false, 1), "the first failure ends it");
        assert_eq!(handles.of(b), Ok(&[2, 2]), "an old one is better than none");
        assert_eq!(refresh(&mut handles, &[a, b], 3 + AGE), (false, 0), "after a pause");
        assert_eq!(refresh(&mut handles, &[a], 3 + AGE), (false, 0));
        assert!(handles.of(b).is_err());
        assert_eq!(refresh(&mut handles, &[b], 3 + AGE), (false, 1));
        assert_eq!(handles.of(b), Err("no route"));
        assert_eq!(handles.due(), Some(3 + AGE + PAUSE));
        handles.expire();
        works.set(true);
        assert_eq!(refresh(&mut handles, &[b], 4 + AGE), (true, 2));
        assert!(handles.of(b).is_ok());
    }
}

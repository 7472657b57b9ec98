//! Where the bytes of a datagram are: its beginning in a send buffer, its rest in a guest's registered memory. Pure.
//!
//! ```text
//!  head │ body: span ▪ span ▪▪ span                 spans of a frame, or a segment's slices of them
//!       └ not registered: copied ─┐   └─ registered: places, neighbours as one
//!  send buffer │ header │ head │ copied │ ─▶ place ─▶ place ─▶ ...       at most MOST
//! ```
//!
//! Only the spans that come first may be copied: the bytes of a super-frame that were copied with its headers.

use crate::frame::HEADER_MAX;
use crate::virtio::Span;

/// Most places of a datagram, beside its send buffer.
pub const MOST: usize = 7;

/// Bytes of a guest's region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// First byte in the region.
    pub from: usize,
    /// Bytes.
    pub len: u32,
    /// Number of the region.
    pub region: u16,
}

/// The places of a datagram's rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    places: [Place; MOST],
    count: u8,
}

impl Places {
    /// Returns the places, in order.
    #[inline]
    pub fn as_slice(&self) -> &[Place] {
        &self.places[..usize::from(self.count)]
    }

    /// Adds a place; `false` if there are [too many](MOST).
    #[inline]
    fn push(&mut self, place: Place) -> bool {
        if let Some(last) = self.places[..usize::from(self.count)].last_mut()
            && (last.region, last.from + last.len as usize) == (place.region, place.from)
            && let Some(len) = last.len.checked_add(place.len)
        {
            last.len = len;
            return true;
        }
        let Some(next) = self.places.get_mut(usize::from(self.count)) else { return false };
        *next = place;
        self.count += 1;
        true
    }
}

/// Why a datagram is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// There is nothing but what is copied anyway.
    Short,
    /// It has more places than [`MOST`].
    Scattered,
    /// A part of it is not registered.
    Elsewhere,
}

/// Finds the places of a body into `places`, which is empty, and returns how many bytes before them are to be copied. `find`
/// tells the place of a span.
///
/// # Errors
/// All has to be copied.
#[inline]
pub fn gather(
    body: &[Span],
    places: &mut Places,
    mut find: impl FnMut(&Span) -> Option<Place>,
) -> Result<usize, Copied> {
    let mut copied = 0;
    for span in body.iter().filter(|span| span.len > 0) {
        match find(span) {
            Some(place) if places.push(place) => {}
            Some(_) => return Err(Copied::Scattered),
            None if places.count > 0 => return Err(Copied::Elsewhere),
            None => copied += span.len as usize,
        }
    }
    match places.count {
        0 if copied <= HEADER_MAX => Err(Copied::Short),
        _ if copied <= HEADER_MAX => Ok(copied),
        _ => Err(Copied::Elsewhere),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of the test's memory; the registered regions are in it.
    const SIZE: usize = 4096;
    const REGIONS: [std::ops::Range<usize>; 3] = [512..1024, 1024..2048, 3000..4000];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// The copied bytes and those at the places are the body's, for any spans; if there are none, it is for a reason.
        #[test]
        fn gathered_bytes_are_those_of_the_body(
            spans in prop::collection::vec((0..SIZE, prop_oneof![0..20usize, 0..300usize], any::<bool>()), 0..12),
        ) {
            let mut memory: Vec<u8> = (0..SIZE).map(|at| (at * 7 + at / 256) as u8).collect();
            let start = memory.as_mut_ptr();
            let mut ranges: Vec<std::ops::Range<usize>> = vec![];
            for (from, len, follows) in spans {
                let from = ranges.last().filter(|_| follows).map_or(from, |last| last.end);
                ranges.push(from..(from + len).min(SIZE));
            }
            let span = |range: &std::ops::Range<usize>| {
                Span { ptr: start.wrapping_add(range.start), len: range.len() as u32 }
            };
            let find = |span: &Span| {
                let from = span.ptr.addr() - start.addr();
                let has = |region: &std::ops::Range<usize>| region.start <= from && from + span.len as usize <= region.end;
                let region = REGIONS.iter().position(has)?;
                Some(Place { from: from - REGIONS[region].start, len: span.len, region: region as u16 })
            };
            let body: Vec<Span> = ranges.iter().map(span).collect();
            let mut places = Places::default();
            let gathered = gather(&body, &mut places, find);
            let full: Vec<_> = body.iter().filter(|span| span.len > 0).collect();
            let unregistered = full.iter().take_while(|span| find(span).is_none()).count();
            let (before, rest) = full.split_at(unregistered);
            let copied: usize = before.iter().map(|span| span.len as usize).sum();
            let all_are = rest.iter().all(|span| find(span).is_some());
            match gathered {
                Ok(count) => {
                    prop_assert!(all_are && !rest.is_empty() && count == copied && count <= HEADER_MAX);
                    let whole: Vec<u8> = ranges.iter().flat_map(|range| memory[range.clone()].to_vec()).collect();
                    let mut got = whole[..count].to_vec();
                    for place in places.as_slice() {
                        let from = REGIONS[usize::from(place.region)].start + place.from;
                        prop_assert!(from + place.len as usize <= REGIONS[usize::from(place.region)].end);
                        got.extend(&memory[from..from + place.len as usize]);
                    }
                    prop_assert_eq!(got, whole);
                    prop_assert!(places.as_slice().len() <= rest.len());
                }
                Err(Copied::Short) => prop_assert!(rest.is_empty() && copied <= HEADER_MAX),
                Err(Copied::Scattered) => prop_assert!(rest.len() > MOST),
                Err(Copied::Elsewhere) => prop_assert!(!all_are || copied > HEADER_MAX),
            }
        }
    }

    #[test]
    fn neighbours_of_one_region_are_one_place() {
        let find = |span: &Span| {
            let at = span.ptr.addr();
            Some(Place { from: at % 1000, len: span.len, region: (at / 1000) as u16 })
        };
        let body: Vec<_> =
            (0..20).map(|n| Span { ptr: std::ptr::without_provenance_mut(n * 100), len: 100 }).collect();
        let mut places = Places::default();
        assert_eq!(gather(&body, &mut places, find), Ok(0));
        let expected = [0, 1].map(|region| Place { from: 0, len: 1000, region });
        assert_eq!(places.as_slice(), expected);
    }
}

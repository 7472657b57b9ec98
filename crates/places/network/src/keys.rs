//! Keys of segments that the controller gives: checked, on disk for a start without it, and in the ring of the agent.
//!
//! ```text
//!  start ─▶ segment-keys.json, mode 0600 ─┐
//!  controller ─▶ checked (pure) ──────────┴▶ KeyRing ─▶ agent ─▶ host switch
//!                  └▶ segment-keys.json
//! ```
//!
//! A file that cannot be read is as none: the controller gives them again. No log and no error has a key.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_contract::{SecretKey, Segment, SegmentKey};
use tidegate_controller_api as api;
use tidegate_place::KeyRing;

/// Its name in the state folder.
const FILE: &str = "segment-keys.json";
/// Largest file (bytes): 1,024 segments take less.
const LARGEST: u64 = 1 << 20;
/// Least and greatest time between two requests: a hasty controller is not asked all the time, nor never.
const REFRESH: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(3600));

/// The keys, for the thread that asks.
#[derive(Clone, Debug)]
pub struct Keys {
    ring: KeyRing,
    path: PathBuf,
    /// As they are on disk.
    saved: Arc<Mutex<Vec<SegmentKey>>>,
}

impl Keys {
    /// Reads the keys of an earlier agent into the ring.
    pub fn load(state: &Path, ring: KeyRing) -> Self {
        let path = state.join(FILE);
        let saved = read(&path).unwrap_or_else(|why| {
            tracing::warn!(
                "{} is not used, and the network's controller is asked again: {why}",
                path.display()
            );
            vec![]
        });
        ring.tell(saved.clone());
        Self { ring, path, saved: Arc::new(Mutex::new(saved)) }
    }

    /// Returns the segments whose keys are wanted.
    pub fn wanted(&self) -> BTreeSet<Segment> {
        self.ring.wanted()
    }

    /// Takes in what the controller gives; returns when to ask again.
    pub fn take(&self, given: &api::SegmentKeys) -> Duration {
        let (keys, faults) = checked(given, &self.wanted());
        for (segment, why) in faults {
            tracing::warn!(
                "the network's controller gives no key of segment {segment} that can be used: {why}"
            );
        }
        self.ring.tell(keys.clone());
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if *saved != keys {
            match write(&self.path, &keys) {
                Ok(()) => *saved = keys,
                Err(error) => {
                    tracing::error!(%error, "{} cannot be written; trying again soon", self.path.display())
                }
            }
        }
        Duration::from_nanos(given.refresh).clamp(REFRESH.0, REFRESH.1)
    }
}

/// Returns the wanted keys that stamps can have, and why others are left out.
fn checked(
    given: &api::SegmentKeys,
    wanted: &BTreeSet<Segment>,
) -> (Vec<SegmentKey>, Vec<(Segment, &'static str)>) {
    let (mut keys, mut faults, mut missing) = (Vec::new(), Vec::new(), wanted.clone());
    for one in &given.segments {
        let Some(segment) = Segment::new(one.segment).filter(|segment| missing.remove(segment)) else {
            continue;
        };
        let next = one.next.as_ref().map(|next| SecretKey::parse(next.as_bytes()));
        match (SecretKey::parse(one.key.as_bytes()), next) {
            (None, _) | (_, Some(None)) => faults.push((segment, "it has not 32 hex digits")),
            (Some(key), Some(Some(next))) if key.is_odd() == next.is_odd() => {
                // Stamps tell their key by this bit.
                faults.push((segment, "its last hex digit is even in both keys, or odd in both"));
            }
            (Some(key), next) => keys.push(SegmentKey { segment, key, next: next.flatten() }),
        }
    }
    faults.extend(missing.into_iter().map(|segment| (segment, "this host may not have it")));
    keys.sort_by_key(|key| key.segment);
    (keys, faults)
}

fn read(path: &Path) -> Result<Vec<SegmentKey>, String> {
    let opened = OpenOptions::new().read(true).custom_flags(NO_LINK).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        other => other.map_err(|error| error.to_string())?,
    };
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() || metadata.len() > LARGEST || metadata.mode() & 0o077 != 0 {
        return Err("expected a file of mode 0600 and at most 1 MiB".into());
    }
    // The words of the parser could quote a key.
    serde_json::from_reader(io::BufReader::new(file)).map_err(|_| "it is damaged".into())
}

/// O_NOFOLLOW (open(2)) of Linux.
const NO_LINK: i32 = 0o400_000;

fn write(path: &Path, keys: &[SegmentKey]) -> io::Result<()> {
    let new = path.with_extension("new");
    // One of ours is left if its process died.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(keys)?)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVEN: &str = "00112233445566778899aabbccddeef0";
    const ODD: &str = "00112233445566778899aabbccddeef1";

    fn segment(id: u32) -> Segment {
        Segment::new(id).expect("in range")
    }

    fn given(all: &[(u32, &str, Option<&str>)]) -> api::SegmentKeys {
        let one = |(segment, key, next): &(u32, &str, Option<&str>)| api::SegmentKey {
            segment: *segment,
            key: (*key).into(),
            next: next.map(Into::into),
        };
        api::SegmentKeys { segments: all.iter().map(one).collect(), refresh: 60_000_000_000 }
    }

    #[test]
    fn keys_are_there_after_a_start_without_the_controller() {
        let folder = tempfile::tempdir().unwrap();
        let ring = KeyRing::default();
        ring.want([segment(100), segment(7)].into());
        let keys = Keys::load(folder.path(), ring.clone());
        assert_eq!(ring.key(segment(100)), None);
        let pause = keys.take(&given(&[(100, EVEN, None), (200, EVEN, None), (7, ODD, Some(EVEN))]));
        assert_eq!(pause, Duration::from_secs(60));
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);

        let ring = KeyRing::default();
        let keys = Keys::load(folder.path(), ring.clone());
        let known = |id: u32| ring.key(segment(id)).map(|key| String::from(key.key));
        assert_eq!((known(100).as_deref(), known(200), known(7).as_deref()), (Some(EVEN), None, Some(ODD)));
        assert!(ring.key(segment(7)).unwrap().next.is_some());

        // The next one takes its place; a segment that this host may not have any more is gone, also from disk.
        ring.want([segment(100), segment(7)].into());
        keys.take(&given(&[(100, ODD, Some(EVEN))]));
        assert_eq!((known(100).as_deref(), known(7)), (Some(ODD), None));
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(text.contains(ODD) && !text.contains("\"segment\":7"));

        fs::write(folder.path().join(FILE), "{").unwrap();
        let ring = KeyRing::default();
        Keys::load(folder.path(), ring.clone());
        assert_eq!(ring.key(segment(100)), None, "damaged");
    }

    proptest! {
        /// Whatever is given: only wanted keys that stamps can tell apart are used, and each other one is named.
        #[test]
        fn only_usable_keys_are_used(all in prop::collection::vec((0u32..4, "[0-9a-f]{31,33}", prop::option::of("[0-9a-f]{32}")), 0..6)) {
            let wanted: BTreeSet<Segment> = [1, 2].map(segment).into();
            let segments = all.into_iter().map(|(segment, key, next)| api::SegmentKey { segment, key, next }).collect();
            let (keys, faults) = checked(&api::SegmentKeys { segments, refresh: 0 }, &wanted);
            let named: BTreeSet<Segment> =
                keys.iter().map(|key| key.segment).chain(faults.iter().map(|(segment, _)| *segment)).collect();
            prop_assert_eq!(named, wanted);
            prop_assert_eq!(keys.len() + faults.len(), 2);
            prop_assert!(keys.iter().all(|key| key.next.is_none_or(|next| next.is_odd() != key.key.is_odd())));
        }
    }
}

//! Calibrated costs on disk: those of another machine or kernel, and damaged ones, are not used.

use rustix::system::uname;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tidegate_cores::costs::{Costs, Source};
use tidegate_durable::{DurableError, StateFile};

/// The file's name, in the agent's state folder.
pub const NAME: &str = "cores-costs.json";
/// Where `tidegate cores calibrate` writes: the default state folder of the agent.
pub const COSTS: &str = "/var/lib/tidegate/cores-costs.json";
/// A longer file is none of ours, bytes.
const LARGEST: u64 = 64 * 1024;

/// The costs in force, read again when the file changes.
#[derive(Debug)]
pub struct Current {
    path: PathBuf,
    /// Inode, length and time of the file that was read; the first look reads.
    read: Option<Option<(u64, u64, SystemTime)>>,
    costs: Costs,
}

impl Current {
    /// Reads nothing yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: None, costs: Costs::priors() }
    }

    /// Returns the costs; logs why a file is not used, once for each content of it.
    pub fn look(&mut self) -> &Costs {
        let of = |path: &Path| {
            let about = fs::symlink_metadata(path).ok()?;
            Some((about.ino(), about.len(), about.modified().ok()?))
        };
        let now = of(&self.path);
        if self.read != Some(now) {
            let (costs, reason) = read(&self.path);
            if let Some(reason) = reason {
                tracing::warn!("measured costs of CPUs are not used: {reason}");
            }
            self.costs = costs;
            // Reading moves a damaged file aside.
            self.read = Some(of(&self.path));
        }
        &self.costs
    }
}

/// Replaces the file; its old content stays where that fails.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, costs: &Costs) -> Result<(), DurableError> {
    StateFile::new(path.into()).save(costs)
}

/// Reads the costs for this machine and kernel: the calibrated ones, or the priors. Says why a file that exists is not used.
pub fn read(path: &Path) -> (Costs, Option<String>) {
    read_for(path, &machine(), &kernel())
}

fn read_for(path: &Path, machine: &str, kernel: &str) -> (Costs, Option<String>) {
    let shown = path.display();
    let again = "run `tidegate cores calibrate` again";
    let priors = |reason: Option<String>| (Costs::priors(), reason);
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            // The copy before it may be there; a calibration that was removed is not to come back.
            return priors(None);
        }
        Err(e) => return priors(Some(format!("cannot read {shown}: {e}"))),
        Ok(of) if !of.is_file() => return priors(Some(format!("{shown} is no regular file: {again}"))),
        Ok(of) if of.len() > LARGEST => {
            return priors(Some(format!("{shown} has {} bytes, more than costs take: {again}", of.len())));
        }
        Ok(_) => {}
    }
    let loaded = match StateFile::new(path.into()).load::<Costs>() {
        Ok(loaded) => loaded,
        Err(e) => return priors(Some(e.to_string())),
    };
    if let Some(damage) = loaded.damage {
        return priors(Some(format!("{damage}; {again}")));
    }
    let Some(costs) = loaded.value else { return priors(None) };
    if let Err(reason) = costs.check() {
        return priors(Some(format!("{shown}: {reason}: {again}")));
    }
    match &costs.source {
        Source::Measured { machine: of, kernel: under, .. } if of == machine && under == kernel => {
            (costs, None)
        }
        Source::Measured { machine: of, kernel: under, .. } => {
            let of = format!("{of} with kernel {under}, this is {machine} with kernel {kernel}");
            priors(Some(format!("{shown} was measured on {of}: {again}")))
        }
        Source::Priors => priors(Some(format!("{shown} says nothing measured: {again}"))),
    }
}

/// Returns the name of this machine: its processor, and the number of its CPUs.
pub fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    named(&cpuinfo)
}

fn named(cpuinfo: &str) -> String {
    let values = |key: &str| {
        let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let values = lines.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned());
        values.collect::<Vec<_>>()
    };
    let model = values("model name").into_iter().next().unwrap_or_else(|| "unknown processor".into());
    let model: String = model.chars().filter(|c| !c.is_control()).take(100).collect();
    format!("{model}, {} CPUs", values("processor").len())
}

/// Returns the release of the running kernel.
pub fn kernel() -> String {
    uname().release().to_string_lossy().chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(machine: &str, kernel: &str) -> Costs {
        let source = Source::Measured { machine: machine.into(), kernel: kernel.into(), at: 1 };
        Costs { sibling: 123, source, ..Costs::priors() }
    }

    #[test]
    fn only_an_undamaged_file_of_this_machine_and_kernel_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("costs.json");
        let read = || read_for(&path, "m, 2 CPUs", "6.1");
        assert_eq!(read(), (Costs::priors(), None));
        write(&path, &costs("m, 2 CPUs", "6.1")).unwrap();
        assert_eq!(read(), (costs("m, 2 CPUs", "6.1"), None));
        let refused = |expected: &str| {
            let (costs, reason) = read();
            assert_eq!(costs, Costs::priors());
            let reason = reason.unwrap();
            assert!(reason.contains(expected), "{reason}");
        };
        write(&path, &costs("m, 2 CPUs", "6.2")).unwrap();
        refused("measured on m, 2 CPUs with kernel 6.2, this is m, 2 CPUs with kernel 6.1");
        write(&path, &costs("other, 2 CPUs", "6.1")).unwrap();
        refused("calibrate");
        let hostile = Costs { sibling: 1_001, ..costs("m, 2 CPUs", "6.1") };
        write(&path, &hostile).unwrap();
        refused("sibling is 1001");
        fs::write(&path, vec![b' '; 70_000]).unwrap();
        refused("70000 bytes");
        fs::write(&path, b"{\"version\":2,").unwrap();
        refused("damaged");
        fs::remove_file(&path).ok();
        fs::create_dir(&path).unwrap();
        refused("no regular file");
    }

    #[test]
    fn a_new_calibration_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let mut current = Current::new(path.clone());
        assert_eq!(current.look(), &Costs::priors());
        write(&path, &costs(&machine(), &kernel())).unwrap();
        assert_eq!(current.look().sibling, 123);
        let other = Costs { sibling: 77, ..costs(&machine(), &kernel()) };
        write(&path, &other).unwrap();
        assert_eq!(current.look(), &other);
        fs::remove_file(&path).unwrap();
        assert_eq!(current.look(), &Costs::priors());
    }

    #[test]
    fn the_machine_has_a_name() {
        assert_eq!(
            named("processor\t: 0\nmodel name\t: AMD\u{7} EPYC\nprocessor\t: 1\nmodel name\t: x\n"),
            "AMD EPYC, 2 CPUs"
        );
        assert_eq!(named(""), "unknown processor, 0 CPUs");
        assert!(!kernel().is_empty());
    }
}

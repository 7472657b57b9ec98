//! Where settings are read and written.

use crate::roots;
use crate::settings::setting::Setting;
use crate::settings::step::Found;
use crate::settings::sysfs::Sysfs;
use crate::settings::{irq, thread};
use tidegate_cores::cpus::Cpus;
use tidegate_paths::Roots;

/// Reads and writes settings.
pub trait Files {
    /// Returns a setting's state; `None` if it is gone.
    ///
    /// # Errors
    /// It cannot be read; the reason.
    fn read(&mut self, setting: &Setting) -> Result<Option<Found>, String>;

    /// Sets it.
    ///
    /// # Errors
    /// It cannot be written; the reason.
    fn write(&mut self, setting: &Setting, value: &str) -> Result<(), String>;

    /// Returns the CPUs that are online; `None` if that is not known.
    fn online(&self) -> Option<Cpus> {
        None
    }

    /// Whether a setting could not be read because its network namespace is gone.
    fn is_gone(&self, _setting: &Setting) -> bool {
        false
    }
}

/// The settings of this machine.
pub struct Kernel<'a>(Sysfs<'a>);

impl<'a> Kernel<'a> {
    /// Opens nothing yet. Namespaces are opened below `roots`.
    pub fn new(roots: &'a Roots) -> Self {
        Self(Sysfs::new(roots))
    }
}

impl Files for Kernel<'_> {
    fn read(&mut self, setting: &Setting) -> Result<Option<Found>, String> {
        match setting {
            Setting::Rps { .. } | Setting::Xps { .. } | Setting::Resume { .. } => self.0.read(setting),
            Setting::Affinity(of) => thread::affinity(of),
            Setting::Nice(of) => thread::nice(of),
            Setting::Irq { number } => irq::read(*number),
        }
    }

    fn write(&mut self, setting: &Setting, value: &str) -> Result<(), String> {
        match setting {
            Setting::Rps { .. } | Setting::Xps { .. } | Setting::Resume { .. } => {
                self.0.write(setting, value)
            }
            Setting::Affinity(of) => thread::set_affinity(of, value),
            Setting::Nice(of) => thread::set_nice(of, value),
            Setting::Irq { number } => irq::write(*number, value),
        }
    }

    fn online(&self) -> Option<Cpus> {
        roots::list("/sys/devices/system/cpu/online").filter(|online| !online.is_empty())
    }

    fn is_gone(&self, setting: &Setting) -> bool {
        self.0.is_gone(setting)
    }
}

//! The NICs of a network namespace: look at them, and change them step by step.

use crate::counters::Counted;
use crate::pf::Pf;
use crate::step::Step;
use std::collections::BTreeMap;
use tidegate_netlink::{NetlinkError, Socket};

/// Why it cannot be told what is there.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The kernel does not answer.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Why a step failed. It was not done; those before it were.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}: {why}")]
pub struct StepError {
    /// What was to be done.
    pub step: String,
    /// What is wrong, and what to do.
    pub why: String,
    /// The kernel's error number, where it refused.
    pub errno: Option<i32>,
}

/// The conversation with NICs, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Nic {
    route: Socket,
}

impl Nic {
    /// Opens the conversation. Looking needs no rights, changes need CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The operating system said no.
    pub fn open() -> Result<Self, NicError> {
        Ok(Self { route: Socket::route().map_err(NetlinkError::from)? })
    }

    /// A PF by the name of its netdev; `None` where there is no such netdev, or it can have no VFs.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn observe(&mut self, pf: &str) -> Result<Option<Pf>, NicError> {
        let _ = (&mut self.route, pf);
        Ok(None)
    }

    /// Does one step.
    ///
    /// # Errors
    /// The driver refused, or the device is gone.
    pub fn apply(&mut self, step: &Step) -> Result<(), StepError> {
        Err(StepError { step: step.to_string(), why: "not there yet".into(), errno: None })
    }

    /// What the VFs of a PF sent and received since they were first counted, by VF. Has to be asked often enough for the
    /// link's speed: see [`crate::counters::Doubts`].
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn counters(&mut self, pf: &Pf) -> Result<BTreeMap<u16, Counted>, NicError> {
        Ok(pf.vfs.keys().map(|vf| (*vf, Counted::default())).collect())
    }
}

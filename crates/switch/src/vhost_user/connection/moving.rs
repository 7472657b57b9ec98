//! Moves a port to another worker, between two messages of its front end.
//!
//! ```text
//!  each running queue: a new kick, which the new worker listens to ─▶ the port moves ─▶ the old kicks are given up
//! ```
//!
//! Both workers listen while the port moves, so no kick is missed.

use super::super::kick::Kick;
use super::Connection;
use crate::moved::Outcome;

impl Connection<'_> {
    /// Moves the port with its drivers' kicks.
    ///
    /// # Errors
    /// The reason why it stays.
    pub fn move_to(&mut self, worker: usize) -> Outcome {
        let mut kicks = Vec::new();
        let outcome =
            self.kicks_at(worker, &mut kicks).and_then(|()| self.control.move_to(worker, kicks.clone()));
        for (index, kick) in kicks {
            let vring = &mut self.vrings[usize::from(index)];
            let unused = match outcome {
                Ok(_) => vring.kick.replace(kick),
                Err(_) => Some(kick),
            };
            if let Some(kick) = unused {
                self.forget(kick);
            }
        }
        outcome
    }

    /// Lets another worker listen to the drivers of all running queues, too.
    fn kicks_at(&mut self, worker: usize, kicks: &mut Vec<(u16, Kick)>) -> Result<(), String> {
        for index in 0..self.vrings.len() as u16 {
            let vring = &self.vrings[usize::from(index)];
            let Some(now) = vring.kick.as_ref().filter(|_| vring.running) else { continue };
            let words = |error: &dyn std::fmt::Display| format!("queue {index}: {error}");
            let kick = Kick::new(now.event().clone()).map_err(|error| words(&error))?;
            kicks.push((index, kick.clone()));
            self.control.listen_at(worker, &kick)?;
            self.try_kick("moving the port", kick).map_err(|refused| words(&refused.reason))?;
        }
        Ok(())
    }
}

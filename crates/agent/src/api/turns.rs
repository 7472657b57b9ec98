//! One change of each user at a time: changes of different users do not wait for each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Mutex<BTreeMap<u32, Weak<Semaphore>>>>);

impl Turns {
    /// Waits for the turn of `user`, after the user's earlier clients. Dropping the permit ends the turn.
    pub async fn take(&self, user: u32) -> Option<OwnedSemaphorePermit> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Forgets users without a client.
            turns.retain(|_, turn| turn.strong_count() > 0);
            let known = turns.get(&user).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let new = Arc::new(Semaphore::new(1));
                turns.insert(user, Arc::downgrade(&new));
                new
            })
        };
        turn.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Duration, timeout};

    #[tokio::test(start_paused = true)]
    async fn one_of_each_user_at_a_time() {
        let turns = Turns::default();
        let soon = |user| timeout(Duration::from_secs(1), turns.take(user));
        let first = soon(1).await.unwrap();
        assert!(soon(1).await.is_err(), "two of one user");
        let other = soon(2).await.unwrap();
        drop(first);
        let second = soon(1).await.unwrap();
        drop((other, second));
        assert!(soon(3).await.is_ok());
        assert_eq!(turns.0.lock().unwrap().len(), 1, "users that are gone are forgotten");
    }
}

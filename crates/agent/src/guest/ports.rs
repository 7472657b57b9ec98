//! The guests' sockets that contracts name: one task each.

use super::port::{Host, serve as serve_port};
use crate::board::{Board, Published};
use crate::commands::Command;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tidegate_paths::Roots;
use tokio::task::{AbortHandle, JoinSet};

/// Period of the check for sockets that came or went.
const LOOK: Duration = Duration::from_millis(500);

/// Speaks with the guests of all contracts, at sockets below `roots`, until it is dropped.
pub async fn serve(board: Board, commands: mpsc::Sender<Command>, roots: Roots) {
    let host = Arc::new(Host::new(board.clone(), commands, roots));
    // Dropping this future drops the set, which aborts its tasks.
    let mut tasks = JoinSet::new();
    let mut ports: BTreeMap<PathBuf, AbortHandle> = BTreeMap::new();
    let mut last_published: Option<Arc<Published>> = None;
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let published = board.read();
        if last_published.as_ref().is_some_and(|last_published| last_published.guests == published.guests) {
            continue;
        }
        ports.retain(|socket, port| {
            let named = published.guests.contains_key(socket);
            if !named {
                port.abort();
            }
            named
        });
        for socket in published.guests.keys() {
            ports
                .entry(socket.clone())
                .or_insert_with(|| tasks.spawn(serve_port(socket.clone(), Arc::clone(&host))));
        }
        // Removes the tasks that ended.
        while tasks.try_join_next().is_some() {}
        last_published = Some(published);
    }
}

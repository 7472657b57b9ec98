//! `tidegate libvirt watch`: follows running domains.

use super::contracts;
use super::states::{Folder, Stamp};
use crate::client::Client;
use crate::exit::Failure;
use crate::format;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tidegate_libvirt::follow::{Action, Follower};
use tidegate_libvirt::translate;
use tokio::signal::unix::{SignalKind, signal};

const TICK: Duration = Duration::from_millis(500);
/// Interval at which the agent is asked which domains own contracts.
const ASK: Duration = Duration::from_secs(5);

/// Arguments of `watch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    states: Folder,
}

/// Follows the domains until a signal arrives.
pub async fn run(client: &Client, args: Args) -> Result<(), Failure> {
    let signals = |kind| signal(kind).map_err(|e| Failure::failed(format!("cannot wait for signals: {e}")));
    let (mut terminate, mut interrupt) =
        (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    tracing::info!(folder = format::path(args.states.path()), "following libvirt's domains");
    let mut watch = Watch {
        client,
        states: args.states,
        follower: Follower::default(),
        owners: BTreeSet::new(),
        owners_read_at: None,
        contracts_in_force: BTreeMap::new(),
        obstacle: None,
    };
    let follow = async {
        loop {
            watch.update().await;
            tokio::time::sleep(TICK).await;
        }
    };
    // A signal also ends the wait for an agent that hangs.
    tokio::select! {
        () = follow => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

struct Watch<'a> {
    client: &'a Client,
    states: Folder,
    follower: Follower<Stamp>,
    /// Domains that owned contracts when the agent was last asked.
    owners: BTreeSet<String>,
    owners_read_at: Option<Instant>,
    /// Contracts last put in force, by domain: most changes of a state do not concern us.
    contracts_in_force: BTreeMap<String, String>,
    /// The current obstacle, logged once.
    obstacle: Option<String>,
}

impl Watch<'_> {
    async fn update(&mut self) {
        let states = match self.states.states() {
            Ok(states) => states,
            Err(e) => {
                return self
                    .report_obstacle(format!("cannot read {}: {e}", format::path(self.states.path())));
            }
        };
        if self.owners_read_at.is_none_or(|at| at.elapsed() >= ASK) {
            match contracts::owners(self.client).await {
                Ok(owners) => self.owners = owners,
                Err(e) => return self.report_obstacle(e.to_string()),
            }
            self.owners_read_at = Some(Instant::now());
            if let Some(obstacle) = self.obstacle.take() {
                tracing::info!("following libvirt's domains again, after: {obstacle}");
            }
        }
        for action in self.follower.due_actions(Instant::now(), &states, &self.owners) {
            match action {
                Action::Put(domain) => self.put(&domain, &states[&domain]).await,
                Action::Remove(domain) => self.remove(&domain).await,
            }
        }
    }

    fn report_obstacle(&mut self, what: String) {
        // So that the agent is asked as soon as the obstacle is gone.
        self.owners_read_at = None;
        if self.obstacle.as_ref() != Some(&what) {
            tracing::error!("{what}");
            self.obstacle = Some(what);
        }
    }

    async fn put(&mut self, domain: &str, stamp: &Stamp) {
        let file = self.states.file(domain);
        let outcome = match self.states.read(domain) {
            // The domain stopped after the folder was listed.
            Err(e) if e.kind() == ErrorKind::NotFound => return,
            Err(e) => Err(format!("cannot read {}: {e}", format::path(&file))),
            Ok(xml) => self.put_contracts(domain, &xml).await,
        };
        match outcome {
            Ok(()) => self.follower.note_in_force(domain, stamp.clone()),
            Err(why) => {
                if self.follower.note_failure(Instant::now(), domain, stamp.clone()) {
                    tracing::error!(
                        domain,
                        "the contracts in the domain's XML are not in force; earlier contracts stay in force:\n{why}"
                    );
                }
            }
        }
    }

    async fn put_contracts(&mut self, domain: &str, xml: &str) -> Result<(), String> {
        let translation = translate(xml, &format!("domain {domain}")).map_err(|e| e.to_string())?;
        let text = translation.to_toml();
        let is_owner = self.owners.contains(domain);
        let nothing = translation.contracts.is_empty() && !is_owner;
        if nothing || (is_owner && self.contracts_in_force.get(domain) == Some(&text)) {
            return Ok(());
        }
        for note in &translation.notes {
            tracing::warn!(domain, "{note}");
        }
        for contract in translation.contracts.iter().filter(|c| !c.attached) {
            tracing::warn!(domain, mac = %contract.vnic.mac, "the interface has no tap on this host; Tidegate keeps no contract for it");
        }
        let plan =
            contracts::put(self.client, &translation, &self.states).await.map_err(|e| e.to_string())?;
        for change in plan.vnics.iter().filter(|c| c.action != tidegate_agent::views::ChangeAction::None) {
            tracing::info!(domain, vnic = change.vnic, "{:?}", change.action);
        }
        self.owners.insert(domain.to_owned());
        self.contracts_in_force.insert(domain.to_owned(), text);
        Ok(())
    }

    async fn remove(&mut self, domain: &str) {
        match contracts::remove(self.client, domain).await {
            Ok(_) => {
                tracing::info!(domain, "the domain does not run any more; its contracts are removed");
                self.owners.remove(domain);
                self.contracts_in_force.remove(domain);
            }
            Err(e) => {
                tracing::warn!(
                    domain,
                    "the domain does not run any more, and its contracts cannot be removed yet: {e}"
                );
                // Without the owner the removal is not repeated at every tick.
                self.owners.remove(domain);
            }
        }
    }
}

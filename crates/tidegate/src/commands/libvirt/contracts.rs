//! Puts contracts of libvirt's domains in force, and removes them. A domain owns exactly the contracts of
//! its XML.

use super::states::Folder;
use crate::client::{Client, ClientError, encode};
use hyper::StatusCode;
use std::collections::BTreeSet;
use tidegate_agent::views::{PlanView, VnicView};
use tidegate_contract::Vnic;
use tidegate_libvirt::{OWNER, Translation, owner, room};

/// Puts the contracts of a domain in force. If contracts of domains that do not run any more are in the
/// way, removes them first.
pub async fn put(
    client: &Client,
    translation: &Translation,
    states: &Folder,
) -> Result<PlanView, ClientError> {
    let domain = translation.domain.as_str();
    // libvirt made a qdisc and a filter for its <bandwidth>: the agent takes them over. The domain starts
    // even if they cannot be put back later; the agent reports that.
    let adopt = translation.contracts.iter().any(|c| c.limited_by_libvirt);
    let path = apply_path(domain, adopt);
    let text = translation.to_toml();
    match client.post_toml(&path, &text).await {
        Err(error @ ClientError::Answered { status, .. }) if is_refusal(status) => {
            if make_room(client, translation, states).await? {
                client.post_toml(&path, &text).await
            } else {
                Err(error)
            }
        }
        other => other,
    }
}

pub async fn remove(client: &Client, domain: &str) -> Result<PlanView, ClientError> {
    client.post_toml(&apply_path(domain, false), &format!("# Domain {domain:?} is gone\n")).await
}

/// Returns the domains that own contracts.
pub async fn owners(client: &Client) -> Result<BTreeSet<String>, ClientError> {
    let vnics: Vec<VnicView> = client.get("/v1/vnics").await?;
    Ok(vnics.iter().filter_map(|v| Some(v.owner.strip_prefix(OWNER)?.to_owned())).collect())
}

fn apply_path(domain: &str, adopt: bool) -> String {
    let origin = encode(&format!("domain {domain}"));
    let adopt = if adopt { "&adopt=anyway" } else { "" };
    format!("/v1/apply?origin={origin}&owner={}&prune=true{adopt}", encode(&owner(domain)))
}

fn is_refusal(status: StatusCode) -> bool {
    [StatusCode::BAD_REQUEST, StatusCode::CONFLICT, StatusCode::UNPROCESSABLE_ENTITY].contains(&status)
}

/// Removes the contracts in the way whose domains do not run any more. Returns whether there were any.
async fn make_room(client: &Client, translation: &Translation, states: &Folder) -> Result<bool, ClientError> {
    // If the folder cannot be read, the running domains are unknown: no domain counts as stopped.
    let Ok(running) = states.running() else { return Ok(false) };
    let vnics: Vec<VnicView> = client.get("/v1/vnics").await?;
    let own_contracts: Vec<Vnic> = translation.contracts.iter().map(|c| c.vnic.clone()).collect();
    let others = vnics.iter().filter(|v| v.owner != owner(&translation.domain));
    let others = others.filter_map(|v| Some((v.owner.as_str(), v.contract.as_ref()?)));
    let ended_domains = room::ended_owners_in_conflict(&own_contracts, others, &running);
    for domain in &ended_domains {
        tracing::warn!(
            domain,
            "the domain does not run any more, and its contracts conflict with those of another domain: removing them"
        );
        remove(client, domain).await?;
    }
    Ok(!ended_domains.is_empty())
}

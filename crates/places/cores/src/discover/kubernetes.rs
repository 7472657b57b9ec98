//! The CPUs that Kubernetes gave to single containers: the state of the kubelet's CPU manager.

use crate::roots::{Roots, text};
use serde::Deserialize;
use std::collections::BTreeMap;
use tidegate_cores::cpus::{self, Cpus};

/// The fields of the kubelet's file that matter.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    policy_name: String,
    /// By pod and container, its CPUs.
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, String>>,
}

/// Returns the CPUs of containers that have some for themselves; none without the policy `static`.
pub fn exclusive(roots: &Roots) -> Cpus {
    let Some(text) = text(roots.var.join("lib/kubelet/cpu_manager_state")) else { return Cpus::new() };
    parse(&text).unwrap_or_default()
}

fn parse(text: &str) -> Option<Cpus> {
    let state: State = serde_json::from_str(text).ok()?;
    let lists = state.entries.values().flat_map(BTreeMap::values);
    (state.policy_name == "static")
        .then(|| lists.filter_map(|list| cpus::from_list(list)).flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_of_containers() {
        let state = r#"{"policyName":"static","defaultCpuSet":"0-1,6","entries":{"8f-uid":{"vm":"2-3","b":"4"},"9-uid":{"c":"x"}},"checksum":1}"#;
        assert_eq!(parse(state), Some([2, 3, 4].into()));
        assert_eq!(parse(r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#), None);
        assert_eq!(parse("{"), None);
    }
}

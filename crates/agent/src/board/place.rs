//! Facts that a place reports, besides those that the API shows with it.

/// Facts about one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceFacts {
    /// The systemd unit of its process.
    pub unit: &'static str,
    /// System calls denied to its process since the start.
    pub denied_calls: u64,
    /// Why the CPUs of its workers are not observed; `None` if they are, or if it does not answer.
    pub unobserved: Option<String>,
    /// Whether it counts waiting flows and frames marked (ECN).
    pub counts_flows: bool,
}

//! Metrics of paths through the network, of pairs with a deadline. Their count is bounded by these pairs.

use super::families::{Families, Kind::Counter, Kind::Gauge, Labels, NANOS};
use crate::views::VnicView;
use std::fmt;
use tidegate_evidence::NetworkPath;

impl Families<'_, '_> {
    /// The paths of vNICs here to remotes.
    pub(super) fn paths<'l>(&mut self, vnics: impl Iterator<Item = &'l VnicView>) -> fmt::Result {
        let paths: Vec<&NetworkPath> = vnics.flat_map(|view| &view.paths).collect();
        let gauge = |of: fn(&NetworkPath) -> Option<f64>| {
            paths.iter().filter_map(move |path| Some((labels(path), of(path)?)))
        };
        let help = "1 where the deadline of the pair holds over the network, 0 where it does not";
        let promised = gauge(|path| Some(f64::from(u8::from(path.promised))));
        self.family("path_promised", help, Gauge, promised)?;
        self.family("path_state", "1 for the state in which the path is", Gauge, {
            let of = |path| [labels(path), vec![("state", path.state.as_str())]].concat();
            paths.iter().map(move |path| (of(path), 1.0))
        })?;
        let help = "What the network may take of the deadline";
        let budget = gauge(|path| Some(path.budget_ns as f64 * NANOS));
        self.family("path_budget_seconds", help, Gauge, budget)?;
        let help = "The longest time in the network, as the controller granted it";
        let bound = gauge(|path| Some(path.bound_ns? as f64 * NANOS));
        self.family("path_bound_seconds", help, Gauge, bound)?;
        let help = "Late frames of the path that hosts reported to the controller";
        let late = paths.iter().filter(|path| path.bound_ns.is_some());
        self.family("path_late_frames", help, Counter, late.map(|path| (labels(path), path.misses as f64)))
    }
}

fn labels(path: &NetworkPath) -> Labels<'_> {
    vec![("vnic", path.vnic.as_str()), ("remote", path.remote.as_str())]
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;
    use crate::board::Published;
    use crate::views::RefusedBy;
    use std::sync::Arc;

    fn shown(paths: Vec<NetworkPath>) -> Vec<String> {
        let by = RefusedBy { file: "a.toml".into(), line: None, reason: "a test".into() };
        let view = VnicView { paths, ..VnicView::refused("a".into(), by, None, "here".into()) };
        let text =
            encode(Arc::new(Published { vnics: [("a".into(), view)].into(), ..Published::starting() }))
                .unwrap();
        text.lines().filter(|line| line.starts_with("tidegate_path")).map(str::to_owned).collect()
    }

    #[test]
    fn a_path_that_is_not_granted_has_no_bound_and_no_late_frames() {
        let path = |remote: &str, bound_ns: Option<u64>, misses| NetworkPath {
            vnic: "a".into(),
            remote: remote.into(),
            state: if bound_ns.is_some() { "active" } else { "waiting" }.into(),
            promised: bound_ns.is_some(),
            budget_ns: 400_000,
            bound_ns,
            misses,
            ..NetworkPath::default()
        };
        assert_eq!(shown(vec![]), [""; 0]);
        assert_eq!(
            shown(vec![path("b", Some(250_000), 3), path("c", None, 0)]),
            [
                "tidegate_path_promised{vnic=\"a\",remote=\"b\"} 1.0",
                "tidegate_path_promised{vnic=\"a\",remote=\"c\"} 0.0",
                "tidegate_path_state{vnic=\"a\",remote=\"b\",state=\"active\"} 1.0",
                "tidegate_path_state{vnic=\"a\",remote=\"c\",state=\"waiting\"} 1.0",
                "tidegate_path_budget_seconds{vnic=\"a\",remote=\"b\"} 0.0004",
                "tidegate_path_budget_seconds{vnic=\"a\",remote=\"c\"} 0.0004",
                "tidegate_path_bound_seconds{vnic=\"a\",remote=\"b\"} 0.00025",
                "tidegate_path_late_frames_total{vnic=\"a\",remote=\"b\"} 3.0",
            ]
        );
    }
}

//! What needs a person, and the figures of the host beside it. Pure.
//!
//! ```text
//!  HostView, VnicViews, facts of places, recent growth ──▶ one function for each kind of trouble ──▶ attention, most urgent first
//! ```
//!
//! It leaves out what the agent repairs by itself, and normal states of a VM, such as off.

use super::PlaceFacts;
use super::growth::RECENT;
use crate::views::{
    Attention, AttentionKind, DeadlineCounts, FileCounts, HostLatency, HostView, Repaired, State, StatusView,
    UplinkView, VnicCounts, VnicView,
};
use std::collections::BTreeMap;
use tidegate_contract::Nanos;
use tidegate_evidence::{PeerStatus, WorkerStats, total};
use tidegate_place::AGENT;

/// Repairs within [`RECENT`] that are no accident: another program keeps changing settings.
const OFTEN: u64 = 3;

type Vnics = BTreeMap<String, VnicView>;
/// Uplinks, and other hosts.
type Network<'a> = (&'a BTreeMap<String, UplinkView>, &'a [PeerStatus]);
type Places = BTreeMap<String, PlaceFacts>;

/// Growth of counters within [`RECENT`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Recent {
    pub loops_over_budget: u64,
    pub drift_repaired: u64,
}

pub fn status(
    host: &HostView,
    vnics: &Vnics,
    network: Network<'_>,
    places: &Places,
    recent: Recent,
) -> StatusView {
    let refused_files = host.files.iter().filter(|f| f.error.is_some()).count();
    let state = |state| vnics.values().filter(|v| v.state == state).count();
    let (suspended, promised): (Vec<&VnicView>, Vec<&VnicView>) =
        vnics.values().filter(|v| has_deadline(v)).partition(|v| v.deadline_suspended.is_some());
    let worker = |count: fn(&WorkerStats) -> u64| host.workers.iter().map(count);
    StatusView {
        version: host.version.clone(),
        attention: attention(host, vnics, network, places, recent),
        places: host.places.clone(),
        files: FileCounts { accepted: host.files.len() - refused_files, refused: refused_files },
        vnics: VnicCounts {
            in_force: state(State::InForce),
            pending: state(State::Pending),
            failed: state(State::Failed),
            refused: state(State::Refused),
        },
        deadlines: DeadlineCounts { promised: promised.len(), suspended: suspended.len() },
        host_latency: HostLatency {
            budget_ns: host.host.host_latency.get(),
            loops: total(worker(|w| w.loops)),
            loops_over_budget: total(worker(|w| w.loops_over_budget)),
            recently_over_budget: recent.loops_over_budget,
            longest_loop_ns: worker(|w| w.longest_loop_ns).max().unwrap_or_default(),
        },
        own_cpus: Default::default(),
        cores: Default::default(),
        drift: Repaired { since_start: host.drift_repaired, recently: recent.drift_repaired },
        denied_calls: host.denied_calls,
        recent_s: RECENT.as_secs(),
    }
}

/// Returns what needs a person. A new kind of trouble needs a function here and an [`AttentionKind`].
fn attention(
    host: &HostView,
    vnics: &Vnics,
    network: Network<'_>,
    places: &Places,
    recent: Recent,
) -> Vec<Attention> {
    let mut all = [
        places_away(host, vnics, places),
        denied_calls(places),
        problems(host),
        refused_files(host),
        not_in_force(host, vnics),
        failed_uplinks(network),
        silent_peers(network),
        quarantines(vnics),
        suspended_deadlines(vnics),
        host_latency(host, recent),
        no_rdma(vnics, network),
        no_zero_copy(vnics),
        drift(recent),
    ]
    .concat();
    all.sort_by_key(|attention| attention.kind);
    all
}

fn has_deadline(view: &VnicView) -> bool {
    view.contract.as_ref().is_some_and(|c| c.deadline.is_some())
}

/// Lists places that do not answer and that contracts need: a host that has SR-IOV functions only needs no switch.
fn places_away(host: &HostView, vnics: &Vnics, places: &Places) -> Vec<Attention> {
    let away = host.places.iter().filter_map(|place| Some((place, place.reason.as_ref()?)));
    let concerned = away.map(|(place, reason)| {
        let of_place = |v: &&VnicView| v.place == place.name && v.state != State::Refused;
        (place, reason, vnics.values().filter(of_place).count())
    });
    let attention = concerned.filter(|(.., n)| *n > 0).map(|(place, reason, n)| Attention {
        kind: AttentionKind::PlaceAway,
        about: vec![place.name.clone()],
        what: format!("{reason}; contracts of {n} vNICs are pending"),
        next: match places.get(&place.name).map_or(AGENT, |facts| facts.unit) {
            AGENT => format!("journalctl -u {AGENT}"),
            unit => format!("systemctl status {unit}"),
        },
    });
    attention.collect()
}

fn denied_calls(places: &Places) -> Vec<Attention> {
    let denied = places.iter().filter(|(_, facts)| facts.denied_calls > 0);
    let attention = denied.map(|(place, facts)| Attention {
        kind: AttentionKind::DeniedCall,
        about: vec![place.clone()],
        what: format!(
            "{} system calls were denied to the {place} since it was started: a bug, or an intruder controls it",
            facts.denied_calls
        ),
        next: format!("journalctl -u {} --grep 'denied system call'", facts.unit),
    });
    attention.collect()
}

fn problems(host: &HostView) -> Vec<Attention> {
    let attention = host.problems.iter().map(|problem| Attention {
        kind: AttentionKind::Problem,
        about: vec![],
        what: problem.clone(),
        next: format!("journalctl -u {AGENT}"),
    });
    attention.collect()
}

fn refused_files(host: &HostView) -> Vec<Attention> {
    let refused = host.files.iter().filter_map(|file| Some((file, file.error.as_ref()?)));
    let attention = refused.map(|(file, error)| {
        let place = file.line.map_or_else(|| file.path.clone(), |line| format!("{}:{line}", file.path));
        let in_force_before = match &file.vnics[..] {
            [] => "no contract of this file is in force".to_owned(),
            vnics => format!("its earlier contracts are in force, for {}", vnics.join(", ")),
        };
        Attention {
            kind: AttentionKind::RefusedFile,
            about: vec![place],
            what: format!("{error}\n{in_force_before}"),
            next: format!("tidegate plan -f {}", quoted(&file.path)),
        }
    });
    attention.collect()
}

/// Lists failed and pending vNICs of places that answer. `places_away` reports the others.
fn not_in_force(host: &HostView, vnics: &Vnics) -> Vec<Attention> {
    let is_away = |view: &VnicView| host.places.iter().any(|p| p.name == view.place && !p.reachable);
    let of = |state, kind| {
        let them = vnics.values().filter(move |v| v.state == state && !is_away(v));
        by_reason(kind, them.map(|v| (v.name.as_str(), v.reason.as_deref().unwrap_or("no reason is known"))))
    };
    [of(State::Failed, AttentionKind::FailedVnic), of(State::Pending, AttentionKind::PendingVnic)].concat()
}

/// Lists uplinks that could not be made, or broke. One that is pending waits for a place, which has an entry of its own.
fn failed_uplinks((uplinks, _): Network<'_>) -> Vec<Attention> {
    let failed = uplinks.values().filter(|uplink| uplink.state == State::Failed);
    let them = failed.map(|u| (u.name.as_str(), u.reason.as_deref().unwrap_or("no reason is known")));
    by_reason(AttentionKind::FailedUplink, them)
}

/// Lists other hosts that do not answer: no frame from there is judged by its deadline.
fn silent_peers((_, peers): Network<'_>) -> Vec<Attention> {
    let silent = peers.iter().filter(|peer| peer.unasked.is_none() && !peer.reachable);
    let why = |peer: &PeerStatus| {
        format!(
            "no answer from {} by uplink {}; deadlines of frames from there are not judged",
            peer.address, peer.uplink
        )
    };
    let attention = silent.map(|peer| Attention {
        kind: AttentionKind::SilentPeer,
        about: vec![peer.name.clone()],
        what: why(peer),
        next: "tidegate clock".into(),
    });
    attention.collect()
}

/// Lists quarantined vNICs. A person has to ask the VM's owner: no guest of QEMU causes a quarantine.
fn quarantines(vnics: &Vnics) -> Vec<Attention> {
    let them = vnics.values().filter_map(|v| Some((v.name.as_str(), v.held.quarantine.as_ref()?)));
    by_reason(AttentionKind::Quarantine, them.map(|(name, quarantine)| (name, quarantine.reason.as_str())))
}

/// Lists suspended deadlines of contracts in force. Contracts that are not in force have entries of their own.
fn suspended_deadlines(vnics: &Vnics) -> Vec<Attention> {
    let them = vnics.values().filter(|v| v.state == State::InForce);
    let them = them.filter_map(|v| Some((v.name.as_str(), v.deadline_suspended.as_deref()?)));
    by_reason(AttentionKind::SuspendedDeadline, them)
}

/// Lists uplinks whose RDMA device is of no use, and vNICs without a queue pair for another reason. One that is about to be
/// made has no reason yet.
fn no_rdma(vnics: &Vnics, (uplinks, _): Network<'_>) -> Vec<Attention> {
    let of_uplink = |name: &str| uplinks.get(name).and_then(|uplink| uplink.rdma.as_ref()?.error.as_deref());
    let in_force = vnics.values().filter(|view| view.state == State::InForce);
    let of_vnics = in_force.filter_map(|view| {
        let rdma = view.rdma.as_ref()?;
        let errors = rdma.pairs.iter().filter(|pair| of_uplink(&pair.uplink).is_none());
        let error = errors.filter_map(|pair| pair.error.as_deref()).next();
        let unknown = "the switch has no queue pairs: is it of an earlier release?";
        Some((view.name.as_str(), error.or(rdma.pairs.is_empty().then_some(unknown))?))
    });
    let of_vnics = by_reason(AttentionKind::NoRdma, of_vnics).into_iter();
    let of_vnics =
        of_vnics.map(|all| Attention { next: format!("tidegate vnic show {}", all.about[0]), ..all });
    let of_uplinks = uplinks.keys().filter_map(|name| Some((name.as_str(), of_uplink(name)?)));
    let of_uplinks = by_reason(AttentionKind::NoRdma, of_uplinks).into_iter();
    let of_uplinks =
        of_uplinks.map(|all| Attention { next: format!("tidegate uplink {}", all.about[0]), ..all });
    of_uplinks.chain(of_vnics).collect()
}

/// Lists vNICs whose frames are copied although they ask for zero copy. A VM that is off or migrates is no trouble.
fn no_zero_copy(vnics: &Vnics) -> Vec<Attention> {
    let in_force = vnics.values().filter(|view| view.state == State::InForce);
    let them = in_force.filter_map(|view| {
        let pairs = &view.rdma.as_ref()?.pairs;
        let mut told =
            pairs.iter().filter_map(|pair| pair.zero_copy.as_ref()).filter(|said| !said.is_temporary);
        Some((view.name.as_str(), told.find_map(|said| said.copied_because.as_deref())?))
    });
    let them = by_reason(AttentionKind::NoZeroCopy, them).into_iter();
    them.map(|all| Attention { next: format!("tidegate vnic show {}", all.about[0]), ..all }).collect()
}

/// Reports long worker loops, if a vNIC was promised a delay: otherwise no promise was broken.
fn host_latency(host: &HostView, recent: Recent) -> Vec<Attention> {
    let bounds =
        host.admission.bounds.iter().filter(|b| b.suspended.is_none() && b.host_latency_violations > 0);
    let mut promised: Vec<String> = bounds.map(|b| b.vnic.clone()).collect();
    promised.dedup();
    let Some(first) = promised.first().filter(|_| recent.loops_over_budget > 0) else { return vec![] };
    let longest = host.workers.iter().map(|w| w.longest_loop_ns).max().unwrap_or_default();
    let next = format!("tidegate why {first}");
    vec![Attention {
        kind: AttentionKind::HostLatency,
        what: format!(
            "H did not hold: {} worker loops of the last {} minutes took longer than host-latency = {} (the longest since \
             the switch was started {} us): no delay bound held then",
            recent.loops_over_budget,
            RECENT.as_secs() / 60,
            Nanos::new(host.host.host_latency.get()),
            longest / 1_000
        ),
        about: promised,
        next,
    }]
}

fn drift(recent: Recent) -> Vec<Attention> {
    let attention = (recent.drift_repaired >= OFTEN).then(|| Attention {
        kind: AttentionKind::Drift,
        about: vec![],
        what: format!(
            "the agent repaired {} differences between contract and place in the last {} minutes: another program \
             keeps changing the settings of a place",
            recent.drift_repaired,
            RECENT.as_secs() / 60
        ),
        next: format!("journalctl -u {AGENT} --grep drift"),
    });
    attention.into_iter().collect()
}

/// Makes one entry of vNICs with the same reason.
fn by_reason<'a>(kind: AttentionKind, vnics: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<Attention> {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    vnics.for_each(|(name, why)| reasons.entry(why).or_default().push(name.to_owned()));
    let attention = reasons.into_iter().map(|(why, about)| Attention {
        kind,
        what: why.to_owned(),
        next: format!("tidegate why {}", about[0]),
        about,
    });
    attention.collect()
}

/// Quotes a path as one word of a shell.
fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if path.chars().all(plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Published;
    use crate::views::{FileView, PlaceView, RefusedBy};
    use tidegate_testkit::contract::vnic;

    fn host() -> HostView {
        let place = |name: &str| PlaceView {
            name: name.into(),
            reachable: true,
            reason: None,
            version: String::new(),
            pid: 0,
            started: 0,
            vnics: 0,
        };
        HostView {
            problems: vec![],
            places: vec![place("switch"), place("nic")],
            ..Published::starting().host
        }
    }

    fn places() -> Places {
        let facts = |unit| PlaceFacts { unit, ..PlaceFacts::default() };
        [("switch".to_owned(), facts("tidegate-switch")), ("nic".to_owned(), facts(AGENT))].into()
    }

    fn in_force(name: &str) -> VnicView {
        let by = RefusedBy { file: "/etc/a.toml".into(), line: None, reason: String::new() };
        let view = VnicView::refused(name.into(), by, Some(vnic(name, 1)), "switch".into());
        VnicView { state: State::InForce, reason: None, refused: None, ..view }
    }

    fn vnics(views: impl IntoIterator<Item = VnicView>) -> Vnics {
        views.into_iter().map(|v| (v.name.clone(), v)).collect()
    }

    fn kinds(host: &HostView, vnics: &Vnics, recent: Recent) -> Vec<AttentionKind> {
        status(host, vnics, (&BTreeMap::new(), &[]), &places(), recent)
            .attention
            .iter()
            .map(|a| a.kind)
            .collect()
    }

    #[test]
    fn a_host_without_trouble_needs_no_attention() {
        let all = vnics(["a", "b"].map(in_force));
        let status = status(&host(), &all, (&BTreeMap::new(), &[]), &places(), Recent::default());
        assert_eq!((status.attention, status.vnics.in_force), (vec![], 2));
        // Drift that the agent repaired, and the absence of a place that no contract needs.
        let mut host = host();
        host.places[1].reachable = false;
        host.places[1].reason = Some("no netlink".into());
        let recent = Recent { drift_repaired: OFTEN - 1, loops_over_budget: 9 };
        assert_eq!(kinds(&host, &all, recent), []);
    }

    #[test]
    fn rdma_that_is_missing_is_told_once_with_its_reason() {
        use crate::views::{VnicQueuePair, VnicRdma};
        use tidegate_evidence::RdmaStatus;
        let with = |name: &str, errors: &[(&str, Option<&str>)]| {
            let pair = |(uplink, error): &(&str, Option<&str>)| VnicQueuePair {
                uplink: (*uplink).into(),
                error: error.map(Into::into),
                ..VnicQueuePair::default()
            };
            let pairs = errors.iter().map(pair).collect();
            VnicView { rdma: Some(VnicRdma { pairs, ..VnicRdma::default() }), ..in_force(name) }
        };
        let down = Some("its port is down");
        let all = vnics([
            with("a", &[("net0", down)]),
            with("b", &[("net1", Some("no memory"))]),
            with("c", &[("net1", None)]),
            with("d", &[]),
            in_force("e"),
        ]);
        let uplinks = [("net0", down), ("net1", None)].map(|(name, error)| {
            let rdma = RdmaStatus { error: error.map(Into::into), ..RdmaStatus::default() };
            (name.to_owned(), UplinkView::with_rdma(name, rdma))
        });
        let status = status(&host(), &all, (&uplinks.into(), &[]), &places(), Recent::default());
        let said: Vec<_> = status
            .attention
            .iter()
            .map(|one| (one.about[0].as_str(), one.what.as_str(), one.next.as_str()))
            .collect();
        assert_eq!(said[0], ("net0", "its port is down", "tidegate uplink net0"));
        assert_eq!(said[1], ("b", "no memory", "tidegate vnic show b"));
        assert_eq!((said[2].0, said.len()), ("d", 3));
    }

    #[test]
    fn zero_copy_that_stays_away_is_told_and_a_vm_that_is_off_is_not() {
        use crate::views::{VnicQueuePair, VnicRdma};
        use tidegate_evidence::ZeroCopyStatus;
        let with = |name: &str, why: Option<&str>, is_temporary| {
            let zero_copy = ZeroCopyStatus {
                copied_because: why.map(Into::into),
                is_temporary,
                ..ZeroCopyStatus::default()
            };
            let pair = VnicQueuePair { zero_copy: Some(zero_copy), ..VnicQueuePair::default() };
            VnicView { rdma: Some(VnicRdma { pairs: vec![pair], ..VnicRdma::default() }), ..in_force(name) }
        };
        let all = vnics([
            with("a", Some("not preallocated"), false),
            with("b", Some("no front end is connected"), true),
            with("c", None, false),
            in_force("d"),
        ]);
        let status = status(&host(), &all, (&BTreeMap::new(), &[]), &places(), Recent::default());
        let [one] = &status.attention[..] else { panic!("{:?}", status.attention) };
        assert_eq!((one.kind, &one.about[..]), (AttentionKind::NoZeroCopy, &["a".to_owned()][..]));
        assert_eq!((one.what.as_str(), one.next.as_str()), ("not preallocated", "tidegate vnic show a"));
    }

    #[test]
    fn an_unreachable_place_is_one_item_for_all_its_vnics() {
        let mut host = host();
        host.places[0].reachable = false;
        host.places[0].reason = Some("no switch at /run/switch.sock".into());
        let pending = |name: &str| VnicView { state: State::Pending, ..in_force(name) };
        let status = status(
            &host,
            &vnics(["a", "b"].map(pending)),
            (&BTreeMap::new(), &[]),
            &places(),
            Recent::default(),
        );
        let [away] = &status.attention[..] else { panic!("{:?}", status.attention) };
        assert_eq!(away.what, "no switch at /run/switch.sock; contracts of 2 vNICs are pending");
        assert_eq!(
            (away.kind, away.next.as_str()),
            (AttentionKind::PlaceAway, "systemctl status tidegate-switch")
        );
        assert_eq!(status.vnics.pending, 2);
    }

    #[test]
    fn a_quarantined_vnic_is_named_with_the_reason() {
        let quarantine = tidegate_evidence::Quarantine {
            reason: "quarantined for 60 s: 3 times".into(),
            seconds: 60,
            remaining: 12,
        };
        let mut hostile = in_force("hostile");
        hostile.held.events = 3;
        assert_eq!(kinds(&host(), &vnics([hostile.clone()]), Recent::default()), []);
        hostile.held.quarantine = Some(quarantine);
        let status = status(
            &host(),
            &vnics([in_force("a"), hostile]),
            (&BTreeMap::new(), &[]),
            &places(),
            Recent::default(),
        );
        let [attention] = &status.attention[..] else { panic!("{:?}", status.attention) };
        assert_eq!((attention.kind, &attention.about), (AttentionKind::Quarantine, &vec!["hostile".into()]));
        assert!(attention.what.contains("for 60 s"), "{}", attention.what);
    }

    #[test]
    fn vnics_with_the_same_trouble_are_one_item() {
        let trouble =
            |name: &str, state, why: &str| VnicView { state, reason: Some(why.into()), ..in_force(name) };
        let all = vnics([
            trouble("a", State::Pending, "no link"),
            trouble("b", State::Pending, "no VF"),
            trouble("c", State::Pending, "no link"),
            trouble("d", State::Failed, "no link"),
            in_force("e"),
        ]);
        let found = status(&host(), &all, (&BTreeMap::new(), &[]), &places(), Recent::default()).attention;
        let found: Vec<_> = found.iter().map(|a| (a.kind, a.about.join(" "), a.next.as_str())).collect();
        let expected = [
            (AttentionKind::FailedVnic, "d".to_owned(), "tidegate why d"),
            (AttentionKind::PendingVnic, "b".to_owned(), "tidegate why b"),
            (AttentionKind::PendingVnic, "a c".to_owned(), "tidegate why a"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_status_names_a_refused_file_its_line_and_the_contracts_in_force() {
        let mut host = host();
        let file = FileView {
            path: "/etc/my cams.toml".into(),
            vnics: vec!["old".into()],
            error: Some("egress sink refuses cam".into()),
            line: Some(7),
            refused: vec!["cam".into()],
        };
        host.files = vec![file, FileView { path: "/etc/b.toml".into(), error: None, ..host_file() }];
        let status = status(&host, &vnics([]), (&BTreeMap::new(), &[]), &places(), Recent::default());
        let [refused] = &status.attention[..] else { panic!("{:?}", status.attention) };
        assert_eq!(refused.about, ["/etc/my cams.toml:7"]);
        assert_eq!(refused.what, "egress sink refuses cam\nits earlier contracts are in force, for old");
        assert_eq!(refused.next, "tidegate plan -f '/etc/my cams.toml'");
        assert_eq!(status.files, FileCounts { accepted: 1, refused: 1 });
    }

    fn host_file() -> FileView {
        FileView { path: String::new(), vnics: vec![], error: None, line: None, refused: vec![] }
    }

    #[test]
    fn deadlines_that_are_not_promised_and_a_host_that_is_too_slow() {
        let realtime = |name: &str, suspended: Option<&str>| {
            let mut view = in_force(name);
            view.contract.as_mut().expect("it has one").deadline = Some(Nanos::new(1_000_000));
            view.deadline_suspended = suspended.map(Into::into);
            view
        };
        let all = vnics([realtime("a", None), realtime("b", Some("memory"))]);
        let mut host = host();
        let bound = |name: &str, suspended: Option<&str>| {
            serde_json::from_value(serde_json::json!({
                "vnic": name, "egress": "sink", "deadline_ns": 1, "bound_ns": 1, "margin_ns": 0,
                "suspended": suspended,
                "derivation": {"critical_t_ns": 1, "demand_bytes": 1, "blocking_bytes": 1, "capacity_bps": 1,
                    "host_latency_ns": 1, "text": ""},
                "holds_if": "", "host_latency_violations": 4
            }))
            .expect("a promise")
        };
        host.admission.bounds = vec![bound("a", None), bound("b", Some("memory"))];
        assert_eq!(kinds(&host, &all, Recent::default()), [AttentionKind::SuspendedDeadline]);
        let late = Recent { loops_over_budget: 2, drift_repaired: OFTEN };
        let status = status(&host, &all, (&BTreeMap::new(), &[]), &places(), late);
        let kinds: Vec<_> = status.attention.iter().map(|a| a.kind).collect();
        use AttentionKind::{Drift, HostLatency, SuspendedDeadline};
        assert_eq!(kinds, [SuspendedDeadline, HostLatency, Drift]);
        assert_eq!(
            (&status.attention[1].about, status.attention[1].next.as_str()),
            (&vec!["a".into()], "tidegate why a")
        );
        assert_eq!(status.deadlines, DeadlineCounts { promised: 1, suspended: 1 });
        // Where all deadlines are suspended, a slow host breaks no promise.
        host.admission.bounds.remove(0);
        let of_others = self::kinds(&host, &vnics([realtime("b", Some("memory"))]), late);
        assert_eq!(of_others, [SuspendedDeadline, Drift]);
    }

    #[test]
    fn denied_calls_and_problems_of_the_host() {
        let mut host = host();
        let denied = PlaceFacts { unit: "tidegate-bridge", denied_calls: 2, ..PlaceFacts::default() };
        let places: Places = [("bridge".to_owned(), denied)].into();
        let status = status(&host, &vnics([]), (&BTreeMap::new(), &[]), &places, Recent::default());
        let [denied] = &status.attention[..] else { panic!("{:?}", status.attention) };
        assert_eq!((&denied.about[..], denied.kind), (&["bridge".to_owned()][..], AttentionKind::DeniedCall));
        assert!(denied.what.starts_with("2 system calls were denied to the bridge "), "{}", denied.what);
        assert_eq!(denied.next, "journalctl -u tidegate-bridge --grep 'denied system call'");
        host.problems = vec!["the disk is full".into()];
        assert_eq!(kinds(&host, &vnics([]), Recent::default()), [AttentionKind::Problem]);
    }
}

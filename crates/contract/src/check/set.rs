//! The rules between contracts.

use super::rules::Problem;
use super::taken::{FirstOwners, error_at};
use super::{between, controller, rdma};
use crate::error::ErrorList;
use crate::suggest::did_you_mean;
use crate::{Attach, Document, Error, Errors, GivenPeer, Located, Mac, Segment, UPLINK, Vnic};

/// Checks the rules between contracts: unique names; no MAC twice in one segment, `allowed` ones and those of other
/// hosts included; no socket, tap, netdev or VF twice; `guest` is no socket of a port; `to` names a vNIC that hears
/// its segment, or a remote in it; a remote's peer carries its segment; each `mtu` fits its uplinks.
///
/// # Errors
/// Every broken rule, at the later of two tables, with the place of the earlier.
pub fn check_set(document: &Document) -> Result<(), Errors> {
    let mut errors = ErrorList::default();
    let vnics = &document.vnics;
    let mut names = FirstOwners::default();
    let mut macs = FirstOwners::default();
    let mut attachments = FirstOwners::default();
    for vnic in vnics {
        let Vnic { name, attach, mac, segment, allowed, .. } = &vnic.value;
        if let Some(first) = names.register(name.as_str(), vnic) {
            errors
                .note(|| error_at(vnic, "", format!("vNIC {name} is already defined at {}", first.place())));
        }
        let own = std::iter::once(("mac", *mac));
        for (key, mac) in own.chain(allowed.macs.iter().map(|mac| ("allowed.macs", *mac))) {
            if let Some(first) = macs.register((*segment, mac), vnic).filter(|f| f.value.name != *name) {
                errors.note(|| error_at(vnic, key, duplicate_mac_message(mac, *segment, first)));
            }
        }
        let (key, what) = exclusive_object(attach);
        if let Some(first) = attachments.register(what.clone(), vnic).filter(|f| f.value.name != *name) {
            let message =
                || format!("{what} already belongs to vNIC {} at {}", first.value.name, first.place());
            errors.note(|| error_at(vnic, key, message()));
        }
    }
    // No vNIC may share another's own MAC.
    for vnic in vnics {
        for mac in vnic.value.allowed.shared.iter().filter_map(|address| address.mac()) {
            let first = macs.0.get(&(vnic.value.segment, mac));
            if let Some(owner) = first.filter(|owner| owner.value.name != vnic.value.name) {
                let message = || {
                    format!(
                        "{mac} is the own MAC of vNIC {} at {} in segment {}; a shared MAC must not be the own MAC of a vNIC",
                        owner.value.name,
                        owner.place(),
                        vnic.value.segment
                    )
                };
                errors.note(|| error_at(vnic, "allowed.shared", message()));
            }
        }
    }
    let mut ports = FirstOwners::default();
    for vnic in vnics {
        if let Attach::VhostUser { path, .. } = &vnic.value.attach {
            ports.register(path.as_path(), vnic);
        }
    }
    // Several vNICs may name one guest's socket, but not a port's: a process that connects there is its front end.
    for vnic in vnics {
        let Some(guest) = &vnic.value.guest else { continue };
        if let Some(other) = ports.0.get(guest.as_path()).filter(|o| o.value.name != vnic.value.name) {
            let message = || {
                format!(
                    "{} is the vhost-user socket of vNIC {} at {}; name the socket of the VM's virtio-serial port",
                    guest.display(),
                    other.value.name,
                    other.place()
                )
            };
            errors.note(|| error_at(vnic, "guest", message()));
        }
    }
    let remotes = document.remotes.iter().map(|r| (r.value.name.as_str(), r)).collect();
    for vnic in vnics {
        for to in vnic.value.to.iter().filter(|to| *to != UPLINK) {
            match names.0.get(to.as_str()) {
                None => between::beyond_this_host(&mut errors, document, &remotes, vnic, to),
                Some(other) if !other.value.hears(vnic.value.segment) => errors.note(|| {
                    let message = format!(
                        "{to} is in segment {} and this vNIC in segment {}; frames never cross segments",
                        other.value.segment, vnic.value.segment
                    );
                    error_at(vnic, "to", message)
                }),
                Some(_) => {}
            }
        }
    }
    between::check(&mut errors, document);
    controller::check(&mut errors, document);
    rdma::check(&mut errors, document);
    Errors::into_result(errors.into_errors(), ())
}

/// Joins the documents of several files, and checks the rules between them: those of [`check_set`], and that only
/// one file has a `[host]` table.
///
/// # Errors
/// As [`check_set`].
pub fn merge(documents: Vec<Document>) -> Result<Document, Errors> {
    let mut all = Document::default();
    let mut errors = Vec::new();
    for document in documents {
        match (&all.host, &document.host) {
            (Some(first), Some(host)) => errors.push(Error {
                file: host.file.clone(),
                line: host.line,
                column: 0,
                key: "host".into(),
                message: format!("a [host] table already exists at {}; keep one of them", first.place()),
                excerpt: None,
            }),
            (None, Some(host)) => all.host = Some(host.clone()),
            (_, None) => {}
        }
        match (&all.controller, &document.controller) {
            (Some(first), Some(other)) => errors.push(Error {
                file: other.file.clone(),
                line: other.line,
                column: 0,
                key: "controller".into(),
                message: format!(
                    "a [controller] table already exists at {}; keep one of them",
                    first.place()
                ),
                excerpt: None,
            }),
            (None, Some(controller)) => all.controller = Some(controller.clone()),
            (_, None) => {}
        }
        all.extend(document);
    }
    give_peers(&mut all, &mut errors);
    if let Err(Errors(more)) = check_set(&all) {
        errors.extend(more);
    }
    Errors::into_result(errors, all)
}

/// Gives its peers to each uplink, and checks both together.
fn give_peers(all: &mut Document, errors: &mut Vec<Error>) {
    let peers = std::mem::take(&mut all.peers);
    let mut at = |given: &Located<GivenPeer>, key: String, message: String| {
        let (file, line) = (given.file.clone(), given.line);
        errors.push(Error { file, line, column: 0, key, message, excerpt: None });
    };
    for given in &peers {
        let GivenPeer { uplink: name, peer } = &given.value;
        let Some(uplink) = all.uplinks.iter_mut().find(|uplink| uplink.value.name == *name) else {
            let hint = did_you_mean(name, all.uplinks.iter().map(|uplink| uplink.value.name.as_str()));
            at(given, format!("peer.{}.uplink", peer.name), format!("there is no uplink {name:?}{hint}"));
            continue;
        };
        // Its own problems are those of its table.
        let before = uplink.value.check().err().unwrap_or_default();
        uplink.value.peers.push(peer.clone());
        let after = uplink.value.check().err().unwrap_or_default();
        let new: Vec<Problem> = after.into_iter().filter(|problem| !before.contains(problem)).collect();
        if !new.is_empty() {
            uplink.value.peers.pop();
        }
        for Problem { key, message } in new {
            at(given, format!("uplink.{name}.{key}"), message);
        }
    }
}

fn duplicate_mac_message(mac: Mac, segment: Segment, first: &Located<Vnic>) -> String {
    format!(
        "{mac} is already taken in segment {segment}, by vNIC {} at {}; a MAC may appear once in a segment",
        first.value.name,
        first.place()
    )
}

/// Returns the object that an attachment uses alone: its key, and its name in errors.
fn exclusive_object(attach: &Attach) -> (&'static str, String) {
    match attach {
        Attach::VhostUser { path, .. } => ("attach.vhost-user", format!("socket {}", path.display())),
        Attach::Tap { name, netns: None } => ("attach.tap", format!("interface {name}")),
        Attach::Tap { name, netns: Some(netns) } => {
            ("attach.tap", format!("interface {name} in {}", netns.display()))
        }
        Attach::Netdev { name } => ("attach.netdev", format!("interface {name}")),
        Attach::Vf { pf, index, .. } => ("attach.vf", format!("VF {index} of {pf}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SocketMode, VfOptions, parse, testing};

    fn placed(vnics: Vec<Vnic>) -> Document {
        let place = |(i, value)| Located { value, file: "t.toml".into(), line: i * 10 + 1 };
        Document { vnics: vnics.into_iter().enumerate().map(place).collect(), ..Document::default() }
    }

    fn refused(change: impl Fn(&mut Vnic, &mut Vnic)) -> String {
        let (mut a, mut b) = (testing::vnic("alpha"), testing::vnic("beta"));
        assert_eq!(check_set(&placed(vec![a.clone(), b.clone()])), Ok(()));
        change(&mut a, &mut b);
        check_set(&placed(vec![a, b])).expect_err("refused").to_string()
    }

    #[test]
    fn a_socket_of_the_switch_has_no_long_name() {
        let checked = |length: usize, mode| {
            let mut vnic = testing::vnic("alpha");
            let path = format!("/run/vm/{}", "x".repeat(length)).into();
            vnic.attach = Attach::VhostUser { path, mode, owner: Default::default() };
            vnic.check()
        };
        assert_eq!(checked(80, SocketMode::Server), Ok(()));
        assert_eq!(checked(81, SocketMode::Client), Ok(()));
        let refused = checked(81, SocketMode::Server).unwrap_err();
        assert!(
            refused[0]
                .to_string()
                .contains("has 81 bytes; the file name of a socket that Tidegate makes has at most 80"),
            "{refused:?}"
        );
    }

    #[test]
    fn an_address_may_be_shared_and_is_no_vnics_own() {
        let mut all: Vec<Vnic> = ["alpha", "beta", "gamma"].map(testing::vnic).into();
        for vnic in &mut all[..2] {
            vnic.allowed.prefixes = vec!["192.0.2.0/24".parse().expect("a prefix")];
            vnic.allowed.shared =
                ["00:00:5e:00:01:33", "192.0.2.10"].map(|text| text.parse().expect("an address")).into();
            assert_eq!(vnic.check(), Ok(()));
        }
        assert_eq!(check_set(&placed(all.clone())), Ok(()));
        all[2].mac = "00:00:5e:00:01:33".parse().expect("a MAC");
        let refused = check_set(&placed(all.clone())).expect_err("gamma's").to_string();
        assert!(
            refused.contains("t.toml:1: vnic.alpha.allowed.shared: 00:00:5e:00:01:33 is the own MAC of vNIC gamma at t.toml:21"),
            "{refused}"
        );
        all[2].segment = crate::Segment::new(7).expect("in range");
        assert_eq!(check_set(&placed(all)), Ok(()), "segments are apart");
    }

    #[test]
    fn two_vnics_may_not_share_addresses_or_attachments() {
        let mac = "02:00:00:00:00:01".parse().expect("a MAC");
        assert_eq!(
            refused(|a, b| b.name = a.name.clone()),
            "t.toml:11: vnic.alpha: vNIC alpha is already defined at t.toml:1"
        );
        let taken = "02:00:00:00:00:01 is already taken in segment 1, by vNIC alpha at t.toml:1; a MAC may appear once in a segment";
        assert_eq!(refused(|a, b| (a.mac, b.mac) = (mac, mac)), format!("t.toml:11: vnic.beta.mac: {taken}"));
        assert_eq!(
            refused(|a, b| {
                a.mac = mac;
                b.allowed.macs = vec![mac];
            }),
            format!("t.toml:11: vnic.beta.allowed.macs: {taken}")
        );
        assert_eq!(
            refused(|a, b| {
                a.allowed.macs = vec![mac];
                b.mac = mac;
            }),
            format!("t.toml:11: vnic.beta.mac: {taken}")
        );
        assert_eq!(
            refused(|a, b| b.attach = a.attach.clone()),
            "t.toml:11: vnic.beta.attach.vhost-user: socket /run/tidegate/vm/alpha.sock already belongs to vNIC alpha at t.toml:1"
        );
        let tap = |netns: Option<&str>| Attach::Tap { name: "t0".into(), netns: netns.map(Into::into) };
        assert_eq!(
            refused(|a, b| (a.attach, b.attach) = (tap(None), Attach::Netdev { name: "t0".into() })),
            "t.toml:11: vnic.beta.attach.netdev: interface t0 already belongs to vNIC alpha at t.toml:1"
        );
        assert_eq!(
            refused(|a, b| (a.attach, b.attach) = (tap(Some("/run/netns/x")), tap(Some("/run/netns/x")))),
            "t.toml:11: vnic.beta.attach.tap: interface t0 in /run/netns/x already belongs to vNIC alpha at t.toml:1"
        );
        assert_eq!(
            refused(|a, b| a.guest = testing::vhost_user_socket(b)),
            "t.toml:1: vnic.alpha.guest: /run/tidegate/vm/beta.sock is the vhost-user socket of vNIC beta at t.toml:11; \
             name the socket of the VM's virtio-serial port"
        );
        let vf = Attach::Vf { pf: "enp3s0f0".into(), index: 2, options: VfOptions::default() };
        assert_eq!(
            refused(|a, b| (a.attach, b.attach) = (vf.clone(), vf.clone())),
            "t.toml:11: vnic.beta.attach.vf: VF 2 of enp3s0f0 already belongs to vNIC alpha at t.toml:1"
        );
    }

    #[test]
    fn promises_lead_to_known_vnics_of_the_same_segment() {
        assert_eq!(
            refused(|a, _| a.to = vec!["betta".into()]),
            "t.toml:1: vnic.alpha.to: there is no vNIC \"betta\"; did you mean \"beta\"?"
        );
        assert_eq!(
            refused(|a, b| {
                a.to = vec!["beta".into()];
                b.segment = Segment::new(2).expect("in range");
            }),
            "t.toml:1: vnic.alpha.to: beta is in segment 2 and this vNIC in segment 1; frames never cross segments"
        );
    }

    #[test]
    fn vnics_may_share_a_tap_name_in_two_namespaces_a_mac_in_two_segments_and_a_guest() {
        let (mut a, mut b) = (testing::vnic("alpha"), testing::vnic("beta"));
        (a.to, b.to) = (vec!["beta".into(), "uplink".into()], vec!["alpha".into()]);
        a.attach = Attach::Tap { name: "t0".into(), netns: Some("/run/netns/x".into()) };
        b.attach = Attach::Tap { name: "t0".into(), netns: None };
        assert_eq!(check_set(&placed(vec![a.clone(), b.clone()])), Ok(()), "one name in two namespaces");
        (a.to, b.to) = (Vec::new(), Vec::new());
        (a.guest, b.guest) = (Some("/run/vm/limit".into()), Some("/run/vm/limit".into()));
        assert_eq!(check_set(&placed(vec![a.clone(), b.clone()])), Ok(()), "one guest with two vNICs");
        b.mac = a.mac;
        b.segment = Segment::new(2).expect("in range");
        assert_eq!(check_set(&placed(vec![a, b])), Ok(()), "one MAC in two segments");
    }

    #[test]
    fn a_promise_may_lead_to_an_uplink_of_all_segments() {
        let mut sender = testing::vnic("alpha");
        sender.to = vec!["beta".into(), "uplink".into()];
        let attach = Attach::Netdev { name: "eth0".into() };
        let segment = Segment::new(0).expect("in range");
        let uplink = crate::Vnic { attach, segment, ..testing::vnic("beta") };
        assert_eq!(check_set(&placed(vec![sender, uplink])), Ok(()));
    }

    #[test]
    fn files_are_joined_and_checked_together() {
        let file = |name: &str, host: &str| {
            let text = format!("{host}\n{}", testing::vnic(name).to_toml());
            parse(&text, &format!("{name}.toml")).expect("valid")
        };
        let host = "[host]\nflood = \"1mbit\"";
        let both = merge(vec![file("alpha", host), file("beta", "")]).expect("one host");
        assert_eq!((both.vnics.len(), both.host.expect("a host").place().as_str()), (2, "alpha.toml:1"));
        let errors = merge(vec![file("alpha", host), file("beta", host)]).expect_err("two hosts");
        assert_eq!(
            errors.to_string(),
            "beta.toml:1: host: a [host] table already exists at alpha.toml:1; keep one of them"
        );
        let errors = merge(vec![file("alpha", ""), file("alpha", "")]).expect_err("one name twice");
        assert!(
            errors
                .to_string()
                .starts_with("alpha.toml:2: vnic.alpha: vNIC alpha is already defined at alpha.toml:2"),
            "{errors}"
        );
        let api = Located::without_line(testing::vnic("alpha"), "API");
        let errors = check_set(&Document { vnics: vec![api.clone(), api], ..Document::default() })
            .expect_err("one name twice");
        assert_eq!(errors.to_string(), "API: vnic.alpha: vNIC alpha is already defined at API");
    }

    #[test]
    fn thousands_of_wrong_names_are_counted() {
        let wrong = |i: usize| Vnic { to: vec![format!("nobody{i}")], ..testing::vnic(&format!("some{i}")) };
        let mut vnics: Vec<Vnic> = (0..4_000).map(wrong).collect();
        for (i, vnic) in vnics.iter_mut().enumerate() {
            vnic.segment = Segment::new(i as u32).expect("in range");
        }
        let Errors(errors) = check_set(&placed(vnics)).expect_err("refused");
        assert_eq!(errors.len(), 101);
        assert_eq!(errors[100].to_string(), "t.toml: 3900 more errors follow; correct these first");
    }
}

//! What happened between two states, as events. Pure.
//!
//! ```text
//!  Published before, Published now ──▶ misses, connections, contracts, uplinks, places, drift ──▶ events
//! ```

use super::Published;
use crate::views::{EventKind, EventView, PlaceView, State, UplinkView, VnicView};
use tidegate_evidence::{Connection, Miss};

/// Returns the events that lead from one state to the next, seen at `at` (ns since the epoch). The first look of an agent
/// is none.
pub fn changes(before: &Published, now: &Published, at: u64) -> Vec<EventView> {
    if before.host.places.is_empty() {
        return vec![];
    }
    let mut events = Vec::new();
    let mut add = |kind, about: &str, what: String| {
        events.push(EventView { at, kind, about: about.into(), what, miss: None, lost: 0 });
    };
    for (was, is) in pairs(&before.host.places, &now.host.places) {
        match (was.reachable, is.reachable) {
            (true, false) => add(EventKind::Place, &is.name, format!("away: {}", or_unknown(&is.reason))),
            (false, true) => add(EventKind::Place, &is.name, "answers again".into()),
            _ => {}
        }
    }
    for name in before.vnics.keys().filter(|name| !now.vnics.contains_key(*name)) {
        add(EventKind::Contract, name, "gone".into());
    }
    for (name, is) in &now.vnics {
        let was = before.vnics.get(name);
        if was.map(contract_state) != Some(contract_state(is)) {
            add(EventKind::Contract, name, state(is.state, &is.reason));
        }
        if let (Some(was), Some(connection)) = (was.and_then(|was| was.connection), is.connection)
            && was != connection
        {
            add(EventKind::Connection, name, self::connection(connection).into());
        }
    }
    for name in before.uplinks.keys().filter(|name| !now.uplinks.contains_key(*name)) {
        add(EventKind::Uplink, name, "gone".into());
    }
    for (name, is) in &now.uplinks {
        if before.uplinks.get(name).map(uplink_state) != Some(uplink_state(is)) {
            add(EventKind::Uplink, name, state(is.state, &is.reason));
        }
    }
    let repaired = now.host.drift_repaired.saturating_sub(before.host.drift_repaired);
    if repaired > 0 {
        add(EventKind::Drift, "", format!("{repaired} differences between contract and place were repaired"));
    }
    events.extend(misses(before, now));
    events
}

/// Returns the new misses of vNICs that both states have.
fn misses<'a>(before: &'a Published, now: &'a Published) -> impl Iterator<Item = EventView> + 'a {
    let last =
        |name: &String| before.misses.get(name).and_then(|all| all.last()).map_or(0, |miss| miss.number);
    let known = now.misses.iter().filter(|(name, _)| before.vnics.contains_key(*name));
    known.flat_map(move |(name, all)| {
        // A new port counts from 1 again.
        let newest = all.last().map_or(0, |miss| miss.number);
        let last = Some(last(name)).filter(|last| *last <= newest).unwrap_or(0);
        let fresh = all.iter().filter(move |miss| miss.number > last);
        let mut unlisted = fresh.clone().next().map_or(0, |first| first.number - 1 - last);
        fresh.map(move |miss| miss_event(name, miss, std::mem::take(&mut unlisted)))
    })
}

fn miss_event(name: &str, miss: &Miss, unlisted: u64) -> EventView {
    let Miss { delay, deadline, egress, cause, .. } = miss;
    let certain = if miss.is_certain() { "" } else { "possibly " };
    let outcome = match &miss.dropped {
        Some(reason) => format!("dropped ({reason})"),
        None => format!("{certain}late: {delay} ns of {deadline} ns"),
    };
    let before = match unlisted {
        0 => String::new(),
        n => format!("; {n} misses before it came too fast to be listed"),
    };
    let what = format!("a frame to {egress} was {outcome}, for {cause}{before}");
    EventView {
        at: miss.at,
        kind: EventKind::Miss,
        about: name.into(),
        what,
        miss: Some(miss.clone()),
        lost: 0,
    }
}

fn pairs<'a>(
    before: &'a [PlaceView],
    now: &'a [PlaceView],
) -> impl Iterator<Item = (&'a PlaceView, &'a PlaceView)> {
    now.iter().filter_map(|is| Some((before.iter().find(|was| was.name == is.name)?, is)))
}

/// Returns what makes a new event of a contract: the reason of one in force changes with its notes.
fn contract_state(view: &VnicView) -> (State, Option<&String>) {
    (view.state, view.reason.as_ref().filter(|_| view.state != State::InForce))
}

fn uplink_state(view: &UplinkView) -> (State, Option<&String>) {
    (view.state, view.reason.as_ref().filter(|_| view.state != State::InForce))
}

fn state(state: State, reason: &Option<String>) -> String {
    match state {
        State::InForce => "in force".into(),
        State::Pending => format!("pending: {}", or_unknown(reason)),
        State::Failed => format!("failed: {}", or_unknown(reason)),
        State::Refused => format!("refused: {}", or_unknown(reason)),
    }
}

fn or_unknown(reason: &Option<String>) -> &str {
    reason.as_deref().unwrap_or("no reason is known")
}

fn connection(connection: Connection) -> &'static str {
    match connection {
        Connection::Up => "up: frames can flow",
        Connection::Connected => "its front end connected",
        Connection::Waiting => "it waits for a front end",
        Connection::Disconnected => "its front end left",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::RefusedBy;

    fn vnic(name: &str, connection: Connection) -> VnicView {
        let by = RefusedBy { file: "/etc/a.toml".into(), line: None, reason: String::new() };
        let view = VnicView::refused(name.into(), by, None, "switch".into());
        VnicView { state: State::InForce, reason: None, refused: None, connection: Some(connection), ..view }
    }

    fn miss(number: u64) -> Miss {
        let text = format!(
            r#"{{"number":{number},"at":77,"egress":"sink","cause":"queue","dropped":null,"behind":null,
            "delay":9,"delay_least":8,"deadline":5,"tokens":0,"worker":0,"queue":9,"buffers":0}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn published(vnics: Vec<VnicView>, misses: std::ops::RangeInclusive<u64>) -> Published {
        let mut published = Published::starting();
        published.host.places.push(PlaceView {
            name: "switch".into(),
            reachable: true,
            reason: None,
            version: String::new(),
            pid: 0,
            started: 0,
            vnics: 0,
        });
        published.vnics = vnics.into_iter().map(|v| (v.name.clone(), v)).collect();
        published.misses = [("a".to_owned(), misses.map(miss).collect())].into();
        published
    }

    fn told(before: &Published, now: &Published) -> Vec<String> {
        let line = |e: EventView| format!("{} {} {}: {}", e.at, e.kind.label(), e.about, e.what);
        changes(before, now, 5).into_iter().map(line).collect()
    }

    #[test]
    fn changes_are_told_once_and_the_first_look_is_none() {
        let first = published(vec![vnic("a", Connection::Waiting)], 1..=2);
        assert_eq!(told(&Published::starting(), &first), [""; 0]);
        let mut second = published(vec![vnic("a", Connection::Up), vnic("b", Connection::Waiting)], 1..=3);
        second.host.drift_repaired = 2;
        let expected = [
            "5 connection a: up: frames can flow",
            "5 contract b: in force",
            "5 drift : 2 differences between contract and place were repaired",
            "77 miss a: a frame to sink was late: 9 ns of 5 ns, for queue",
        ];
        assert_eq!(told(&first, &second), expected);
        assert_eq!(told(&second, &second), [""; 0]);
        let mut third = published(vec![vnic("a", Connection::Up)], 1..=3);
        (third.host.drift_repaired, third.host.places[0].reachable) = (2, false);
        third.host.places[0].reason = Some("no answer".into());
        assert_eq!(told(&second, &third), ["5 place switch: away: no answer", "5 contract b: gone"]);
    }

    #[test]
    fn misses_that_the_log_forgot_are_counted_and_a_new_port_counts_anew() {
        let before = published(vec![vnic("a", Connection::Up)], 1..=3);
        let after = published(vec![vnic("a", Connection::Up)], 8..=9);
        let [first, second] = &told(&before, &after)[..] else { panic!("two misses") };
        assert!(first.ends_with("; 4 misses before it came too fast to be listed"), "{first}");
        assert!(second.ends_with("for queue"), "{second}");
        let anew = published(vec![vnic("a", Connection::Up)], 1..=2);
        assert_eq!(told(&after, &anew).len(), 2);
    }
}

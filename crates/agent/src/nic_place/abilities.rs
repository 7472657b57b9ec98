//! What a NIC takes, in words.

use tidegate_nic::{Abilities, Ability};

/// Whether all of it is known.
pub fn is_complete(abilities: &Abilities) -> bool {
    settings(abilities).iter().all(|(_, ability)| matches!(ability, Ability::Has | Ability::Lacks(_)))
}

/// For a reader of a plan: what it takes, what it does not and why, what nobody could ask.
pub fn told(abilities: &Abilities) -> Vec<String> {
    let (mut has, mut lines) = (Vec::new(), Vec::new());
    for (what, ability) in settings(abilities) {
        match ability {
            Ability::Has => has.push(what),
            Ability::Lacks(why) => lines.push(format!("takes no {what}: {why}")),
            Ability::Unknown(why) => {
                lines.push(format!("could not be asked whether it takes a {what}: {why}"))
            }
        }
    }
    let counts = abilities.statistics.iter().map(|(source, ability)| match ability {
        Ability::Has => format!("counts what functions send and receive: {source}"),
        Ability::Lacks(why) | Ability::Unknown(why) => format!("does not count by {source}: {why}"),
    });
    let has = (!has.is_empty()).then(|| format!("takes {}", has.join(", ")));
    has.into_iter().chain(lines).chain(counts).collect()
}

fn settings(abilities: &Abilities) -> [(&'static str, &Ability); 7] {
    [
        ("limit", &abilities.max_rate),
        ("minimum", &abilities.min_rate),
        ("VLAN", &abilities.vlan),
        ("MAC", &abilities.mac),
        ("spoof check", &abilities.spoofchk),
        ("trust", &abilities.trust),
        ("link state", &abilities.link_state),
    ]
}

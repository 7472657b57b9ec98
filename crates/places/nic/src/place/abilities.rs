//! The abilities of a NIC, in words.

use crate::device::{Abilities, Ability};

/// Whether every ability is known: had or lacking.
pub fn is_complete(abilities: &Abilities) -> bool {
    settings(abilities).iter().all(|(_, ability)| matches!(ability, Ability::Has | Ability::Lacks(_)))
}

/// The abilities for a reader of a plan, a line each: settings that the NIC takes, those that it lacks with the reason, those
/// that could not be probed, and the source of counters.
pub fn describe(abilities: &Abilities) -> Vec<String> {
    let settings = settings(abilities);
    let of = |which: fn(&Ability) -> Option<Option<&str>>| {
        let named = settings.iter().filter_map(|(what, ability)| Some((*what, which(ability)?)));
        named
            .map(|(what, why)| why.map_or_else(|| what.to_owned(), |why| format!("{what} ({why})")))
            .collect()
    };
    let has: Vec<String> = of(|a| matches!(a, Ability::Has).then_some(None));
    let lacks: Vec<String> = of(|a| if let Ability::Lacks(why) = a { Some(Some(why)) } else { None });
    let unknown: Vec<String> = of(|a| if let Ability::Unknown(why) = a { Some(Some(why)) } else { None });
    let counts = abilities.statistics.iter().filter(|(_, ability)| *ability == Ability::Has);
    let counts: Vec<String> = counts.map(|(source, _)| source.to_string()).collect();
    let why = |(source, ability): &(_, Ability)| match ability {
        Ability::Lacks(why) | Ability::Unknown(why) => Some(format!("{source}: {why}")),
        Ability::Has => None,
    };
    let uncounted: Vec<String> = abilities.statistics.iter().filter_map(why).collect();
    let line = |what: &str, all: &[String]| (!all.is_empty()).then(|| format!("{what}: {}", all.join(", ")));
    let counted = line("counts by", &counts).or_else(|| line("counts nothing", &uncounted));
    [line("takes", &has), line("does not take", &lacks), line("could not be asked for", &unknown), counted]
        .into_iter()
        .flatten()
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Source;

    #[test]
    fn a_reader_learns_what_a_nic_takes() {
        let lacks = |why: &str| Ability::Lacks(why.into());
        let mut abilities = Abilities { min_rate: lacks("Invalid argument"), ..all(&Ability::Has) };
        abilities.statistics =
            vec![(Source::VfStatistics, lacks("all zero")), (Source::Registers, Ability::Has)];
        assert!(is_complete(&abilities));
        let expected = [
            "takes: limit, VLAN, MAC, spoof check, trust, link state",
            "does not take: minimum (Invalid argument)",
            "counts by: registers",
        ];
        assert_eq!(describe(&abilities), expected);
        abilities.max_rate = Ability::Unknown("there is no link".into());
        abilities.statistics.truncate(1);
        assert!(!is_complete(&abilities));
        let lines = describe(&abilities);
        assert_eq!(
            lines[2..],
            ["could not be asked for: limit (there is no link)", "counts nothing: VF statistics: all zero"]
        );
    }

    fn all(ability: &Ability) -> Abilities {
        Abilities {
            max_rate: ability.clone(),
            min_rate: ability.clone(),
            vlan: ability.clone(),
            mac: ability.clone(),
            spoofchk: ability.clone(),
            trust: ability.clone(),
            link_state: ability.clone(),
            ..Abilities::default()
        }
    }
}

//! Looks at a PF, and does to its VFs what is said: for the tests against real NICs.
//!
//! ```text
//!  nic PF show | abilities | counters [EVERY_MS COUNT]
//!         set '[{"index": 0, "tx_max": "100mbit"}]' | groups '[{"name": "tenant", "vfs": [0]}]'
//! ```
//!
//! Answers are JSON, one line each.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;
use tidegate_contract::Rate;
use tidegate_place_nic::counters::Meter;
use tidegate_place_nic::device::{
    Abilities, Function, Group, Nic, Pf, Plan, Step, Vf, plan, plan_groups, undo,
};
use tidegate_place_nic::probe;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [name, command, rest @ ..] = &arguments[..] else { return Err("PF and a command are wanted".into()) };
    let mut nic = Nic::open()?;
    let pf = nic.observe(name)?.ok_or_else(|| format!("{name} is no PF"))?;
    match (*command, rest) {
        ("show", []) => println!("{}", show(&pf)),
        ("abilities", []) => println!("{}", json!(probe(&mut nic, &pf))),
        ("counters", []) => println!("{}", json!(Meter::default().read(&mut nic, &pf)?)),
        ("counters", [every, count]) => {
            let (every, count) = (Duration::from_millis(every.parse()?), count.parse::<u32>()?);
            let mut meter = Meter::default();
            for _ in 0..count {
                let pf = nic.observe(name)?.ok_or("the PF is gone")?;
                println!("{}", json!(meter.read(&mut nic, &pf)?));
                std::thread::sleep(every);
            }
        }
        ("set", [wanted]) => set(&mut nic, &pf, &serde_json::from_str::<Vec<Function>>(wanted)?)?,
        ("groups", [wanted]) => {
            let abilities = probe(&mut nic, &pf);
            let planned = plan_groups(&serde_json::from_str::<Vec<Group>>(wanted)?, &pf, &abilities);
            for step in &planned.steps {
                nic.apply(step)?;
            }
            let steps: Vec<String> = planned.steps.iter().map(Step::to_string).collect();
            println!("{}", json!({ "steps": steps, "refusals": planned.refusals }));
        }
        _ => return Err(format!("not understood: {arguments:?}").into()),
    }
    Ok(())
}

/// Brings VFs to what is wanted, says what is in force then, what was before, and whether another plan would be empty.
fn set(nic: &mut Nic, pf: &Pf, wanted: &[Function]) -> Result<(), Box<dyn Error>> {
    let abilities = probe(nic, pf);
    let before: Vec<Function> = wanted.iter().filter_map(|f| Some(f.before(pf.vfs.get(&f.index)?))).collect();
    let planned = plan(wanted, pf, &abilities);
    let mut failed = None;
    for (index, step) in planned.steps.iter().enumerate() {
        if let Err(e) = nic.apply(step) {
            for step in undo(&planned.steps[..index], pf) {
                nic.apply(&step)?;
            }
            failed = Some(e.to_string());
            break;
        }
    }
    let after = nic.observe(&pf.name)?.ok_or("the PF is gone")?;
    let left = plan(wanted, &after, &Abilities::default());
    println!(
        "{}",
        json!({
            "plan": said(&planned), "failed": failed, "before": before, "after": show(&after),
            "left": said(&left)["steps"],
        })
    );
    Ok(())
}

fn said(plan: &Plan) -> Value {
    let steps: Vec<String> = plan.steps.iter().map(Step::to_string).collect();
    let refusals: Vec<&String> = plan.refusals.iter().map(|r| &r.reason).collect();
    let pending: Vec<&String> = plan.pending.iter().map(|p| &p.reason).collect();
    json!({ "steps": steps, "refusals": refusals, "pending": pending })
}

fn show(pf: &Pf) -> Value {
    let vfs: BTreeMap<u16, Value> = pf.vfs.iter().map(|(index, vf)| (*index, show_vf(vf))).collect();
    let nodes: BTreeMap<&String, Value> = pf
        .nodes
        .iter()
        .map(|(name, n)| (name, json!({ "share": n.share, "max": n.max, "parent": n.parent })))
        .collect();
    json!({
        "name": pf.name, "up": pf.up, "carrier": pf.carrier, "speed": rate(pf.speed), "top_speed": rate(pf.top_speed),
        "total_vfs": pf.total_vfs, "num_vfs": pf.num_vfs, "driver": pf.driver, "bus": pf.bus, "address": pf.address,
        "mode": format!("{:?}", pf.mode), "vfs": vfs, "nodes": nodes,
    })
}

fn show_vf(vf: &Vf) -> Value {
    let leaf = vf.leaf.as_ref().map(
        |leaf| json!({ "port": leaf.port, "share": leaf.share, "max": leaf.max, "parent": leaf.parent }),
    );
    json!({
        "mac": vf.mac, "vlan": vf.vlan, "qos": vf.qos, "spoofchk": vf.spoofchk, "trust": vf.trust,
        "link_state": vf.link_state, "tx_max": rate(vf.tx_max), "tx_min": rate(vf.tx_min), "address": vf.address,
        "representor": vf.representor.as_ref().map(|r| &r.name), "leaf": leaf,
    })
}

fn rate(rate: Option<Rate>) -> Option<String> {
    rate.map(|rate| rate.to_string())
}

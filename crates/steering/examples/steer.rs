//! Steers flows of a device of this network namespace until its standard input ends:
//! `steer DEVICE SPREAD_CPU[+SPREAD_CPU...] NAME,VNI,PORT,CPU...`; as root.
//!
//! UDP to PORT inside of VXLAN with VNI goes to CPU, all other flows to the CPUs before. Writes `attached`, and at the end, when it
//! detaches, the counters as a line of JSON.

use std::process::ExitCode;
use tidegate_contract::cores::{Flow, Tunnel};
use tidegate_cores::cpus::Cpus;
use tidegate_steering::key::Pattern;
use tidegate_steering::table::VXLAN_PORT;
use tidegate_steering::{Entry, Options, Steering, Table};

const UDP: u8 = 17;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, spread, flows @ ..] = &words[..] else {
        return Err("expected DEVICE SPREAD_CPU NAME,VNI,PORT,CPU...".into());
    };
    let spread = spread.split('+').map(|cpu| cpu.parse().map_err(|_| format!("{cpu} is no CPU")));
    let spread = spread.collect::<Result<Cpus, _>>()?;
    let entries = flows.iter().map(|flow| entry(device, flow)).collect::<Result<Vec<_>, _>>()?;
    let table = Table::new(entries, spread, VXLAN_PORT).map_err(|e| e.to_string())?;
    let steering = Steering::attach(device, &Options::default(), &table).map_err(|e| e.to_string())?;
    println!("attached");
    let ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    ended.map_err(|e| format!("cannot read standard input: {e}"))?;
    let counters = steering.counters().map_err(|e| e.to_string())?;
    println!("{}", serde_json::to_string(&counters).map_err(|e| e.to_string())?);
    steering.detach().map_err(|e| e.to_string())
}

fn entry(device: &str, flow: &str) -> Result<Entry, String> {
    let parts: Vec<&str> = flow.split(',').collect();
    let [name, id, port, cpu] = parts[..] else { return Err(format!("{flow}: expected NAME,VNI,PORT,CPU")) };
    let wrong = |_| format!("{flow}: no number");
    let flow = Flow {
        id: Some(id.parse().map_err(wrong)?),
        protocol: Some(UDP),
        to_port: Some(port.parse().map_err(wrong)?),
        ..Flow::new(device, Tunnel::Vxlan)
    };
    let cpu = cpu.parse().map_err(|_| format!("{cpu} is no CPU"))?;
    Ok(Entry { name: name.into(), pattern: Pattern::from(&flow), cpu })
}

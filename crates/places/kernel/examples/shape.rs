//! Shapes netdevs of the network namespace it runs in, says what it did, and ends; the kernel goes on.
//!
//! ```text
//! shape NETDEV:TX:RX …     rates of the VM's view, such as 100mbit; - for none
//! shape                    takes all of ours away
//! ```
//!
//! `BURST` (such as 16kB) is the burst of all of them; the default of a contract without it. `METHOD=police` drops what the
//! VM sends too much.

use std::error::Error;
use tidegate_contract::{Bytes, Method, Rate, Tx};
use tidegate_place_kernel::ebpf::Bucket;
use tidegate_place_kernel::tc::{Kernel, Limit, Shaping};

/// An Ethernet frame of 1500 bytes of IP, with a VLAN tag.
const FRAME: u64 = tidegate_contract::frame::TAGGED_FRAME;

fn burst() -> Result<Option<Bytes>, Box<dyn Error>> {
    Ok(std::env::var("BURST").ok().map(|b| b.parse()).transpose()?)
}

fn limit(text: &str) -> Result<Option<Limit>, Box<dyn Error>> {
    if text == "-" {
        return Ok(None);
    }
    let rate: Rate = text.parse()?;
    let burst = Tx { burst: burst()?, ..Tx::default() }.burst_or_default(rate);
    Ok(Some(Limit::new(rate, burst, None, FRAME)?))
}

fn police(text: &str) -> Result<Option<Bucket>, Box<dyn Error>> {
    if text == "-" {
        return Ok(None);
    }
    let rate: Rate = text.parse()?;
    let tx = Tx { burst: burst()?, method: Method::Police, ..Tx::default() };
    Ok(Some(Bucket::new(rate, tx.burst_or_default(rate))?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut wanted = Vec::new();
    for argument in std::env::args().skip(1) {
        let words: Vec<&str> = argument.split(':').collect();
        let [netdev, tx, rx] = words[..] else {
            return Err(format!("{argument}: expected NETDEV:TX:RX, such as vnet3:100mbit:-").into());
        };
        let (tx, tx_police) = match std::env::var("METHOD").as_deref() {
            Ok("police") => (None, police(tx)?),
            _ => (limit(tx)?, None),
        };
        wanted.push(Shaping { netdev: netdev.into(), tx, tx_police, rx: limit(rx)?, ..Shaping::default() });
    }
    let plan = Kernel::open()?.settle(&wanted)?;
    for step in &plan.steps {
        println!("{step}");
    }
    match plan.refusals.is_empty() {
        true => Ok(()),
        false => Err(plan.refusals.iter().map(|r| r.reason.as_str()).collect::<Vec<_>>().join("\n").into()),
    }
}

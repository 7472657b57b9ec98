//! The place of the scene, and its contracts: the same four vNICs, under a plain FIFO and under contract.

use clap::ValueEnum;
use serde::Serialize;
use std::fmt::Write;
use std::net::Ipv4Addr;

/// Deadline of voice (ns); in the FIFO phase only a mark to compare with.
pub const DEADLINE: u64 = 1_000_000;

/// Who keeps the contracts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Where {
    /// The host switch; tenants on taps of it
    Switch,
    /// The kernel, on a Linux bridge; tenants on veths
    Kernel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The sink's queue is a plain FIFO of 1,000 full-size frames; no vNIC has a deadline.
    Fifo,
    /// Voice has a deadline, and the sink's queue keeps it.
    Contract,
}

pub const TENANTS: [&str; 4] = ["voice", "bulk1", "bulk2", "sink"];

pub fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + index as u8)
}

/// Returns the contracts as TOML. `namespaces` holds the paths of the tenants' network namespaces.
pub fn toml(place: Where, phase: Phase, namespaces: &[String; 4]) -> String {
    let mut text = String::new();
    for (index, (name, namespace)) in TENANTS.iter().zip(namespaces).enumerate() {
        let terms = match (*name, phase) {
            ("voice", Phase::Fifo) => "tx = { max = \"4mbit\", burst = \"2kB\" }\n",
            ("voice", Phase::Contract) => {
                "tx = { max = \"4mbit\", burst = \"2kB\" }\ndeadline = \"1ms\"\nto = [\"sink\"]\n"
            }
            ("sink", Phase::Fifo) => match place {
                Where::Switch => "rx = { max = \"1gbit\", discipline = \"fifo\", queue = \"1500kB\" }\n",
                // Without promises the kernel place has one queue for all flows.
                Where::Kernel => "rx = { max = \"1gbit\", queue = \"1500kB\" }\nqueueing = \"fifo\"\n",
            },
            ("sink", Phase::Contract) => "rx = { max = \"1gbit\" }\n",
            _ => "",
        };
        let (attach, segment) = match place {
            Where::Switch => (format!("tap = \"eth0\", netns = \"{namespace}\""), 1),
            Where::Kernel => (format!("netdev = \"{}\"", port(index)), 0),
        };
        let _ = write!(
            text,
            "[vnic.{name}]\nattach = {{ {attach} }}\nmac = \"52:54:00:00:00:{:02x}\"\nsegment = {segment}\n\
             {terms}\n",
            index + 1
        );
    }
    text
}

/// Returns the bridge port of tenant `index` of [`TENANTS`].
pub fn port(index: usize) -> String {
    format!("tg-{}", TENANTS[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_second_phase_promises_anything() {
        let namespaces = ["/a", "/b", "/c", "/d"].map(String::from);
        let of = |phase| toml(Where::Switch, phase, &namespaces);
        let (fifo, contract) = (of(Phase::Fifo), of(Phase::Contract));
        assert!(fifo.contains("fifo") && !fifo.contains("deadline"), "{fifo}");
        assert!(!contract.contains("fifo") && contract.contains("deadline = \"1ms\""), "{contract}");
        assert!(contract.contains("[vnic.sink]\nattach = { tap = \"eth0\", netns = \"/d\" }"), "{contract}");
        assert_eq!(address(3), Ipv4Addr::new(10, 0, 0, 4));
        let kernel = toml(Where::Kernel, Phase::Contract, &namespaces);
        assert!(kernel.contains("attach = { netdev = \"tg-voice\" }") && kernel.contains("1ms"), "{kernel}");
    }
}

//! The contracts of the scene: the same four vNICs, under a plain FIFO and under contract.

use std::fmt::Write;
use std::net::Ipv4Addr;

/// Deadline of voice, ns; in the FIFO phase only a mark to count against.
pub const DEADLINE: u64 = 1_000_000;

/// The two halves of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The sink's queue is a plain FIFO of 1,000 full-size frames; nobody has a deadline.
    Fifo,
    /// Voice has a deadline, and the sink's queue keeps it.
    Contract,
}

/// The tenants in the order of their addresses.
pub const TENANTS: [&str; 4] = ["voice", "bulk1", "bulk2", "sink"];

/// Address of tenant number `index` of [`TENANTS`].
pub fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + index as u8)
}

/// The contracts as TOML; `namespaces` holds the tenants' network namespaces as paths.
pub fn toml(phase: Phase, namespaces: &[String; 4]) -> String {
    let mut text = String::new();
    for (index, (name, namespace)) in TENANTS.iter().zip(namespaces).enumerate() {
        let terms = match (*name, phase) {
            ("voice", Phase::Fifo) => "tx = { max = \"4mbit\", burst = \"2kB\" }\n",
            ("voice", Phase::Contract) => {
                "tx = { max = \"4mbit\", burst = \"2kB\" }\ndeadline = \"1ms\"\nto = [\"sink\"]\n"
            }
            ("sink", Phase::Fifo) => "rx = { max = \"1gbit\", discipline = \"fifo\", queue = \"1500kB\" }\n",
            ("sink", Phase::Contract) => "rx = { max = \"1gbit\" }\n",
            _ => "",
        };
        let _ = write!(
            text,
            "[vnic.{name}]\nattach = {{ tap = \"eth0\", netns = \"{namespace}\" }}\n\
             mac = \"52:54:00:00:00:{:02x}\"\nsegment = 1\n{terms}\n",
            index + 1
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_second_phase_promises_anything() {
        let namespaces = ["/a", "/b", "/c", "/d"].map(String::from);
        let (fifo, contract) = (toml(Phase::Fifo, &namespaces), toml(Phase::Contract, &namespaces));
        assert!(fifo.contains("fifo") && !fifo.contains("deadline"), "{fifo}");
        assert!(!contract.contains("fifo") && contract.contains("deadline = \"1ms\""), "{contract}");
        assert!(contract.contains("[vnic.sink]\nattach = { tap = \"eth0\", netns = \"/d\" }"), "{contract}");
        assert_eq!(address(3), Ipv4Addr::new(10, 0, 0, 4));
    }
}

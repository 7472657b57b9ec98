//! The contract of one vNIC. Directions are the VM's: tx is what it sends.

use crate::frame::{SUPER_FRAME, TAGGED_ETHERNET};
use crate::{Bytes, Mac, Nanos, OnRefused, OnUnreachable, Prefix, Queueing, Rate, Segment, SharedAddress};
use serde::{Deserialize, Serialize};
use std::{ops::Not, path::PathBuf};

/// The contract of one virtual NIC, checked: code may rely on the rules of [`crate::parse()`] (`tx.min <= tx.max`,
/// a deadline has its envelope and its `to`, and so on). Check a contract that came by serde with [`Vnic::check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vnic {
    /// Name, unique on the host: 1 to 63 of `[a-zA-Z0-9._-]`, first alphanumeric.
    pub name: String,
    /// Where the VM is connected.
    pub attach: Attach,
    /// The vNIC's own MAC; always unicast.
    pub mac: Mac,
    /// Tenant network; frames never cross segments.
    pub segment: Segment,
    /// What the VM sends.
    pub tx: Tx,
    /// What the VM receives.
    pub rx: Rx,
    /// Order in which frames wait for `tx.max` and `rx.max`.
    #[serde(default, skip_serializing_if = "Queueing::is_default")]
    pub queueing: Queueing,
    /// Share of the rate that guarantees leave: 1 to 1000.
    pub weight: u32,
    /// Bound of Tr - Ts; present on real-time vNICs only. 10 us to 10 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Nanos>,
    /// Where `tx.min` and the deadline hold: names of vNICs and of remotes, or `uplink`: every host that its segment
    /// reaches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// What the VM may send besides frames from its own MAC.
    #[serde(default)]
    pub allowed: Allowed,
    /// Largest IP packet (bytes): 68 to 65535, default 1500.
    pub mtu: u16,
    /// Queue pairs: 1 to 64.
    pub queues: u16,
    /// Host-side Unix socket of the virtio-serial port through which the VM sees its limits and sets its own lower
    /// one: absolute, at most 107 bytes. All vNICs of one VM may name the same socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<PathBuf>,
    /// What becomes of a change whose path the network's controller refuses; [`OnRefused::Fail`] if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_refused: Option<OnRefused>,
    /// What becomes of a change while the controller does not answer; [`OnUnreachable::BestEffort`] if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unreachable: Option<OnUnreachable>,
    /// How its frames reach other hosts.
    #[serde(default, skip_serializing_if = "Transport::is_default")]
    pub transport: Transport,
    /// By RDMA, the device reads payload out of the guest's memory, instead of a copy of the switch.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub zero_copy: bool,
}

/// How the frames of a vNIC reach other hosts over an uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// As the uplink sends all frames: [`crate::UplinkKind`].
    #[default]
    Uplink,
    /// By RDMA, to remote vNICs that have it, too: from a queue pair of its own (unreliable datagrams over RoCE v2).
    Rdma,
}

impl Transport {
    /// All transports, with their names in contracts.
    pub const ALL: [(&'static str, Self); 2] = [("uplink", Self::Uplink), ("rdma", Self::Rdma)];

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The kinds of connection a contract can name; one key each in TOML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Attach {
    /// A vhost-user port of our switch.
    VhostUser {
        /// The Unix socket, absolute, at most 107 bytes.
        path: PathBuf,
        /// Who listens: `server` (we do, default) or `client` (the front end does).
        #[serde(default)]
        mode: SocketMode,
        /// Owner, group and mode of a socket we listen on.
        #[serde(default)]
        owner: SocketOwner,
    },
    /// A tap made and owned by our switch.
    Tap {
        /// Interface name, 1 to 15 bytes.
        name: String,
        /// Network namespace to make it in, as a path such as `/run/netns/web`; the host's otherwise.
        #[serde(default)]
        netns: Option<PathBuf>,
    },
    /// An existing kernel device.
    Netdev {
        /// Interface name, 1 to 15 bytes.
        name: String,
    },
    /// An SR-IOV virtual function.
    Vf {
        /// The physical function's interface name.
        pf: String,
        /// Index of the virtual function.
        index: u16,
        /// Further settings of the function.
        #[serde(default)]
        options: VfOptions,
    },
}

/// Settings of a virtual function besides its rates, its MAC and its segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VfOptions {
    /// Priority in the VLAN tag of its segment (802.1Q PCP): 0 to 7.
    pub qos: u8,
    /// Whether the guest's driver may affect other functions: promiscuous mode, further MACs.
    pub trust: bool,
    /// Link state that the guest sees.
    pub link_state: LinkState,
}

/// The link of a virtual function, as its guest sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// The state of the NIC's port.
    #[default]
    Auto,
    /// Always up: guests of one NIC reach each other without a cable.
    Enable,
    /// Down: the guest neither sends nor receives.
    Disable,
}

/// Which end of a vhost-user socket listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketMode {
    /// We listen, the front end connects.
    #[default]
    Server,
    /// The front end listens, we connect and reconnect.
    Client,
}

/// Ownership of a listening socket; absent values stay as the process creates them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SocketOwner {
    /// User name or number.
    pub user: Option<String>,
    /// Group name or number.
    pub group: Option<String>,
    /// Permission bits, default `0o660`.
    pub mode: Option<u32>,
}

/// What the VM sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tx {
    /// The host's hard limit.
    pub max: Option<Rate>,
    /// Guaranteed rate towards `to`.
    pub min: Option<Rate>,
    /// Token bucket depth. Defaulted by [`Tx::burst_or_default`].
    pub burst: Option<Bytes>,
    /// Treatment of frames above `max`.
    pub method: Method,
}

/// The treatment of frames above a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// They wait.
    #[default]
    Shape,
    /// They are dropped at once: the sender finds its rate by the losses.
    Police,
}

/// What the VM receives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rx {
    /// Hard limit, and the capacity C of the admission arithmetic.
    pub max: Option<Rate>,
    /// Token bucket depth; defaulted like `tx.burst`.
    pub burst: Option<Bytes>,
    /// Order in which waiting frames leave: `contract` (EDF, minima, weights) or `fifo`.
    pub discipline: Discipline,
    /// Most bytes that may wait for this vNIC; with `fifo` the tail-drop limit.
    pub queue: Option<Bytes>,
}

/// The order in which frames that wait for a vNIC are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// Real-time frames by deadline, then minima, then shares by weight.
    #[default]
    Contract,
    /// First come, first served, tail drop, as a plain interface. Admission refuses every promise towards it. For
    /// comparisons.
    Fifo,
}

/// What a vNIC may send besides frames from its own MAC. Serialisation omits keys that are `false`: a release that
/// does not know them reads the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Allowed {
    /// Further source MACs.
    pub macs: Vec<Mac>,
    /// `macs = "any"`: a bridge or router is behind it; its MACs are learned.
    pub any_mac: bool,
    /// Source IP prefixes; empty means any.
    pub prefixes: Vec<Prefix>,
    /// Further addresses that it may have while no other vNIC of its segment has them: VRRP, CARP. At most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedAddress>,
    /// VLAN ids of a trunk, 1 to 4094; empty means untagged frames only.
    pub vlans: Vec<u16>,
    /// Frames for the link itself (IEEE 802.1Q, table 8-1: STP, LACP, LLDP, EAPOL, PAUSE), sent and received.
    #[serde(skip_serializing_if = "Not::not")]
    pub control: bool,
    /// It may send router advertisements and redirects although it has `prefixes`. Without `prefixes` any vNIC may.
    #[serde(skip_serializing_if = "Not::not")]
    pub router: bool,
    /// It may send what DHCP servers and relays send although it has `prefixes`. Without `prefixes` any vNIC may.
    #[serde(skip_serializing_if = "Not::not")]
    pub dhcp_server: bool,
}

/// The name that stands for all uplinks in [`Vnic::to`].
pub const UPLINK: &str = "uplink";

impl Vnic {
    /// Returns whether it has a deadline: then its frames go first, by deadline, and must keep to the envelope
    /// `tx.max`, `tx.burst`.
    pub const fn is_realtime(&self) -> bool {
        self.deadline.is_some()
    }

    /// Returns the largest Ethernet frame on the wire (bytes without FCS): `mtu`, header and VLAN tag.
    pub fn largest_frame(&self) -> u64 {
        u64::from(self.mtu) + TAGGED_ETHERNET
    }

    /// Returns whether it is at the host switch, whose frames alone use uplinks.
    pub const fn uses_uplinks(&self) -> bool {
        matches!(self.attach, Attach::VhostUser { .. } | Attach::Tap { .. })
    }

    /// Returns whether frames of `segment` may reach it: its own segment, or any for a kernel device in segment 0,
    /// such as the uplink of a bridge.
    pub fn hears(&self, segment: Segment) -> bool {
        segment == self.segment || (self.segment.id() == 0 && matches!(self.attach, Attach::Netdev { .. }))
    }
}

impl Attach {
    /// Returns the key in a contract that names its kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::VhostUser { .. } => "vhost-user",
            Self::Tap { .. } => "tap",
            Self::Netdev { .. } => "netdev",
            Self::Vf { .. } => "vf",
        }
    }

    /// Returns its keys with their values, as a user writes them, defaults included.
    pub fn keys(&self) -> Vec<(&'static str, String)> {
        let own = match self {
            Self::VhostUser { path, mode, owner } => {
                let mode = match mode {
                    SocketMode::Server => "server",
                    SocketMode::Client => "client",
                };
                vec![
                    (self.kind(), Some(path.display().to_string())),
                    ("mode", Some(mode.into())),
                    ("owner", owner.user.clone()),
                    ("group", owner.group.clone()),
                    ("socket-mode", owner.mode.map(|mode| format!("{mode:04o}"))),
                ]
            }
            Self::Tap { name, netns } => {
                let netns = netns.as_ref().map(|path| path.display().to_string());
                vec![(self.kind(), Some(name.clone())), ("netns", netns)]
            }
            Self::Netdev { name } => vec![(self.kind(), Some(name.clone()))],
            Self::Vf { pf, index, options } => {
                let link_state = match options.link_state {
                    LinkState::Auto => "auto",
                    LinkState::Enable => "enable",
                    LinkState::Disable => "disable",
                };
                vec![
                    (self.kind(), Some(format!("{pf}/{index}"))),
                    ("qos", Some(options.qos.to_string())),
                    ("trust", Some(options.trust.to_string())),
                    ("link-state", Some(link_state.into())),
                ]
            }
        };
        own.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }
}

impl Tx {
    /// Returns `burst`; by default one 64 KiB super-frame or 10 ms at `rate` (the limit in force), whichever is larger;
    /// 250 ms with [`Method::Police`]. A real-time vNIC always states its burst.
    pub fn burst_or_default(&self, rate: Rate) -> Bytes {
        self.burst.unwrap_or_else(|| match self.method {
            Method::Shape => default_burst(rate),
            Method::Police => policer_burst(rate),
        })
    }
}

impl Rx {
    /// As [`Tx::burst_or_default`].
    pub fn burst_or_default(&self, rate: Rate) -> Bytes {
        self.burst.unwrap_or_else(|| default_burst(rate))
    }
}

/// With less than one super-frame every full-size send would be a debt. A full bucket earns nothing, so a burst
/// shorter than the time for which a scheduler or hypervisor takes a CPU away costs rate: 10 ms covers the time
/// slices of Linux.
fn default_burst(rate: Rate) -> Bytes {
    Bytes::new(SUPER_FRAME.max(rate.bits() / 8 / 100))
}

/// At a policer nothing waits: when its bucket is empty, a TCP connection loses all frames under way, and sends
/// nothing until its retransmission timer expires, after at least 200 ms in Linux (`TCP_RTO_MIN`). The tokens of
/// that time have to fit into the bucket.
fn policer_burst(rate: Rate) -> Bytes {
    Bytes::new(SUPER_FRAME.max(rate.bits() / 8 / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contracts_of_older_releases_are_read() {
        let old = r#"{"macs": [], "any_mac": true, "prefixes": ["10.0.0.0/8"], "vlans": [7]}"#;
        let allowed: Allowed = serde_json::from_str(old).expect("an older release's");
        assert_eq!(allowed.shared, []);
        assert_eq!((allowed.control, allowed.router, allowed.dhcp_server), (false, false, false));
        let written = serde_json::to_string(&allowed).expect("serialises");
        assert_eq!(written, old.replace(": ", ":").replace(", ", ","), "and it reads ours");
        let control = Allowed { control: true, ..allowed };
        let written = serde_json::to_string(&control).expect("serialises");
        assert_eq!(serde_json::from_str::<Allowed>(&written).expect("parses"), control);
    }

    #[test]
    fn a_policed_vnic_has_a_longer_default_burst() {
        let rate = |bits| Rate::from_bits(bits).expect("a rate");
        let tx = Tx { method: Method::Police, ..Tx::default() };
        assert_eq!(tx.burst_or_default(rate(1_000_000)).get(), 65_536);
        assert_eq!(tx.burst_or_default(rate(1_000_000_000)).get(), 31_250_000);
        let stated = Tx { burst: Some(Bytes::new(9)), ..tx };
        assert_eq!(stated.burst_or_default(rate(1_000_000_000)).get(), 9);
    }

    #[test]
    fn the_default_burst_is_a_super_frame_or_ten_milliseconds() {
        let rate = |bits| Rate::from_bits(bits).expect("a rate");
        let tx = Tx::default();
        assert_eq!(tx.burst_or_default(rate(1_000)).get(), 65_536);
        assert_eq!(tx.burst_or_default(rate(52_428_800)).get(), 65_536);
        assert_eq!(tx.burst_or_default(rate(10_000_000_000)).get(), 12_500_000);
        let rx = Rx { burst: Some(Bytes::new(9)), ..Rx::default() };
        assert_eq!(rx.burst_or_default(rate(1_000)).get(), 9);
        assert_eq!(Rx::default().burst_or_default(rate(1_000)).get(), 65_536);
    }

    #[test]
    fn an_attachment_has_its_keys_with_the_defaults() {
        let owner = SocketOwner { user: None, group: Some("kvm".into()), mode: Some(0o660) };
        let socket = Attach::VhostUser { path: "/run/a.sock".into(), mode: SocketMode::Client, owner };
        let options = VfOptions { qos: 3, link_state: LinkState::Disable, ..VfOptions::default() };
        let keys = |attach: &Attach| {
            let keys = attach.keys();
            assert_eq!(keys[0].0, attach.kind());
            keys.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(keys(&socket), "vhost-user=/run/a.sock mode=client group=kvm socket-mode=0660");
        assert_eq!(keys(&Attach::Tap { name: "t0".into(), netns: None }), "tap=t0");
        assert_eq!(keys(&Attach::Netdev { name: "vnet0".into() }), "netdev=vnet0");
        let vf = Attach::Vf { pf: "eth0".into(), index: 2, options };
        assert_eq!(keys(&vf), "vf=eth0/2 qos=3 trust=false link-state=disable");
    }
}

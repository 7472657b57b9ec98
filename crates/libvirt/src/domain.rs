//! A domain's interfaces and contracts, from its XML.
//!
//! ```text
//!  <domain>              as libvirt gives it to hooks, and `virsh dumpxml` prints it
//!  <domstatus><domain>   as libvirt keeps it in /run/libvirt/qemu while the domain runs
//! ```
//!
//! Source of the format: libvirt, formatdomain, "Network interfaces".

use crate::bandwidth::Bandwidth;
use crate::memory::{self, Obstacle};
use crate::metadata::{self, MetadataRequest};
use crate::xml::{Source, child, child_attribute, children};
use roxmltree::Node;
use std::path::PathBuf;
use tidegate_contract::{Error, Errors, Mac, SocketMode};

/// A domain.
#[derive(Debug)]
pub(crate) struct Domain<'a> {
    pub name: &'a str,
    pub interfaces: Vec<Interface<'a>>,
    /// Contracts in its metadata, by MAC; no MAC twice.
    pub requests: Vec<MetadataRequest<'a>>,
    /// Socket of the guest's limit port, if the domain has one and it is known.
    pub guest: Option<PathBuf>,
    /// Why no device may read its memory, if none may.
    pub obstacle: Option<Obstacle<'a>>,
}

/// The virtio-serial port by which a guest sets its soft limit.
const LIMIT_PORT: &str = "org.tidegate.limit.0";

/// An interface of a domain.
#[derive(Debug)]
pub(crate) struct Interface<'a> {
    pub node: Node<'a, 'a>,
    pub mac: Mac,
    pub link: Backend<'a>,
    /// For types that libvirt itself limits.
    pub bandwidth: Option<Bandwidth<'a>>,
    /// Largest IP packet (bytes), if stated.
    pub mtu: Option<&'a str>,
    /// Queue pairs, if stated.
    pub queues: Option<&'a str>,
}

/// The attachment of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backend<'a> {
    /// A tap or macvtap; its name is known while the domain runs.
    Netdev(Option<&'a str>),
    /// A vhost-user socket; `mode` is our side's.
    VhostUser { path: PathBuf, mode: SocketMode },
    /// A type without contracts, by libvirt's name.
    Other(&'a str),
}

/// Reads a domain.
///
/// # Errors
/// XML that libvirt would not write, and invalid contracts in the metadata.
pub(crate) fn read<'a>(source: Source<'a>, root: Node<'a, 'a>) -> Result<Domain<'a>, Errors> {
    let domain = match root.tag_name().name() {
        "domain" => Some(root),
        "domstatus" => child(root, "domain"),
        _ => None,
    };
    let Some(domain) = domain else {
        let found = root.tag_name().name();
        let message =
            format!("expected the XML of a domain (<domain>, as virsh dumpxml prints it), not <{found}>");
        return Err(Errors(vec![source.error_at_element(root, "", message)]));
    };
    let mut errors = Vec::new();
    let name = child(domain, "name").and_then(|n| n.text()).map_or("", str::trim);
    if name.is_empty() {
        errors.push(source.error_at_element(domain, "name", "the domain has no <name>"));
    }
    let guest = children(domain, "devices")
        .flat_map(|devices| children(devices, "channel"))
        .find_map(limit_socket)
        .map(PathBuf::from);
    let nodes = children(domain, "devices").flat_map(|devices| children(devices, "interface"));
    let interfaces =
        nodes.filter_map(|node| interface(source, node).map_err(|e| errors.extend(e)).ok()).collect();
    let requests = metadata::requests(source, domain, &mut errors);
    let obstacle = memory::obstacle(domain);
    if errors.is_empty() {
        Ok(Domain { name, interfaces, requests, guest, obstacle })
    } else {
        Err(Errors(errors))
    }
}

fn interface<'a>(source: Source<'a>, node: Node<'a, 'a>) -> Result<Interface<'a>, Vec<Error>> {
    let mut errors = Vec::new();
    // A network's resolution at the domain's start; only in libvirt's own status file.
    let actual = child(node, "actual").unwrap_or(node);
    let kind = actual.attribute("type").or(node.attribute("type")).unwrap_or_default();
    let mac = match child_attribute(node, "mac", "address").map(str::parse::<Mac>) {
        Some(Ok(mac)) => Some(mac),
        Some(Err(e)) => {
            errors.push(source.error_at_element(node, "mac", format!("the MAC of this interface: {e}")));
            None
        }
        None => {
            let message = "this interface has no <mac address='...'/>, and Tidegate finds its contract by the MAC; libvirt adds a <mac> when the domain is defined";
            errors.push(source.error_at_element(node, "mac", message));
            None
        }
    };
    let target = child_attribute(node, "target", "dev");
    let link = match kind {
        "bridge" | "network" | "ethernet" | "direct" => Backend::Netdev(target),
        "vhostuser" => match socket(source, node) {
            Ok(link) => link,
            Err(e) => {
                errors.push(e);
                Backend::Other(kind)
            }
        },
        other => Backend::Other(other),
    };
    // A port group's values for a network's interface are inside <actual>.
    let said = child(actual, "bandwidth").or(child(node, "bandwidth"));
    let bandwidth = said.map(|node| Bandwidth::read(source, node)).transpose();
    let bandwidth = bandwidth.map_err(|e| errors.extend(e)).unwrap_or_default();
    let open_vswitch = child_attribute(actual, "virtualport", "type")
        .or(child_attribute(node, "virtualport", "type"))
        .is_some_and(|t| t == "openvswitch");
    let bandwidth = bandwidth.map(|b| Bandwidth { open_vswitch, ..b });
    let (mtu, queues) = (child_attribute(node, "mtu", "size"), child_attribute(node, "driver", "queues"));
    match mac {
        Some(mac) if errors.is_empty() => Ok(Interface { node, mac, link, bandwidth, mtu, queues }),
        _ => Err(errors),
    }
}

/// Returns the socket at which QEMU listens for the limit port's host program. libvirt chooses a path when
/// the domain starts if none is given.
fn limit_socket<'a>(channel: Node<'a, 'a>) -> Option<&'a str> {
    let is_port = child_attribute(channel, "target", "type") == Some("virtio")
        && child_attribute(channel, "target", "name") == Some(LIMIT_PORT);
    let listens = child_attribute(channel, "source", "mode") != Some("connect");
    let unix = channel.attribute("type") == Some("unix");
    child_attribute(channel, "source", "path").filter(|_| is_port && unix && listens)
}

/// Returns the socket of an interface of type vhostuser. Its `mode` is QEMU's side: if QEMU is the client,
/// we listen.
fn socket<'a>(source: Source<'a>, node: Node<'a, 'a>) -> Result<Backend<'a>, Error> {
    let said = child(node, "source");
    let attribute = |name| said.and_then(|s| s.attribute(name));
    let Some(path) = attribute("path") else {
        return Err(source.error_at_element(
            said.unwrap_or(node),
            "source",
            "this vhostuser interface names no socket: <source path='...'/>",
        ));
    };
    let mode = match attribute("mode") {
        Some("client") => SocketMode::Server,
        Some("server") => SocketMode::Client,
        other => {
            let found = other.map_or_else(|| "is missing".into(), |m| format!("is \"{m}\""));
            let message = format!("the mode of this vhostuser interface {found}; expected client or server");
            return Err(source.error_at_element(said.unwrap_or(node), "source", message));
        }
    };
    Ok(Backend::VhostUser { path: path.into(), mode })
}

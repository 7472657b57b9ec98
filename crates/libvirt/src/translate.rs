//! From a domain to contracts.
//!
//! ```text
//!  interface ─┬─ metadata has its MAC ──▶ that contract           (its <bandwidth> then has no effect)
//!             ├─ has a <bandwidth> ─────▶ that, translated
//!             └─ neither ───────────────▶ nothing
//! ```
//!
//! All or nothing: if one part is impossible, the domain gets no contract.

use crate::domain::{Backend, Domain, Interface, read};
use crate::metadata::{MetadataRequest, NAMESPACE};
use crate::xml::Source;
use tidegate_contract::{
    Allowed, Attach, Error, Errors, Mac, Queueing, Rx, Segment, SocketOwner, Tx, Vnic, set_key,
};
use tidegate_visible::{is_hidden, visible};

/// Most bytes of a domain's name that a vNIC's name takes over: 63 less a hyphen and the MAC's 12 digits.
const STEM: usize = 50;
/// MTU of a guest that is told none.
const UNTOLD_MTU: u64 = 1500;
/// Stands for the name of a tap that does not exist yet.
const NOT_YET: &str = "not-yet";

/// A domain's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The domain's name.
    pub domain: String,
    /// Its contracts, in the order of the interfaces.
    pub contracts: Vec<Contract>,
    /// The same as elements of the metadata, including those that wait for an interface.
    pub elements: Vec<Element>,
    /// Notes for people: untranslated values, contracts without an interface.
    pub notes: Vec<String>,
}

/// The contract of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// The contract; its attachment is a placeholder where `attached` is false.
    pub vnic: Vnic,
    /// Whether the interface's tap or socket is known: taps get their names when a domain starts.
    pub attached: bool,
    /// Whether libvirt also limits this interface: its qdisc and filter are in the way.
    pub limited_by_libvirt: bool,
    /// Its origin.
    pub from: From,
}

/// A contract as an element of the metadata: the interface, and its attributes.
pub type Element = (Mac, Vec<(String, String)>);

/// The origin of a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The domain's metadata.
    Metadata,
    /// The interface's `<bandwidth>`.
    Bandwidth,
}

/// Reads a domain's XML. `origin` is its source, for errors.
///
/// # Errors
/// All faults and untranslatable parts, with line and column.
pub fn translate(text: &str, origin: &str) -> Result<Translation, Errors> {
    let source = Source { text, origin };
    let document = source.parse()?;
    let domain = read(source, document.root_element())?;
    let (mut contracts, mut notes, mut errors) = (Vec::<Contract>::new(), Vec::new(), Vec::new());
    for interface in &domain.interfaces {
        let request = domain.requests.iter().find(|a| a.mac == interface.mac);
        match contract(source, &domain, interface, request, &mut notes) {
            Ok(contract) => contracts.extend(contract),
            Err(why) => errors.extend(why),
        }
    }
    for unused in domain.requests.iter().filter(|a| domain.interfaces.iter().all(|i| i.mac != a.mac)) {
        notes.push(format!(
            "the metadata has a contract for {}, but the domain has no interface with that MAC: the contract waits for one",
            unused.mac
        ));
    }
    if !errors.is_empty() {
        return Err(Errors(errors));
    }
    let imported =
        contracts.iter().filter(|c| c.from == From::Bandwidth).map(|c| (c.vnic.mac, limit_keys(&c.vnic)));
    let elements = domain.requests.iter().map(written).chain(imported).collect();
    Ok(Translation { domain: domain.name.into(), contracts, elements, notes })
}

/// Returns the attributes of an element as written.
fn written(request: &MetadataRequest<'_>) -> Element {
    let name = request.name.map(|name| ("name".to_owned(), name.to_owned()));
    let keys = request.keys.iter().map(|key| (key.name().to_owned(), key.value().to_owned()));
    (request.mac, name.into_iter().chain(keys).collect())
}

/// Returns the limits of a contract as attributes.
fn limit_keys(vnic: &Vnic) -> Vec<(String, String)> {
    let keys = [
        ("tx.max", vnic.tx.max.map(|r| r.to_string())),
        ("tx.burst", vnic.tx.burst.map(|b| b.to_string())),
        ("rx.max", vnic.rx.max.map(|r| r.to_string())),
        ("rx.burst", vnic.rx.burst.map(|b| b.to_string())),
    ];
    keys.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn contract(
    source: Source<'_>,
    domain: &Domain<'_>,
    interface: &Interface<'_>,
    request: Option<&MetadataRequest<'_>>,
    notes: &mut Vec<String>,
) -> Result<Option<Contract>, Vec<Error>> {
    let mac = interface.mac;
    let (attach, attached) = match (&interface.link, request) {
        (Backend::Other(kind), Some(request)) => {
            let message = format!(
                "{mac} is an interface of type {kind}, for which Tidegate can keep no contract; possible types are bridge, network, \
                 ethernet, direct (a limit on its tap) and vhostuser (a port of the switch)"
            );
            return Err(vec![source.error_at_element(request.node, "metadata", message)]);
        }
        (Backend::Other(kind), None) => {
            if interface.bandwidth.is_some() {
                notes.push(format!(
                    "{mac}: the <bandwidth> of an interface of type {kind} stays with libvirt"
                ));
            }
            return Ok(None);
        }
        (Backend::Netdev(name), _) => {
            (Attach::Netdev { name: name.unwrap_or(NOT_YET).into() }, name.is_some())
        }
        (Backend::VhostUser { path, mode }, _) => {
            (Attach::VhostUser { path: path.clone(), mode: *mode, owner: SocketOwner::default() }, true)
        }
    };
    let mut base = Vnic {
        name: name(domain.name, mac),
        attach,
        mac,
        segment: Segment::new(0).expect("0 is a segment"),
        tx: Tx::default(),
        rx: Rx::default(),
        queueing: Queueing::default(),
        weight: 1,
        deadline: None,
        to: vec![],
        allowed: Allowed::default(),
        mtu: 1500,
        queues: 1,
        guest: domain.guest.clone(),
        on_refused: None,
        on_unreachable: None,
        transport: tidegate_contract::Transport::default(),
        zero_copy: false,
    };
    let mut keys = own_keys(interface);
    let from = match (request, &interface.bandwidth) {
        (Some(request), _) => {
            apply_metadata(source, interface, request, &mut base, &mut keys)?;
            From::Metadata
        }
        (None, Some(bandwidth)) if bandwidth.open_vswitch => {
            notes.push(format!(
                "{mac}: the <bandwidth> of an interface on Open vSwitch stays with Open vSwitch; write a contract in the metadata so that Tidegate keeps it"
            ));
            return Ok(None);
        }
        (None, Some(_)) if matches!(interface.link, Backend::VhostUser { .. }) => {
            notes.push(format!(
                "{mac}: no program keeps the <bandwidth> of a vhostuser interface; a port of the switch needs a contract in the \
                 metadata, with its segment"
            ));
            return Ok(None);
        }
        (None, Some(_)) => {
            limits(source, interface, &mut base, notes)?;
            From::Bandwidth
        }
        (None, None) => return Ok(None),
    };
    let place = |key: &str, message: String| {
        let attribute = request.and_then(|a| a.node.attributes().find(|k| k.name() == key));
        let path = format!("vnic.{}.{key}", base.name);
        match (attribute, request) {
            (Some(attribute), _) => source.error_at_attribute(attribute, &path, message),
            (None, Some(request)) => source.error_at_element(request.node, &path, message),
            (None, None) => source.error_at_element(interface.node, &path, message),
        }
    };
    // `set_key` requires a valid contract.
    base.check()
        .map_err(|broken| broken.into_iter().map(|p| place(&p.key, p.message)).collect::<Vec<_>>())?;
    let vnic = set_key(&base, &keys).map_err(|Errors(errors)| {
        let prefix = format!("vnic.{}.", base.name);
        let errors = errors.into_iter();
        errors.map(|e| place(e.key.strip_prefix(&prefix).unwrap_or_default(), e.message)).collect::<Vec<_>>()
    })?;
    if let Some((node, why)) = domain.obstacle.as_ref().filter(|_| vnic.zero_copy) {
        let key = format!("vnic.{}.zero-copy", vnic.name);
        let message = format!("{why}; or remove zero-copy from the metadata");
        return Err(vec![source.error_at_element(*node, &key, message)]);
    }
    notes.extend(untold_mtu(interface, &vnic));
    let limited_by_libvirt = interface.bandwidth.is_some() && matches!(interface.link, Backend::Netdev(_));
    Ok(Some(Contract { vnic, attached, limited_by_libvirt, from }))
}

/// Says that a guest at a port of the switch is not told its contract's MTU, and sends longer packets: they are dropped.
fn untold_mtu(interface: &Interface<'_>, vnic: &Vnic) -> Option<String> {
    let told: u64 = interface.mtu.map_or(Some(UNTOLD_MTU), |mtu| mtu.parse().ok())?;
    let is_port = matches!(interface.link, Backend::VhostUser { .. });
    (is_port && u64::from(vnic.mtu) < told).then(|| {
        format!(
            "{}: its contract drops packets of more than {mtu} bytes, and the guest sends {told}: write <mtu size='{mtu}'/> \
             into the interface, by which QEMU tells the guest (host_mtu)",
            interface.mac,
            mtu = vnic.mtu
        )
    })
}

/// Returns the keys that the interface itself determines.
fn own_keys(interface: &Interface<'_>) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    if let Some(mtu) = interface.mtu {
        keys.push(("mtu".to_owned(), mtu.to_owned()));
    }
    // A tap has the queues it was made with, regardless of the contract.
    if let (Some(queues), Backend::VhostUser { .. }) = (interface.queues, &interface.link) {
        keys.push(("queues".to_owned(), queues.to_owned()));
    }
    keys
}

/// Applies the metadata of an interface.
fn apply_metadata(
    source: Source<'_>,
    interface: &Interface<'_>,
    request: &MetadataRequest<'_>,
    base: &mut Vnic,
    keys: &mut Vec<(String, String)>,
) -> Result<(), Vec<Error>> {
    let mut errors = Vec::new();
    if let Some(name) = request.name {
        base.name = name.into();
    }
    for key in &request.keys {
        let socket = ["attach.owner", "attach.group", "attach.socket-mode"].contains(&key.name());
        if key.name().starts_with("attach") && !socket {
            let message = "the <interface> element says where the interface is attached; remove this key";
            errors.push(source.error_at_attribute(*key, key.name(), message));
        }
        keys.retain(|(own, _)| own != key.name());
        keys.push((key.name().to_owned(), key.value().to_owned()));
    }
    if matches!(interface.link, Backend::VhostUser { .. })
        && request.keys.iter().all(|k| k.name() != "segment")
    {
        let message = "a port of the switch is in one segment, and frames never cross segments: write its segment, such as segment=\"42\"";
        errors.push(source.error_at_element(request.node, "segment", message));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Applies the `<bandwidth>` of an interface.
fn limits(
    source: Source<'_>,
    interface: &Interface<'_>,
    base: &mut Vnic,
    notes: &mut Vec<String>,
) -> Result<(), Vec<Error>> {
    let Some(bandwidth) = interface.bandwidth else { return Ok(()) };
    let mut errors = Vec::new();
    let mut limit = |way: &str, direction: crate::bandwidth::DirectionLimits| {
        notes.extend(
            direction.untranslated_notes(way).into_iter().map(|note| format!("{}: {note}", interface.mac)),
        );
        direction
            .limit()
            .map_err(|why| errors.push(source.error_at_element(bandwidth.node, way, why)))
            .unwrap_or_default()
    };
    let (rx, tx) = (limit("inbound", bandwidth.inbound), limit("outbound", bandwidth.outbound));
    (base.rx.max, base.rx.burst) = (rx.max, rx.burst);
    (base.tx.max, base.tx.burst) = (tx.max, tx.burst);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Returns the name of an unnamed vNIC: the domain's, in allowed characters, and the MAC.
fn name(domain: &str, mac: Mac) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let mut stem: String = domain.chars().map(plain).take(STEM).collect();
    if !stem.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        stem = format!("vm{}", &stem[..stem.len().min(STEM - 2)]);
    }
    mac.0.iter().fold(stem + "-", |name, byte| format!("{name}{byte:02x}"))
}

impl Translation {
    /// Returns the contracts of attached interfaces as text for the agent, empty or not.
    pub fn to_toml(&self) -> String {
        let attached = self.contracts.iter().filter(|c| c.attached);
        attached.fold(format!("# Domain {:?}\n", self.domain), |text, c| text + "\n" + &c.vnic.to_toml())
    }

    /// Describes all contracts, their origins, and untranslated parts for people.
    pub fn explained(&self) -> String {
        let mut text = format!(
            "# Domain {:?}, in the VM's view: tx is what it sends, rx what it receives.\n",
            self.domain
        );
        for note in &self.notes {
            text += &format!("# {}\n", visible(note));
        }
        for contract in &self.contracts {
            let toml = contract.vnic.to_toml();
            let toml = if contract.attached {
                toml
            } else {
                let line = |line: &str| match line.starts_with("attach ") {
                    true => "# attach: its tap gets a name when the domain starts\n".to_owned(),
                    false => format!("{line}\n"),
                };
                toml.lines().map(line).collect()
            };
            let from = match contract.from {
                From::Metadata => "its metadata",
                From::Bandwidth => "its <bandwidth>",
            };
            text += &format!("\n# from {from}\n{toml}");
        }
        text
    }

    /// Returns the same as an element for the domain's `<metadata>`.
    pub fn to_metadata(&self) -> String {
        let mut text = format!("<tidegate:contracts xmlns:tidegate=\"{NAMESPACE}\">\n");
        for (mac, keys) in &self.elements {
            let keys = keys
                .iter()
                .fold(String::new(), |all, (key, value)| format!("{all} {key}=\"{}\"", escaped(value)));
            text += &format!("  <tidegate:vnic mac=\"{mac}\"{keys}/>\n");
        }
        text + "</tidegate:contracts>\n"
    }
}

/// Escapes a text as the value of an attribute.
fn escaped(text: &str) -> String {
    let with = [("&", "&amp;"), ("<", "&lt;"), ("\"", "&quot;"), ("\n", "&#10;"), ("\t", "&#9;")];
    let text = with.into_iter().fold(text.to_owned(), |text, (plain, safe)| text.replace(plain, safe));
    // Invisible characters.
    let reference = |c: char| if is_hidden(c) { format!("&#{};", u32::from(c)) } else { c.into() };
    text.chars().map(reference).collect()
}

#[cfg(test)]
mod tests;

//! Contracts inside a domain's `<metadata>`.
//!
//! ```text
//!  <tidegate:contracts xmlns:tidegate="https://tidegate.dev/libvirt/1">
//!    <tidegate:vnic mac="52:54:00:00:00:01" tx.max="500mbit" rx.max="1gbit"/>     one per interface
//!  </tidegate:contracts>
//! ```
//!
//! An attribute is a dotted key of the contract, with a value as for `tidegate vnic set`. The domain's own
//! facts (the interface's attachment) are not repeated.

use crate::xml::{Source, child};
use roxmltree::{Attribute, Node};
use tidegate_contract::{Error, Mac};

/// The namespace of our elements. Another number means another format.
pub const NAMESPACE: &str = "https://tidegate.dev/libvirt/1";
/// Prefix of all our namespaces.
const FAMILY: &str = "https://tidegate.dev/";

/// The metadata's request for one interface.
#[derive(Clone, Debug)]
pub(crate) struct Asked<'a> {
    pub node: Node<'a, 'a>,
    pub mac: Mac,
    /// Name of the vNIC, if given.
    pub name: Option<&'a str>,
    /// Keys of the contract.
    pub keys: Vec<Attribute<'a, 'a>>,
}

/// Reads the contracts of a domain.
pub(crate) fn asked<'a>(source: Source<'a>, domain: Node<'a, 'a>, errors: &mut Vec<Error>) -> Vec<Asked<'a>> {
    let mut found: Vec<Asked<'a>> = Vec::new();
    let Some(metadata) = child(domain, "metadata") else { return found };
    let ours = |n: &Node<'_, '_>| n.tag_name().namespace().is_some_and(|ns| ns.starts_with(FAMILY));
    for contracts in metadata.children().filter(|n| n.is_element() && ours(n)) {
        if !is(contracts, "contracts") {
            let (name, namespace) =
                (contracts.tag_name().name(), contracts.tag_name().namespace().unwrap_or_default());
            let message =
                format!("<{name}> of {namespace} is not known here; expected <contracts> of {NAMESPACE}");
            errors.push(source.at(contracts, "metadata", message));
            continue;
        }
        for attribute in contracts.attributes() {
            let message =
                format!("<contracts> has no attribute {}; keys stand at each <vnic>", attribute.name());
            errors.push(source.at_attribute(attribute, "metadata", message));
        }
        for node in contracts.children() {
            if node.is_text() && node.text().is_some_and(|t| t.trim().is_empty()) || node.is_comment() {
                continue;
            }
            match vnic(source, node) {
                Err(error) => errors.push(error),
                Ok(asked) if found.iter().any(|a| a.mac == asked.mac) => {
                    let message = format!("{} has two contracts here; keep one of them", asked.mac);
                    errors.push(source.at(node, "metadata", message));
                }
                Ok(asked) => found.push(asked),
            }
        }
    }
    found
}

fn vnic<'a>(source: Source<'a>, node: Node<'a, 'a>) -> Result<Asked<'a>, Error> {
    if !is(node, "vnic") {
        let what =
            if node.is_element() { format!("<{}>", node.tag_name().name()) } else { "this text".into() };
        let message = format!(
            "{what} has no meaning here; expected <vnic mac=\"...\" KEY=\"...\"/>, one per interface"
        );
        return Err(source.at(node, "metadata", message));
    }
    if let Some(inner) =
        node.children().find(|n| n.is_element() || n.text().is_some_and(|t| !t.trim().is_empty()))
    {
        let message = "a <vnic> is empty: its keys are attributes, such as tx.max=\"500mbit\"";
        return Err(source.at(inner, "metadata", message));
    }
    let Some(mac) = node.attribute("mac") else {
        return Err(source.at(
            node,
            "metadata",
            "this <vnic> names no interface: write its mac=\"52:54:00:...\"",
        ));
    };
    let mac = mac.parse().map_err(|e| source.at(node, "metadata", format!("mac: {e}")))?;
    let keys = node.attributes().filter(|a| !["mac", "name"].contains(&a.name())).collect();
    Ok(Asked { node, mac, name: node.attribute("name"), keys })
}

fn is(node: Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().namespace() == Some(NAMESPACE) && node.tag_name().name() == name
}

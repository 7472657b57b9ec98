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
pub(crate) struct MetadataRequest<'a> {
    pub node: Node<'a, 'a>,
    pub mac: Mac,
    /// Name of the vNIC, if given.
    pub name: Option<&'a str>,
    /// Keys of the contract.
    pub keys: Vec<Attribute<'a, 'a>>,
}

/// Reads the contracts of a domain.
pub(crate) fn requests<'a>(
    source: Source<'a>,
    domain: Node<'a, 'a>,
    errors: &mut Vec<Error>,
) -> Vec<MetadataRequest<'a>> {
    let mut requests: Vec<MetadataRequest<'a>> = Vec::new();
    let Some(metadata) = child(domain, "metadata") else { return requests };
    let is_tidegate = |n: &Node<'_, '_>| n.tag_name().namespace().is_some_and(|ns| ns.starts_with(FAMILY));
    for contracts in metadata.children().filter(|n| n.is_element() && is_tidegate(n)) {
        if !is_own_element(contracts, "contracts") {
            let (name, namespace) =
                (contracts.tag_name().name(), contracts.tag_name().namespace().unwrap_or_default());
            let message = format!(
                "Tidegate does not know <{name}> of {namespace}; expected <contracts> of {NAMESPACE}"
            );
            errors.push(source.error_at_element(contracts, "metadata", message));
            continue;
        }
        for attribute in contracts.attributes() {
            let message = format!(
                "<contracts> has no attribute {}; write the keys as attributes of each <vnic>",
                attribute.name()
            );
            errors.push(source.error_at_attribute(attribute, "metadata", message));
        }
        for node in contracts.children() {
            if node.is_text() && node.text().is_some_and(|t| t.trim().is_empty()) || node.is_comment() {
                continue;
            }
            match vnic(source, node) {
                Err(error) => errors.push(error),
                Ok(request) if requests.iter().any(|a| a.mac == request.mac) => {
                    let message = format!("{} has two contracts here; keep one of them", request.mac);
                    errors.push(source.error_at_element(node, "metadata", message));
                }
                Ok(request) => requests.push(request),
            }
        }
    }
    requests
}

fn vnic<'a>(source: Source<'a>, node: Node<'a, 'a>) -> Result<MetadataRequest<'a>, Error> {
    if !is_own_element(node, "vnic") {
        let what =
            if node.is_element() { format!("<{}>", node.tag_name().name()) } else { "this text".into() };
        let message = format!(
            "{what} has no meaning here; expected <vnic mac=\"...\" KEY=\"...\"/>, one per interface"
        );
        return Err(source.error_at_element(node, "metadata", message));
    }
    if let Some(inner) =
        node.children().find(|n| n.is_element() || n.text().is_some_and(|t| !t.trim().is_empty()))
    {
        let message = "a <vnic> is empty: its keys are attributes, such as tx.max=\"500mbit\"";
        return Err(source.error_at_element(inner, "metadata", message));
    }
    let Some(mac) = node.attribute("mac") else {
        return Err(source.error_at_element(
            node,
            "metadata",
            "this <vnic> names no interface: write the interface's mac=\"52:54:00:...\"",
        ));
    };
    let mac = mac.parse().map_err(|e| source.error_at_element(node, "metadata", format!("mac: {e}")))?;
    let keys = node.attributes().filter(|a| !["mac", "name"].contains(&a.name())).collect();
    Ok(MetadataRequest { node, mac, name: node.attribute("name"), keys })
}

fn is_own_element(node: Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().namespace() == Some(NAMESPACE) && node.tag_name().name() == name
}

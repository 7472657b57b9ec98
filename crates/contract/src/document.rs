//! A contract file, as read, and its tables that have names.

use crate::{Controller, GivenPeer, Host, Located, Remote, SegmentKeys, Uplink, Vnic};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The contents of one contract file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The `[host]` table.
    pub host: Option<Located<Host>>,
    /// The `[controller]` table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Located<Controller>>,
    /// The `[vnic.NAME]` tables, in the order of the file.
    pub vnics: Vec<Located<Vnic>>,
    /// The `[uplink.NAME]` tables, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<Located<Uplink>>,
    /// The `[remote.NAME]` tables, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remotes: Vec<Located<Remote>>,
    /// The `[segment.ID]` tables, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Located<SegmentKeys>>,
    /// Peers for uplinks of other documents; no file has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Located<GivenPeer>>,
}

impl Document {
    /// Adds the tables of `other`, but for its `[host]` and `[controller]`.
    pub(crate) fn extend(&mut self, other: Self) {
        let Self { host: _, controller: _, vnics, uplinks, remotes, segments, peers } = other;
        self.vnics.extend(vnics);
        self.uplinks.extend(uplinks);
        self.remotes.extend(remotes);
        self.segments.extend(segments);
        self.peers.extend(peers);
    }
}

/// A kind of table that a file has several of, each with a name.
pub trait Table: Sized {
    /// The key before the name.
    const KIND: &'static str;

    /// Returns the name.
    fn name(&self) -> Cow<'_, str>;

    /// Returns a document's tables of this kind.
    fn of(document: &Document) -> &Vec<Located<Self>>;

    /// As [`Table::of`], to change.
    fn of_mut(document: &mut Document) -> &mut Vec<Located<Self>>;

    /// Returns what a person calls the table, such as `[uplink.net0]`.
    fn what(&self) -> String {
        format!("[{}.{}]", Self::KIND, self.name())
    }
}

macro_rules! table {
    ($type:ident, $kind:literal, $field:ident, $name:expr $(, $what:expr)?) => {
        impl Table for $type {
            const KIND: &'static str = $kind;
            fn name(&self) -> Cow<'_, str> {
                let name: fn(&Self) -> Cow<'_, str> = $name;
                name(self)
            }
            fn of(document: &Document) -> &Vec<Located<Self>> {
                &document.$field
            }
            fn of_mut(document: &mut Document) -> &mut Vec<Located<Self>> {
                &mut document.$field
            }
            $(fn what(&self) -> String {
                let what: fn(&Self) -> String = $what;
                what(self)
            })?
        }
    };
}

table!(Vnic, "vnic", vnics, |vnic| vnic.name.as_str().into(), |vnic| format!("vNIC {}", vnic.name));
table!(Uplink, "uplink", uplinks, |uplink| uplink.name.as_str().into());
table!(Remote, "remote", remotes, |remote| remote.name.as_str().into());
table!(GivenPeer, "peer", peers, |given| given.peer.name.as_str().into());
table!(SegmentKeys, "segment", segments, |keys| keys.segment.to_string().into());

//! A contract file, as read.

use crate::{Host, Located, Vnic};
use serde::{Deserialize, Serialize};

/// The contents of one contract file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The `[host]` table.
    pub host: Option<Located<Host>>,
    /// The `[vnic.NAME]` tables, in the order of the file.
    pub vnics: Vec<Located<Vnic>>,
}

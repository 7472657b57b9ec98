//! The messages: rtnetlink for VFs, generic netlink for devlink and ethtool.
//!
//! ```text
//!  observe:  RTM_GETLINK with RTEXT_FILTER_VF ─▶ link     ─┐
//!            ETHTOOL_MSG_LINKMODES_GET        ─▶ ethtool  ─┼─▶ Pf, Vf
//!            DEVLINK_CMD_{ESWITCH,PORT,RATE}_GET ─▶ devlink ┘
//!  apply:    Step ─▶ set ─▶ RTM_SETLINK, DEVLINK_CMD_RATE_*
//! ```
//!
//! What a message says is the kernel's and yet never trusted to be whole: what is not understood is left out.

pub mod devlink;
pub mod ethtool;
pub mod link;
pub mod set;
#[cfg(test)]
mod tests;

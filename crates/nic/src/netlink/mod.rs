//! The messages: rtnetlink for VFs, generic netlink for devlink and ethtool.

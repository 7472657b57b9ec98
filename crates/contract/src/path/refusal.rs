//! The reasons why a path is refused.

use super::network::LEVELS;
use super::request::{MOST_HOPS, MOST_ROUTES};
use crate::{Bytes, Nanos, Rate};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a change of reservations is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each variant's text names its fields")]
pub enum PathRefusal {
    /// A link cannot take it.
    #[error("path {path}: link {link} (level {route_level}): {limit}")]
    Link { path: String, link: String, route_level: u8, limit: Limit },
    /// The links are together too slow.
    #[error(
        "path {path}: its {hops} links take at most {bound} at level {level}, and {budget} are left of the deadline; take \
         a shorter route or a more urgent level, or raise the deadline"
    )]
    Budget { path: String, hops: usize, level: u8, bound: Nanos, budget: Nanos },
    /// A frame is too long.
    #[error(
        "path {path}: its frames have up to {needed} with the path's tag, and link {link} carries {available}; lower the vNIC's mtu, or raise that of the link"
    )]
    Mtu { path: String, link: String, needed: Bytes, available: Bytes },
    /// There is no such link.
    #[error("path {path}: there is no link {link}")]
    NoLink { path: String, link: String },
    /// Two links do not meet.
    #[error("path {path}: link {link} begins at {from}, and the one before it ends at {to}")]
    Apart { path: String, link: String, from: String, to: String },
    /// A node comes twice.
    #[error("path {path}: it passes {node} twice")]
    Loop { path: String, node: String },
    /// The route has no link, or too many.
    #[error("path {path}: it has {hops} links; it needs 1 to {MOST_HOPS}")]
    Length { path: String, hops: usize },
    /// A link has no such level.
    #[error("path {path}: link {link} has {levels} levels of at most {LEVELS}, and none of number {level}")]
    NoLevel { path: String, link: String, level: u8, levels: usize },
    /// The numbers of the request are out of range.
    #[error(
        "path {path}: frames of {smallest_frame} to {largest_frame} with a burst of {burst}: the shortest has at least 60B, \
         the longest fits into the burst, and that is at most 1GB"
    )]
    Request { path: String, smallest_frame: Bytes, largest_frame: Bytes, burst: Bytes },
    /// No way was offered.
    #[error("path {path}: there is no route between its ends")]
    NoRoute { path: String },
    /// Too many ways were offered.
    #[error(
        "path {path}: {routes} routes are offered, and at most {MOST_ROUTES} are tried; offer the best ones"
    )]
    Routes { path: String, routes: usize },
    /// A reservation of this name exists.
    #[error("path {path} is reserved already; release it in the same change")]
    Exists { path: String },
    /// A reservation of this name does not exist.
    #[error("path {path} is not reserved, so it cannot be released")]
    Unknown { path: String },
}

/// A limit of a link that a reservation would exceed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "limit", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each variant's text names its fields")]
pub enum Limit {
    /// The sum of the rates.
    #[error("{needed_bits} bit/s would be reserved, {} bit/s ({available}) are reservable", available.bits())]
    Rate { needed_bits: u64, available: Rate },
    /// The delay of a level: that of the route, or a less urgent one.
    #[error("level {level} would need {needed}, and its fixed delay is {delay}")]
    Delay { level: u8, needed: Nanos, delay: Nanos },
    /// The queue of a level.
    #[error("up to {needed} of level {level} would wait, and its queue holds {available}")]
    Buffer { level: u8, needed: Bytes, available: Bytes },
    /// The same in frames.
    #[error("up to {needed} frames of level {level} would wait, and its queue holds {available}")]
    Frames { level: u8, needed: u64, available: u64 },
}

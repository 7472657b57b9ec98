//! Address handles: where a datagram goes.

use crate::{Device, Error};
use std::net::IpAddr;
use std::sync::Arc;

/// Another host, and the traffic class of datagrams to it.
#[derive(Debug)]
pub struct Address {}

impl Address {
    /// Makes the handle of `to`, for datagrams that leave from the GID `from` with `traffic_class` (DSCP and ECN). The
    /// kernel may ask the network for `to`'s link-layer address: not on a worker.
    ///
    /// # Errors
    /// No route, or the device has no more.
    pub fn new(device: &Arc<Device>, from: u8, to: IpAddr, traffic_class: u8) -> Result<Arc<Self>, Error> {
        let _ = (device, from, to, traffic_class);
        todo!()
    }
}

//! Address handles: where a datagram goes.

#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{Device, Error, device, real};
use std::net::IpAddr;
use std::sync::Arc;

/// Another host, and the traffic class of datagrams to it.
#[derive(Debug)]
pub struct Address {
    pub(crate) inner: Inner,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Real(real::Address),
    #[cfg(feature = "simulated")]
    Simulated(simulated::Address),
}

impl Address {
    /// Makes the handle of `to`, for datagrams that leave from the GID `from` with `traffic_class` (DSCP and ECN). The
    /// kernel may ask the network for `to`'s link-layer address: not on a worker.
    ///
    /// # Errors
    /// No route, or the device has no more.
    pub fn new(device: &Arc<Device>, from: u8, to: IpAddr, traffic_class: u8) -> Result<Arc<Self>, Error> {
        let inner = match &device.inner {
            device::Inner::Real(device) => Inner::Real(real::Address::new(device, from, to, traffic_class)?),
            #[cfg(feature = "simulated")]
            device::Inner::Simulated(device) => {
                Inner::Simulated(simulated::Address::new(device, from, to, traffic_class)?)
            }
        };
        Ok(Arc::new(Self { inner }))
    }
}

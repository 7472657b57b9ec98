//! Without a device.

mod posting;
mod wire;

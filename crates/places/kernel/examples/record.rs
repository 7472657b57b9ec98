//! Prints what the kernel says of the qdiscs, classes and filters of a netdev, as recordings for tests.
//!
//! ```text
//! record NETDEV     ──▶  qdisc HEX …, class HEX …, filter HEX …: the messages' bodies, one per line
//! ```

use std::error::Error;
use tidegate_place_kernel::tc::handle::Handle;
use tidegate_place_kernel::tc::netlink::{Socket, header, link, link_named, traffic_control};

// Message types of linux/rtnetlink.h.
const RTM_GETLINK: u16 = 18;
const RTM_GETQDISC: u16 = 38;
const RTM_GETTCLASS: u16 = 42;
const RTM_GETTFILTER: u16 = 46;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("expected the name of a netdev")?;
    let mut socket = Socket::route()?;
    let (index, _) =
        socket.get(RTM_GETLINK, &link_named(&name), |_, body| link(body))?.ok_or("no such netdev")?;
    let mut print = |kind, parent, what: &str| -> Result<Vec<Handle>, Box<dyn Error>> {
        let bodies = socket.dump(kind, &header(index, Handle::default(), parent, 0).0, |_, body| {
            let of_it = traffic_control(body).is_some_and(|message| message.index == index);
            of_it.then(|| body.to_vec())
        })?;
        for body in &bodies {
            let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("{what} {hex}");
        }
        Ok(bodies.iter().filter_map(|body| traffic_control(body)).map(|message| message.handle).collect())
    };
    let qdiscs = print(RTM_GETQDISC, Handle::default(), "qdisc")?;
    print(RTM_GETTCLASS, Handle::default(), "class")?;
    for parent in qdiscs {
        let parent = if parent == Handle::INGRESS_QDISC { Handle::INGRESS } else { parent };
        // Not every qdisc may have filters.
        let _ = print(RTM_GETTFILTER, parent, "filter");
    }
    Ok(())
}

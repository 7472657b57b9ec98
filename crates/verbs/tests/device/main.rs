//! Checks of a real device, where there is one: `tests/rdma` runs this program in a guest with soft-RoCE.
//!
//! ```text
//!  device facts DEVICE                           what its port is
//!  device conform DEVICE USER ADDRESS ADDRESS    become USER (a number), open, check between two addresses of the device
//!  device huge DEVICE USER ADDRESS ADDRESS       the same, with pages of 2 MiB: 16 of these have to be free
//!  device refuse DEVICE USER ADDRESS ADDRESS     the same, with what a device or this crate has to refuse
//!  device foreign DEVICE USER ADDRESS ADDRESS    open as root, become USER: no send leaves
//! ```
//!
//! Status 0: all is as it has to be. Without arguments it checks nothing, as on a machine without devices.

mod refusals;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use tidegate_verbs::conformance::{End, check_all, check_huge_pages};
use tidegate_verbs::{Device, Library};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["facts", device] => facts(device),
        ["conform", device, user, a, b] => conform(device, user, a, b),
        ["huge", device, user, a, b] => huge(device, user, a, b),
        ["refuse", device, user, a, b] => refuse(device, user, a, b),
        ["foreign", device, user, a, b] => foreign(device, user, a, b),
        // What cargo says to all tests.
        [] => Ok(()),
        [option, ..] if option.starts_with("--") => Ok(()),
        _ => Err("no such check: see the first lines of its source".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("device: {error}");
            ExitCode::FAILURE
        }
    }
}

fn facts(device: &str) -> Outcome {
    let library = Library::load()?;
    println!("devices {}", library.devices()?.join(" "));
    let device = library.open(device)?;
    let port = device.port()?;
    println!("active {} mtu {} link {:?}", port.is_active, port.mtu, port.link);
    for gid in device.gids()? {
        println!("gid {} v2 {}", gid.address, gid.is_roce_v2);
    }
    Ok(())
}

fn conform(device: &str, user: &str, a: &str, b: &str) -> Outcome {
    let library = Library::load()?;
    become_user(user.parse()?)?;
    let (a, b) = ends(&library.open(device)?, a, b)?;
    check_all(&a, &b);
    Ok(())
}

fn huge(device: &str, user: &str, a: &str, b: &str) -> Outcome {
    let library = Library::load()?;
    become_user(user.parse()?)?;
    let (a, b) = ends(&library.open(device)?, a, b)?;
    check_huge_pages(&a, &b);
    Ok(())
}

fn refuse(device: &str, user: &str, a: &str, b: &str) -> Outcome {
    let library = Library::load()?;
    become_user(user.parse()?)?;
    let device = library.open(device)?;
    let (a, b) = ends(&device, a, b)?;
    refusals::check_all(&library, &a, &b);
    Ok(())
}

fn foreign(device: &str, user: &str, a: &str, b: &str) -> Outcome {
    let (a, b) = ends(&Library::load()?.open(device)?, a, b)?;
    let user = user.parse()?;
    refusals::foreign_user(&a, &b, || become_user(user))
}

fn ends(device: &Arc<Device>, a: &str, b: &str) -> Result<(End, End), Box<dyn Error>> {
    let (a, b) = (a.parse::<IpAddr>()?, b.parse::<IpAddr>()?);
    Ok((End::new(device, a), End::new(device, b)))
}

/// Gives up root.
fn become_user(number: u32) -> Outcome {
    let (user, group) = (Uid::from_raw(number), Gid::from_raw(number));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    Ok(())
}

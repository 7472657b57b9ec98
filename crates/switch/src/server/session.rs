//! One connection of an agent to the control socket.

use super::Switch;
use super::ports::Connect;
use super::retire;
use super::uplinks::Sockets;
use crate::control::channel;
use crate::control::message::{Hello, LinkKind, PROTOCOL, Reply, Request};
use crate::vhost_user::listener::Restored;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tidegate_service::housekeeping;
use tidegate_service::scm::too_many_in_flight;

/// The meaning of ETOOMANYREFS, and the remedy.
const IN_FLIGHT: &str = "processes of the switch's user have sent more descriptors over Unix sockets than the switch's \
 RLIMIT_NOFILE, and the receivers have not received them; give the switch a user of its own, or end those \
 processes";

/// Serves a connection on a thread of its own until it ends.
pub fn spawn(switch: Arc<Switch>, stream: UnixStream) {
    let serve = move || {
        if let Err(error) = serve(&switch, &stream) {
            tracing::warn!(%error, "control connection broke off");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("control".into()).spawn(serve) {
        tracing::error!(%error, "no thread for a control connection");
    }
}

fn serve(switch: &Arc<Switch>, stream: &UnixStream) -> std::io::Result<()> {
    while let Some((request, descriptors)) = channel::receive(stream)? {
        housekeeping::follow();
        match request {
            Request::Hello => {
                let hello = Hello {
                    protocol: PROTOCOL,
                    version: env!("CARGO_PKG_VERSION").into(),
                    pid: std::process::id(),
                    started: switch.started,
                    workers: switch.workers.len(),
                    directable: true,
                    shares_queues: true,
                    knows_rdma: true,
                    knows_zero_copy: true,
                    rdma: switch.rdma.devices.facts(),
                };
                say_hello(stream, hello, switch.region.file().as_fd())?;
            }
            Request::Retire => retire::serve(switch, stream)?,
            request => channel::send(stream, &answer(switch, request, descriptors), &[])?,
        }
    }
    Ok(())
}

/// Sends the switch's identity with its statistics; or why the statistics cannot be passed.
fn say_hello(stream: &UnixStream, hello: Hello, statistics: BorrowedFd<'_>) -> std::io::Result<()> {
    match channel::send(stream, &Reply::Hello(hello), &[statistics]) {
        Err(error) if too_many_in_flight(&error) => {
            tracing::warn!("cannot pass the statistics: {IN_FLIGHT}");
            channel::send(
                stream,
                &Reply::Refused(format!("the switch cannot pass its statistics: {IN_FLIGHT}")),
                &[],
            )
        }
        sent => sent,
    }
}

fn answer(switch: &Arc<Switch>, request: Request, mut descriptors: Vec<OwnedFd>) -> Reply {
    let done = match request {
        Request::Hello | Request::Retire | Request::Release => {
            return Reply::Refused(
                "the switch does not accept this request at this point of the conversation".into(),
            );
        }
        Request::Ports => {
            switch.publish_log();
            return Reply::Ports(switch.ports());
        }
        Request::Direct(directions) => switch.direct(directions),
        Request::Work => return Reply::Work(Box::new(switch.work_status())),
        Request::SetHost(host) => switch.set_host(host),
        Request::SetPort { vnic, link } => match (link, descriptors.len()) {
            (LinkKind::Unchanged, 0) => switch.set_port(*vnic, Connect::Unchanged),
            (LinkKind::Listener, 1) => switch.set_port(*vnic, Connect::Listener(descriptors.remove(0))),
            (LinkKind::Stream, 1) => switch.set_port(*vnic, Connect::Stream(descriptors.remove(0))),
            (LinkKind::Tap, 1..) => switch.set_port(*vnic, Connect::Tap(descriptors)),
            (LinkKind::Restored { listener, saved, numbers }, count)
                if count == numbers.len() + usize::from(listener) =>
            {
                let listener = listener.then(|| descriptors.remove(0));
                let descriptors = numbers.into_iter().zip(descriptors).collect();
                let restored = Restored { listener, saved: *saved, descriptors, gate: None };
                switch.set_port(*vnic, Connect::Restored(Box::new(restored)))
            }
            (kind, count) => {
                Err(format!("the request for {kind:?} has a wrong number of descriptors, {count}"))
            }
        },
        Request::RemovePort { name } => switch.remove_port(&name),
        Request::Uplinks => return Reply::Uplinks(switch.uplinks()),
        Request::SetUplink { uplink, remotes, keys, receive, pairs, ports, notices, orders } => {
            let notices = if notices { descriptors.pop() } else { None };
            match descriptors.len() {
                0 if receive == 0 => switch.set_uplink(*uplink, (remotes, keys, orders), None),
                count if receive < count && pairs < count - receive => {
                    let pairs = descriptors.split_off(count - pairs);
                    let send = descriptors.split_off(receive);
                    let sockets = Sockets { receive: descriptors, send, pairs, ports, notices };
                    switch.set_uplink(*uplink, (remotes, keys, orders), Some(sockets))
                }
                count => Err(format!(
                    "an uplink with {receive} receiving sockets, {pairs} of pairs and {count} descriptors"
                )),
            }
        }
        Request::RemoveUplink { name } => switch.remove_uplink(&name),
        Request::Subscribe => match descriptors.pop() {
            Some(socket) => switch.add_subscriber(socket),
            None => Err("the request has no descriptor to which the switch can send its state".into()),
        },
        Request::Inherit => match descriptors.pop() {
            Some(statistics) => switch.inherit(&statistics),
            None => Err("the request has no descriptor of the earlier statistics".into()),
        },
        Request::Capture { name, snaplen } => match descriptors.pop() {
            Some(into) => switch.capture(&name, snaplen, into),
            None => Err("the request has no descriptor to which the switch can write the capture".into()),
        },
    };
    match done {
        Ok(()) => Reply::Done,
        Err(why) => Reply::Refused(why),
    }
}

//! Netfilter's netlink (linux/netfilter/nfnetlink.h): subsystems with messages of their own, such as nftables. Numbers in its
//! attributes are in network byte order.

use crate::attribute::Attributes;
use crate::socket::{NetlinkError, Socket};

/// Length of `struct nfgenmsg`: family, version, resource.
const HEADER: usize = 4;

/// A conversation with one subsystem.
#[derive(Debug)]
pub struct Netfilter {
    socket: Socket,
    subsystem: u16,
}

/// One message of it.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Address family (`NFPROTO_…`, linux/netfilter.h).
    pub family: u8,
    /// Its attributes.
    pub attributes: &'a [u8],
}

impl Netfilter {
    /// Opens it, in the network namespace of the calling thread; `None` where the kernel has no Netfilter. `subsystem` is its
    /// number, such as `NFNL_SUBSYS_NFTABLES`.
    ///
    /// # Errors
    /// The operating system said no.
    pub fn open(subsystem: u8) -> Result<Option<Self>, NetlinkError> {
        match Socket::netfilter() {
            Ok(socket) => Ok(Some(Self { socket, subsystem: subsystem.into() })),
            Err(e) if e.raw_os_error() == Some(EPROTONOSUPPORT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Asks for one thing. A kernel without this subsystem says `EINVAL`.
    ///
    /// # Errors
    /// As [`Socket::get`].
    pub fn get<T>(
        &mut self,
        command: u8,
        mut each: impl FnMut(Message<'_>) -> Option<T>,
    ) -> Result<Option<T>, NetlinkError> {
        let body = body(0, &Attributes::default());
        self.socket.get(self.kind(command), &body, |_, body| each(message(body)?))
    }

    /// Asks for all objects; family 0 stands for every family.
    ///
    /// # Errors
    /// As [`Socket::dump`].
    pub fn dump<T>(
        &mut self,
        command: u8,
        family: u8,
        attributes: &Attributes,
        mut each: impl FnMut(Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let body = body(family, attributes);
        self.socket.dump(self.kind(command), &body, |_, body| each(message(body)?))
    }

    fn kind(&self, command: u8) -> u16 {
        self.subsystem << 8 | u16::from(command)
    }
}

const EPROTONOSUPPORT: i32 = 93;

fn body(family: u8, attributes: &Attributes) -> Vec<u8> {
    [&[family, 0, 0, 0], &attributes.0[..]].concat()
}

fn message(body: &[u8]) -> Option<Message<'_>> {
    Some(Message { family: *body.first()?, attributes: body.get(HEADER..)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_family_and_attributes() {
        let mut attributes = Attributes::default();
        attributes.put_str(1, "filter");
        let body = body(5, &attributes);
        let read = message(&body).expect("a message");
        assert_eq!((read.family, read.attributes), (5, &attributes.0[..]));
        assert!(message(&body[..3]).is_none() && message(&[]).is_none());
    }
}

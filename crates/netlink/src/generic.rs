//! Generic netlink (linux/genetlink.h): families of messages that have a name, and a number only once the kernel is asked.

use crate::attribute::{Attributes, find, u16_at};
use crate::socket::{NetlinkError, Socket};
use std::io;

/// Number of the family that knows the others.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// Length of `struct genlmsghdr`: command, version, 2 bytes reserved.
const HEADER: usize = 4;

/// A conversation with one family, such as `devlink`.
#[derive(Debug)]
pub struct Generic {
    socket: Socket,
    family: u16,
    version: u8,
}

impl Generic {
    /// Opens it, in the network namespace of the calling thread; `None` where the kernel has no such family.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn open(name: &str, version: u8) -> Result<Option<Self>, NetlinkError> {
        let mut socket = Socket::generic()?;
        let mut request = header(CTRL_CMD_GETFAMILY, 2);
        request.put_str(CTRL_ATTR_FAMILY_NAME, name);
        let number = |_, body: &[u8]| u16_at(find(body.get(HEADER..)?, CTRL_ATTR_FAMILY_ID)?, 0);
        match socket.get(GENL_ID_CTRL, &request.0, number) {
            Ok(Some(family)) => Ok(Some(Self { socket, family, version })),
            Ok(None) => Err(io::Error::other(format!("no number of {name} in the kernel's answer")).into()),
            Err(e) if e.errno() == Some(ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Asks for a change; `attributes` as [`Attributes`] has them.
    ///
    /// # Errors
    /// As [`Socket::change`].
    pub fn change(&mut self, command: u8, attributes: &Attributes) -> Result<(), NetlinkError> {
        self.socket.change(self.family, 0, &self.message(command, attributes))
    }

    /// Asks for one object; `each` gets the attributes of the answer.
    ///
    /// # Errors
    /// As [`Socket::get`].
    pub fn get<T>(
        &mut self,
        command: u8,
        attributes: &Attributes,
        mut each: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, NetlinkError> {
        let body = self.message(command, attributes);
        self.socket.get(self.family, &body, |_, body| each(body.get(HEADER..)?))
    }

    /// Asks for all objects of a kind.
    ///
    /// # Errors
    /// As [`Socket::dump`].
    pub fn dump<T>(
        &mut self,
        command: u8,
        attributes: &Attributes,
        mut each: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let body = self.message(command, attributes);
        self.socket.dump(self.family, &body, |_, body| each(body.get(HEADER..)?))
    }

    fn message(&self, command: u8, attributes: &Attributes) -> Vec<u8> {
        [&header(command, self.version).0, &attributes.0[..]].concat()
    }
}

fn header(command: u8, version: u8) -> Attributes {
    Attributes(vec![command, version, 0, 0])
}

const ENOENT: i32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_of_families_is_found_and_others_are_not() {
        let found = Generic::open("nlctrl", 2).expect("an answer").expect("in every kernel");
        assert_eq!(found.family, GENL_ID_CTRL);
        assert!(Generic::open("no-such-family", 1).expect("an answer").is_none());
    }
}

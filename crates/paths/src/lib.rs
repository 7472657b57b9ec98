//! Paths that contracts name: sockets and network namespaces of users, used with the agent's rights.
//!
//! ```text
//!  contract: path ─▶ Roots: below one of them? ── no ─▶ refused, and nothing is touched
//!                      │ resolved once, without links
//!                      ├─▶ Entry: a folder held open, and a name in it ─▶ look, bind, unlink: there, nowhere else
//!                      │     └─▶ SocketFile: one file held open ─▶ connect, owner, mode: that one, no other
//!                      └─▶ Namespace: held open, and known to be one, before it is opened for use
//! ```
//!
//! The author of a contract may own the folders that it names, and may exchange their files at any moment. So the agent resolves each
//! path once, and changes only the file that it has looked at.
//!
//! - `entry`: a name in a folder, and the socket file there
//! - `namespace`: network namespaces
//! - `roots`: the folders below which contracts may name something
//! - [`socket`]: sockets that we listen at, and sockets that we dial
//! - `users`: names of users and groups as numbers

mod entry;
mod namespace;
mod roots;
pub mod socket;
mod users;

pub use entry::{At, Entry, Inode, SocketFile};
pub use namespace::{Namespace, NamespaceError, within};
pub use roots::{PathError, Paths, Roots, exposed, exposed_way};

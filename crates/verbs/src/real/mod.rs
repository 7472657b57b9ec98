//! The types over libibverbs.

use crate::{Completion, Depths, Error, Gid, Port, Receive, Send};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

#[derive(Debug)]
pub(crate) struct Library {}

impl Library {
    pub(crate) fn load() -> Result<Self, Error> {
        todo!()
    }

    pub(crate) fn devices(&self) -> Result<Vec<String>, Error> {
        todo!()
    }

    pub(crate) fn open(&self, _name: &str) -> Result<Device, Error> {
        todo!()
    }
}

#[derive(Debug)]
pub(crate) struct Device {}

impl Device {
    pub(crate) fn name(&self) -> &str {
        todo!()
    }

    pub(crate) fn port(&self) -> Result<Port, Error> {
        todo!()
    }

    pub(crate) fn gids(&self) -> Result<Vec<Gid>, Error> {
        todo!()
    }
}

#[derive(Debug)]
pub(crate) struct Region {}

impl Region {
    pub(crate) fn new(_device: &Device, _bytes: usize) -> Result<Self, Error> {
        todo!()
    }

    pub(crate) fn len(&self) -> usize {
        todo!()
    }

    pub(crate) fn start(&self) -> *mut u8 {
        todo!()
    }

    pub(crate) fn local_key(&self) -> u32 {
        todo!()
    }
}

#[derive(Debug)]
pub(crate) struct Address {}

impl Address {
    pub(crate) fn new(_device: &Device, _from: u8, _to: IpAddr, _traffic_class: u8) -> Result<Self, Error> {
        todo!()
    }
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {}

impl CompletionQueue {
    pub(crate) fn new(_device: &Device, _entries: u32) -> Result<Self, Error> {
        todo!()
    }

    pub(crate) fn poll(&self, _to: &mut [Completion]) -> Result<usize, Error> {
        todo!()
    }

    pub(crate) fn arm(&self) -> Result<(), Error> {
        todo!()
    }

    pub(crate) fn take_events(&self) {
        todo!()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
}

#[derive(Debug)]
pub(crate) struct QueuePair {}

impl QueuePair {
    pub(crate) fn new(
        _device: &Device,
        _sends: &CompletionQueue,
        _receives: &CompletionQueue,
        _depths: Depths,
        _q_key: u32,
    ) -> Result<Self, Error> {
        todo!()
    }

    pub(crate) fn number(&self) -> u32 {
        todo!()
    }

    pub(crate) fn set_q_key(&self, _q_key: u32) -> Result<(), Error> {
        todo!()
    }

    pub(crate) unsafe fn post_send(&self, _sends: &[Send<'_>]) -> Result<(), (usize, Error)> {
        todo!()
    }

    pub(crate) unsafe fn post_receive(&self, _receives: &[Receive<'_>]) -> Result<(), (usize, Error)> {
        todo!()
    }

    pub(crate) fn fail(&self) -> Result<(), Error> {
        todo!()
    }
}

//! The messages that a port takes: their forms and requests.
//!
//! ```text
//!  header ─▶ Form: payload, descriptors, feature     payload, descriptors ─▶ decode ─▶ Request
//!            (checked by wire, door, connection)                             (the `vhost` crate's structs)
//! ```
//!
//! Each [`Request`] states what the protocol requires of its message ("Front-end message types" of the
//! vhost-user specification).

use super::NOT_SHARED;
use super::saved::SharedFd;
use tidegate_contract::Mac;
use vhost::vhost_user::VhostUserProtocolFeatures as Feature;
use vhost::vhost_user::message::{
    FrontendReq, MAX_ATTACHED_FD_ENTRIES, VhostUserEmpty, VhostUserInflight, VhostUserLog, VhostUserMemory,
    VhostUserMemoryRegion, VhostUserMsgValidator, VhostUserSingleMemoryRegion, VhostUserU64,
    VhostUserVringAddr, VhostUserVringState,
};

/// The expected kind of a message's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An event counter.
    Counter,
    /// Memory, or a file on a disk.
    Guest,
    /// Memory.
    Plain,
    /// Anything: it is closed unused.
    Unused,
}

/// The form of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Bytes of its payload, before any regions of a memory table.
    payload: usize,
    /// Its payload continues with the stated number of regions of a memory table.
    is_table: bool,
    /// Kind of its descriptors.
    pub kind: Kind,
    /// Most descriptors.
    pub most: usize,
    /// Its protocol feature, if any.
    pub needs: Feature,
    /// Its reply is more than an acknowledgement.
    pub is_answered: bool,
}

impl Form {
    const fn of<T>() -> Self {
        let (payload, kind, needs) = (size_of::<T>(), Kind::Unused, Feature::empty());
        Self { payload, is_table: false, kind, most: 0, needs, is_answered: false }
    }

    const fn with(self, most: usize, kind: Kind) -> Self {
        Self { most, kind, ..self }
    }

    const fn needs(self, needs: Feature) -> Self {
        Self { needs, ..self }
    }

    const fn answered(self) -> Self {
        Self { is_answered: true, ..self }
    }

    /// Whether its payload may have that many bytes.
    ///
    /// # Errors
    /// The reason.
    pub fn fits(&self, size: usize) -> Result<(), String> {
        let (least, region) = (self.payload, size_of::<VhostUserMemoryRegion>());
        let most = least + MAX_ATTACHED_FD_ENTRIES * region;
        let expected = match size.checked_sub(least) {
            Some(0) => return Ok(()),
            Some(regions) if self.is_table && size <= most && regions.is_multiple_of(region) => return Ok(()),
            _ if self.is_table => format!("{least} and {region} for each region, at most {most}"),
            _ => least.to_string(),
        };
        Err(format!("wrong size: {size} bytes of payload, expected {expected}"))
    }
}

/// Returns the form of a message; `None` for those that none of our features allows.
pub fn form(code: FrontendReq) -> Option<Form> {
    use FrontendReq as Req;
    let (empty, number) = (Form::of::<VhostUserEmpty>(), Form::of::<VhostUserU64>());
    let (vring, region) = (Form::of::<VhostUserVringState>(), Form::of::<VhostUserSingleMemoryRegion>());
    let (log, inflight) = (Form::of::<VhostUserLog>(), Form::of::<VhostUserInflight>());
    let table = Form { is_table: true, ..Form::of::<VhostUserMemory>() };
    Some(match code {
        Req::SET_OWNER | Req::RESET_OWNER => empty,
        Req::GET_FEATURES | Req::GET_PROTOCOL_FEATURES => empty.answered(),
        Req::SET_FEATURES | Req::SET_PROTOCOL_FEATURES => number,
        Req::GET_QUEUE_NUM => empty.needs(Feature::MQ).answered(),
        Req::SET_VRING_NUM | Req::SET_VRING_BASE | Req::SET_VRING_ENABLE => vring,
        Req::GET_VRING_BASE => vring.answered(),
        Req::SET_VRING_ADDR => Form::of::<VhostUserVringAddr>(),
        Req::SET_VRING_KICK | Req::SET_VRING_CALL | Req::SET_VRING_ERR => number.with(1, Kind::Counter),
        Req::SET_MEM_TABLE => table.with(MAX_ATTACHED_FD_ENTRIES, Kind::Guest),
        Req::GET_MAX_MEM_SLOTS => empty.needs(Feature::CONFIGURE_MEM_SLOTS).answered(),
        Req::ADD_MEM_REG => region.needs(Feature::CONFIGURE_MEM_SLOTS).with(1, Kind::Guest),
        Req::REM_MEM_REG => region.needs(Feature::CONFIGURE_MEM_SLOTS).with(1, Kind::Unused),
        Req::GET_INFLIGHT_FD => inflight.needs(Feature::INFLIGHT_SHMFD).answered(),
        Req::SET_INFLIGHT_FD => inflight.needs(Feature::INFLIGHT_SHMFD).with(1, Kind::Plain),
        Req::SET_LOG_BASE => log.needs(Feature::LOG_SHMFD).with(1, Kind::Plain).answered(),
        Req::SEND_RARP => number.needs(Feature::RARP),
        _ => return None,
    })
}

/// A queue and its new notification; `None` if it is polled.
pub type Counter = (u8, Option<SharedFd>);

/// A front end's request. Queue indices, addresses and sizes as in the message.
pub enum Request {
    /// GET_FEATURES: the offered virtio features, and whether there are protocol features; answered.
    GetFeatures,
    /// SET_FEATURES: the virtio features from now on, among those offered.
    SetFeatures(u64),
    /// GET_PROTOCOL_FEATURES: answered.
    GetProtocolFeatures,
    /// SET_PROTOCOL_FEATURES: among those offered. Legal once GET_FEATURES offered them; SET_FEATURES need
    /// not come before.
    SetProtocolFeatures(u64),
    /// SET_OWNER: the sender owns the session, which it does anyway: a port has one front end at a time.
    SetOwner,
    /// RESET_OWNER: no longer used; a back end ignores it, or disables all rings.
    ResetOwner,
    /// GET_QUEUE_NUM (MQ): the number of queues; answered.
    GetQueueNum,
    /// SET_MEM_TABLE: all regions of the guest's memory, each with its descriptor, in that order.
    SetMemTable(Vec<(VhostUserMemoryRegion, SharedFd)>),
    /// GET_MAX_MEM_SLOTS (CONFIGURE_MEM_SLOTS): the most regions; answered.
    GetMaxMemSlots,
    /// ADD_MEM_REG (CONFIGURE_MEM_SLOTS): one more region.
    AddMemReg(VhostUserSingleMemoryRegion, SharedFd),
    /// REM_MEM_REG (CONFIGURE_MEM_SLOTS): removes the region with this guest address, user address and
    /// size. Older front ends send a descriptor, which is closed unused.
    RemMemReg(VhostUserSingleMemoryRegion),
    /// SET_VRING_NUM: `num` entries.
    SetVringNum(VhostUserVringState),
    /// SET_VRING_ADDR: the ring's user addresses; the guest address of its used ring in the dirty log.
    SetVringAddr(VhostUserVringAddr),
    /// SET_VRING_BASE: where the ring continues.
    SetVringBase(VhostUserVringState),
    /// GET_VRING_BASE: stops the ring of this index; answered with where it continues.
    GetVringBase(u32),
    /// SET_VRING_KICK: the ring starts, if it has not.
    SetVringKick(Counter),
    /// SET_VRING_CALL: the driver's call.
    SetVringCall(Counter),
    /// SET_VRING_ERR: the front end's error notification.
    SetVringErr(Counter),
    /// SET_VRING_ENABLE, of this ring. Only with negotiated protocol features.
    SetVringEnable(u32, bool),
    /// GET_INFLIGHT_FD (INFLIGHT_SHMFD): a new in-flight region; answered, with its descriptor.
    GetInflightFd(VhostUserInflight),
    /// SET_INFLIGHT_FD (INFLIGHT_SHMFD): such a region, returned.
    SetInflightFd(VhostUserInflight, SharedFd),
    /// SET_LOG_BASE (LOG_SHMFD): the log of written pages; answered.
    SetLogBase(VhostUserLog, SharedFd),
    /// SEND_RARP (RARP): the guest with this address, the first 6 bytes of the payload, is here and makes
    /// no announcement itself.
    SendRarp(Mac),
}

/// Returns the request of a message whose payload [fits](Form::fits).
///
/// # Errors
/// Impossible values, or missing descriptors, in words.
pub fn decode(code: FrontendReq, payload: &[u8], descriptors: &[SharedFd]) -> Result<Request, String> {
    read(code, payload, descriptors).map_err(|why| format!("{code:?}: {why}"))
}

fn read(code: FrontendReq, payload: &[u8], descriptors: &[SharedFd]) -> Result<Request, String> {
    use FrontendReq as Req;
    let number = || body::<VhostUserU64>(payload, "expected a number").map(|body| body.value);
    let vring = || body::<VhostUserVringState>(payload, "expected a queue and a number");
    let region = || body(payload, "expected a region");
    let inflight = || body(payload, "the region has no queues or no entries");
    let one = || match descriptors {
        [descriptor] => Ok(descriptor.clone()),
        [] if code == Req::ADD_MEM_REG => Err(format!("no file descriptor: {NOT_SHARED}")),
        _ => Err(format!("{} file descriptors, expected 1", descriptors.len())),
    };
    Ok(match code {
        Req::GET_FEATURES => Request::GetFeatures,
        Req::SET_FEATURES => Request::SetFeatures(number()?),
        Req::GET_PROTOCOL_FEATURES => Request::GetProtocolFeatures,
        Req::SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(number()?),
        Req::SET_OWNER => Request::SetOwner,
        Req::RESET_OWNER => Request::ResetOwner,
        Req::GET_QUEUE_NUM => Request::GetQueueNum,
        Req::SET_MEM_TABLE => Request::SetMemTable(table(payload, descriptors)?),
        Req::GET_MAX_MEM_SLOTS => Request::GetMaxMemSlots,
        Req::ADD_MEM_REG => Request::AddMemReg(region()?, one()?),
        Req::REM_MEM_REG => Request::RemMemReg(region()?),
        Req::SET_VRING_NUM => Request::SetVringNum(vring()?),
        Req::SET_VRING_ADDR => Request::SetVringAddr(body(
            payload,
            "flags that are not of the protocol, or a ring that is not aligned (descriptor table 16, available ring \
             2, used ring 4 bytes)",
        )?),
        Req::SET_VRING_BASE => Request::SetVringBase(vring()?),
        Req::GET_VRING_BASE => Request::GetVringBase(vring()?.index),
        Req::SET_VRING_KICK => Request::SetVringKick(counter(number()?, descriptors)?),
        Req::SET_VRING_CALL => Request::SetVringCall(counter(number()?, descriptors)?),
        Req::SET_VRING_ERR => Request::SetVringErr(counter(number()?, descriptors)?),
        Req::SET_VRING_ENABLE => match vring()? {
            VhostUserVringState { index, num: enable @ (0 | 1) } => {
                Request::SetVringEnable(index, enable == 1)
            }
            VhostUserVringState { index, num } => {
                return Err(format!("{num} for queue {index}, expected 1 to enable or 0 to disable"));
            }
        },
        Req::GET_INFLIGHT_FD => Request::GetInflightFd(inflight()?),
        Req::SET_INFLIGHT_FD => Request::SetInflightFd(inflight()?, one()?),
        Req::SET_LOG_BASE => {
            Request::SetLogBase(body(payload, "the log is empty, or ends past 64 bits")?, one()?)
        }
        Req::SEND_RARP => {
            let [a, b, c, d, e, f, ..] = number()?.to_ne_bytes();
            Request::SendRarp(Mac([a, b, c, d, e, f]))
        }
        _ => return Err("not supported, nor offered".into()),
    })
}

/// Returns a payload as a struct of the `vhost` crate, which validates it; `invalid` is the error text.
fn body<T: VhostUserMsgValidator + Default>(payload: &[u8], invalid: &str) -> Result<T, String> {
    let mut body = T::default();
    if payload.len() != size_of::<T>() {
        return Err(format!("wrong size: {} bytes of payload, expected {}", payload.len(), size_of::<T>()));
    }
    body.as_mut_slice().copy_from_slice(payload);
    if body.is_valid() { Ok(body) } else { Err(invalid.into()) }
}

/// Returns SET_MEM_TABLE's regions, as many as descriptors.
fn table(payload: &[u8], descriptors: &[SharedFd]) -> Result<Vec<(VhostUserMemoryRegion, SharedFd)>, String> {
    let wrong = || {
        format!(
            "no regions, or not exactly one file descriptor for each. If there are no regions: {NOT_SHARED}"
        )
    };
    let (head, regions) = payload.split_at_checked(size_of::<VhostUserMemory>()).ok_or_else(wrong)?;
    // A copy: the struct is packed.
    let count = body::<VhostUserMemory>(head, &wrong())?.num_regions as usize;
    let regions = regions.chunks(size_of::<VhostUserMemoryRegion>());
    if (count, count) != (regions.len(), descriptors.len()) {
        return Err(wrong());
    }
    let region = |(region, file): (_, &SharedFd)| {
        Ok((body(region, "the region is empty, or ends past 64 bits")?, file.clone()))
    };
    regions.zip(descriptors).map(region).collect()
}

/// Bits 0 to 7 are the queue's index; bit 8 means no descriptor.
fn counter(number: u64, descriptors: &[SharedFd]) -> Result<Counter, String> {
    let (queue, is_polled, count) = (number as u8, number & 0x100 != 0, descriptors.len());
    match (is_polled, descriptors) {
        (true, []) => Ok((queue, None)),
        (false, [event]) => Ok((queue, Some(event.clone()))),
        (true, _) => Err(format!("{count} file descriptors for queue {queue}, expected none beside bit 8")),
        (false, _) => Err(format!("{count} file descriptors for queue {queue}, expected 1, or bit 8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost_user::features::offered_protocol;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    fn file() -> SharedFd {
        Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()))
    }

    fn numbers(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn only_messages_that_the_features_allow_are_taken() {
        let all = (0..100).filter_map(|code| FrontendReq::try_from(code).ok());
        let taken: Vec<_> = all.filter_map(|code| Some((code, form(code)?))).collect();
        assert_eq!(taken.len(), 23);
        for (code, form) in taken {
            assert!(offered_protocol().contains(form.needs), "{code:?} can never be asked");
            assert_eq!(form.fits(form.payload), Ok(()));
            // Zeros may be refused for their meaning, but the form is known.
            if let Err(why) = decode(code, &vec![0; form.payload], &vec![file(); form.most.min(1)]) {
                assert!(!why.contains("not supported") && !why.contains("wrong size"), "{why}");
            }
        }
        for code in [FrontendReq::SET_LOG_FD, FrontendReq::POSTCOPY_ADVISE, FrontendReq::RESET_DEVICE] {
            assert_eq!(form(code), None, "{code:?}");
        }
    }

    #[test]
    fn fields_are_where_the_protocol_has_them() {
        use FrontendReq::*;
        let region = [0x1000, 0x2000, 0x7f00_0000, 0x3000];
        let payload = numbers(&[&[1][..], &region].concat());
        let Ok(Request::SetMemTable(table)) = decode(SET_MEM_TABLE, &payload, &[file()]) else { panic!() };
        let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } = table[0].0;
        assert_eq!([guest_phys_addr, memory_size, user_addr, mmap_offset], region);
        let payload = numbers(&[&[0][..], &region].concat());
        let Ok(Request::AddMemReg(one, _)) = decode(ADD_MEM_REG, &payload, &[file()]) else { panic!() };
        let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } = *one;
        assert_eq!([guest_phys_addr, memory_size, user_addr, mmap_offset], region);
        // Queue 3, and VHOST_VRING_F_LOG.
        let payload = [&[3u32, 1].map(u32::to_ne_bytes).concat(), &numbers(&[16, 32, 48, 64])[..]].concat();
        let Ok(Request::SetVringAddr(ring)) = decode(SET_VRING_ADDR, &payload, &[]) else { panic!() };
        let VhostUserVringAddr { index, flags, descriptor, used, available, log } = ring;
        assert_eq!((index, flags, [descriptor, used, available, log]), (3, 1, [16, 32, 48, 64]));
        let mac = [0x52, 0x54, 0, 1, 2, 3, 9, 9];
        let Ok(Request::SendRarp(said)) = decode(SEND_RARP, &mac, &[]) else { panic!() };
        assert_eq!(said.0, mac[..6]);
    }

    #[test]
    fn a_counter_or_bit_8_and_never_both() {
        let decoded = |number: u64, files: &[SharedFd]| {
            counter(number, files).map(|(queue, event)| (queue, event.is_some()))
        };
        assert_eq!(decoded(255, &[file()]), Ok((255, true)));
        assert_eq!(decoded(0x107, &[]), Ok((7, false)));
        assert!(decoded(7, &[]).is_err_and(|why| why.contains("0 file descriptors for queue 7, expected 1")));
        assert!(decoded(0x107, &[file()]).is_err_and(|why| why.contains("expected none beside bit 8")));
    }

    #[test]
    fn a_refusal_names_the_fault() {
        use FrontendReq::*;
        let region = "the region is empty, or ends past 64 bits";
        let each = "not exactly one file descriptor for each";
        for (code, payload, files, part) in [
            (SET_MEM_TABLE, numbers(&[1]), 1, each),
            (SET_MEM_TABLE, numbers(&[2, 0, 1, 0, 0]), 1, each),
            (SET_MEM_TABLE, numbers(&[1, 0, 1, 0, 0]), 0, "share=on"),
            (SET_MEM_TABLE, numbers(&[1 << 32 | 1, 0, 1, 0, 0]), 1, each),
            (SET_MEM_TABLE, numbers(&[1, 0, 0, 0, 0]), 1, region),
            (SET_MEM_TABLE, numbers(&[1, u64::MAX, 2, 0, 0]), 1, region),
            (ADD_MEM_REG, vec![0; 40], 0, "share=on"),
            (SET_VRING_ADDR, numbers(&[2 << 32, 0, 0, 0, 0]), 0, "flags that are not"),
            (SET_VRING_ADDR, numbers(&[0, 8, 0, 0, 0]), 0, "not aligned"),
            (SET_VRING_ENABLE, numbers(&[2 << 32 | 1]), 0, "2 for queue 1, expected 1 to enable or 0"),
            (GET_INFLIGHT_FD, vec![0; 24], 0, "the region has no queues or no entries"),
            (SET_INFLIGHT_FD, vec![1; 24], 0, "0 file descriptors, expected 1"),
            (SET_LOG_BASE, numbers(&[0, 4096]), 1, "the log is empty"),
            (SET_LOG_BASE, numbers(&[4096, 0]), 0, "0 file descriptors, expected 1"),
            (SEND_RARP, vec![0; 6], 0, "wrong size: 6 bytes of payload, expected 8"),
            (NET_SET_MTU, vec![0; 8], 0, "not supported"),
        ] {
            let refused = decode(code, &payload, &vec![file(); files]).err().expect("refused");
            assert!(refused.starts_with(&format!("{code:?}: ")) && refused.contains(part), "{refused}");
        }
    }
}

//! Writes frames into a guest's receive buffers, in the guest's form.

use super::super::delivery::payload;
use super::super::receiver::{Form, finish_part, finished};
use super::super::scratch::Part;
use super::super::{Posted, Receiver, Scratch};
use super::land::{Land, QUEUE};
use super::{Ring, Rx};
use crate::frame::offload::receiver_hdr;
use crate::frame::{HEADER_MAX, Offload, Segmenter, VnetHdr};
use crate::link::rdma::landing::VIRTIO;
use crate::link::rdma::{Feed, PortHalf};
use crate::slots::{Frame, Owner, body_spans, slice_spans};
use crate::virtio::{Chain, DirtyLog, MAX_SPANS, Span, SpanWriter};
use tidegate_evidence::DropReason;

/// Most [pieces] of one frame: reading more descriptors takes longer than a loop may.
const MAX_PIECES: usize = 2048;

/// Returns the descriptors of a chain, without the header's own if it has one.
#[inline]
fn pieces(chain: &Chain) -> usize {
    chain.descriptors().saturating_sub(1).max(1)
}

impl Rx {
    #[inline]
    pub(in crate::link) fn room(&mut self, frame: &Frame) -> Option<u16> {
        self.finish();
        let queue = queue_for(&self.enabled, frame)?;
        ring(&mut self.rings, queue)?.queue.available().ok()
    }

    #[inline]
    pub(in crate::link) fn post_run<'a>(
        &mut self,
        head: &Frame,
        frames: impl Iterator<Item = &'a Frame>,
        waiting: usize,
    ) -> u32 {
        let Some(queue) = queue_for(&self.enabled, head).filter(|_| self.log.is_none()) else { return 0 };
        if self.fill.queue().is_some_and(|filled| filled != queue) {
            self.finish();
        }
        let Some(ring) = ring(&mut self.rings, queue) else { return 0 };
        let (enabled, lands) = (&self.enabled, self.land.is_some());
        let plain = frames.map_while(|frame| {
            let same = enabled.len() == 1 || queue_for(enabled, frame) == Some(queue);
            let is_landed = lands && matches!(frame.owner, Owner::Landed { .. });
            (same && frame.offload == Offload::None && !is_landed).then_some(frame)
        });
        self.fill.post(ring, queue, self.receiver.header_len, plain, waiting)
    }

    pub(in crate::link) fn post(&mut self, frame: &Frame, scratch: &mut Scratch) -> Posted {
        scratch.filled = 0;
        if let Owner::Landed { landing, slot } = frame.owner
            && let Some(buffers) = self.deliver_landed(frame, landing, slot)
        {
            scratch.filled = buffers;
            return Posted::Done;
        }
        let receiver = self.receiver;
        let Some(queue) = queue_for(&self.enabled, frame) else {
            return Posted::Dropped(DropReason::ReceiverDown);
        };
        self.finish();
        let Some(ring) = ring(&mut self.rings, queue) else {
            return Posted::Dropped(DropReason::ReceiverDown);
        };
        if ring.queue.pending() < 8
            && let Err(error) = ring.queue.available()
        {
            return Posted::Broken(error);
        }
        let mut to = Buffers { ring, log: self.log.as_ref(), receiver };
        let done = match receiver.form(frame) {
            Form::AsIs => {
                let vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
                to.whole(frame, scratch, &vnet, frame.head())
            }
            Form::FinishChecksum => {
                let (head, vnet) = finished(frame);
                to.whole(frame, scratch, &vnet, &head[..frame.head_len as usize])
            }
            Form::Segments => to.segments(frame, scratch),
        };
        ring.dirty |= matches!(done, Posted::Done | Posted::Part(_));
        done
    }

    /// Gives the guest a frame that lies in its buffers; returns how many that has. `None` if it is to be copied.
    #[inline(never)]
    fn deliver_landed(&mut self, frame: &Frame, landing: u32, slot: u16) -> Option<usize> {
        self.finish();
        let receiver = self.receiver;
        let land = self.land.as_mut().filter(|land| land.landing().number == landing)?;
        if self.log.is_some() || self.enabled[..] != [QUEUE] || !takes_landed(&receiver) {
            return None;
        }
        let ring = ring(&mut self.rings, QUEUE)?;
        match receiver.form(frame) {
            Form::AsIs => {
                let vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
                land.deliver(ring, slot, frame.len, &vnet, frame.head())
            }
            Form::FinishChecksum => {
                let (head, vnet) = finished(frame);
                land.deliver(ring, slot, frame.len, &vnet, &head[..usize::from(frame.head_len)])
            }
            Form::Segments => None,
        }
    }

    /// Lets an RDMA device fill buffers.
    #[inline(never)]
    fn fill_landing(&mut self) {
        self.finish();
        if self.log.is_some() || self.enabled[..] != [QUEUE] || !takes_landed(&self.receiver) {
            if let Some(land) = &self.land
                && (self.enabled.len() > 1 || !takes_landed(&self.receiver))
            {
                land.landing().note_unfit();
            }
            return;
        }
        if let (Some(land), Some(ring)) = (&mut self.land, ring(&mut self.rings, QUEUE)) {
            land.fill(ring);
            ring.flush(None);
        }
    }

    /// Whether an RDMA device may fill buffers, and fills none yet.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn can_land(&self) -> Result<(), &'static str> {
        let ring = self.rings.first().and_then(Option::as_ref);
        let whys = [
            (self.land.is_some(), "buffers in which frames landed before have not all come back"),
            (self.log.is_some(), "the guest is migrating"),
            (self.enabled.len() > 1, "the guest's driver receives by several queues"),
            (
                self.enabled[..] != [QUEUE] || ring.is_none(),
                "the guest's driver has not enabled its receive queue",
            ),
            (
                !takes_landed(&self.receiver),
                "the guest's driver has no mergeable receive buffers (mrg_rxbuf=on)",
            ),
            (
                !ring.is_some_and(|ring| ring.queue.can_keep()),
                "the guest's driver has its receive buffers back in order (VIRTIO_F_IN_ORDER)",
            ),
        ];
        whys.into_iter().find_map(|(is_so, why)| is_so.then_some(why)).map_or(Ok(()), Err)
    }

    /// Begins to let an RDMA device fill buffers.
    ///
    /// # Errors
    /// It [cannot](Self::can_land): the half.
    pub(super) fn land(&mut self, half: PortHalf) -> Result<(), PortHalf> {
        if self.can_land().is_err() {
            return Err(half);
        }
        self.land = Some(Box::new(Land::new(half)));
        self.fill_landing();
        Ok(())
    }

    /// Posts no buffers any more, and returns what they were posted by, for the caller to drop.
    pub(super) fn close_landing(&mut self) -> Option<Feed> {
        self.land.as_mut()?.close()
    }

    /// Shows the driver its buffers that an RDMA device had, and no frame has; returns what is left, once the device is done with it.
    pub(super) fn end_landing(&mut self) -> Option<Box<Land>> {
        let mut land = self.land.take_if(|land| land.landing().is_over())?;
        if let Some(ring) = ring(&mut self.rings, QUEUE) {
            land.collect(ring);
            ring.flush(self.log.as_ref());
        }
        Some(land)
    }

    /// Gives up buffers that an RDMA device has: their ring, or its memory, goes.
    pub(super) fn lose_landing(&mut self) {
        if let Some(land) = &mut self.land {
            if let Some(ring) = ring(&mut self.rings, QUEUE) {
                land.collect(ring);
            }
            land.lose();
        }
    }

    /// Hands buffers that were filled together to the guest.
    #[inline]
    pub(in crate::link) fn finish(&mut self) {
        if let Some(queue) = self.fill.queue()
            && let Some(ring) = ring(&mut self.rings, queue)
        {
            self.fill.finish(ring);
        }
    }

    #[inline]
    pub(in crate::link) fn flush(&mut self) {
        let log = self.log.as_ref();
        self.rings.iter_mut().flatten().for_each(|ring| ring.flush(log));
        if self.land.is_some() {
            self.fill_landing();
        }
    }

    pub(in crate::link) fn refuse_posts(&mut self) {
        self.enabled.clear();
    }

    pub(in crate::link) fn request_kicks(&mut self) -> bool {
        let enabled = self.rings.iter_mut().flatten().filter(|ring| ring.enabled);
        enabled.fold(false, |room, ring| ring.queue.request_kicks() | room)
    }

    #[inline]
    pub(in crate::link) fn suppress_kicks(&mut self) {
        self.rings.iter_mut().flatten().for_each(|ring| ring.queue.suppress_kicks());
    }

    /// Whether writes are noted, because the guest migrates.
    #[inline]
    pub fn is_logged(&self) -> bool {
        self.log.is_some()
    }
}

/// Returns the enabled queue of a frame's flow.
#[inline]
fn queue_for(enabled: &[u16], frame: &Frame) -> Option<u16> {
    match enabled {
        [] => None,
        [only] => Some(*only),
        enabled => Some(enabled[frame.flow() as usize % enabled.len()]),
    }
}

#[inline]
fn ring(rings: &mut [Option<Ring>], queue: u16) -> Option<&mut Ring> {
    rings.get_mut(usize::from(queue))?.as_mut()
}

/// Whether a receiver's frames may land: they may lie in several buffers, and the first one begins with 12 bytes of the virtio header.
fn takes_landed(receiver: &Receiver) -> bool {
    receiver.mergeable && receiver.header_len == VIRTIO
}

/// Too few chains, or none that may be filled.
struct Short {
    /// Chains taken.
    chains: u16,
    /// Bytes of them together.
    room: usize,
    /// There were no more, and these are valid.
    ran_out: bool,
    posted: Posted,
}

/// The target of a frame.
struct Buffers<'a> {
    ring: &'a mut Ring,
    log: Option<&'a DirtyLog>,
    receiver: Receiver,
}

impl Buffers<'_> {
    fn whole(&mut self, frame: &Frame, scratch: &mut Scratch, vnet: &VnetHdr, head: &[u8]) -> Posted {
        let Scratch { chains, filled, .. } = scratch;
        match self.gather(chains, filled, frame.len) {
            Ok(chains) => {
                self.write(&scratch.chains[..chains], vnet, head, frame.payload());
                Posted::Done
            }
            Err(short) => self.what_fits(frame, scratch, short),
        }
    }

    /// Writes the first segments of a super-frame that its receiver takes, but lacks buffers for, as a
    /// smaller one.
    #[inline(never)]
    fn what_fits(&mut self, frame: &Frame, scratch: &mut Scratch, short: Short) -> Posted {
        self.ring.queue.rewind(short.chains);
        let header = self.receiver.header_len + usize::from(frame.headers.len);
        let size = frame.offload.gso_size().map_or(usize::MAX, usize::from);
        let payload = short.room.saturating_sub(header) / size * size;
        if !short.ran_out || payload == 0 {
            return short.posted;
        }
        let Some(segmenter) = segmenter(frame) else { return short.posted };
        let mut head = [0; HEADER_MAX];
        let Some(part) = segmenter.with_size(payload).next(&mut head) else { return short.posted };
        let len = (part.head_len + part.payload_len) as u32;
        match self.gather(&mut scratch.chains, &mut scratch.filled, len) {
            Ok(chains) => {
                let (spans, count) = body_spans(frame);
                let mut piece = [Span::EMPTY; MAX_SPANS + 1];
                let n = slice_spans(&spans[..count], 0, part.payload_len, &mut piece);
                self.write(&scratch.chains[..chains], &part.vnet, &head[..part.head_len], &piece[..n]);
                Posted::Part(part.payload_len as u32)
            }
            // Its driver has changed them since.
            Err(short) => {
                self.ring.queue.rewind(short.chains);
                short.posted
            }
        }
    }

    /// Takes chains for `len` bytes and their header; `filled` grows by their [pieces]. On failure the
    /// caller puts them back.
    fn gather(&mut self, chains: &mut [Chain], filled: &mut usize, len: u32) -> Result<usize, Short> {
        let Self { ring, receiver, .. } = self;
        let needed = len as usize + receiver.header_len;
        let mut room = 0;
        let most = chains.len() as u16;
        let short = |chains, room, posted| Err(Short { chains, room, ran_out: false, posted });
        for (i, chain) in chains.iter_mut().enumerate() {
            let popped = i as u16;
            if ring.queue.pending() == 0
                && let Err(error) = ring.queue.available()
            {
                return short(popped, room, Posted::Broken(error));
            }
            match ring.queue.pop_writable(chain) {
                Ok(true) => {}
                Ok(false) => {
                    // A frame larger than the ring will never fit.
                    let full = popped >= ring.queue.size();
                    let posted =
                        if full { Posted::Dropped(DropReason::Unacceptable) } else { Posted::NoBuffers };
                    return Err(Short { chains: popped, room, ran_out: true, posted });
                }
                Err(error) => return short(popped, room, Posted::Broken(error)),
            }
            *filled += pieces(chain);
            if *filled > MAX_PIECES {
                return short(popped + 1, room, Posted::Dropped(DropReason::Unacceptable));
            }
            room += chain.bytes() as usize;
            if room >= needed {
                return Ok(i + 1);
            }
            // A buffer holds at least a header (virtio 1.2, 5.1.6.3.1): fewer bytes are not worth a chain.
            if !receiver.mergeable || (chain.bytes() as usize) < receiver.header_len {
                return short(popped + 1, room, Posted::Dropped(DropReason::Unacceptable));
            }
        }
        short(most, room, Posted::Dropped(DropReason::Unacceptable))
    }

    fn write(&mut self, chains: &[Chain], vnet: &VnetHdr, head: &[u8], payload: &[Span]) {
        let vnet = VnetHdr { num_buffers: chains.len() as u16, ..*vnet };
        let mut header = [0; VnetHdr::LEN];
        vnet.write(&mut header);
        // SAFETY: the chains were popped from this ring, whose memory stays mapped while its port runs, and
        // are completed below, after the last write.
        let mut writer = unsafe { SpanWriter::new(chains) };
        writer.write(&header[..self.receiver.header_len]);
        writer.write(head);
        // SAFETY: the source's memory stays mapped while this worker holds its frame.
        unsafe { writer.write_spans(payload) };
        if let Some(log) = self.log {
            writer.used().zip(chains).for_each(|((_, len), chain)| log.mark_chain(chain, len));
        }
        // Together: after a kill, a frame over several buffers is shown whole or not at all.
        self.ring.queue.complete_all(writer.used());
    }

    /// Writes the segments of a super-frame, one after the other, while there are buffers.
    fn segments(&mut self, frame: &Frame, scratch: &mut Scratch) -> Posted {
        let (Some(mut measure), Some(mut segmenter)) = (segmenter(frame), segmenter(frame)) else {
            return Posted::Dropped(DropReason::Malformed);
        };
        // Buffers for all of them first, so that none waits for the driver's look at the earlier ones.
        let mut head = [0; HEADER_MAX];
        let mut popped = 0;
        scratch.parts.clear();
        while scratch.parts.len() < scratch.parts.capacity()
            && let Some(part) = measure.next(&mut head)
        {
            let len = (part.head_len + part.payload_len) as u32;
            match self.gather(&mut scratch.chains[popped..], &mut scratch.filled, len) {
                Ok(chains) => {
                    scratch.parts.push(Part { first: popped, chains });
                    popped += chains;
                }
                Err(short) => {
                    self.ring.queue.rewind(short.chains);
                    if scratch.parts.is_empty() {
                        return short.posted;
                    }
                    break;
                }
            }
        }
        let (spans, count) = body_spans(frame);
        let mut parts = scratch.parts.iter();
        let mut written = 0;
        while let Some(chains) = parts.next()
            && let Some(part) = segmenter.next(&mut head)
        {
            let mut piece = [Span::EMPTY; MAX_SPANS + 1];
            let n = slice_spans(&spans[..count], part.payload_offset, part.payload_len, &mut piece);
            let mut vnet = part.vnet;
            if !self.receiver.csum {
                finish_part(&mut head[..part.head_len], &mut vnet, &part.headers, &piece[..n]);
            }
            let chains = &scratch.chains[chains.first..chains.first + chains.chains];
            self.write(chains, &vnet, &head[..part.head_len], &piece[..n]);
            written += part.payload_len as u32;
        }
        if written < payload(frame) { Posted::Part(written) } else { Posted::Done }
    }
}

/// Cuts a super-frame to its segments.
fn segmenter(frame: &Frame) -> Option<Segmenter<'_>> {
    Segmenter::new(frame.head(), &frame.headers, frame.offload, payload(frame) as usize)
}

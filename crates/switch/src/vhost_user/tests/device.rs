//! A device for tests: records its calls, and sends frames that a queue pair transmits back on the same
//! pair.

use crate::moved::{Moved, Outcome};
use crate::vhost_user::features::{
    F_EVENT_IDX, F_IN_ORDER, F_INDIRECT_DESC, F_RING_PACKED, NET_F_MRG_RXBUF, header_len,
};
use crate::vhost_user::kick::Kick;
use crate::vhost_user::notifier::Call;
use crate::vhost_user::{PortControl, VringSetup};
use crate::virtio::{Chain, DirtyLog, Features, GuestMemory, Queue as Ring, RingLayout, SpanWriter};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tidegate_contract::Mac;

#[derive(Default)]
pub struct Device {
    pub events: Vec<String>,
    /// The error for starting a queue.
    pub refuse_start: Option<String>,
    /// Listened and not forgotten kicks, by message.
    pub listened: usize,
    features: u64,
    memory: Option<Arc<GuestMemory>>,
    queues: BTreeMap<u16, Queue>,
}

struct Queue {
    ring: Ring,
    call: Option<Call>,
    enabled: bool,
}

impl Queue {
    fn publish(&mut self) {
        if self.ring.publish()
            && let Some(call) = &self.call
        {
            call.signal();
        }
    }
}

impl Device {
    /// Sends back frames of enabled pairs; returns their number.
    pub fn reflect(&mut self) -> usize {
        let header = header_len(self.features);
        let mergeable = self.features & NET_F_MRG_RXBUF != 0;
        let pairs = self.queues.keys().copied().filter(|index| index % 2 == 1);
        let mut count = 0;
        for transmit in pairs.collect::<Vec<_>>() {
            let mut frames = Vec::new();
            let queue = self.queues.get_mut(&transmit).unwrap();
            if !queue.enabled {
                continue;
            }
            queue.ring.available().unwrap();
            let mut chain = Chain::new();
            while queue.ring.pop_readable(&mut chain).unwrap() {
                frames.push(read(&chain));
                queue.ring.complete(chain.head(), 0);
            }
            queue.publish();
            let queue = self.queues.get_mut(&(transmit - 1)).unwrap();
            for mut frame in frames {
                queue.ring.available().unwrap();
                let mut chains = Vec::new();
                while chains.iter().map(Chain::bytes).sum::<u32>() < frame.len() as u32 {
                    let mut chain = Chain::new();
                    assert!(queue.ring.pop_writable(&mut chain).unwrap(), "rx buffers");
                    chains.push(chain);
                }
                if mergeable {
                    frame[header - 2..header].copy_from_slice(&(chains.len() as u16).to_le_bytes());
                }
                // SAFETY: the queue keeps its memory mapped, and nothing is completed yet.
                let mut writer = unsafe { SpanWriter::new(&chains) };
                writer.write(&frame);
                for (head, len) in writer.used() {
                    queue.ring.complete(head, len);
                }
                count += 1;
            }
            queue.publish();
        }
        count
    }
}

impl Device {
    /// Takes a chain from transmit queue `index` and never gives it back.
    pub fn swallow(&mut self, index: u16) -> bool {
        let ring = &mut self.queues.get_mut(&index).unwrap().ring;
        ring.available().unwrap();
        ring.pop_readable(&mut Chain::new()).unwrap()
    }
}

fn read(chain: &Chain) -> Vec<u8> {
    let mut bytes = Vec::new();
    for span in chain.spans() {
        let start = bytes.len();
        bytes.resize(start + span.len as usize, 0);
        // SAFETY: a span is mapped for its length while its queue lives, which the caller holds.
        unsafe { span.ptr.copy_to_nonoverlapping(bytes[start..].as_mut_ptr(), span.len as usize) };
    }
    bytes
}

impl PortControl for Arc<Mutex<Device>> {
    fn set_log(&mut self, log: Option<DirtyLog>) {
        let state = if log.is_some() { "on" } else { "off" };
        self.lock().unwrap().events.push(format!("log {state}"));
    }

    fn set_used_log(&mut self, index: u16, log: Option<u64>) {
        self.lock().unwrap().events.push(format!("used {index} logged at {log:x?}"));
    }

    fn announce(&mut self, mac: Mac) -> bool {
        self.lock().unwrap().events.push(format!("announce {mac}"));
        mac.0[0] == 0x52
    }

    fn set_features(&mut self, features: u64) {
        let mut device = self.lock().unwrap();
        device.features = features;
        device.events.push(format!("features {features:#x}"));
    }

    fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), String> {
        let mut device = self.lock().unwrap();
        device.events.push("memory".into());
        for (index, queue) in &mut device.queues {
            let remapped = queue.ring.remap(memory.clone());
            remapped.map_err(|e| format!("queue {index}: {e}"))?;
        }
        device.memory = Some(memory);
        Ok(())
    }

    fn start_queue(&mut self, index: u16, setup: VringSetup) -> Result<(), String> {
        let mut device = self.lock().unwrap();
        if let Some(reason) = &device.refuse_start {
            return Err(reason.clone());
        }
        device.events.push(format!(
            "start {index} size {} base {} kick {} call {}",
            setup.size,
            setup.base,
            setup.kick.is_some(),
            setup.call.is_some()
        ));
        let layout = RingLayout { size: setup.size, desc: setup.desc, avail: setup.avail, used: setup.used };
        let features = Features {
            packed: device.features & F_RING_PACKED != 0,
            event_idx: device.features & F_EVENT_IDX != 0,
            indirect: device.features & F_INDIRECT_DESC != 0,
            in_order: device.features & F_IN_ORDER != 0,
        };
        let memory = device.memory.clone().ok_or("no memory")?;
        let ring = Ring::with_inflight(memory, layout, setup.base, features, setup.inflight);
        let ring = ring.map_err(|e| e.to_string())?;
        if let Some(unsent) = ring.recovered() {
            device.events.push(format!("recovered {index}: {unsent} unsent"));
        }
        let queue = Queue { ring, call: setup.call, enabled: false };
        device.queues.insert(index, queue);
        Ok(())
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        let mut device = self.lock().unwrap();
        device.events.push(format!("stop {index}"));
        device.queues.remove(&index).map(|queue| queue.ring.retire())
    }

    fn enable_queue(&mut self, index: u16, enabled: bool) {
        let mut device = self.lock().unwrap();
        device.events.push(format!("enable {index} {enabled}"));
        device.queues.get_mut(&index).unwrap().enabled = enabled;
    }

    fn set_call(&mut self, index: u16, call: Option<Call>) {
        let mut device = self.lock().unwrap();
        device.events.push(format!("call {index} {}", call.is_some()));
        device.queues.get_mut(&index).unwrap().call = call;
    }

    fn listen(&mut self, _: &Kick) -> Result<(), String> {
        self.lock().unwrap().listened += 1;
        Ok(())
    }

    fn listen_at(&mut self, _: usize, kick: &Kick) -> Result<(), String> {
        self.listen(kick)
    }

    fn move_to(&mut self, worker: usize, kicks: Vec<(u16, Kick)>) -> Outcome {
        self.lock().unwrap().events.push(format!("move to {worker} with {} kicks", kicks.len()));
        Ok(Moved { sending: 0, receiving: 0 })
    }

    fn forget(&mut self, _: &Kick) {
        self.lock().unwrap().listened -= 1;
    }

    fn set_kick(&mut self, index: u16, kick: Option<Kick>) {
        let mut device = self.lock().unwrap();
        device.events.push(format!("kick {index} {}", kick.is_some()));
    }

    fn disconnect(&mut self, reason: &str) {
        let mut device = self.lock().unwrap();
        device.events.push(format!("disconnect: {reason}"));
        device.queues.clear();
        device.memory = None;
    }
}

//! The end of a switch that another process replaces.
//!
//! ```text
//!  Retire ─▶ port threads frozen ─▶ workers: nothing taken any more, what is in flight delivered
//!                                       └▶ reply ─▶ Release ─▶ exit
//!                                                └▶ anything else: all goes on here
//! ```

use super::Switch;
use super::table::{End, Table};
use super::watchdog::Watchdog;
use crate::clock::clock;
use crate::control::channel;
use crate::control::message::{Reply, Request, Retired};
use crate::fdb::PortIndex;
use crate::worker::handle::Halted;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Longest wait for frames in flight: the longest time that the scheduler holds one.
pub const DRAIN: Duration = Duration::from_millis(10);
/// Longest wait for the rest after waiting frames were dropped.
const SETTLE: Duration = Duration::from_millis(1);
/// Longest wait for the present message of a port's thread.
const PATIENCE: Duration = Duration::from_secs(1);

/// Serves [`Request::Retire`]. Returns only if the switch goes on.
///
/// # Errors
/// The connection broke off; the switch goes on.
pub fn serve(switch: &Arc<Switch>, stream: &UnixStream) -> io::Result<()> {
    let Some(control) = switch.control.get() else {
        return channel::send(
            stream,
            &Reply::Refused("this switch has no control socket that another process could take over".into()),
            &[],
        );
    };
    let (table, halted, retired) = match switch.retire() {
        Ok(retired) => retired,
        Err(why) => return channel::send(stream, &Reply::Refused(why), &[]),
    };
    let reply = Reply::Retired(Box::new(retired));
    let answer = channel::send(stream, &reply, &[control.as_fd()]).and_then(|()| channel::receive(stream));
    if let Ok(Some((Request::Release, _))) = &answer {
        tracing::info!("another process has taken over from this one");
        let _ = channel::send(stream, &Reply::Done, &[]);
        tidegate_log::flush();
        std::process::exit(0);
    }
    drop(halted);
    switch.resume(&table);
    tracing::warn!("the process that should take over did not do so; this process continues");
    answer.map(drop)
}

impl Switch {
    /// Waits until the workers have nothing in flight, or until `end`; returns whether they have.
    fn drains_by(&self, end: Instant) -> bool {
        loop {
            if self.workers.iter().all(|worker| worker.call(|worker| worker.is_drained())) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Ends all traffic. The table stays locked until [`resume`](Self::resume).
    fn retire(&self) -> Result<(MutexGuard<'_, Table>, Vec<Halted>, Retired), String> {
        // The device would read and write buffers that the guests have back, or that the next process uses.
        self.rdma.hold_all().map_err(|ports| self.not_given_back(&ports))?;
        let retired = self.retire_ports();
        if retired.is_err() {
            self.rdma.release_all();
        }
        retired
    }

    /// The same, of ports whose guests' memory no device uses.
    fn retire_ports(&self) -> Result<(MutexGuard<'_, Table>, Vec<Halted>, Retired), String> {
        // Without the lock, which a thread may need for its message.
        let frozen = freeze(&self.lock());
        let waited = wait_for(frozen);
        let table = self.lock();
        // Also ports created meanwhile.
        if let Err(why) = waited.and_then(|()| wait_for(freeze(&table))) {
            thaw(&table);
            return Err(why);
        }
        let stopped = clock();
        for worker in self.workers.iter() {
            worker.call(|worker| worker.pause_all());
        }
        let mut drained = self.drains_by(Instant::now() + DRAIN);
        let mut dropped = false;
        if !drained {
            // Frames that still lack tokens must not delay the other ports.
            self.workers.iter().for_each(|worker| dropped |= worker.call(|worker| worker.drop_all_waiting()));
            drained = self.drains_by(Instant::now() + SETTLE);
        }
        for worker in self.workers.iter() {
            worker.call(|worker| worker.put_back_pending());
        }
        if !drained {
            for worker in self.workers.iter() {
                worker.call(|worker| worker.drop_all());
            }
        }
        while !self.workers.iter().all(|worker| worker.call(|worker| worker.is_all_quiet())) {
            std::thread::sleep(Duration::from_micros(50));
        }
        let name = |index| table.entries.values().find(|e| e.index == index).map(|e| e.vnic.name.clone());
        let levels = self.workers.iter().flat_map(|worker| worker.call(|worker| worker.levels()));
        let learned = self.fdb.learned_addresses().into_iter();
        let retired = Retired {
            host: table.host.clone(),
            ports: super::status::statuses(&table),
            levels: levels.filter_map(|(index, levels)| Some((name(index)?, levels))).collect(),
            learned: learned.filter_map(|(_, mac, at, seen)| Some((mac, name(at.port()?)?, seen))).collect(),
            stopped,
            dropped: dropped || !drained,
            watchdog_us: self.watchdog.get().map(Watchdog::micros),
        };
        // Their sleep and wake-ups write to the rings, too.
        let halted = self.workers.iter().map(|worker| worker.halt()).collect();
        Ok((table, halted, retired))
    }

    /// Says why another process cannot take over the rings of these ports, and what to do.
    fn not_given_back(&self, ports: &[PortIndex]) -> String {
        let table = self.lock();
        let name = |port: &PortIndex| {
            let entry = table.entries.values().find(|entry| entry.index == *port);
            entry.map_or("a vNIC that was removed", |entry| entry.vnic.name.as_str())
        };
        let names: Vec<_> = ports.iter().map(name).collect();
        format!(
            "an RDMA device does not give back the memory of guests within 2 s ({}): it may still read or write their buffers. Its uplink is \
             being made anew: try again, or end this process (systemctl restart), with which the kernel ends what the device has",
            names.join(", ")
        )
    }

    fn resume(&self, table: &Table) {
        self.rdma.release_all();
        for worker in self.workers.iter() {
            worker.call(|worker| worker.resume_all());
        }
        thaw(table);
    }
}

fn freeze(table: &Table) -> Vec<(String, std::sync::mpsc::Receiver<()>)> {
    let threads = table.entries.values().filter_map(|entry| match &entry.end {
        End::Vhost { thread, .. } => Some((entry.vnic.name.clone(), thread.freeze())),
        End::Tap { .. } => None,
    });
    threads.collect()
}

fn wait_for(frozen: Vec<(String, std::sync::mpsc::Receiver<()>)>) -> Result<(), String> {
    for (vnic, obeyed) in frozen {
        let late = |_| format!("{vnic}: a message of the front end is not handled yet; try again");
        obeyed.recv_timeout(PATIENCE).map_err(late)?;
    }
    Ok(())
}

fn thaw(table: &Table) {
    for entry in table.entries.values() {
        if let End::Vhost { thread, .. } = &entry.end {
            thread.thaw();
        }
    }
}

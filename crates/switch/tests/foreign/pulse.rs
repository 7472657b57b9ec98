//! Two honest guests with a frame each millisecond, and the share of frames in time.

use crate::harness::{Guest, TestSwitch, ring, udp, vnic};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_frontend::attack::Attack;

/// Pause between two frames.
const EVERY: Duration = Duration::from_millis(1);
/// Largest delay of a frame in time: far above an ordinary loop, far below an attack's.
const IN_TIME: Duration = Duration::from_millis(20);

/// When each frame was due, and its delay if it arrived.
type Log = Arc<Mutex<Vec<(Instant, Option<Duration>)>>>;

pub struct Pulse {
    log: Log,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pulse {
    pub fn start(host: &TestSwitch) -> Self {
        let mut a = host.guest_with(&vnic("a", 1, ""), ring(1024));
        let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
        let (log, over) = (Log::default(), Arc::new(AtomicBool::new(false)));
        let (seen, stop) = (log.clone(), over.clone());
        let thread = std::thread::spawn(move || beat(&mut a, &mut b, &seen, &stop));
        Self { log, over, thread: Some(thread) }
    }

    pub fn in_time(&self, time: Duration) -> f64 {
        let begin = Instant::now();
        std::thread::sleep(time);
        let end = Instant::now();
        std::thread::sleep(IN_TIME);
        let log = self.log.lock().unwrap();
        let here: Vec<_> = log.iter().filter(|(due, _)| (begin..end).contains(due)).collect();
        let in_time = here.iter().filter(|(_, took)| took.is_some_and(|took| took <= IN_TIME)).count();
        // A frame that was not sent is not in time either.
        in_time as f64 / (time.as_micros() as f64 / EVERY.as_micros() as f64)
    }

    /// Waits until a frame that is sent from now on arrives.
    pub fn beats(&self) {
        let (begin, log) = (Instant::now(), &self.log);
        let arrived = || log.lock().unwrap().iter().any(|(due, took)| *due > begin && took.is_some());
        while !arrived() {
            assert!(begin.elapsed() < crate::harness::PATIENCE, "no frame arrives");
            std::thread::sleep(EVERY);
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn beat(a: &mut Guest, b: &mut Guest, log: &Log, over: &AtomicBool) {
    let (start, mut sent) = (Instant::now(), 0u32);
    while !over.load(Ordering::Relaxed) {
        let due = start + EVERY * sent;
        if Instant::now() >= due {
            log.lock().unwrap().push((due, None));
            a.send_or_drop(&udp(b.mac(), a.mac(), &sent.to_be_bytes()));
            sent += 1;
        }
        let now = Instant::now();
        b.each(|frame| {
            // Announcements of ports have no number.
            let Some(number) = frame.get(42..46).and_then(|bytes| bytes.try_into().ok()) else { return };
            if let Some((due, took)) = log.lock().unwrap().get_mut(u32::from_be_bytes(number) as usize) {
                took.get_or_insert(now - *due);
            }
        });
        a.front.in_flight(0);
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub struct Attacked {
    steps: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Attacked {
    pub fn by(
        attack: impl FnOnce(PathBuf, &AtomicBool, &AtomicU64) -> std::io::Result<()> + Send + 'static,
        socket: PathBuf,
    ) -> Self {
        let (steps, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stop) = (steps.clone(), over.clone());
        let thread = std::thread::spawn(move || attack(socket, &stop, &count));
        Self { steps, over, thread: Some(thread) }
    }

    /// As [`by`](Self::by); returns after the first step.
    pub fn with(attack: Attack, socket: PathBuf) -> Self {
        let it = Self::by(move |socket, stop, steps| attack.run(&socket, stop, steps), socket);
        it.wait_for(1);
        it
    }

    pub fn wait_for(&self, steps: u64) {
        let start = Instant::now();
        while self.steps() < steps {
            let thread = self.thread.as_ref().unwrap();
            assert!(
                !thread.is_finished() && start.elapsed() < Duration::from_secs(60),
                "{} steps",
                self.steps()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Ends the attack, which this machine must have allowed.
    pub fn end(mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap().expect("this machine lets it attack");
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Checks that the share in time, while `beside` runs, is at least `kept` of the share alone. Three tries,
/// since the machine may be busy.
#[track_caller]
pub fn keeps(pulse: &Pulse, kept: f64, mut beside: impl FnMut() -> f64) {
    let mut seen = Vec::new();
    for _ in 0..3 {
        let alone = pulse.in_time(Duration::from_secs(1));
        let share = beside();
        println!("in time alone {alone:.2}, beside it {share:.2}");
        seen.push((alone, share));
        if share >= kept * alone {
            return;
        }
    }
    panic!("of frames in time alone, and beside it: {seen:?}; expected {kept} of it");
}

//! The NIC: a queue and a limit per function, and one FIFO towards the link. Unit: bytes per tick of a
//! millisecond.

use tidegate_contract::{Bytes, Rate};

/// Capacity of a function's queue (bytes): a guest's ring and its kernel's queue.
const QUEUE: f64 = 1_500_000.0;
/// Burst of a limiter: the larger of a time (s) and bytes.
const BURST: (f64, f64) = (0.002, 3036.0);
/// Fraction bits of a rate factor (82576 datasheet, RTTBCNRC).
const FRACTION: u32 = 14;

struct Function {
    limit: Option<f64>,
    tokens: f64,
    waiting: f64,
    sent: f64,
    in_fifo: f64,
    outcome: (f64, f64),
}

pub struct Nic {
    functions: Vec<Function>,
    /// Bytes per tick.
    speed: f64,
    capacity: f64,
    buffer: f64,
    line: Rate,
}

pub fn per_tick(rate: Rate) -> f64 {
    rate.bits() as f64 / 8000.0
}

/// Returns the effective limit of a NIC that stores it as a factor of its speed with 10.14 bits: at most
/// `limit`, if above a 1024th of the speed.
pub fn factor_limit(speed: Rate, limit: Rate) -> f64 {
    let factor = (u128::from(speed.bits()) << FRACTION).div_ceil(u128::from(limit.bits().min(speed.bits())));
    let most = (1u128 << (10 + FRACTION)) - 1;
    speed.bits() as f64 * f64::from(1u32 << FRACTION) / factor.min(most) as f64
}

impl Nic {
    pub fn new(functions: usize, speed: Rate, capacity: Rate, buffer: Bytes) -> Self {
        let function = || Function {
            limit: None,
            tokens: 0.0,
            waiting: 0.0,
            sent: 0.0,
            in_fifo: 0.0,
            outcome: (0.0, 0.0),
        };
        Self {
            functions: (0..functions).map(|_| function()).collect(),
            speed: per_tick(speed),
            capacity: per_tick(capacity),
            buffer: buffer.get() as f64,
            line: speed,
        }
    }

    pub fn set(&mut self, index: usize, limit: Option<Rate>) {
        self.functions[index].limit = limit.map(|limit| factor_limit(self.line, limit) / 8000.0);
    }

    /// Queues bytes. Returns those that do not fit.
    pub fn enqueue(&mut self, index: usize, bytes: f64) -> f64 {
        let function = &mut self.functions[index];
        let taken = bytes.min(QUEUE - function.waiting);
        function.waiting += taken;
        bytes - taken
    }

    pub fn tick(&mut self) {
        let mut arrived = 0.0;
        let mut fifo_bytes = 0.0;
        for function in &mut self.functions {
            let may = match function.limit {
                None => self.speed,
                Some(limit) => {
                    let burst = (limit * BURST.0 * 1000.0).max(BURST.1);
                    function.tokens = (function.tokens + limit).min(burst);
                    function.tokens.min(self.speed)
                }
            };
            let out = function.waiting.min(may);
            function.waiting -= out;
            function.tokens = (function.tokens - out).max(0.0);
            function.sent += out;
            function.outcome = (out, 0.0);
            arrived += out;
            fifo_bytes += function.in_fifo;
        }
        // The order within a tick is unknown: loss is in proportion to the sent bytes.
        let room = (self.buffer + self.capacity - fifo_bytes).max(0.0);
        let kept_share = if arrived > room { room / arrived } else { 1.0 };
        let waiting = fifo_bytes + arrived * kept_share;
        let served = if waiting > 0.0 { (self.capacity / waiting).min(1.0) } else { 0.0 };
        for function in &mut self.functions {
            let out = function.outcome.0;
            let in_fifo = function.in_fifo + out * kept_share;
            function.in_fifo = in_fifo * (1.0 - served);
            function.outcome = (in_fifo * served, out * (1.0 - kept_share));
        }
    }

    /// Returns a function's delivered and dropped bytes of the last tick.
    pub fn outcome(&self, index: usize) -> (f64, f64) {
        self.functions[index].outcome
    }

    /// Returns the bytes sent by each function.
    pub fn counters(&self) -> Vec<u64> {
        self.functions.iter().map(|function| function.sent as u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_factor_is_never_above_the_limit_and_hardly_below(mbit in 1u64..10_000) {
            let speed = Rate::from_bits(10_000_000_000).expect("a rate");
            let limit = Rate::from_bits(mbit * 1_000_000).expect("a rate");
            let real = factor_limit(speed, limit);
            if mbit >= 10 {
                prop_assert!(real <= limit.bits() as f64 * 1.000_000_1);
                prop_assert!(real >= limit.bits() as f64 * 0.9999);
            } else {
                // The largest factor is just below 1024.
                prop_assert!(real > 9.76e6 && real < 9.77e6);
            }
        }
    }
}

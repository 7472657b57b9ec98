//! Loads before anything is measured: frames a second by contract, times what a frame costs. Pure.

use tidegate_contract::Vnic;
use tidegate_cores::stage::Kind;

/// The rate of a direction without a limit, bits a second.
const UNLIMITED: u64 = 1_000_000_000;

/// Frames a second by which an idle stage is placed. Without any, all CPUs would be equally good for it, the farthest one among them, and
/// all idle stages would be on one when frames come.
pub const IDLE: u64 = 100;

/// Returns the CPU time that a frame takes at a stage, ns. These are orders of magnitude for one frame of a large rate: the paper on
/// VSE has 1,700,000 frames a second on the one core of an interrupt and its softirq, and vhost-net with its VM carried 800,000 a
/// second. The first minute replaces them.
pub const fn frame_ns(kind: Kind) -> u64 {
    match kind {
        Kind::HardIrq => 100,
        Kind::SoftIrq => 500,
        Kind::Vhost | Kind::Vcpu => 1250,
        Kind::Worker => 300,
        Kind::Transmit => 250,
        Kind::Emulator => 0,
    }
}

/// Returns the load of a stage that takes so many frames a second, millionths of one CPU; at most a whole CPU.
pub fn load(kind: Kind, frames: u64) -> u32 {
    let millionths = frames.saturating_mul(frame_ns(kind)) / 1000;
    u32::try_from(millionths).unwrap_or(u32::MAX).min(1_000_000)
}

/// Returns the frames a second that a vNIC sends, and that it receives, at the full rate of its contract with its largest frames.
pub fn frames(vnic: &Vnic) -> (u64, u64) {
    let frame = vnic.largest_frame().max(1) * 8;
    let sent = vnic.tx.max.or(vnic.tx.min).map_or(UNLIMITED, |rate| rate.bits());
    (sent / frame, vnic.rx.max.map_or(UNLIMITED, |rate| rate.bits()) / frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::Rate;
    use tidegate_testkit::contract::vnic;

    #[test]
    fn full_rate_in_largest_frames() {
        let mut contract = vnic("a", 1);
        contract.tx.max = Rate::from_bits(100_000_000);
        contract.rx.max = Rate::from_bits(1_000_000_000);
        assert_eq!(frames(&contract), (100_000_000 / 8 / 1518, 1_000_000_000 / 8 / 1518));
        assert_eq!(load(Kind::Vhost, 100_000), 125_000);
        assert_eq!(load(Kind::Emulator, u64::MAX), 0);
        assert_eq!(load(Kind::SoftIrq, u64::MAX), 1_000_000);
    }
}

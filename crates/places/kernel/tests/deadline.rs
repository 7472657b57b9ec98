//! Deadlines as the eBPF programs see them: every frame that was sent arrived or was lost, and what it waited for is what was
//! in its way.

mod netns;

use netns::*;
use rustix::ioctl::{Updater, ioctl};
use std::fs::File;
use std::io::Read;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use tidegate_contract::Bytes;
use tidegate_place_kernel::ebpf::{DeadlineMeter, Delays, Loss, Part, Promise};
use tidegate_place_kernel::tc::{Limit, Shaping};

const FRAME: u64 = 1_042;
const FRAMES: u64 = 40;
const BURST: u64 = 4_000;
const MS: u64 = 1_000_000;
const PORT: u16 = 9;
/// Behind the tap.
const TAPPED: &str = "10.9.9.2";

/// A tap with a reader, as a VM has.
fn open_tap(name: &str) -> File {
    let tap = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    rustix::io::ioctl_fionbio(&tap, true).unwrap();
    // struct ifreq: the name, and IFF_TAP | IFF_NO_PI.
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&0x1002_u16.to_ne_bytes());
    // SAFETY: TUNSETIFF (linux/if_tun.h) reads and writes one `struct ifreq`.
    unsafe { ioctl(&tap, Updater::<0x400454ca, _>::new(&mut request)) }.unwrap();
    ip(&format!("addr add 10.9.9.1/24 dev {name}"));
    ip(&format!("link set {name} up"));
    ip(&format!("neigh add {TAPPED} lladdr 02:00:00:00:00:09 dev {name}"));
    tap
}

/// Takes all that is there off a tap.
fn take(mut tap: &File) {
    while tap.read(&mut [0; 2048]).is_ok() {}
}

/// Sends frames one right after the other; how long that took, ns: a busy host takes the processor away meanwhile.
fn send(from: &Guest, to: &str, count: u64) -> u64 {
    from.within(|_| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let begin = Instant::now();
        for _ in 0..count {
            socket.send_to(&[0; FRAME as usize - 42], (to, PORT)).unwrap();
        }
        begin.elapsed().as_nanos() as u64
    })
}

/// A receiver that may have this, with a queue for so many bytes.
fn receiving(netdev: &str, rate: &str, queue: u64) -> Shaping {
    let rx = Limit::new(rate.parse().unwrap(), Bytes::new(BURST), Some(Bytes::new(queue)), 1518).unwrap();
    Shaping { rx: Some(rx), ..shaping(netdev, "-", "-") }
}

fn late(seen: &Delays) -> u64 {
    seen.late.values().sum()
}

fn lost(seen: &Delays) -> u64 {
    seen.lost.values().sum()
}

#[track_caller]
fn meter() -> Option<DeadlineMeter> {
    tidegate_testkit::unless_skipped(DeadlineMeter::load())
}

#[test]
fn each_frame_arrives_or_is_lost_and_each_miss_has_its_cause() {
    in_namespace("each_frame_arrives_or_is_lost_and_each_miss_has_its_cause", || {
        let Some(meter) = meter() else { return };
        let [one, two] = [("vnet1", 1), ("vnet2", 2)].map(|(name, number)| Guest::new(name, number));
        route(&[&one, &two]);
        let tap = open_tap("vnet3");
        let _listens = two.within(|_| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
        let set = |vnet2: Shaping, vnet3: Shaping| settle(&[shaping("vnet1", "1gbit", "-"), vnet2, vnet3]);
        let wide = |name: &str| receiving(name, "1gbit", 1_000_000);
        let network = set(wide("vnet2"), wide("vnet3"));
        let index = |name: &str| network.by_name(name).unwrap().0;
        let to = |name: &str| Promise { from: index("vnet1"), to: index(name) };
        let (veth, vm) = (to("vnet2"), to("vnet3"));
        let read = |promise| meter.read(promise).unwrap().unwrap();
        // Addresses are known before anything is watched.
        one.within(|_| run("ping", &format!("-c 1 -W 5 {}", two.address(2))));
        assert_eq!(meter.read(vm).unwrap(), None);

        // In time, at the other end of a veth; what goes elsewhere is not counted.
        meter.watch(veth, 5_000 * MS).unwrap();
        meter.watch(vm, 5_000 * MS).unwrap();
        let begin = Instant::now();
        send(&one, &two.address(2), FRAMES);
        send(&one, &one.address(1), FRAMES);
        eventually("all arrived", || read(veth).delivered() == FRAMES);
        let seen = read(veth);
        assert_eq!((late(&seen), lost(&seen), seen.latest.len()), (0, 0, 0), "{seen:?}");
        assert!(seen.max > 0 && seen.max < begin.elapsed().as_nanos() as u64, "{seen:?}");
        assert!(seen.sum >= seen.max && seen.sum <= FRAMES * seen.max, "{seen:?}");
        assert_eq!(read(vm).delivered(), 0);

        // The receiver does not take them.
        meter.watch(vm, 20 * MS).unwrap();
        send(&one, TAPPED, FRAMES);
        std::thread::sleep(Duration::from_millis(60));
        eventually("all are taken", || {
            take(&tap);
            read(vm).delivered() == FRAMES
        });
        let seen = read(vm);
        assert_eq!(lost(&seen), 0, "{seen:?}");
        assert_eq!(seen.late, [(Part::Receiver, FRAMES)].into(), "{seen:?}");
        let last = seen.latest.last().unwrap();
        assert!(last.parts[2] > 20 * MS && last.lost.is_none(), "{last:?}");
        assert!(seen.latest.is_sorted_by_key(|miss| miss.at), "{seen:?}");

        // They wait for one another: a frame goes when those before it left something of the burst.
        set(wide("vnet2"), receiving("vnet3", "8mbit", 1_000_000));
        meter.watch(vm, 10 * MS).unwrap();
        let took = send(&one, TAPPED, FRAMES);
        // At 8 Mbit/s a byte takes a microsecond. Each frame waits for those before it, but for the time it was sent later.
        let waits = |n: u64| ((n * FRAME).saturating_sub(BURST) * 1_000).saturating_sub(took);
        let before = (0..FRAMES).filter(|n| waits(*n) >= 10 * MS).count() as u64;
        let begin = Instant::now();
        while read(vm).delivered() < FRAMES && begin.elapsed() < Duration::from_secs(5) {
            take(&tap);
            std::thread::sleep(Duration::from_micros(200));
        }
        let seen = read(vm);
        assert_eq!(seen.delivered(), FRAMES, "{seen:?}");
        // One or two: what tokens allow is a little later than when the frame was sent.
        assert!(late(&seen) + 2 >= before && lost(&seen) == 0, "{before} {seen:?}");
        // A reader that has no processor for long adds to what they waited for.
        assert!(before == 0 || seen.late.contains_key(&Part::Queue), "{before} {seen:?}");
        assert!(seen.max + 2 * MS >= waits(FRAMES - 1), "{seen:?}, sent within {took} ns");

        // More waits than may, where the ring of the tap holds all of them; and then more than that ring holds.
        let full = [("1mbit", 5_000, 500, Loss::QueueFull), ("1gbit", 1_000_000, 10, Loss::RingFull)];
        for (rate, queue, ring, loss) in full {
            ip(&format!("link set vnet3 txqueuelen {ring}"));
            set(wide("vnet2"), receiving("vnet3", rate, queue));
            meter.forget(vm).unwrap();
            meter.watch(vm, 5_000 * MS).unwrap();
            send(&one, TAPPED, FRAMES);
            // Nothing is read while it fills.
            std::thread::sleep(Duration::from_millis(30));
            eventually("each has ended", || {
                take(&tap);
                let seen = read(vm);
                lost(&seen) + seen.delivered() == FRAMES
            });
            let seen = read(vm);
            assert!(lost(&seen) > 0 && seen.delivered() > 0 && late(&seen) == 0, "{seen:?}");
            assert_eq!(seen.lost.keys().copied().collect::<Vec<_>>(), [loss], "{seen:?}");
            assert!(seen.latest.iter().all(|miss| miss.lost == Some(loss)), "{seen:?}");
        }

        assert_eq!(meter.watched().len(), 2);
        for promise in [veth, vm] {
            meter.forget(promise).unwrap();
            assert_eq!(meter.read(promise).unwrap(), None);
        }
        assert!(meter.forget(vm).is_err());
    });
}

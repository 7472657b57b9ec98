//! Properties of the loop.
use super::simulation::*;
use super::terms::*;
use std::time::Duration;
use tidegate_contract::{Bytes, Rate, Segment};

fn mbit(n: u64) -> Rate {
    Rate::from_bits(n * 1_000_000).unwrap()
}

#[test]
fn explore() {
    let seg = Segment::new(1).unwrap();
    let ms = Duration::from_millis;
    for (name, control) in [
        ("none", Control::None),
        ("fixed", Control::Fixed(vec![None, Some(mbit(400))])),
        (
            "loop",
            Control::Loop(Timing {
                period: ms(100),
                jitter: ms(5),
                delay: ms(20),
                setting: ms(2),
                missed: 0.02,
            }),
        ),
        (
            "loop10",
            Control::Loop(Timing {
                period: ms(10),
                jitter: ms(1),
                delay: ms(2),
                setting: ms(2),
                missed: 0.02,
            }),
        ),
    ] {
        let m = |id, min| Member { id, max: None, min: Some(mbit(min)), weight: 1, segment: seg };
        for rtt in [1, 20] {
            let s = Scenario {
                link: Link::new(mbit(800)),
                speed: mbit(1000),
                buffer: Bytes::new(500_000),
                members: vec![
                    (
                        m(0, 400),
                        Sender {
                            kind: Kind::Tcp { rtt: ms(rtt), demand: None },
                            activity: Activity::from(ms(0)),
                        },
                    ),
                    (
                        m(1, 400),
                        Sender {
                            kind: Kind::Udp(mbit(1000)),
                            activity: Activity { stop: ms(20000), ..Activity::from(ms(10000)) },
                        },
                    ),
                ],
                tenants: vec![],
                control: control.clone(),
                duration: ms(30000),
                bucket: ms(100),
                seed: 1,
            };
            let t = run(&s).unwrap();
            println!(
                "{name} rtt {rtt}: before {:.0} {:.0}; after {:.0} {:.0}; later {:.0} {:.0}",
                t.mean(0, 2.0, 10.0),
                t.mean(1, 2.0, 10.0),
                t.mean(0, 12.0, 20.0),
                t.mean(1, 12.0, 20.0),
                t.mean(0, 22.0, 30.0),
                t.mean(1, 22.0, 30.0)
            );
            println!(
                "  around 10: {:?}",
                t.between(9.9, 11.0).iter().map(|b| (b[0] as u64, b[1] as u64)).collect::<Vec<_>>()
            );
            println!(
                "  around 20: {:?}",
                t.between(19.9, 21.0).iter().map(|b| (b[0] as u64, b[1] as u64)).collect::<Vec<_>>()
            );
            println!(
                "  changes: {} in {} steps; worst sum {}",
                t.steps.iter().map(|s| s.changed).sum::<usize>(),
                t.steps.len(),
                t.steps.iter().map(|s| s.limits.iter().sum::<u64>()).max().unwrap_or(0)
            );
            for s in t.steps.iter().filter(|s| s.changed > 0 && s.at > 9.0).take(10) {
                println!("   {:.2} {:?}", s.at, s.limits);
            }
        }
    }
}

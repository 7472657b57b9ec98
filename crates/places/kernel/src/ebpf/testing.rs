//! Frames, and test runs of programs in the kernel.

use crate::ebpf::program::Program;
use libbpf_rs::ProgramInput;
use proptest::prelude::*;

/// The loopback interface, where the kernel tests programs.
const INDEX: u32 = 1;
pub const PASSES: u32 = u32::MAX;
pub const DROPPED: u32 = 2;

/// `struct __sk_buff` (linux/bpf.h), with the fields that a test sets.
struct Context([u8; 192]);

impl Context {
    fn new(gso_size: u32) -> Self {
        let mut context = Self([0; 192]);
        context.put(40, INDEX);
        context.put(176, gso_size);
        context
    }

    fn put(&mut self, offset: usize, value: u32) {
        self.0[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

/// The form of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Tcp4,
    Tcp6,
    Udp4,
    /// IPv6, hop-by-hop options, UDP.
    Udp6Extended,
    /// In a VLAN, TCP with 12 bytes of options.
    TaggedTcp4,
}

impl Kind {
    /// Returns the headers, from Ethernet to transport.
    fn headers(self) -> Vec<u8> {
        let ethernet = |types: &[u8]| [&[2; 12], types].concat();
        let ip4 = |protocol: u8| {
            let mut header = [0; 20];
            (header[0], header[9]) = (0x45, protocol);
            header.to_vec()
        };
        let ip6 = |next: u8| {
            let mut header = [0; 40];
            (header[0], header[6]) = (0x60, next);
            header.to_vec()
        };
        let tcp = |words: u8| {
            let mut header = vec![0; usize::from(words) * 4];
            header[12] = words << 4;
            header
        };
        match self {
            Self::Tcp4 => [ethernet(&[8, 0]), ip4(6), tcp(5)].concat(),
            Self::Tcp6 => [ethernet(&[0x86, 0xdd]), ip6(6), tcp(5)].concat(),
            Self::Udp4 => [ethernet(&[8, 0]), ip4(17), vec![0; 8]].concat(),
            Self::Udp6Extended => {
                [ethernet(&[0x86, 0xdd]), ip6(0), vec![17, 0, 0, 0, 0, 0, 0, 0], vec![0; 8]].concat()
            }
            Self::TaggedTcp4 => [ethernet(&[0x81, 0, 0, 7, 8, 0]), ip4(6), tcp(8)].concat(),
        }
    }
}

/// Returns a frame with some payload, in segments of `gso_size` unless that is 0.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: Kind,
    pub payload: usize,
    pub gso_size: usize,
}

impl Frame {
    pub fn segments(&self) -> usize {
        if self.gso_size == 0 { 1 } else { self.payload.div_ceil(self.gso_size) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        [self.kind.headers(), vec![0; self.payload]].concat()
    }

    pub fn wire_bytes(&self) -> u64 {
        (self.payload + self.segments() * self.kind.headers().len()) as u64
    }
}

pub fn frames() -> impl Strategy<Value = Frame> {
    let kinds = vec![Kind::Tcp4, Kind::Tcp6, Kind::Udp4, Kind::Udp6Extended, Kind::TaggedTcp4];
    let kind = prop::sample::select(kinds);
    (kind, 1usize..3000, prop::option::of(100usize..1500)).prop_map(|(kind, payload, gso)| Frame {
        kind,
        payload,
        gso_size: gso.unwrap_or(0),
    })
}

/// Returns the program's verdict on a frame, and the frame after it.
pub fn run(program: &Program, data: &[u8], gso_size: usize) -> (u32, Vec<u8>) {
    let mut context = Context::new(gso_size as u32);
    let mut after = vec![0; data.len()];
    let input = ProgramInput {
        context_in: Some(&mut context.0),
        data_in: Some(data),
        data_out: Some(&mut after),
        ..ProgramInput::default()
    };
    let mut programs = program.object.progs_mut();
    let said = programs.next().unwrap().test_run(input).unwrap().return_value;
    (said, after)
}

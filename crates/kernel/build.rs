//! Compiles the eBPF programs of `bpf/` with clang. Headers are Debian's libbpf-dev and linux-libc-dev.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    for program in ["classify", "congestion", "deadline", "mark", "noise", "police", "wait"] {
        let source = format!("bpf/{program}.bpf.c");
        let mut clang = Command::new("clang");
        clang.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]);
        // Debian keeps the headers that depend on the processor in a folder of their own.
        clang.arg(format!("-I/usr/include/{machine}-linux-gnu"));
        clang.args(["-c", &source, "-o"]).arg(out.join(format!("{program}.bpf.o")));
        let done = clang.status();
        let done = done.unwrap_or_else(|e| panic!("clang cannot be run: {e}; scripts/setup build gets it"));
        assert!(
            done.success(),
            "{source} cannot be compiled, see above; scripts/setup build gets the headers"
        );
    }
}

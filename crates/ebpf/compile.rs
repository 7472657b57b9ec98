// For build scripts, by `#[path]`: compiles eBPF programs with clang. The headers are Debian's libbpf-dev and linux-libc-dev.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Compiles `FOLDER/NAME.bpf.c` to `OUT_DIR/NAME.bpf.o`, for each name.
pub fn programs(folder: &str, names: &[&str]) {
    println!("cargo:rerun-if-changed={folder}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    for name in names {
        let source = format!("{folder}/{name}.bpf.c");
        let mut clang = Command::new("clang");
        clang.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]);
        // Debian has the headers that depend on the processor in another folder.
        clang.arg(format!("-I/usr/include/{machine}-linux-gnu"));
        clang.args(["-c", &source, "-o"]).arg(out.join(format!("{name}.bpf.o")));
        let done = clang.status();
        let done = done.unwrap_or_else(|e| panic!("cannot run clang: {e}; scripts/setup build installs it"));
        assert!(
            done.success(),
            "cannot compile {source}, see above; scripts/setup build installs the headers"
        );
    }
}

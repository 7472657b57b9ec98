//! Compiles the eBPF programs.

#[path = "../../ebpf/compile.rs"]
mod compile;

fn main() {
    compile::programs("src/culprit", &["noise"]);
    compile::programs("src/peers_only", &["egress"]);
    compile::programs("src/xdp", &["plain_nic"]);
}

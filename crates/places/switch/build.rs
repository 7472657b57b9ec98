//! Compiles the eBPF programs of `src/culprit/` and `src/xdp/`.

#[path = "../../ebpf/compile.rs"]
mod compile;

fn main() {
    compile::programs("src/culprit", &["noise"]);
    compile::programs("src/xdp", &["plain_nic"]);
}

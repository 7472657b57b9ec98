//! Compiles the eBPF programs of `src/culprit/`.

#[path = "../../ebpf/compile.rs"]
mod compile;

fn main() {
    compile::programs("src/culprit", &["noise"]);
}

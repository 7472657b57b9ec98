//! The virtio-serial port.

use std::fs;
use std::path::{Path, PathBuf};
use tidegate_guest::PORT;

/// Returns the port's device below `root`: by udev's link, or without it by the kernel's name.
///
/// # Errors
/// There is none; the text says what to do.
pub fn find(root: &Path) -> Result<PathBuf, String> {
    let linked = root.join("dev/virtio-ports").join(PORT);
    if linked.exists() {
        return Ok(linked);
    }
    let ports = fs::read_dir(root.join("sys/class/virtio-ports")).into_iter().flatten().flatten();
    let matches = |port: &fs::DirEntry| {
        fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == PORT)
    };
    let port = ports.into_iter().find(matches).map(|port| root.join("dev").join(port.file_name()));
    port.ok_or_else(|| {
        format!("this VM has no virtio-serial port {PORT}: ask the operator of the host to add one (docs/guest-limit.md)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_by_link_or_by_name() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        assert!(find(root).expect_err("none").contains("has no virtio-serial port org.tidegate.limit.0"));
        for (port, name) in [("vport1p1", "org.qemu.guest_agent.0\n"), ("vport1p2", "org.tidegate.limit.0\n")]
        {
            let folder = root.join("sys/class/virtio-ports").join(port);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("name"), name).expect("written");
        }
        assert_eq!(find(root), Ok(root.join("dev/vport1p2")));
        fs::create_dir_all(root.join("dev/virtio-ports")).expect("made");
        fs::write(root.join("dev/virtio-ports").join(PORT), "").expect("written");
        assert_eq!(find(root), Ok(root.join("dev/virtio-ports").join(PORT)));
    }
}

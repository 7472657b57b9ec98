//! `tidegate libvirt install-hook` and `remove-hook`.

use crate::exit::{self, Failure};
use crate::format;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};
use tidegate_libvirt::script::{self, Settings};

const HOOKS: &str = "/etc/libvirt/hooks";

/// Arguments of `install-hook`. The agent's API socket that the hook uses is the global `--api`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// libvirt's folder of hooks
    #[arg(long, value_name = "DIR", default_value = HOOKS)]
    hooks_dir: PathBuf,
    /// A domain whose contracts are refused starts all the same, without them; the reason is logged
    #[arg(long)]
    advisory: bool,
}

/// Arguments of `remove-hook`.
#[derive(Debug, clap::Args)]
pub struct RemoveArgs {
    /// libvirt's folder of hooks
    #[arg(long, value_name = "DIR", default_value = HOOKS)]
    hooks_dir: PathBuf,
}

/// Writes the hook's file, unless another program's file is in its place.
pub fn run(args: &Args, api: &Path) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|e| Failure::failed(format!("cannot find the path of this program: {e}")))?;
    let api =
        std::path::absolute(api).map_err(|e| Failure::failed(format!("--api {}: {e}", format::path(api))))?;
    let settings = Settings { program: &program, api: &api, advisory: args.advisory };
    let text = script::text(settings).map_err(Failure::failed)?;
    let path = place(&args.hooks_dir);
    let failed = |e: io::Error| Failure::failed(format!("cannot write {}: {e}", format::path(&path)));
    let existing = read_own_hook(&path)?;
    if existing.as_deref() != Some(&text) {
        let folder = args.hooks_dir.join("qemu.d");
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder).map_err(failed)?;
        // Not in the same folder: libvirt runs every file there.
        let partial = args.hooks_dir.join(format!(".tidegate-{}", std::process::id()));
        let written = write(&partial, &text).and_then(|()| fs::rename(&partial, &path));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written.map_err(failed)?;
    }
    let what = if existing.is_some() { "is up to date" } else { "is installed" };
    exit::print(&format!(
        "{} {what}.\n\
         libvirt looks for hooks when it starts: systemctl restart libvirtd (or virtqemud); VMs keep running.\n\
         To follow changes while VMs run: systemctl enable --now tidegate-libvirt\n",
        format::path(&path)
    ))
}

/// Removes the hook's file if it is ours.
pub fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    let path = place(&args.hooks_dir);
    if read_own_hook(&path)?.is_none() {
        return exit::print(&format!(
            "{} does not exist; there is nothing to remove.\n",
            format::path(&path)
        ));
    }
    fs::remove_file(&path)
        .map_err(|e| Failure::failed(format!("cannot remove {}: {e}", format::path(&path))))?;
    exit::print(&format!(
        "{} is removed; contracts in force go when their domains stop.\n",
        format::path(&path)
    ))
}

fn place(hooks: &Path) -> PathBuf {
    hooks.join("qemu.d").join(script::NAME)
}

/// Returns the text of our hook at `path`; `None` if no file exists.
fn read_own_hook(path: &Path) -> Result<Option<String>, Failure> {
    let failed = |e: io::Error| Failure::failed(format!("cannot read {}: {e}", format::path(path)));
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
        Ok(meta) if !meta.is_file() => {}
        Ok(_) => {
            let text = String::from_utf8_lossy(&fs::read(path).map_err(failed)?).into_owned();
            if script::is_ours(&text) {
                return Ok(Some(text));
            }
        }
    }
    Err(Failure::failed(format!(
        "{} belongs to another program and was not changed; move it to another folder, or choose another --hooks-dir",
        format::path(path)
    )))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

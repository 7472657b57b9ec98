//! `tidegate libvirt import DOMAIN.xml`.

use crate::exit::{self, Code, Failure};
use crate::format;
use std::io::Read;
use std::path::{Path, PathBuf};
use tidegate_libvirt::translate;
use tidegate_visible::visible;

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The domain, as `virsh dumpxml` prints it; - reads standard input
    #[arg(value_name = "DOMAIN.xml")]
    file: PathBuf,
    /// Print the element for the domain's <metadata> instead of TOML
    #[arg(long)]
    metadata: bool,
}

/// Prints the contracts that a domain's XML describes.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let failed =
        |e: std::io::Error| Failure::failed(format!("cannot read {}: {e}", format::path(&args.file)));
    let mut text = String::new();
    if args.file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map_err(failed)?;
    } else {
        text = std::fs::read_to_string(&args.file).map_err(failed)?;
    }
    let translation = translate(&text, &format::path(&args.file))
        .map_err(|e| Failure { code: Code::Refused, message: e.to_string() })?;
    if json {
        let contracts: Vec<_> = translation.contracts.iter().map(|c| &c.vnic).collect();
        return exit::print_json(&serde_json::json!({
            "domain": translation.domain, "contracts": contracts, "notes": translation.notes
        }));
    }
    if !args.metadata {
        return exit::print(&translation.explained());
    }
    // The notes are not part of the element.
    for note in &translation.notes {
        exit::print_error(&format!("tidegate: {}", visible(note)));
    }
    exit::print(&translation.to_metadata())
}

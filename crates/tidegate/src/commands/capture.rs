//! `tidegate capture NAME`: the agent's pcapng stream, to a file or a pipe.

use crate::client::{Client, encode};
use crate::exit::{self, Failure};
use crate::format;
use crate::pcapng::Blocks;
use http_body_util::BodyExt;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Arguments of `capture`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tidegate capture plc1 | wireshark -k -i -")]
pub struct Args {
    /// The vNIC
    name: String,
    /// File to write; - is standard output, which must be a pipe or a file
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,
    /// Bytes kept of each frame
    #[arg(long, value_name = "N", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(64..=65_535))]
    snaplen: u32,
    /// Stop after this many frames instead of at Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Records until the count is reached, Ctrl-C is pressed, the reader goes away or the vNIC is removed.
pub async fn run(client: &Client, args: Args) -> Result<(), Failure> {
    let to_stdout = args.write == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::usage(
            "standard output is a terminal: write to a file with -w FILE, or pipe into a reader, such as\n  \
             tidegate capture NAME | wireshark -k -i -",
        ));
    }
    let path = format!("/v1/vnics/{}/capture?snaplen={}", encode(&args.name), args.snaplen);
    // The request comes first, so that an unknown name leaves no empty file behind.
    let body = client.stream(&path).await?;
    let mut out: Box<dyn Write> = if to_stdout {
        Box::new(io::stdout().lock())
    } else {
        let file = File::create(&args.write);
        Box::new(
            file.map_err(|e| Failure::failed(format!("cannot write {}: {e}", format::path(&args.write))))?,
        )
    };
    let frames = tokio::select! {
        frames = copy(body, &mut out, args.count.unwrap_or(u64::MAX)) => frames?,
        // The output so far ends with a whole block: it is a valid file.
        _ = tokio::signal::ctrl_c() => return Ok(()),
    };
    if !to_stdout {
        let to = format::path(&args.write);
        exit::print_error(&format!("{} written to {to}", format::plural(frames, "frame")));
    }
    Ok(())
}

/// Writes whole blocks until `most` frames are written, the stream ends or the reader goes away. Returns
/// the number of frames.
async fn copy<B>(mut body: B, out: &mut impl Write, most: u64) -> Result<u64, Failure>
where
    B: hyper::body::Body<Data = hyper::body::Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let mut blocks = Blocks::default();
    let mut frames = 0;
    while frames < most {
        let Some(part) = body.frame().await else { break };
        let part = part.map_err(|e| Failure::failed(format!("the capture ended early: {e}")))?;
        let Some(data) = part.data_ref() else { continue };
        blocks.push(data);
        while frames < most {
            let Some(block) = blocks.next_block().map_err(Failure::failed)? else { break };
            frames += u64::from(block.is_packet);
            match out.write_all(block.bytes) {
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(frames),
                other => other.map_err(|e| Failure::failed(format!("cannot write the capture: {e}")))?,
            }
        }
        match out.flush() {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(frames),
            other => other.map_err(|e| Failure::failed(format!("cannot write the capture: {e}")))?,
        }
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcapng::tests::{header, packet};
    use http_body_util::Full;
    use hyper::body::Bytes;

    fn copied(input: Vec<u8>, most: u64) -> Result<(u64, Vec<u8>), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut out = Vec::new();
        let frames = runtime.block_on(copy(Full::new(Bytes::from(input)), &mut out, most))?;
        Ok((frames, out))
    }

    #[test]
    fn a_capture_stops_after_the_count() {
        let input = [header(), packet(1), packet(2), packet(3)].concat();
        assert_eq!(copied(input.clone(), 2), Ok((2, [header(), packet(1), packet(2)].concat())));
        assert_eq!(copied(input.clone(), 9), Ok((3, input)));
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(copied(vec![0xff; 64], 1).is_err());
    }
}

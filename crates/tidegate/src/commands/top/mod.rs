//! `tidegate top`: rates against contracts, delays and misses, live.
//!
//! ```text
//!  GET /v1/vnics, each second ──▶ rows (two answers' difference) ──▶ screen (terminal)
//!                                                              └──▶ table (one, elsewhere)
//! ```
//!
//! With `--last` one answer is enough: it has the figures of the window.
//!
//! - [`rows`]: computes the rows from two answers. Pure
//! - [`look`]: all vNICs at one time
//! - [`screen`]: the terminal

mod look;
mod rows;
mod screen;

use crate::client::Client;
use crate::commands::window::Window;
use crate::exit::{self, Failure};
pub use look::Sample;
use rows::Order;
use std::io::IsTerminal;
use std::time::Duration;

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one table, measured over one interval, and exit; so where standard output is no terminal
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    #[command(flatten)]
    window: Window,
}

/// Runs until `q`, or prints one table.
pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    let interval = Duration::from_secs(args.interval);
    if !json && !args.once && std::io::stdout().is_terminal() {
        return screen::run(client, interval, args.window).await;
    }
    let read_sample = async || match json {
        true => Sample::read_raw(client, args.window).await,
        false => Sample::read_for_display(client, args.window).await,
    };
    let first = read_sample().await?;
    let mut rows = if args.window.is_some() {
        first.rows_since(&first)
    } else {
        tokio::time::sleep(interval).await;
        read_sample().await?.rows_since(&first)
    };
    rows::sort(&mut rows, Order::Name);
    if json { exit::print_json(&rows) } else { exit::print(&rows::table(&rows)) }
}

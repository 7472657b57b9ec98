//! All vNICs at one time.

use super::rows::Row;
use crate::client::{Client, ClientError};
use crate::commands::window::Window;
use std::time::Instant;
use tidegate_agent::views::VnicView;

pub(super) const VNICS: &str = "/v1/vnics";

pub struct Sample {
    pub(super) at: Instant,
    pub(super) vnics: Vec<VnicView>,
}

impl Sample {
    /// Reads the vNICs exactly as the agent reports them.
    pub(super) async fn read_raw(client: &Client, window: Window) -> Result<Self, ClientError> {
        let vnics = client.get(&window.api_path(VNICS)).await?;
        Ok(Self { at: Instant::now(), vnics })
    }

    /// Reads the vNICs with texts that are safe to show.
    pub(super) async fn read_for_display(client: &Client, window: Window) -> Result<Self, ClientError> {
        let vnics = client.get_for_display(&window.api_path(VNICS)).await?;
        Ok(Self { at: Instant::now(), vnics })
    }

    pub(super) fn rows_since(&self, earlier: &Self) -> Vec<Row> {
        super::rows::rows(&earlier.vnics, &self.vnics, self.at.duration_since(earlier.at))
    }
}

//! All vNICs at one time.

use super::rows::Row;
use crate::client::{Client, ClientError};
use crate::commands::window::Window;
use std::time::Instant;
use tidegate_agent::views::VnicView;

pub(super) const VNICS: &str = "/v1/vnics";

pub struct Look {
    pub(super) at: Instant,
    pub(super) vnics: Vec<VnicView>,
}

impl Look {
    /// Reads the vNICs exactly as the agent reports them.
    pub(super) async fn exact(client: &Client, window: Window) -> Result<Self, ClientError> {
        let vnics = client.get(&window.of(VNICS)).await?;
        Ok(Self { at: Instant::now(), vnics })
    }

    /// Reads the vNICs with texts that are safe to show.
    pub(super) async fn take(client: &Client, window: Window) -> Result<Self, ClientError> {
        let vnics = client.get_shown(&window.of(VNICS)).await?;
        Ok(Self { at: Instant::now(), vnics })
    }

    pub(super) fn since(&self, earlier: &Self) -> Vec<Row> {
        super::rows::rows(&earlier.vnics, &self.vnics, self.at.duration_since(earlier.at))
    }
}

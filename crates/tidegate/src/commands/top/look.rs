//! All vNICs at one time.

use super::rows::Row;
use crate::client::{Client, ClientError};
use crate::commands::window::Window;
use std::time::Instant;
use tidegate_agent::views::VnicView;

/// What is looked at.
pub(super) const VNICS: &str = "/v1/vnics";

/// All vNICs at one time.
pub struct Look {
    pub(super) at: Instant,
    pub(super) vnics: Vec<VnicView>,
}

impl Look {
    /// As the agent says it.
    pub(super) async fn exact(client: &Client, window: Window) -> Result<Self, ClientError> {
        let vnics = client.get(&window.of(VNICS)).await?;
        Ok(Self { at: Instant::now(), vnics })
    }

    /// To be shown.
    pub(super) async fn take(client: &Client, window: Window) -> Result<Self, ClientError> {
        let vnics = client.get_shown(&window.of(VNICS)).await?;
        Ok(Self { at: Instant::now(), vnics })
    }

    /// The rows since an earlier look.
    pub(super) fn since(&self, earlier: &Self) -> Vec<Row> {
        super::rows::rows(&earlier.vnics, &self.vnics, self.at.duration_since(earlier.at))
    }
}

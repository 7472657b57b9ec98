//! The agent's answer.

use crate::client::{Client, for_display};
use crate::exit::Failure;
use serde_json::Value;
use tidegate_evidence::CoresReport;

/// Returns the agent's answer as it is, and as it may be shown.
pub async fn report(client: &Client) -> Result<(Value, CoresReport), Failure> {
    let answer: Value = client.get("/v1/cores").await?;
    let shown = for_display(answer.clone(), "GET /v1/cores")?;
    Ok((answer, shown))
}

//! Frames of a port that are under way while it moves.

use crate::slots::FrameRef;
use std::collections::VecDeque;

/// Frames on their way to a port, in order.
#[derive(Default)]
pub struct UnderWay {
    /// With deadlines.
    pub urgent: VecDeque<FrameRef>,
    /// Without.
    pub others: VecDeque<FrameRef>,
}

//! The verdict on a frame that waited by flow.

/// The verdict on a frame that is about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves as it is.
    Pass,
    /// It leaves with the mark CE.
    Mark,
    /// It is dropped, and the next is judged.
    Drop,
}

//! Properties of the loop.

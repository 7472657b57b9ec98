//! Whether all promises fit together, exactly.

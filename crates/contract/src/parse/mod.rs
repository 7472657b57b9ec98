//! TOML to contracts, with errors that point at file, line and key.

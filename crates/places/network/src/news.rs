//! A View with what is looked up in it, made before any lock is taken.
//!
//! ```text
//!  View ─▶ News: hosts by address and vNIC, paths by name
//! ```

use crate::request::Hosts;
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_controller_api::{Path, View};

/// One View.
#[derive(Clone, Debug)]
pub struct News {
    /// All of it.
    pub view: Arc<View>,
    /// Its hosts.
    pub hosts: Hosts,
    /// Where each path is.
    paths: HashMap<String, usize>,
}

impl News {
    /// Reads a View.
    pub fn of(view: View) -> Self {
        let paths = view.paths.iter().enumerate().map(|(index, path)| (path.name.clone(), index)).collect();
        Self { hosts: Hosts::of(&view), paths, view: Arc::new(view) }
    }

    /// Returns the path with this name.
    pub fn path(&self, name: &str) -> Option<&Path> {
        self.paths.get(name).and_then(|index| self.view.paths.get(*index))
    }
}

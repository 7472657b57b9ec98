//! The arithmetic of paths for Python.
//!
//! ```text
//!  JSON ─▶ tidegate_contract::path::Ledger::change ─▶ JSON: grants, or refusals
//! ```
//!
//! One call for each change of reservations. JSON has the names of the Rust types' fields, with dashes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Serialize;
use tidegate_contract::path::{self, Grant, PathRefusal, Reserve, Usage};

/// The Python module.
#[pymodule]
mod tidegate_native {
    #[pymodule_export]
    use super::Ledger;
}

/// Reservations of a network.
#[pyclass]
struct Ledger(path::Ledger);

/// The outcome of a change.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    /// Grants, in the order of the reservations.
    Granted(Vec<Granted>),
    /// Refusals of the routes of the first path that does not fit.
    Refused(Vec<Refused>),
}

#[derive(Serialize)]
struct Granted {
    /// The number of the route that was taken.
    route: usize,
    grant: Grant,
}

#[derive(Serialize)]
struct Refused {
    /// For people.
    text: String,
    refusal: PathRefusal,
}

#[pymethods]
impl Ledger {
    /// Makes a ledger for links (a list of objects), without reservations. Raises ValueError for links with a fault.
    #[new]
    fn new(links: &str) -> PyResult<Self> {
        let network = path::Network::new(read("links", links)?).map_err(fault)?;
        Ok(Self(path::Ledger::new(network)))
    }

    /// Releases paths by name and reserves others (a list of objects), all or nothing.
    fn change(&mut self, release: Vec<String>, reserve: &str) -> PyResult<String> {
        let reserve: Vec<Reserve> = read("reserve", reserve)?;
        let outcome = match self.0.change(&release, &reserve) {
            Ok(granted) => {
                Outcome::Granted(granted.into_iter().map(|(route, grant)| Granted { route, grant }).collect())
            }
            Err(refusals) => {
                let refused = |refusal: PathRefusal| Refused { text: refusal.to_string(), refusal };
                Outcome::Refused(refusals.into_iter().map(refused).collect())
            }
        };
        serde_json::to_string(&outcome).map_err(fault)
    }

    /// Returns the names of all reservations.
    fn paths(&self) -> Vec<String> {
        self.0.paths().map(Into::into).collect()
    }

    /// Returns what is reserved at each link (a list of objects).
    fn usage(&self) -> PyResult<String> {
        serde_json::to_string(&self.0.usage().collect::<Vec<Usage>>()).map_err(fault)
    }
}

fn read<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| fault(format!("{what}: {error}")))
}

fn fault(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

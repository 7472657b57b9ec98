//! The operations of `controller/openapi.json`, one method each; a test compares their names with the file's.
//!
//! ```text
//!  register, view, leave, misses, enrol, keys: a host's    paths ─ path ─ request ─ release: hosts', operators'
//!  hosts, topology, decisions, metrics: operators'         health, openapi: everyone's
//! ```
//!
//! All fail as [`Error`] says. A request that was not answered is sent to the next controller, but `enrol`, whose token
//! works once.

use super::call::Call;
use super::url::encode;
use super::{Client, Error};
use crate::{
    Decisions, Enrolled, Enrolment, Health, Hosts, Misses, Path, PathRequest, Paths, Registration,
    SegmentKeys, Topology, View,
};
use serde::Serialize;
use std::time::Duration;
use ureq::http::Method;

/// Longest time that a controller waits for news, as in `controller/openapi.json`.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Client {
    /// Announces all that a host has, for one lease.
    pub fn register(&self, host: &str, registration: &Registration) -> Result<View, Error> {
        self.json(&with_body(Method::PUT, of_host(host, ""), registration)?)
    }

    /// Returns what a host is to know. With a version in `after`, the controller waits until there is another one, for
    /// at most `wait` (and 60 s); the answer may take so much longer.
    pub fn view(&self, host: &str, after: Option<u64>, wait: Duration) -> Result<View, Error> {
        let wait = if after.is_some() { wait.min(LONGEST_WAIT) } else { Duration::ZERO };
        let query = after.map(|version| format!("?after={version}&wait={}", wait.as_nanos()));
        let mut call = without_body(Method::GET, of_host(host, "") + &query.unwrap_or_default());
        call.wait = wait;
        self.json(&call)
    }

    /// Ends a host's registration and its paths.
    pub fn leave(&self, host: &str) -> Result<(), Error> {
        self.ask(&without_body(Method::DELETE, of_host(host, ""))).map(drop)
    }

    /// Reports late frames.
    pub fn misses(&self, host: &str, misses: &Misses) -> Result<(), Error> {
        self.ask(&with_body(Method::POST, of_host(host, "/misses"), misses)?).map(drop)
    }

    /// Asks for a certificate of a host.
    pub fn enrol(&self, host: &str, enrolment: &Enrolment) -> Result<Enrolled, Error> {
        let mut call = with_body(Method::POST, of_host(host, "/enrol"), enrolment)?;
        call.repeatable = false;
        self.json(&call)
    }

    /// Returns the keys of a host's segments.
    pub fn keys(&self, host: &str) -> Result<SegmentKeys, Error> {
        self.json(&without_body(Method::GET, of_host(host, "/keys")))
    }

    /// Returns all hosts.
    pub fn hosts(&self) -> Result<Hosts, Error> {
        self.json(&without_body(Method::GET, "/v1/hosts".into()))
    }

    /// Returns all paths.
    pub fn paths(&self) -> Result<Paths, Error> {
        self.json(&without_body(Method::GET, "/v1/paths".into()))
    }

    /// Returns one path.
    pub fn path(&self, name: &str) -> Result<Path, Error> {
        self.json(&without_body(Method::GET, of_path(name)))
    }

    /// Asks for a path, or for other terms of one.
    pub fn request(&self, request: &PathRequest) -> Result<Path, Error> {
        self.json(&with_body(Method::PUT, of_path(&request.name()), request)?)
    }

    /// Ends a path.
    pub fn release(&self, name: &str) -> Result<(), Error> {
        self.ask(&without_body(Method::DELETE, of_path(name))).map(drop)
    }

    /// Returns switches, links and hosts.
    pub fn topology(&self) -> Result<Topology, Error> {
        self.json(&without_body(Method::GET, "/v1/topology".into()))
    }

    /// Returns at most `limit` (1 to 1,000) decisions after number `after`; with `path`, those of one path.
    pub fn decisions(&self, after: u64, limit: u32, path: Option<&str>) -> Result<Decisions, Error> {
        let of = path.map(|name| format!("&path={}", encode(name))).unwrap_or_default();
        self.json(&without_body(Method::GET, format!("/v1/decisions?after={after}&limit={limit}{of}")))
    }

    /// Returns how the controller is that answers first; it need not lead.
    pub fn health(&self) -> Result<Health, Error> {
        self.json(&without_body(Method::GET, "/v1/health".into()))
    }

    /// Returns the definition of the API.
    pub fn openapi(&self) -> Result<serde_json::Value, Error> {
        self.json(&without_body(Method::GET, "/v1/openapi.json".into()))
    }

    /// Returns metrics, in Prometheus' text format.
    pub fn metrics(&self) -> Result<String, Error> {
        let call = without_body(Method::GET, "/metrics".into());
        String::from_utf8(self.ask(&call)?).map_err(|error| self.not_understood(&call, &error.to_string()))
    }
}

fn of_host(host: &str, rest: &str) -> String {
    format!("/v1/hosts/{}{rest}", segment(host))
}

fn of_path(name: &str) -> String {
    format!("/v1/paths/{}", segment(name))
}

/// Encodes a name as a path segment that is not `.` or `..`, which RFC 3986 takes away (section 5.2.4).
fn segment(name: &str) -> String {
    match name {
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        _ => encode(name),
    }
}

fn without_body(method: Method, target: String) -> Call {
    Call { method, target, body: None, wait: Duration::ZERO, repeatable: true }
}

fn with_body(method: Method, target: String, body: &impl Serialize) -> Result<Call, Error> {
    let body = serde_json::to_vec(body).map_err(|error| Error::Broken {
        url: String::new(),
        request: format!("{method} {target}"),
        reason: error.to_string(),
    })?;
    Ok(Call { body: Some(body), ..without_body(method, target) })
}

//! Asks the controllers of the network: those of one network are several, and one of them leads.
//!
//! ```text
//!  Settings: URLs, CA, token or certificate, deadlines ──▶ Client
//!  operation ─▶ the URL that led last, then the others ─▶ answer (bounded) ─▶ its type
//!                 │ `standby` names the leader: asked next, if it is one of the URLs
//!                 └ not reached, or no answer: the next URL                  Error: Unreachable, Problem, Broken
//! ```
//!
//! Blocking, for any number of threads. Connections are kept alive. No proxy, no redirect, and no CA but the given one
//! counts. An answer is hostile: its size and its time are bounded, and errors show its texts by `tidegate-visible`.
//!
//! - `settings`: whom to ask, and as whom
//! - `url`: addresses of controllers, checked
//! - `call`: one request
//! - `operations`: a method for each operation of `controller/openapi.json`
//! - `error`: why there is no answer, and what to do

mod call;
mod error;
mod operations;
mod settings;
#[cfg(test)]
mod tests;
mod url;

pub use error::{Attempt, Error};
pub use settings::{Identity, Settings, Unusable};
pub use url::Url;

use crate::{Problem, ProblemCode};
use call::Call;
use serde::de::DeserializeOwned;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_visible::visible;
use ureq::http::{self, Request, Response, header};
use ureq::{Agent, Body};

/// Longest answer (bytes): 20,000 links take a fifth of it.
const LONGEST: u64 = 64 << 20;
/// Longest problem (bytes).
const LONGEST_PROBLEM: u64 = 1 << 20;
/// How much of an answer that is no JSON an error shows (bytes).
const SHOWN: usize = 200;

/// A client of the controllers of one network.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    urls: Vec<Url>,
    /// Beginning with `Bearer `.
    token: Option<http::HeaderValue>,
    /// For one answer of one controller.
    answer: Duration,
    /// For all of them.
    total: Option<Duration>,
    /// The controller that answered last.
    leads: Mutex<Option<Url>>,
}

/// What one controller said.
enum Said {
    Done(Vec<u8>),
    Standby(Problem),
}

impl Client {
    /// Makes a client; asks nothing yet.
    ///
    /// # Errors
    /// A setting cannot be used: no URL, a certificate that is none, a token over `https` without a CA, and so on.
    pub fn new(settings: &Settings) -> Result<Self, Unusable> {
        let (urls, agent, token) = settings.checked()?;
        Ok(Self {
            agent,
            urls,
            token,
            answer: settings.answer,
            total: settings.total,
            leads: Mutex::new(None),
        })
    }

    /// Returns the controllers in the order in which a request tries them.
    fn candidates(&self) -> Vec<Url> {
        let leads = self.leads.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let others = self.urls.iter().filter(|url| Some(*url) != leads.as_ref()).cloned();
        leads.clone().into_iter().chain(others).collect()
    }

    /// Sends a request to one controller after the other until one answers that leads.
    fn ask(&self, call: &Call) -> Result<Vec<u8>, Error> {
        let end = self.total.map(|total| Instant::now() + total + call.wait);
        let mut waiting = self.candidates();
        let first = waiting.first().cloned();
        waiting.reverse();
        let (mut standby, mut broken, mut attempts) = (None, None, Vec::new());
        while let Some(url) = waiting.pop() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            match self.ask_one(&url, call, left) {
                Ok(Said::Done(answer)) => {
                    self.remember(Some(url));
                    return Ok(answer);
                }
                Ok(Said::Standby(mut problem)) => {
                    let leader = problem.leader.as_deref().and_then(|text| Url::parse(text).ok());
                    if let Some(leader) = leader {
                        // A URL that only an answer names would get the token, or hide the true leader.
                        if !self.urls.contains(&leader) {
                            problem.message += &format!(
                                "; {leader} is none of the controllers that are asked here: add it to their URLs"
                            );
                        } else if let Some(at) = waiting.iter().position(|other| *other == leader) {
                            let leader = waiting.remove(at);
                            waiting.push(leader);
                        }
                    }
                    standby = Some(Error::Problem { problem, status: 503, retry_after: None });
                }
                Err(Error::Unreachable { attempts: one }) => attempts.extend(one),
                Err(error @ Error::Broken { .. }) if call.repeatable => broken = broken.or(Some(error)),
                Err(error) => {
                    if matches!(error, Error::Problem { .. }) {
                        self.remember(Some(url));
                    }
                    return Err(error);
                }
            }
        }
        // One that is mute takes all the time: the next request begins with another one.
        self.remember(end.and_then(|_| self.after(first.as_ref()?)));
        Err(broken.or(standby).unwrap_or(Error::Unreachable { attempts }))
    }

    fn after(&self, url: &Url) -> Option<Url> {
        let place = self.urls.iter().position(|one| one == url);
        self.urls.get(place.map_or(0, |place| (place + 1) % self.urls.len())).cloned()
    }

    fn remember(&self, url: Option<Url>) {
        *self.leads.lock().unwrap_or_else(PoisonError::into_inner) = url;
    }

    fn ask_one(&self, url: &Url, call: &Call, left: Option<Duration>) -> Result<Said, Error> {
        let broken =
            |reason: String| Error::Broken { url: url.to_string(), request: call.to_string(), reason };
        let mut response = self.send(url, call, left).map_err(|error| error::of(url, call, &error))?;
        let status = response.status();
        let room = if status.is_success() { LONGEST } else { LONGEST_PROBLEM };
        let body = response.body_mut().with_config().limit(room).read_to_vec();
        let body = body.map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => broken(format!("the answer has more than {room} bytes")),
            other => error::of(url, call, &other),
        })?;
        if status.is_success() {
            return Ok(Said::Done(body));
        }
        let problem: Problem = serde_json::from_slice(&body).map_err(|_| {
            let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]);
            broken(format!(
                "status {status}, and no problem as the API has it but {:?}",
                visible(text.trim())
            ))
        })?;
        if problem.code == ProblemCode::Standby {
            return Ok(Said::Standby(problem));
        }
        Err(Error::Problem { problem, status: status.as_u16(), retry_after: retry_after(&response) })
    }

    fn send(&self, url: &Url, call: &Call, left: Option<Duration>) -> Result<Response<Body>, ureq::Error> {
        let mut request = Request::builder().method(call.method.clone()).uri(url.join(&call.target));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token.clone());
        }
        let own = self.answer + call.wait;
        let deadline = Some(left.map_or(own, |left| left.min(own)));
        match &call.body {
            Some(body) => {
                let request =
                    request.header(header::CONTENT_TYPE, "application/json").body(body.as_slice())?;
                let request = self.agent.configure_request(request).timeout_global(deadline).build();
                self.agent.run(request)
            }
            None => {
                let request = request.body(())?;
                self.agent.run(self.agent.configure_request(request).timeout_global(deadline).build())
            }
        }
    }

    fn json<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        let answer = self.ask(call)?;
        serde_json::from_slice(&answer).map_err(|error| self.not_understood(call, &error.to_string()))
    }

    fn not_understood(&self, call: &Call, reason: &str) -> Error {
        let leads = self.leads.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Error::Broken {
            url: leads.map(|url| url.to_string()).unwrap_or_default(),
            request: call.to_string(),
            reason: format!("the answer is not as the API says: {}", visible(reason)),
        }
    }
}

/// Returns how long the controller wants a client to wait, at most an hour.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let text = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    text.parse::<u64>().ok().map(|seconds| Duration::from_secs(seconds.min(3600)))
}

//! What is asked of a controller, and the HTTP client that does it.
//!
//! ```text
//!  [controller] ─▶ open: files of the identity ─▶ Asks ─▶ answer, or Trouble
//! ```

use crate::bounds::beyond;
use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use tidegate_contract::Controller;
use tidegate_contract::controller::Identity;
use tidegate_controller_api::client::{self, Client, Error, Settings};
use tidegate_controller_api::{
    Misses, Path as Granted, PathRequest, ProblemCode, Registration, SegmentKeys, View,
};
use tidegate_visible::{beginning, visible};

/// Longest time to reach one controller.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest time for one answer, of all controllers together: a host has some of them within a lease. A controller says
/// that it is busy after 4 s ([`tidegate_controller_api`]).
const ANSWER: Duration = Duration::from_secs(5);
/// Most texts of a list that are kept: as many as a route has links.
const TEXTS: usize = 64;
/// Longest text (bytes).
const TEXT: usize = 1000;
/// Largest file of the identity (bytes): a chain of certificates takes a few KB.
const FILE: u64 = 1 << 20;

/// A controller, for any number of threads. Each call takes bounded time.
#[allow(missing_docs, reason = "the operations of controller/openapi.json")]
#[allow(clippy::missing_errors_doc, reason = "Trouble says why")]
pub trait Asks: Send + Sync + 'static {
    fn register(&self, host: &str, registration: &Registration) -> Result<View, Trouble>;
    fn view(&self, host: &str, after: u64, wait: Duration) -> Result<View, Trouble>;
    fn request(&self, request: &PathRequest) -> Result<Granted, Trouble>;
    fn release(&self, name: &str) -> Result<(), Trouble>;
    fn misses(&self, host: &str, misses: &Misses) -> Result<(), Trouble>;
    fn leave(&self, host: &str) -> Result<(), Trouble>;
    fn keys(&self, host: &str) -> Result<SegmentKeys, Trouble>;
}

/// Opens a controller by its table, or says why that is not possible now, such as a missing file.
pub type Open = Box<dyn Fn(&Controller) -> Result<Box<dyn Asks>, String> + Send + Sync>;

/// Why there is no answer as wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No controller that leads answers, or it does not know this host: try again.
    Away(String),
    /// It answers that it is not registered, or knows no such path.
    NotFound(String),
    /// The far host has not admitted the path yet: ask again soon.
    Waiting(Vec<String>),
    /// It says no, with the reasons.
    Refused(Vec<String>),
    /// Ask again after this time.
    Busy(Duration),
}

impl Trouble {
    /// Returns the reason in one line.
    pub fn why(&self) -> String {
        match self {
            Self::Away(why) | Self::NotFound(why) => why.clone(),
            Self::Waiting(why) | Self::Refused(why) => why.join("; "),
            Self::Busy(_) => "it has too much to do".into(),
        }
    }
}

/// Opens the HTTP client.
///
/// # Errors
/// A file of the identity cannot be used: which, and why.
pub fn open(controller: &Controller) -> Result<Box<dyn Asks>, String> {
    let mut settings = Settings::new(controller.urls.clone());
    (settings.connect, settings.answer, settings.total) = (CONNECT, ANSWER, Some(ANSWER));
    match &controller.identity {
        Identity::Token { file } => {
            let text =
                String::from_utf8(read(file)?).map_err(|_| format!("{} is no text", file.display()))?;
            settings.identity = client::Identity::Token(text.trim().to_owned());
        }
        Identity::Certificate { ca, certificate, key } => {
            settings.authority = Some(read(ca)?);
            settings.identity =
                client::Identity::Certificate { certificate: read(certificate)?, key: read(key)? };
        }
    }
    let client = Client::new(&settings).map_err(|error| error.to_string())?;
    Ok(Box::new(client))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error| format!("cannot read {}, which [controller] names: {error}", path.display());
    // To open a FIFO without a writer would take for ever.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(format!("{}, which [controller] names, is no regular file", path.display()));
    }
    let mut bytes = Vec::new();
    file.take(FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE {
        return Err(format!(
            "{} has more than {FILE} bytes; is it the file that [controller] means?",
            path.display()
        ));
    }
    Ok(bytes)
}

impl Asks for Client {
    fn register(&self, host: &str, registration: &Registration) -> Result<View, Trouble> {
        Self::register(self, host, registration).map_err(trouble).and_then(shown)
    }

    fn view(&self, host: &str, after: u64, wait: Duration) -> Result<View, Trouble> {
        Self::view(self, host, Some(after), wait).map_err(trouble).and_then(shown)
    }

    fn request(&self, request: &PathRequest) -> Result<Granted, Trouble> {
        Self::request(self, request).map(shown_path).map_err(trouble)
    }

    fn release(&self, name: &str) -> Result<(), Trouble> {
        Self::release(self, name).map_err(trouble)
    }

    fn misses(&self, host: &str, misses: &Misses) -> Result<(), Trouble> {
        Self::misses(self, host, misses).map_err(trouble)
    }

    fn leave(&self, host: &str) -> Result<(), Trouble> {
        Self::leave(self, host).map_err(trouble)
    }

    fn keys(&self, host: &str) -> Result<SegmentKeys, Trouble> {
        Self::keys(self, host).map_err(trouble)
    }
}

/// Returns a View whose texts a terminal and a log may show, or says what of it is beyond the API's bounds.
fn shown(mut view: View) -> Result<View, Trouble> {
    if let Some(why) = beyond(&view) {
        return Err(Trouble::Away(format!("its View is not as the API says: {why}")));
    }
    view.paths = view.paths.into_iter().map(shown_path).collect();
    for item in &mut view.refused {
        (item.item, item.reason) = (shown_text(&item.item), shown_text(&item.reason));
    }
    Ok(view)
}

/// The same of a path.
fn shown_path(path: Granted) -> Granted {
    Granted { links: shown_texts(path.links), reasons: shown_texts(path.reasons), ..path }
}

fn shown_texts(texts: Vec<String>) -> Vec<String> {
    texts.iter().take(TEXTS).map(|text| shown_text(text)).collect()
}

fn shown_text(text: &str) -> String {
    visible(beginning(text, TEXT)).into_owned()
}

fn trouble(error: Error) -> Trouble {
    let Error::Problem { problem, retry_after, .. } = error else {
        return Trouble::Away(error.to_string());
    };
    let mut lines = vec![problem.message];
    lines.extend(problem.reasons);
    // A refusal with one reason says it twice.
    lines.dedup();
    let lines = shown_texts(lines);
    match problem.code {
        ProblemCode::Refused | ProblemCode::Forbidden | ProblemCode::Invalid => Trouble::Refused(lines),
        ProblemCode::Waiting => Trouble::Waiting(lines),
        ProblemCode::Busy => Trouble::Busy(retry_after.unwrap_or(Duration::from_secs(1))),
        ProblemCode::NotFound => Trouble::NotFound(lines.join("; ")),
        ProblemCode::Unauthorized | ProblemCode::Standby | ProblemCode::Unknown => {
            Trouble::Away(lines.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("token");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        for path in [&fifo, folder.path(), Path::new("/dev/zero")] {
            let why = read(path).unwrap_err();
            assert!(why.ends_with("which [controller] names, is no regular file"), "{why}");
        }
        fs::write(folder.path().join("right"), "secret").unwrap();
        assert_eq!(read(&folder.path().join("right")).unwrap(), b"secret");
    }
}

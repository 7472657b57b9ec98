//! `tidegate controller enrol`: a key that never leaves the host, and the controller's certificate for it.
//!
//! ```text
//!  P-256 key ─▶ signing request ─ token, or the old certificate ─▶ controller ─▶ certificate, authority
//!     └────────────────────────────── checked to belong together ──────────────────┘
//!                                                │
//!                                                ▼
//!                              host.pem, ca.pem; a [controller] table to paste
//! ```

use super::folder::Folder;
use crate::commands::path::host_name;
use crate::exit::{self, Code, Failure};
use crate::format::{path, plural};
use crate::network::reach::{Reach, read_secret};
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_controller_api::client::{Client, Error, Identity, Settings};
use tidegate_controller_api::{Enrolled, Enrolment};
use tidegate_visible::visible;

pub const EXAMPLE: &str = "\
Example: tidegate controller enrol --host h1 --controller https://10.0.0.1:6654 --ca ca.pem --token-file token";

/// Arguments of `controller enrol`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// This host's name in the controller's configuration
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    host: String,
    /// Folder for the key, the certificate and the CA's certificate
    #[arg(long, value_name = "DIR", default_value = "/etc/tidegate/controller")]
    folder: PathBuf,
    /// Ask with the certificate that is in the folder, for a new one with a new key
    #[arg(long)]
    renew: bool,
    /// An uplink for the table that is printed; may be repeated
    #[arg(long, value_name = "NAME")]
    uplink: Vec<String>,
    #[command(flatten)]
    reach: Reach,
}

pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let folder = Folder::at(&args.folder)?;
    let (host_file, authority_file) = (folder.host(), folder.authority());
    let mut settings = args.reach.clone();
    if args.renew {
        settings.token_file = None;
        settings.ca = settings.ca.or_else(|| authority_file.exists().then(|| authority_file.clone()));
        settings.certificate = Some(host_file.clone());
        settings.key = Some(host_file.clone());
        read_secret(&host_file, "certificate's file").map_err(|failure| Failure {
            message: format!("{}\nEnrol first, with a token and without --renew.", failure.message),
            ..failure
        })?;
    } else {
        if host_file.exists() {
            return Err(Failure::failed(format!(
                "{} is there already; renew it with --renew, or remove it to enrol anew",
                path(&host_file)
            )));
        }
        if settings.token_file.is_none() {
            return Err(Failure::usage("the host's enrolment token is needed: --token-file FILE"));
        }
    }
    let settings = settings.settings()?;
    if let Some(url) = settings.urls.iter().find(|url| url.to_ascii_lowercase().starts_with("http:")) {
        return Err(Failure::usage(format!(
            "{} has no TLS, so others could read the token on its way: name the controller by https://",
            visible(url)
        )));
    }
    let client = Client::new(&settings).map_err(Failure::usage)?;
    let key = if args.renew { new_key()? } else { kept_key(&folder)? };
    let request = signing_request(&args.host, &key)?;
    let (for_host, for_authority) = (folder.prepare()?, folder.prepare()?);
    let enrolled = client.enrol(&args.host, &Enrolment { request }).map_err(|error| match error {
        Error::Broken { .. } if !args.renew => Failure {
            code: Code::Unreachable,
            message: format!(
                "{error}\nRun the same command again: the key is kept, and the token is still good for it."
            ),
        },
        other => other.into(),
    })?;
    let host = checked(&settings, &enrolled, &key)?;
    // What the controller may be known by comes first: a crash in between costs nothing.
    for_authority.write(&authority_file, &enrolled.authority, 0o644)?;
    for_host.write(&host_file, &host, 0o600)?;
    let _ = std::fs::remove_file(folder.enrolling());
    let table = table(&args.host, &settings.urls, &args.uplink, &authority_file, &host_file);
    if json {
        return exit::print_json(&serde_json::json!({
            "host": args.host,
            "certificate": host_file,
            "key": host_file,
            "ca": authority_file,
            "expires": enrolled.expires,
            "table": table,
        }));
    }
    exit::print(&format!(
        "{} has a certificate for {}. Its agent asks the controller with this in /etc/tidegate/controller.toml:\n\n{table}",
        args.host,
        left(enrolled.expires, SystemTime::now()),
    ))
}

fn new_key() -> Result<KeyPair, Failure> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .map_err(|error| Failure::failed(format!("cannot make a key: {error}")))
}

/// Returns the key of an enrolment that was not answered, or makes one and keeps it.
fn kept_key(folder: &Folder) -> Result<KeyPair, Failure> {
    let file = folder.enrolling();
    if file.exists() {
        let text = String::from_utf8_lossy(&read_secret(&file, "key's file")?).into_owned();
        return KeyPair::from_pem(&text).map_err(|error| {
            Failure::failed(format!("{} has no key: {error}; remove the file", path(&file)))
        });
    }
    let key = new_key()?;
    folder.prepare()?.write(&file, &key.serialize_pem(), 0o600)?;
    Ok(key)
}

/// Returns a request to sign for a key (PKCS #10). The controller takes the name from the token, not from it.
fn signing_request(host: &str, key: &KeyPair) -> Result<String, Failure> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.remove(DnType::CommonName);
    parameters.distinguished_name.push(DnType::CommonName, host);
    let request = parameters.serialize_request(key).and_then(|request| request.pem());
    request.map_err(|error| Failure::failed(format!("cannot make a signing request: {error}")))
}

/// Returns certificate and key as one text, if a controller can be asked with them.
fn checked(settings: &Settings, enrolled: &Enrolled, key: &KeyPair) -> Result<String, Failure> {
    let key = key.serialize_pem();
    let certificate = enrolled.certificate.trim();
    let mut new = settings.clone();
    new.urls = vec!["https://localhost".into()];
    new.authority = Some(enrolled.authority.clone().into_bytes());
    new.identity = Identity::Certificate { certificate: certificate.into(), key: key.clone().into_bytes() };
    Client::new(&new).map_err(|why| Failure {
        code: Code::Unreachable,
        message: format!(
            "the controller's answer has no usable certificate: {}; none was stored",
            visible(&why.0)
        ),
    })?;
    Ok(format!("{certificate}\n{key}"))
}

/// Returns the `[controller]` table of the agent's configuration.
fn table(host: &str, urls: &[String], uplinks: &[String], authority: &Path, certificate: &Path) -> String {
    // What JSON writes as a text or a list of texts, TOML reads.
    let quoted = |file: &Path| {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        serde_json::json!(file.to_string_lossy()).to_string()
    };
    let uplinks = match uplinks {
        [] => "[]  # names of this host's [uplink.NAME] tables".to_owned(),
        _ => serde_json::json!(uplinks).to_string(),
    };
    let (authority, certificate) = (quoted(authority), quoted(certificate));
    format!(
        "[controller]\nurl = {}\nhost = \"{host}\"\nca = {authority}\ncertificate = {certificate}\nkey = {certificate}\n\
         uplinks = {uplinks}\n",
        serde_json::json!(urls)
    )
}

/// Returns how long a certificate holds from now on.
fn left(expires: f64, now: SystemTime) -> String {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64();
    // A cast saturates, so that any number is some time.
    let hours = ((expires - now).max(0.0) / 3600.0) as u64;
    if hours >= 48 { plural(hours / 24, "day") } else { plural(hours, "hour") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_for_a_key_of_p256() {
        let key = new_key().unwrap();
        let request = signing_request("h1", &key).unwrap();
        assert!(request.starts_with("-----BEGIN CERTIFICATE REQUEST-----"), "{request}");
        assert_eq!(key.algorithm(), &PKCS_ECDSA_P256_SHA256);
        assert!(request.len() < 16_384);
    }

    #[test]
    fn the_table_is_toml_for_any_folder() {
        let odd = Path::new("/etc/a \"b\"\n/host.pem");
        let text =
            table("h1", &["https://10.0.0.1:6654".into()], &["up".into()], Path::new("/c/ca.pem"), odd);
        let read = toml_edit::Document::parse(text.as_str()).unwrap();
        let controller = &read["controller"];
        assert_eq!(controller["url"][0].as_str(), Some("https://10.0.0.1:6654"));
        assert_eq!(controller["host"].as_str(), Some("h1"));
        assert_eq!(controller["certificate"].as_str(), Some("/etc/a \"b\"\n/host.pem"));
        assert_eq!(controller["uplinks"][0].as_str(), Some("up"));
        toml_edit::Document::parse(table("h1", &[], &[], odd, odd)).unwrap();
    }

    #[test]
    fn what_is_left_is_some_time() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (expires, text) in [
            (1_000_000.0 + 30.5 * 86_400.0, "30 days"),
            (1_000_000.0 + 3_600.0, "1 hour"),
            (0.0, "0 hours"),
            (f64::NAN, "0 hours"),
        ] {
            assert_eq!(left(expires, now), text);
        }
        left(f64::MAX, now);
    }
}

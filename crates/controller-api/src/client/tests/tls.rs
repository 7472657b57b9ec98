//! TLS: only the given CA counts, and a host is known by its certificate.

use super::super::{Client, Error, Identity, Settings};
use super::{HEALTH, answer, request};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, Stream};
use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// A CA.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, "tidegate test");
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// Returns a certificate for a name or an address, and its key.
    pub fn certificate(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new([name.to_owned()]).unwrap();
        (parameters.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// Returns a certificate that has its name as the common name alone, as that of a switch, and its key.
    fn without_addresses(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        (parameters.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// Starts a controller with a certificate for a name or an address that wants one of clients, too; returns its URL.
fn controller(authority: &Authority, name: &str) -> String {
    controller_with(authority, authority.certificate(name))
}

fn controller_with(authority: &Authority, (certificate, key): (String, String)) -> String {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&authority.pem()).unwrap()).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let config = Arc::new(config);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut tls = Stream::new(&mut connection, &mut stream);
            while request(&mut tls).is_some() {
                let _ = tls.write_all(&answer("200 OK", HEALTH));
            }
        }
    });
    url
}

fn ask(url: &str, trusted: &Authority, signer: Option<&Authority>) -> Result<(), Error> {
    let mut settings = Settings::new(vec![url.into()]);
    settings.authority = Some(trusted.pem());
    settings.connect = Duration::from_secs(20);
    if let Some(signer) = signer {
        let (certificate, key) = signer.certificate("h1");
        settings.identity = Identity::Certificate { certificate: certificate.into(), key: key.into() };
    }
    let client = Client::new(&settings).unwrap();
    client.health()?;
    client.health().map(drop)
}

fn tls_fault(result: Result<(), Error>) {
    match result {
        Err(error @ Error::Unreachable { .. }) => {
            let text = error.to_string();
            assert!(text.contains("TLS: ") && text.contains("Check the CA's file"), "{text}");
        }
        other => panic!("not the fault of TLS: {other:?}"),
    }
}

#[test]
fn both_sides_are_known_by_the_given_authority_alone() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let url = controller(&ours, "127.0.0.1");
    ask(&url, &ours, Some(&ours)).unwrap();
    tls_fault(ask(&url, &theirs, Some(&ours)));
    tls_fault(ask(&url, &ours, Some(&theirs)));
    tls_fault(ask(&url, &ours, None));
}

#[test]
fn the_name_in_the_certificate_counts() {
    let ours = Authority::new();
    tls_fault(ask(&controller(&ours, "127.0.0.2"), &ours, Some(&ours)));
}

#[test]
fn a_switch_cannot_pose_as_the_controller() {
    let ours = Authority::new();
    for name in ["127.0.0.1", "s1"] {
        tls_fault(ask(&controller_with(&ours, ours.without_addresses(name)), &ours, Some(&ours)));
    }
}

#[test]
fn a_controller_without_tls_is_no_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(&answer("400 Bad Request", ""));
        }
    });
    let ours = Authority::new();
    tls_fault(ask(&url, &ours, None));
}

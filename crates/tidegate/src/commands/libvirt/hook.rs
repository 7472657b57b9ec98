//! `tidegate libvirt hook`: libvirt runs it when a domain starts or stops.
//!
//! Standard output stays empty: for some operations libvirt reads it as the domain's new XML. If the hook
//! fails, libvirt shows its standard error to the person who started the domain.

use super::contracts;
use super::states::Folder;
use crate::client::{Client, ClientError};
use crate::exit::{self, Code, Failure};
use crate::format;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use tidegate_libvirt::hook::{Call, call};
use tidegate_libvirt::{Translation, translate};
use tidegate_visible::visible;

/// Longest XML of a domain that is read (bytes).
const LONGEST: u64 = 16 << 20;

/// Arguments of `hook`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Log a refusal and let the domain start
    #[arg(long)]
    advisory: bool,
    #[command(flatten)]
    states: Folder,
    /// The domain's name
    domain: String,
    /// What happens to it, such as `start`
    operation: String,
    /// Whether that begins or ends, and more: as libvirt says
    #[arg(value_name = "MORE", allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Carries out a call. Fails only to make libvirt stop the operation.
pub async fn run(client: &Client, args: Args) -> Result<(), Failure> {
    // Read in every case, because libvirt writes it.
    let mut xml = String::new();
    let read = std::io::stdin().take(LONGEST).read_to_string(&mut xml);
    let Some(call) = call(&args.operation) else {
        warn(&format!(
            "domain {}: this release does not know operation {}; the hook did nothing",
            args.domain, args.operation
        ));
        return Ok(());
    };
    let outcome = match read {
        Err(e) => Err(Failure::failed(format!("cannot read the domain's XML: {e}"))),
        Ok(_) => match tokio::time::timeout(call.time_limit(), carry_out(client, &args, call, &xml)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure {
                code: Code::Unreachable,
                message: format!(
                    "the agent at {} does not answer within {:?}",
                    format::path(client.socket()),
                    call.time_limit()
                ),
            }),
        },
    };
    let Err(failure) = outcome else { return Ok(()) };
    let message = format!("domain {}, {}: {}", args.domain, args.operation, failure.message);
    let may_refuse = matches!(call, Call::Check | Call::Put { may_refuse: true });
    if may_refuse && !args.advisory {
        return Err(Failure { message, ..failure });
    }
    warn(&message);
    Ok(())
}

async fn carry_out(client: &Client, args: &Args, call: Call, xml: &str) -> Result<(), Failure> {
    match call {
        Call::Nothing => Ok(()),
        Call::Remove => match contracts::remove(client, &args.domain).await {
            // A domain without contracts needs no agent, also when it ends.
            Err(ClientError::Unreachable { .. })
                if read(xml, &args.domain).is_ok_and(|t| t.contracts.is_empty()) =>
            {
                Ok(())
            }
            other => other.map(drop).map_err(Failure::from),
        },
        Call::Check => read(xml, &args.domain).map(drop),
        Call::Put { .. } => {
            let translation = read(xml, &args.domain)?;
            if let Some(contract) = translation.contracts.iter().find(|c| !c.attached) {
                return Err(Failure {
                    code: Code::Refused,
                    message: format!(
                        "the interface {} has no tap on this host yet (<target dev='...'/>), so Tidegate could not keep its contract",
                        contract.vnic.mac
                    ),
                });
            }
            if !translation.contracts.is_empty() {
                contracts::put(client, &translation, &args.states).await?;
            }
            Ok(())
        }
    }
}

fn read(xml: &str, domain: &str) -> Result<Translation, Failure> {
    let translation = translate(xml, &format!("domain {domain}"))
        .map_err(|e| Failure { code: Code::Refused, message: e.to_string() })?;
    Ok(Translation { domain: domain.into(), ..translation })
}

/// Writes `message` to the system log: libvirt drops the output of a hook that does not fail.
fn warn(message: &str) {
    exit::print_error(&format!("tidegate: {message}"));
    // 28 is a warning of a daemon (RFC 3164, 4.1.1). Errors are ignored: a host without a log has no other
    // place.
    let line = format!("<28>tidegate-hook: {}", visible(&message.replace('\n', " ")));
    let _ = UnixDatagram::unbound().and_then(|log| {
        // A log that hangs must not delay libvirt.
        log.set_nonblocking(true)?;
        log.send_to(line.as_bytes(), "/dev/log")
    });
}

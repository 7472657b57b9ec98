//! Other programs' nftables rules at a netdev's ingress: shaped frames would bypass them, so the agent
//! refuses and names the rules; policed frames meet them.

use super::common::{Lab, RunningAgent, until};
use super::netns::Guest;
use super::{contract, details, in_force, in_namespace, run};
use std::io::Write;
use std::process::{Command, Stdio};

#[track_caller]
fn nft(script: &str) {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nftables");
    nft.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success(), "{script}");
}

fn reaches_host(guest: &Guest) -> bool {
    let host = guest.address(1);
    let words = ["-c", "1", "-W", "1", &host];
    guest.within(|_| Command::new("ping").args(words).output().unwrap().status.success())
}

fn set(agent: &RunningAgent, key: &str, value: &str) -> (u16, String) {
    let body = format!("{{\"set\": {{\"{key}\": \"{value}\"}}}}");
    let (status, answer) = agent.request("PATCH", "/v1/vnics/web", &body);
    (status, answer.to_string())
}

fn goes_past(agent: &RunningAgent) -> bool {
    agent.vnic("web")["reason"].as_str().unwrap_or_default().contains("frames that it sends skip")
}

const SHAPED: &str = "tx = { max = \"100mbit\" }\nrx = { max = \"50mbit\" }";
const POLICED: &str = "tx = { max = \"100mbit\", method = \"police\" }\nrx = { max = \"50mbit\" }";

#[test]
fn a_contract_that_would_bypass_rules_is_refused_with_their_names() {
    in_namespace("rules::a_contract_that_would_bypass_rules_is_refused_with_their_names", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let guest = Guest::new("web0", 7);
        assert!(reaches_host(&guest));
        nft("table netdev filter {
                chain vm-in {
                    type filter hook ingress device \"web0\" priority 0; policy accept;
                    ip daddr 10.9.9.9 accept
                    ip protocol icmp drop
                }
            }");
        assert!(!reaches_host(&guest));
        let untouched = run("tc qdisc show") + &run("ip -br link");
        let (status, why) = details(&agent, &contract("web", 1, "web0", SHAPED));
        assert_eq!(status, 422, "{why}");
        let name = "rules 2, 3 of chain vm-in in table netdev filter (nft -a list chain netdev filter vm-in)";
        assert!(why.contains(name) && why.contains("tx.method = \"police\""), "{why}");
        assert_eq!(run("tc qdisc show") + &run("ip -br link"), untouched);

        // What the VM receives does not meet these rules; policed frames do.
        assert_eq!(agent.apply(&contract("web", 1, "web0", "rx = { max = \"50mbit\" }")).0, 200);
        let (status, answer) = agent.apply(&contract("web", 1, "web0", POLICED));
        assert_eq!(status, 200, "{answer}");
        assert!(!reaches_host(&guest));
        let (status, why) = set(&agent, "tx.method", "shape");
        assert!(status == 422 && why.contains(name), "{status} {why}");
        assert!(!reaches_host(&guest));

        // A chain without decisions conflicts with nothing; the family inet counts like netdev.
        nft("flush chain netdev filter vm-in");
        let (status, why) = set(&agent, "tx.method", "shape");
        assert_eq!(status, 200, "{why}");
        until("it is in force", || in_force(&agent).then_some(()));
        assert!(reaches_host(&guest) && !goes_past(&agent));
        nft(
            "table inet late { chain in { type filter hook ingress device \"web0\" priority 0; policy drop; }; }",
        );
        let said = |agent: &RunningAgent, what: &str| {
            let view = agent.vnic("web");
            assert_eq!(view["state"], "in force", "{view}");
            view["reason"].as_str().unwrap_or_default().contains(what).then_some(())
        };
        let late = "frames that it sends skip the policy drop of chain in in table inet late";
        until("it is said", || said(&agent, late));
        // The limit stays: the agent does not choose between a limit and a rule.
        assert!(reaches_host(&guest));
        agent.stop();
        let agent = lab.agent();
        until("it is in force", || in_force(&agent).then_some(()));
        until("it is said", || said(&agent, late));
        assert_eq!(set(&agent, "tx.method", "police").0, 200);
        assert!(!reaches_host(&guest));
        until("there is nothing to say", || (!goes_past(&agent)).then_some(()));
    });
}

//! A guest's soft limit on a netdev.

use super::common::{Lab, until};
use super::{classes, contract, in_namespace, run};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};

fn ask(guest: &mut BufReader<UnixStream>, ask: &str) -> String {
    guest.get_mut().write_all(format!("1 t {ask}\n").as_bytes()).unwrap();
    let mut line = String::new();
    guest.read_line(&mut line).unwrap();
    line.trim_end().strip_prefix("1 t ").unwrap_or_else(|| panic!("{line:?}")).to_owned()
}

#[test]
fn the_kernel_keeps_a_guests_limit() {
    in_namespace("soft::the_kernel_keeps_a_guests_limit", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let path = lab.path("web.limit");
        let listener = UnixListener::bind(&path).unwrap();
        let limits = format!("tx = {{ max = \"100mbit\" }}\nguest = \"{}\"", path.display());
        let free = format!("guest = \"{}\"", path.display());
        run("ip tuntap add vnet4 mode tap");
        let (status, body) =
            agent.apply(&(contract("web", 1, "vnet3", &limits) + &contract("free", 2, "vnet4", &free)));
        assert_eq!(status, 200, "{body}");
        let mut guest = BufReader::new(listener.accept().unwrap().0);

        assert_eq!(ask(&mut guest, "set 52:54:00:00:00:01 40mbit"), "ok");
        assert!(classes().contains("rate 40Mbit ceil 40Mbit"), "{}", classes());
        // The place refuses a limit that it cannot keep; the limit in force stays.
        let refused = ask(&mut guest, "set 52:54:00:00:00:01 1bit");
        assert!(refused.starts_with("error refused tx: at 1bit a super-frame"), "{refused}");
        assert!(classes().contains("rate 40Mbit ceil 40Mbit"), "{}", classes());

        // Repair restores the lower of both limits.
        run("tc qdisc del dev tidegate-tx root");
        until("put right", || classes().contains("rate 40Mbit ceil 40Mbit").then_some(()));

        // Without a hard limit, any soft limit is accepted.
        assert_eq!(ask(&mut guest, "set 52:54:00:00:00:02 30mbit"), "ok");
        assert!(classes().contains("rate 30Mbit ceil 30Mbit"), "{}", classes());
        assert_eq!(ask(&mut guest, "set * none"), "ok");
        let shown = classes();
        assert!(shown.contains("rate 100Mbit") && !shown.contains("rate 30Mbit"), "{shown}");
    });
}

//! Notes for a reader of a plan on how the switch keeps a contract. Pure.

use tidegate_contract::{Discipline, FlowQueueing, Queueing, Vnic};

/// Describes how frames wait for a contract's limits; `None` without limits.
pub fn queueing(vnic: &Vnic) -> Option<String> {
    let waits_to_send = vnic.tx.max.is_some();
    let waits_to_receive = vnic.rx.max.is_some() && vnic.rx.discipline == Discipline::Contract;
    let by_flow = match vnic.queueing {
        Queueing::Fifo => {
            let waits = waits_to_send || waits_to_receive;
            return waits
                .then(|| "frames above its limits wait in one queue: a long flow delays the others".into());
        }
        Queueing::Flows(flows) => flows,
    };
    let limits = match (waits_to_send && !vnic.is_realtime(), waits_to_receive) {
        (true, true) => "tx.max and rx.max",
        (true, false) => "tx.max",
        (false, true) => "rx.max",
        (false, false) => {
            return waits_to_send.then(|| {
                "frames above tx.max wait in their order, not by flow, since the vNIC has a deadline".into()
            });
        }
    };
    let FlowQueueing { target, interval, per_host } = by_flow;
    let hosts = if per_host { "by host and flow" } else { "by flow" };
    Some(format!(
        "frames above {limits} wait {hosts}: a flow that waits longer than {target} for {interval} is marked (ECN), \
         or loses frames"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::{Nanos, Rate};
    use tidegate_testkit::contract::vnic;

    #[test]
    fn each_limit_has_its_queueing() {
        let mut of = vnic("a", 1);
        assert_eq!(queueing(&of), None, "nothing waits");
        let said = |vnic: &Vnic| queueing(vnic).expect("a note");
        of.tx.max = Rate::from_bits(1_000_000);
        let by_flow = "frames above tx.max wait by flow: a flow that waits longer than 5ms for 100ms is marked (ECN), or loses frames";
        assert_eq!(said(&of), by_flow);
        of.rx.max = of.tx.max;
        assert!(said(&of).starts_with("frames above tx.max and rx.max wait by flow"));
        of.deadline = Some(Nanos::new(1_000_000));
        assert!(said(&of).starts_with("frames above rx.max wait by flow"));
        of.rx.discipline = Discipline::Fifo;
        assert!(said(&of).contains("since the vNIC has a deadline"));
        of.deadline = None;
        assert_eq!(said(&of), by_flow);
        of.queueing = Queueing::Flows(FlowQueueing { per_host: true, ..FlowQueueing::default() });
        assert!(said(&of).starts_with("frames above tx.max wait by host and flow"));
        of.queueing = Queueing::Fifo;
        assert!(said(&of).contains("in one queue"));
        of.tx.max = None;
        assert_eq!(queueing(&of), None);
    }
}

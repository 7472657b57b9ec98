//! Which service a process belongs to.

/// The service that a process belongs to, by its control group, such as `tidegate-switch.service`; `None`
/// where it is none's, or cannot be seen.
pub fn service_of(pid: u32) -> Option<String> {
    service_in(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// The last service on the path of a control group (cgroups(7), /proc/pid/cgroup).
fn service_in(groups: &str) -> Option<String> {
    let path = groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        (controllers.is_empty() || controllers == "name=systemd").then_some(path)
    })?;
    path.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_read_from_control_groups() {
        let unit = |groups: &str| service_in(groups);
        let switch = Some("tidegate-switch.service".to_owned());
        assert_eq!(unit("0::/system.slice/tidegate-switch.service\n"), switch);
        let hybrid = "8:pids:/a.service\n1:name=systemd:/system.slice/tidegate-switch.service/sub\n0::/\n";
        assert_eq!(unit(hybrid), switch);
        for none in ["0::/user.slice/session-1.scope", "0::/", "", "8:pids:/a.service\n", "nonsense"] {
            assert_eq!(unit(none), None, "{none}");
        }
    }
}

"""Options of two hosts' switches: a CPU for each, and another clock for the second one."""

from pathlib import Path

from harness.model import Context, Json, OptionGroup


def add_options(group: OptionGroup) -> None:
    """Declare the options of the second host's clock."""
    group.add_argument(
        "--skewed",
        type=Path,
        metavar="PROGRAM",
        help="the second host's tidegate, built with --features tidegate-switch/test-clock",
    )
    group.add_argument(
        "--skew",
        default="-5000000000,40",
        metavar="NS,PPM",
        help="of its clock; five seconds behind, and fast",
    )


def switches(context: Context) -> list[Json]:
    """What `lab.host.Host` is given for each host.

    Real-time workers that share a CPU use up the time that the kernel grants them (`sched_rt_runtime_us`); then
    all of them wait for 50 ms.
    """
    options = ("--workers", "1", "--fifo-priority", "2")
    cpus = (context.machine.switch_cpu, context.machine.generator_cpu)
    hosts: list[Json] = [
        {"switch_options": options, "switch_wrapper": ("taskset", "-c", str(cpu))} for cpu in cpus
    ]
    if skewed := context.options.skewed:
        clock = ("env", f"TIDEGATE_TEST_CLOCK={context.options.skew}")
        hosts[1] |= {"binary": skewed, "switch_wrapper": (*hosts[1]["switch_wrapper"], *clock)}
    return hosts

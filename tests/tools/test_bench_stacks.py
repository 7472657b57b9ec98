"""The arithmetic behind the scenes with kernel stacks."""

import json

import pytest

from harness.model import Json, Target, Window
from scenes import delay, demo
from scenes.delay import Away, Frame, gained, inner
from scenes.stacks import reports
from scenes.stacks.counters import HEADERS, MSS, Interface, tcp_wire_bytes
from scenes.stacks.figures import percentile
from scenes.stacks.wakeups import IDLE, wakeups


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (0.999, 100), (0.001, 1)])
def test_percentile_is_the_smallest_that_covers_its_share(share: float, value: float) -> None:
    """Of 1 to 100, in any order."""
    assert percentile([float(n) for n in range(100, 0, -1)], share) == value


def test_a_super_frame_counts_as_its_segments() -> None:
    """One super-frame of 45 segments, one ordinary full one: 46 frames of 1,514 bytes."""
    first = Interface(0.0, 1000, 10, 0, 0)
    last = Interface(1.0, 1000 + 46 * MSS + 2 * HEADERS, 12, 0, 0)
    assert MSS + HEADERS == 1514
    assert tcp_wire_bytes(first, last) == 46 * 1514


def test_the_parts_of_a_delay_add_up() -> None:
    """Also where the receiver's stamp comes before the send call has returned."""
    for returned in (130, 170):
        frame = Frame(due=90, sent=100, returned=returned, stamped=150, read=180)
        parts = frame.parts()
        assert parts.pop("sender woke") == 10
        assert sum(parts.values()) == frame.delay == 80
        assert min(parts.values()) >= 0


def test_a_cpu_was_away_only_if_it_overlaps() -> None:
    """Spans are from due to woken."""
    frame = Frame(due=90, sent=100, returned=130, stamped=150, read=180)
    assert Away(0, ((0, 101),), ()).overlaps(frame)
    assert Away(0, ((179, 300),), ()).overlaps(frame)
    assert not Away(0, ((0, 100), (180, 300)), ()).overlaps(frame)


def test_percentiles_are_of_the_values_added_to_a_histogram() -> None:
    """What was there before does not count."""
    before = {"delay": {"buckets": [[1_000, 500], [9_000, 1]]}}
    after = {"delay": {"buckets": [[1_000, 500], [2_000, 99], [9_000, 2]]}}
    new = gained(before, after)
    assert new == {2_000: 99, 9_000: 1}
    assert inner(new) == {"inside p50": 2, "inside p99": 2, "inside p99.9": 9, "inside max": 9}


def test_a_stall_excuses_a_frame_that_would_have_been_in_time() -> None:
    """Not one that is too short, nor one beside it; spans that overlap count once."""
    frame = Frame(due=0, sent=0, returned=10, stamped=10, read=2_400_000)
    assert Away(0, ((400_000, 1_900_000),), ()).excuses(frame)
    assert not Away(0, ((400_000, 1_700_000),), ()).excuses(frame)
    assert not Away(0, tuple((at, at + 400_000) for at in range(0, 2_400_000, 400_000)), ()).excuses(frame)
    assert not Away(0, ((0, 900_000), (100_000, 900_000)), ()).excuses(frame)
    assert not Away(0, ((2_000_000, 9_000_000),), ()).excuses(frame)


def test_delay_asks_for_the_inside_and_for_a_bare_timer() -> None:
    """Each pair of windows gives one sample; what a contender does not have is not measured."""
    ours: Json = {"inside p99.9": 200.0, "p99.9": 300.0, "timer p99.9": 100.0}
    windows = [
        Window(delay.NOW, "c", 0, ours),
        Window(delay.FIRST_COME, "c", 1, {"inside p99.9": 30_000.0}),
        Window(delay.ALONE, "c", 2, {"inside p99.9": 50.0}),
    ]

    def ratio(target: Target) -> list[float]:
        return [sample.value for sample in target.samples]

    found = delay.targets(windows, "c")
    assert [ratio(target) for target in found] == [[150.0], [], [4.0], [3.0], []]
    assert [target.verdict for target in found] == [
        "met",
        "not measured",
        "not met",
        "not met",
        "not measured",
    ]


def test_every_row_of_the_demo_is_a_figure() -> None:
    """Both phases of each delay, and the blame of contracts alone."""
    quantiles = dict.fromkeys(("p50", "p99", "p999", "max"), 10.0)
    phase: Json = dict.fromkeys(demo.DELAYS, quantiles) | dict.fromkeys(demo.COUNTS, 3)
    phase |= {"worker_cpu": 0.25, "bulk_mbps": 900.0}
    blame = {"late": 3, "steal": 1, "stalled": 1, "unexplained": 1}
    run = {"fifo": phase, "edf": phase | dict.fromkeys(demo.BLAMES, blame)}
    rows = {(figure.name, figure.contender): figure.samples[0].value for figure in demo.figures([run])}
    assert len(rows) == 2 * 4 * len(demo.DELAYS) + 2 * len(demo.COUNTS) + 2 * len(demo.BLAMES) + 4
    assert rows["late frames: the host machine's", "contracts"] == 2
    assert rows["CPU of the switch's worker", "FIFO"] == 25
    assert [target.verdict for target in demo.targets([run])] == ["not met", "met", "not met", "met"]


SOCKPERF = """
sockperf: [Total Run] RunTime=2.000 sec; Warm up time=400 msec; SentMessages=2001; ReceivedMessages=2001
sockperf: [Valid Duration] RunTime=1.550 sec; SentMessages=1551; ReceivedMessages=1549
sockperf: \x1b[2;35m====> avg-latency=142.712 (std-dev=642.592)\x1b[0m
sockperf: ---> <MAX> observation = 9120.858
sockperf: ---> percentile 99.900 = 8631.164
sockperf: ---> percentile 99.000 = 1776.252
sockperf: ---> percentile 50.000 =   30.552
"""


def test_sockperf_output_is_read() -> None:
    """Of the valid duration; an output that ends early is an error."""
    expected = {"p50": 30.552, "p99": 1776.252, "p99.9": 8631.164, "max": 9120.858, "lost": 2}
    assert reports.sockperf(SOCKPERF) == expected
    with pytest.raises(ValueError, match=r"99\\.900"):
        reports.sockperf(SOCKPERF.replace("99.900", "99.990"))


def test_irtt_output_is_read() -> None:
    """Of each round trip that came back."""
    trips = [{"delay": {"rtt": 1_000 * n}} for n in range(1, 101)] + [{"lost": "true", "delay": {}}]
    document = {"stats": {"packets_sent": 101, "packets_received": 100}, "round_trips": trips}
    assert reports.irtt(json.dumps(document)) == {"p50": 50, "p99": 99, "p99.9": 100, "max": 100, "lost": 1}
    with pytest.raises(ValueError, match="nothing came back"):
        reports.irtt(json.dumps(document | {"round_trips": []}))


def test_ddsperf_output_is_read() -> None:
    """Round trips are twice what it says; the second of its start does not count."""
    second = (
        "[7] {}.000  vm:9 size 128 mean 38.1us min 20.0us 50% {}us 90% 47.6us 99% {}us max {}us cnt 987\n"
        "[7] 1.000  rss:7.4MB vcsw:2014 ivcsw:394 ddsperf:0%+4% recvUC:1%+0%\n"
    )
    text = second.format(1, 900, 900, 900) + second.format(2, 30, 80.5, 200) + second.format(3, 32, 90.5, 150)
    found = reports.ddsperf(text + "[7] ping timed out (total 12 times) ... sending new ping\n")
    assert found == {"p50": 62, "p99": 171, "max": 400, "lost": 12}
    with pytest.raises(ValueError, match="less than two seconds"):
        reports.ddsperf(second.format(1, 1, 1, 1))


TRACE = """
# tracer: nop
          <idle>-0       [002] dNh4.   100.000100: sched_waking: comm=worker-0 pid=77 prio=97 target_cpu=000
          <idle>-0       [000] d.h2.   100.001100: irq_handler_entry: irq=27 name=virtio0-input.0
          <idle>-0       [000] d.h2.   100.001150: irq_handler_exit: irq=27 ret=handled
          <idle>-0       [000] d.s2.   100.001150: softirq_entry: vec=3 [action=NET_RX]
          <idle>-0       [000] d.s2.   100.001350: softirq_exit: vec=3 [action=NET_RX]
          <idle>-0       [000] d..2.   100.001360: sched_switch: prev_comm=swapper/0 prev_pid=0 \
prev_prio=120 prev_state=R ==> next_comm=worker-0 next_pid=77 next_prio=97
        worker-0-77      [000] d..2.   100.002000: sched_switch: prev_comm=worker-0 prev_pid=77 \
prev_prio=97 prev_state=S ==> next_comm=a b next_pid=9 next_prio=120
             a b-9       [000] d..2.   100.003000: sched_waking: comm=worker-0 pid=77 prio=97 target_cpu=000
             a b-9       [000] d..2.   100.003500: sched_switch: prev_comm=a b prev_pid=9 \
prev_prio=120 prev_state=R ==> next_comm=worker-0 next_pid=77 next_prio=97
""".replace("\\\n", "")


def test_a_late_wake_up_is_explained_by_the_work_of_its_cpu() -> None:
    """From the waking to the switch: idle until an interrupt came, then a softirq; later another task."""
    first = "          <idle>-0 [000] d..2. 100.000000: sched_switch: prev_comm=x prev_pid=5 prev_prio=1 \
prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120"
    seen = list(wakeups([first, *TRACE.splitlines()], 77))
    assert [round(1e6 * wakeup.took) for wakeup in seen] == [1260, 500]
    assert [wakeup.cause for wakeup in seen] == [IDLE, "task a b"]
    spent = {what: round(1e6 * took) for what, took in seen[0].spent.items()}
    assert spent == {IDLE: 1010, "interrupt virtio0-input.0": 50, "softirq NET_RX": 200}
    assert not list(wakeups(TRACE.splitlines(), 78))


def test_waking_a_running_thread_is_no_wake_up() -> None:
    """It does not go to sleep for that; when it sleeps later, it is not waiting to run."""
    lines = """\
 a-1 [000] d..2. 100.000000: sched_switch: prev_comm=x prev_pid=5 prev_prio=1 prev_state=S ==> \
next_comm=worker next_pid=77 next_prio=1
 b-2 [001] d..2. 100.000100: sched_waking: comm=worker pid=77 prio=1 target_cpu=000
 worker-77 [000] d..2. 100.000200: sched_switch: prev_comm=worker prev_pid=77 prev_prio=1 prev_state=S ==> \
next_comm=swapper/0 next_pid=0 next_prio=120
 b-2 [001] d..2. 100.500000: sched_waking: comm=worker pid=77 prio=1 target_cpu=000
 a-1 [000] d..2. 100.500030: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> \
next_comm=worker next_pid=77 next_prio=1"""
    seen = list(wakeups(lines.splitlines(), 77))
    assert [round(1e6 * wakeup.took) for wakeup in seen] == [30]


def test_a_thread_that_returns_from_a_system_call_runs() -> None:
    """Also where the trace has no switch from the idle task to it."""
    lines = """\
 a-1 [000] d..2. 99.000000: sched_switch: prev_comm=x prev_pid=5 prev_prio=1 prev_state=S ==> \
next_comm=swapper/0 next_pid=0 next_prio=120
 b-2 [001] d..2. 100.000000: sched_waking: comm=worker pid=77 prio=1 target_cpu=000
 worker-77 [000] ..... 100.000025: sys_exit: NR 441 = 1
 worker-77 [000] d..2. 100.000200: sched_switch: prev_comm=worker prev_pid=77 prev_prio=1 prev_state=S ==> \
next_comm=swapper/0 next_pid=0 next_prio=120"""
    assert [round(1e6 * wakeup.took) for wakeup in wakeups(lines.splitlines(), 77)] == [25]

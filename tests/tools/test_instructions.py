"""The regression guard (`make instructions`, a nightly run): how it counts, and what it reports."""

from harness import instructions, stages

PROFILE = """\

ob=(1) /bin/ours
fl=(1) a.rs
fn=(1) turn
0x10 1 5
+4 * 7
fi=(2) b.rs
-4 +1 3
cob=(2) /lib/libc.so
cfn=(2) memcpy
calls=1 0x99
* * 100
* * 1
ob=(2)
fn=(2)
0x99 0 100
ob=(1)
fn=(3) other
0x20 9 2
"""


def test_only_own_code_counts() -> None:
    """Neither what a library does, nor what a call costs as a whole."""
    assert instructions.own(PROFILE.splitlines(), "/bin/ours") == 5 + 7 + 3 + 1 + 2


def test_instructions_have_their_address() -> None:
    """Positions count from the line before, callees' included."""
    assert stages.by_address(PROFILE.splitlines(), "/bin/ours") == {0x10: 9, 0x14: 7, 0x20: 2}


def test_a_stage_is_known_by_the_inlined_functions() -> None:
    """By the first stage of which there is a function, wherever in the chain."""
    assert stages.stage(["add<u8>", "pop_singles<true>", "find_room", "fast"]) == "receive buffers"
    assert stages.stage(["read", "tidegate_switch::fdb::Fdb::lookup", "classify"]) == "FDB"
    assert stages.stage(["read", "classify", "fast"]) == "copy headers in"
    assert stages.stage(["turn"]) == stages.REST
    assert stages.stage(["work", "tidegate_switch::worker::Worker::turn"]) == stages.REST
    gather = ["next", "tidegate_switch::worker::deliver::gather"]
    assert stages.stage(gather) == "rest of worker::deliver", "no stage, but a module"


def test_more_than_the_margin_is_reported() -> None:
    """More, unknown and vanished cases are; less is not."""
    stored = {"a": 100.0, "b": 100.0, "c": 100.0, "gone": 1.0}
    wrong = instructions.judge(stored, {"a": 111.0, "b": 109.0, "c": 50.0, "new": 1.0}, 0.1)
    assert len(wrong) == 3
    assert "a: 111 instructions a frame, stored are 100 (+11.0%, allowed +10%)" in wrong
    assert any("new" in line for line in wrong)
    assert any("gone" in line for line in wrong)


def test_the_cost_of_a_port_is_separated_from_that_of_a_frame() -> None:
    """A frame costs 400, a port with frames in a loop 3,100: 32 frames at a time, or one."""
    seen = {"64B-ports-256": 400.0 + 3100 / 32, "64B-ports-256-single": 400.0 + 3100}
    assert instructions.by_port(seen) == [
        "256 ports: 400 for each frame, 3100 for each port that has frames in a loop"
    ]
    assert instructions.by_port({"64B": 500.0}) == []

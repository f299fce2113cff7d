"""What counters and bursts say of a visit."""

import pytest

from pydlbench.timing.chunk import Chunk
from pydlbench.timing.guards import describe_interference, slow_bursts, waited_s
from pydlbench.timing.policy import Policy

QUIET = {"disturbance": None, "fma": 0.99, "wait_s": 0.0, "steal_s": 0.0, "wall_s": 0.05}


def seen(**changes):
    return describe_interference(**{**QUIET, **changes}, policy=Policy())


def test_nothing_is_quiet():
    assert seen() is None
    assert seen(fma=None) is None
    assert slow_bursts((), Policy()) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fma": 0.51}, "51%"),
        ({"wait_s": 0.0277}, "waited 27.7 ms of 50.0 ms"),
        ({"wait_s": 0.003}, "3.00 ms of 50.0 ms"),
        ({"wait_s": 0.003, "involuntary": 4}, "(4 involuntary switches)"),
        ({"steal_s": 0.02}, "20 ms of 50 ms to the hypervisor"),
        ({"disturbance": "too hot"}, "too hot"),
    ],
)
def test_what_is_seen(changes, words):
    assert words in seen(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"wait_s": 0.0009, "wall_s": 0.005},  # a kernel thread
        {"wait_s": 0.002},
        {"steal_s": 0.01},  # a tick
        {"steal_s": 0.02, "wall_s": 1.0},
        {"fma": 0.91},
    ],
)
def test_what_idle_machines_show(changes):
    assert seen(**changes) is None


def crowded(left, wall=0.015):
    """A chunk of three threads on two CPUs of which others can have had ``left`` of each second."""
    return Chunk(
        seconds=(wall,), run_delay_s=0.3 * wall, wall_s=wall, threads=2, cpu_s=(2 - left) * wall
    )


def test_whoever_had_all_cpus_has_waited_for_nobody_else():
    assert waited_s(crowded(0.0)) == 0
    assert waited_s(crowded(0.1)) == pytest.approx(0.1 * 0.015)
    assert waited_s(crowded(1.0)) == pytest.approx(0.3 * 0.015)
    assert waited_s(Chunk(seconds=(1.0,), run_delay_s=0.2)) == 0.2


@pytest.mark.parametrize("bursts", [(0.0,), (-1.0,), (float("nan"),)])
def test_a_burst_is_positive(bursts):
    with pytest.raises(ValueError, match="burst"):
        Chunk(seconds=(1e-3,), bursts=bursts)

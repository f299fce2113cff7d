"""Claimed times held against the host's clock: honest slow processes, and clocks that are divided.

The host's clock is invented: it advances with the executions of an invented process.
"""

import itertools
import math
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pydlbench.backends import host_clock
from pydlbench.errors import RefusedKernelError
from pydlbench.runner import claimed_times
from pydlbench.runner.claimed_times import ClaimedTimes, others_s
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.statistics import median


class Process:
    """A process whose executions take some time; its requests and copies take more.

    Args:
        execution_s: time of an execution.
        divisor: what claimed times are divided by.
        overhead_s: time of a request besides its samples.
        copy_s: time of the copies around a sample.
        noise: relative times of executions, in turn.
        lies: returns whether the samples of a request are claimed wrongly.
        slower: returns how many times slower the executions of a request are.
    """

    def __init__(
        self,
        execution_s,
        divisor=1,
        overhead_s=1e-3,
        copy_s=0.0,
        noise=(1,),
        lies=None,
        slower=None,
    ):
        self.now = 0.0
        self.execution_s, self.divisor = execution_s, divisor
        self.overhead_s, self.copy_s = overhead_s, copy_s
        self.noise, self.lies = itertools.cycle(noise), lies or (lambda _: True)
        self.slower = slower or (lambda _: 1)

    def sample(self, request):
        self.now += self.overhead_s
        seconds = []
        for _ in range(request.samples):
            self.now += self.copy_s
            one = self.execution_s * next(self.noise) * self.slower(request)
            self.now += one * request.inner
            seconds.append(one / (self.divisor if self.lies(request) else 1))
        return Chunk(seconds=tuple(seconds))


def judge(
    monkeypatch,
    process,
    request=None,
    copied=0,
    visits=16,
    others=0.0,
    each=1000,
    before=bool,
    hides=False,
):
    monkeypatch.setattr(claimed_times, "undisturbed_s", lambda _: process.now)
    monkeypatch.setattr(claimed_times, "others_s", lambda _: others * process.now)
    monkeypatch.setattr(claimed_times, "_hides_children", lambda _: hides)
    request = request or ChunkRequest(samples=8, untimed=0)
    checked = ClaimedTimes(median)
    for number in range(visits):
        before(number)
        worker = SimpleNamespace(pid=number // each)
        begin = process.now
        chunk = process.sample(request)
        elapsed = process.now - begin
        claimed = request.inner * sum(chunk.seconds)
        checked.check(elapsed, claimed, request.samples * copied)
        checked.check_loop(worker, process.sample, request, chunk, elapsed, copied)


HONEST = {
    "short": {"execution_s": 1e-5},
    "long": {"execution_s": 0.3},
    "slow requests": {"execution_s": 1e-4, "overhead_s": 9e-3},
    "slow copies": {"execution_s": 2e-3, "copy_s": 0.02, "copied": 10**7},
    "disturbed": {"execution_s": 5e-3, "noise": (1, 1, 1.3, 1, 2.5, 1, 1.1)},
    "one sample": {"execution_s": 0.5, "request": ChunkRequest(samples=1)},
    "slower in loops because of others": {
        "execution_s": 1e-3,
        "others": 0.5,
        "slower": lambda request: 1.6 if request.samples == 1 else 1,
    },
    "one short sample": {"execution_s": 1e-4, "request": ChunkRequest(samples=1)},
}


@pytest.mark.parametrize("words", HONEST.values(), ids=HONEST)
def test_an_honest_process_is_believed(monkeypatch, words):
    given = {name: words[name] for name in words.keys() & {"request", "copied", "others"}}
    judge(monkeypatch, Process(**{x: words[x] for x in words.keys() - given.keys()}), **given)


@pytest.mark.parametrize("divisor", [1.4, 1.9, 3, 50, math.inf])
@pytest.mark.parametrize("execution_s", [1e-5, 1e-3, 0.02, 0.5])
def test_a_clock_that_is_divided_is_refused(monkeypatch, execution_s, divisor):
    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(monkeypatch, Process(execution_s, divisor), visits=8)


def test_a_slow_request_hides_no_divided_clock(monkeypatch):
    """Time in the overhead is believed up to a limit only, and the loop is longer than that."""
    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(monkeypatch, Process(1e-3, 1.7, overhead_s=0.05))


def test_claims_that_are_right_in_the_loop_only_are_refused(monkeypatch):
    process = Process(1e-3, 2, lies=lambda request: request.samples > 1)
    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(monkeypatch, process)


def test_a_clock_that_is_divided_is_refused_with_one_short_sample(monkeypatch):
    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(monkeypatch, Process(0.02, 1.6), ChunkRequest(samples=1))


@pytest.mark.parametrize(
    ("seconds", "even"),
    [
        ((3e-4, *(15 * (1e-5,))), True),  # it wakes threads up
        ((2e-3, *(15 * (1e-3,))), True),
        ((16e-3, *(15 * (1e-3,))), False),
        ((1e-3, 1e-3, 16e-3, *(13 * (1e-3,))), False),
    ],
)
def test_samples_that_compute_for_others_are_refused(seconds, even):
    checked = ClaimedTimes()
    checked.check_even((1.0,))  # says nothing
    for _ in range(11):
        checked.check_even(seconds)
        checked.check_even((1e-3,) * 3)  # even requests of another size are no excuse
    assert checked.undecided(1) == (0 if even else 16)
    assert checked.mostly_uneven is not even
    if even:
        checked.check_even(seconds)
        return
    with pytest.raises(RefusedKernelError, match="their median"):
        checked.check_even(seconds)


@pytest.mark.parametrize("execution_s", [1e-3, 0.5])
def test_a_divided_clock_is_refused_in_the_first_request(monkeypatch, execution_s):
    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(monkeypatch, Process(execution_s, 1.6), ChunkRequest(samples=1), visits=1)


@pytest.mark.parametrize("only_requests", [False, True])
def test_a_clock_that_is_divided_in_every_second_process_is_refused(monkeypatch, only_requests):
    process, lies = Process(0.02, 1.6), []
    process.lies = lambda request: bool(lies) and not (only_requests and request.inner > 1)

    def lie_in_turn(number):
        lies[:] = [True] if number >= 8 and number // 8 % 2 else []

    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(
            *(monkeypatch, process, ChunkRequest(samples=1)),
            visits=16,
            each=8,
            before=lie_in_turn,
        )


@pytest.mark.parametrize("execution_s", [2e-3, 0.02, 0.3])
def test_requests_of_which_half_are_slowed_are_believed(monkeypatch, execution_s):
    for seed in range(30):
        draw = random.Random(seed).random
        monkeypatch.setattr(claimed_times, "_DRAW", draw)
        process = Process(execution_s, slower=lambda _, draw=draw: 1.5 if draw() < 0.5 else 1)
        judge(monkeypatch, process, ChunkRequest(samples=1), visits=96, each=12)


@pytest.mark.parametrize(("copied", "loops"), [(0, 10), (4 * 10**7, 8), (10**9, 4)])
def test_loops_of_large_operands_are_fewer(monkeypatch, copied, loops):
    taken = []
    process = Process(0.02, 1.6, lies=lambda request: taken.append(request.inner > 1) or True)
    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(monkeypatch, process, copied=copied, visits=1)
    assert sum(taken) == loops


def test_others_are_counted_on_the_workers_cpus_without_its_ended_children(monkeypatch, tmp_path):
    stat, ticks = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(host_clock, "_STAT", stat)

    def others():
        one = sum(os.times()[:4]) * ticks
        stat.write_text(f"cpu  {3 * one:.0f} {'0 ' * 9}\ncpu3 {one:.0f} {'0 ' * 9}\n")
        return others_s(SimpleNamespace(pid=os.getpid(), cpus=(3,)))

    before, ended = others(), sum(os.times()[2:4])
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
    assert sum(os.times()[2:4]) - ended > 0.4
    assert others() == pytest.approx(before, abs=0.1)


def test_a_process_that_hides_its_children_has_no_excuse_in_the_time_of_others(monkeypatch):
    def lying():
        return Process(1e-3, 2, lies=lambda request: request.samples > 1)

    judge(monkeypatch, lying(), others=0.5)
    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(monkeypatch, lying(), others=0.5, hides=True)


@pytest.mark.parametrize("how", ["SIG_IGN", "SIG_DFL"])
def test_a_process_that_ignores_the_end_of_its_children_hides_them(how):
    code = f"import signal; signal.signal(signal.SIGCHLD, signal.{how}); print(flush=True); input()"
    words = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **words) as process:
        process.stdout.readline()
        hides = claimed_times._hides_children(SimpleNamespace(pid=process.pid))
        process.communicate(b"\n")
    assert hides is (how == "SIG_IGN")


@pytest.mark.parametrize("divisor", [1, 1.6])
def test_a_step_of_one_long_sample_is_its_own_loop(monkeypatch, divisor):
    process, request = Process(0.5, divisor), ChunkRequest(samples=1)
    if divisor == 1:
        judge(monkeypatch, process, request)
        assert process.now == pytest.approx(16 * 0.501)
        return
    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(monkeypatch, process, request)


def test_loops_on_a_slower_machine_are_not_held_against_later_processes(monkeypatch):
    """The first process has most loops, and the machine is slower meanwhile."""
    slow = Process(0.02)
    slow.slower = lambda _: 1.6 if slow.now < 2 else 1.0
    judge(monkeypatch, slow, ChunkRequest(samples=1), visits=200, each=20)


@pytest.mark.parametrize(("processes", "requests"), [(10, 4), (10, 20), (24, 8)])
def test_a_clock_that_is_divided_in_later_processes_is_refused(monkeypatch, processes, requests):
    process, first = Process(0.045, 1.6), []
    # It is divided in loops of these processes, too.
    process.lies = lambda _: bool(first)

    def lie_from_now_on(number):
        first.extend([True] if number >= requests else [])

    with pytest.raises(RefusedKernelError, match="host's clock"):
        judge(
            *(monkeypatch, process, ChunkRequest(samples=1)),
            visits=processes * requests,
            each=requests,
            before=lie_from_now_on,
        )

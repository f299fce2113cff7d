"""What a breakdown visits: samples with parts, made of invented chunks; and one real step."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from invented_gpu import MODEL, Gpu, GpuSession, Worker, convolution
from invented_gpu import Kernel as Kernel_
from said import says

from pydlbench.analysis import breakdown_run
from pydlbench.analysis.breakdown import LOST_CLOCK
from pydlbench.analysis.breakdown_run import broken_down, is_worth_more, why_negligible
from pydlbench.analysis.call_times import (
    CACHES,
    LAUNCH_GAPS,
)
from pydlbench.analysis.experiments import FRESH_MEMORY, REORDERS, STEP_GRAPH, WAKEUPS
from pydlbench.analysis.native_layers import seldom
from pydlbench.analysis.subjects import ReadyCalls, TracedStep, with_parts
from pydlbench.backends.steps import requests
from pydlbench.backends.steps.device import IDLE_BETWEEN, IDLE_IN_CALLS
from pydlbench.errors import UnsupportedError, WorkerError
from pydlbench.records.breakdown import NOT_MEASURED
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.records.user_model import UserModelSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.study.table import Series, Visit
from pydlbench.timing.chunk import Chunk, ChunkRequest


def whole(step, session):
    """Return the last answer of a breakdown."""
    *_, record = broken_down(step, session)
    return record


REQUEST = ChunkRequest(samples=2, inner=3, untimed=1, touch=True)


class Kernel:
    """Answers a request with invented seconds, and keeps it."""

    def __init__(self, *seconds):
        self.seconds = seconds
        self.requests = []

    def sample(self, request):
        self.requests.append(request)
        return Chunk(seconds=self.seconds, faults=5.0)


class Process:
    """A session and its worker, whose calls take invented seconds.

    Args:
        rounds: by name of a call, the seconds of each of its rounds, one time or several.
        room: bytes of memory; a call takes 60. None where nobody knows.
    """

    def __init__(self, rounds, room):
        self.rounds, self.room = rounds, room

    def room_bytes(self, _device):
        return self.room

    def worker(self, *_, **__):
        return self

    def build(self, _builder, _facts, signatures, **_):
        rounds = zip(*(self.rounds[name] for name in signatures), strict=True)
        seconds = tuple(each for times in rounds for some in times for each in some)
        return SimpleNamespace(
            facts=OperatorsFacts(names=tuple(signatures)),
            sample=lambda _: Chunk(seconds=seconds, faults=1.0),
            release=lambda: None,
        )


def calls_alone(rounds, *, room=None, **how):
    calls = [RecordedCall(signature=name, operator=name, bytes=60) for name in rounds]
    return ReadyCalls(StepSpec(model="mnist", batch=2), Process(rounds, room), calls, **how)


def test_a_traced_step_is_a_sample_whose_parts_are_its_calls():
    kernel = Kernel(0.11, 0.10, 0.06, 0.03, 0.12, 0.10, 0.07, 0.03)
    chunk = TracedStep(kernel, "profile", 2).sample(REQUEST)
    assert chunk.seconds == (0.11, 0.12)
    assert chunk.parts == ((0.06, 0.03), (0.07, 0.03))
    assert chunk.faults == 5.0
    assert (kernel.requests[0].timing, kernel.requests[0].inner) == ("profile", 1)


@pytest.mark.parametrize(("plain", "beside"), [(False, 2), (True, 3)])
def test_the_first_visits_tell_what_tracing_costs(plain, beside):
    kernel = Kernel()
    kernel.sample = lambda request: Chunk(
        seconds=(0.11, *[0.10] * request.plain, 0.06, 0.03) * request.samples
    )
    traced = TracedStep(kernel, "profile", 2, plain=plain)
    visits = [traced.sample(REQUEST).seconds for _ in range(3)]
    assert visits[2] == ((0.10, 0.10) if plain else (0.11, 0.11))
    assert sum(len(each.plain_s) for each in traced.rounds) == 2 * beside


def test_time_stamps_time_the_calls_of_the_step_that_ran_beside_them():
    kernel = Kernel(0.08, 0.10, 0.05, 0.03)
    chunk = TracedStep(kernel, "stamps", 2).sample(REQUEST)
    assert chunk.seconds == (0.10,)
    assert chunk.parts == ((0.05, 0.03),)


def test_rounds_of_calls_alone_are_samples():
    alone = calls_alone({"conv": [(0.03,), (0.04,)], "relu": [(0.01,), (0.02,)]})
    chunk = alone.sample(REQUEST)
    assert chunk.seconds == pytest.approx((0.04, 0.06))
    assert chunk.parts == ((0.03, 0.01), (0.04, 0.02))
    assert alone.names == ["conv", "relu"]


def test_batches_of_calls_that_have_no_room_together_are_one_sample():
    rounds = {
        "conv": [(0.03,), (0.05,)],
        "relu": [(0.01,), (0.03,)],
        "pool": [(0.02,), (0.04,), (0.06,)],
    }
    alone = calls_alone(rounds, room=4 * 2 * 60)
    chunk = alone.sample(REQUEST)
    assert alone.names == ["conv", "relu", "pool"]
    assert chunk.parts == (pytest.approx((0.04, 0.02, 0.04)),)
    assert chunk.seconds == pytest.approx((0.10,))


def test_of_several_values_of_a_call_the_first_is_its_time():
    alone = calls_alone({"conv": [(0.03, 1.0)], "relu": [(0.01, 1.0)]}, repeats=2)
    chunk = alone.sample(REQUEST)
    assert chunk.seconds == pytest.approx((0.04,))
    assert chunk.parts == ((0.03, 1.0, 0.01, 1.0),)


def test_without_any_call_there_is_no_sample():
    with pytest.raises(UnsupportedError, match="no call"):
        calls_alone({}).sample(REQUEST)


def test_parts_are_as_many_as_samples():
    with pytest.raises(ValueError, match="parts"):
        with_parts(Chunk(seconds=(1.0,)), (1.0, 2.0), [(0.5,)])


def test_the_smallest_kernels_that_make_a_quarter_of_the_sum_are_visited_seldom():
    assert seldom({"a": 50.0, "b": 26.0, "c": 15.0, "d": 9.0}) == {"c", "d"}
    assert seldom({"a": 1.0}) == frozenset()
    assert seldom({}) == frozenset()


# The host needs 30 us for each call, 3 us of them besides it, and 40 us for each step.
def gpu_session(*device_s, model=MODEL, **gpu):
    works = [convolution(4 + number, 27e-6, seconds) for number, seconds in enumerate(device_s)]
    return GpuSession(Gpu(steps={model: works}, **gpu), native_s=2e-6)


def gpu_breakdown(*device_s, share=0.9, gpu=None, nominal_hz=1.98e9, **changes):
    case = {
        "model": MODEL,
        "own": UserModelSpec(),
        "framework": "torch",
        "device": "cuda:0",
        **changes,
    }
    session = gpu_session(*device_s, model=case["model"], **(gpu or {}))
    session.share, session.nominal_hz = share, nominal_hz
    found = whole(StepSpec(**case), session)
    return found, {one.term: one.seconds for one in found.terms}


def test_on_a_gpu_that_waits_for_its_host_the_step_is_idle_time():
    found, terms = gpu_breakdown(5e-6, 5e-6)
    # From the end of one step's last kernel to that of the next one, the host's 100 us pass, 46 of
    # them between calls. Meanwhile the device works twice: 3 and 5 us of it between calls.
    assert found.measured.median == pytest.approx(100e-6, rel=0.01)
    assert found.levels.in_context.median == pytest.approx(10e-6, rel=0.01)
    assert terms[IDLE_BETWEEN] == pytest.approx(38e-6, abs=0.5e-6)
    assert terms[IDLE_IN_CALLS] == pytest.approx(52e-6, abs=0.5e-6)
    assert sum(terms.values()) == pytest.approx(found.measured.median)
    (calls,) = found.calls
    assert calls.host_s == pytest.approx(54e-6, rel=0.01)


def test_on_a_gpu_that_is_behind_its_host_the_step_is_its_kernels():
    found, terms = gpu_breakdown(200e-6, 100e-6)
    assert found.measured.median == pytest.approx(300e-6, rel=0.1)
    assert found.levels.in_context.median == pytest.approx(found.measured.median)
    assert found.levels.alone.median == pytest.approx(300e-6, rel=0.05)
    assert found.levels.native.median == pytest.approx(4e-6)
    assert terms[IDLE_BETWEEN] == terms[IDLE_IN_CALLS] == 0
    assert found.spec.device == "cuda:0"
    assert not {FRESH_MEMORY, WAKEUPS, REORDERS} & terms.keys()


def test_on_a_gpu_calls_alone_have_the_gap_between_two_launches():
    found, terms = gpu_breakdown(200e-6, 100e-6, gpu={"gap_s": 2e-6})
    assert found.levels.alone.median == pytest.approx(304e-6)
    assert terms[LAUNCH_GAPS] == pytest.approx(-4e-6)
    assert terms[CACHES] == pytest.approx(0, abs=1e-9)
    in_context_s = found.levels.in_context.median  # with what the host needs to begin a sample
    assert terms["unexplained context"] == pytest.approx(in_context_s - 300e-6)


def test_on_a_gpu_a_slow_profiler_takes_few_samples_of_short_calls():
    """A round of 10 us of kernels would else take hundreds of profiles."""
    session = gpu_session(5e-6, 5e-6, profile_s=0.1)
    step = StepSpec(model=MODEL, own=UserModelSpec(), framework="torch", device="cuda:0")
    found = whole(step, session)
    assert found.levels.alone.median == pytest.approx(10e-6, rel=0.01)
    assert 4 <= session.gpu.profiles <= 40


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_on_a_gpu_a_planted_difference_between_alone_and_in_the_step_is_unexplained(factor):
    """The first call's kernels take another time alone: gaps and caches explain nothing of it."""
    planted = {convolution(4, 0, 0).signature: factor}
    found, terms = gpu_breakdown(200e-6, 100e-6, gpu={"alone": planted})
    usual, others = gpu_breakdown(200e-6, 100e-6)
    shown = terms["unexplained context"] - others["unexplained context"]
    assert shown == pytest.approx((1 - factor) * 200e-6, rel=0.02)
    assert abs(found.unexplained) > 0.3 > 0.1 > abs(usual.unexplained)


@pytest.mark.parametrize(("nominal_hz", "lost"), [(1.98e9, 0.0), (2.2e9, 0.1), (1.9e9, 0.0)])
def test_a_clock_below_nominal_is_a_level_below_the_limit(nominal_hz, lost):
    found, terms = gpu_breakdown(200e-6, 100e-6, nominal_hz=nominal_hz)
    limit_s = found.levels.limit.median
    assert limit_s == pytest.approx(2 * 0.9 * 2e-6)
    assert terms.get(LOST_CLOCK, 0.0) == pytest.approx(lost * limit_s)
    assert terms["limit"] == pytest.approx((1 - lost) * limit_s)
    assert sum(terms.values()) == pytest.approx(found.measured.median)


@pytest.mark.parametrize(("room", "prepared"), [(1 << 34, 0), (1 << 13, 8)])
def test_on_a_gpu_native_kernels_stay_prepared_where_they_have_room(room, prepared):
    session = gpu_session(200e-6, 150e-6)
    session.room = room
    step = StepSpec(model=MODEL, own=UserModelSpec(), framework="torch", device="cuda:0")
    found = whole(step, session)
    assert len(session.prepared) == prepared
    assert found.levels.native.median == pytest.approx(4e-6)
    assert all(kernel.released for kernel in session.native)


def test_on_a_gpu_a_native_kernel_whose_process_died_is_prepared_again():
    session = gpu_session(200e-6, 150e-6)
    measure = session.measure

    def leaves_a_dead_one(cases, *progress, prepared, **how):
        yield from measure(cases, *progress, prepared=prepared, **how)
        prepared[cases[0]].alive = False

    session.measure = leaves_a_dead_one
    step = StepSpec(model=MODEL, own=UserModelSpec(), framework="torch", device="cuda:0")
    found = whole(step, session)
    assert len(session.prepared) == 1
    assert found.levels.native.n == 4


def test_a_compiled_step_has_native_layers_of_what_is_left_to_the_framework():
    found, terms = gpu_breakdown(200e-6, 100e-6, mode="compiled")
    levels = found.levels
    assert levels.alone is None
    assert levels.native.median == pytest.approx(2e-6)
    assert terms["choice and context"] == pytest.approx(198e-6, rel=0.1)
    assert terms["calls without a native layer"] == pytest.approx(100e-6, rel=0.1)
    assert sum(terms.values()) == pytest.approx(levels.step.median)
    assert [row.change for row in found.alternatives] == [STEP_GRAPH]


def test_on_a_gpu_a_graph_saves_what_the_device_waits_for_its_host():
    found, _ = gpu_breakdown(5e-6, 5e-6)
    (graph,) = found.alternatives
    assert (graph.change, graph.n) == (STEP_GRAPH, 4)
    assert graph.median == pytest.approx(10e-6)
    assert graph.saved == pytest.approx(90e-6, rel=0.01)


def test_a_step_in_a_graph_says_from_which_size_its_launch_is_in_the_time():
    header = (Path(__file__).parents[2] / "csrc/cuda/sampling/sampler.hpp").read_text()
    gated = re.search(r"kMaxGraphLaunches = (\d+);", header)[1]
    assert says(breakdown_run._CHANGES[STEP_GRAPH], f"more than {gated} kernels", "no gate")


def test_on_a_gpu_two_processes_hold_the_step_in_all_rounds():
    session = gpu_session(5e-6, 5e-6)
    found = whole(
        StepSpec(model=MODEL, own=UserModelSpec(), framework="torch", device="cuda:0"), session
    )
    assert found.processes == 2
    assert found.levels.step.n == 3 + 4
    assert session.built.count(requests.request_step) == 2 + 1  # and the traced step


def test_a_step_that_is_in_no_graph_says_once_why():
    found, _ = gpu_breakdown(5e-6, 5e-6, gpu={"uncapturable": True})
    assert not found.alternatives
    (reason,) = (why for why in found.not_measured if why.startswith(STEP_GRAPH))
    assert "capturing" in reason


def test_calls_alone_that_end_their_process_do_not_take_the_traced_step_along(monkeypatch):
    session = gpu_session(200e-6, 150e-6)
    build, steps = Worker.build, []

    def dead(_request):
        raise WorkerError("was killed by SIGKILL")

    def die(_request):
        steps[0].sample = dead
        dead(_request)

    def building(worker, operation, facts, **words):
        kernel = build(worker, operation, facts, **words)
        if operation is requests.request_calls:
            kernel.sample = die
        elif operation is requests.request_step:
            steps.append(kernel)
        return kernel

    monkeypatch.setattr(Worker, "build", building)
    step = StepSpec(model=MODEL, own=UserModelSpec(), framework="torch", device="cuda:0")
    found = whole(step, session)
    assert len(steps) == 2 + 2  # traced, and in two processes that stay
    assert found.levels.alone is None
    assert found.levels.native.median == pytest.approx(4e-6)
    assert found.levels.in_context.median == pytest.approx(350e-6, rel=0.1)
    assert any("SIGKILL" in note for note in found.notes)


def test_a_traced_step_that_ends_its_process_by_itself_ends_the_breakdown(monkeypatch):
    session = gpu_session(200e-6, 150e-6)
    sample = Kernel_.sample

    def dying(kernel, request):
        if request.timing == "profile" and request.samples > 2:
            raise WorkerError("was killed by SIGKILL")
        return sample(kernel, request)

    monkeypatch.setattr(Kernel_, "sample", dying)
    step = StepSpec(model=MODEL, own=UserModelSpec(), framework="torch", device="cuda:0")
    with pytest.raises(WorkerError):
        whole(step, session)


STEP = StepSpec(model=MODEL, own=UserModelSpec(), framework="torch", device="cuda:0")


def test_each_round_leaves_an_answer_whose_terms_add_up():
    kept = []
    answers = list(
        broken_down(STEP, gpu_session(200e-6, 100e-6), keep=lambda *row: kept.append(row))
    )
    assert [answer.coarse for answer in answers] == 3 * [True] + 5 * [False]
    assert [answer.measured.n for answer in answers] == [1, 2, 3, 3, 4, 5, 6, 7]
    for answer in answers:
        assert sum(term.seconds for term in answer.terms) == pytest.approx(answer.measured.median)
    coarse = answers[2]
    assert (coarse.levels.native, coarse.levels.alone) == (None, None)
    assert coarse.reasons["native"] == coarse.reasons["alone"]
    assert coarse.levels.in_context.ci_low is not None
    (rest,) = (term for term in coarse.terms if term.term == NOT_MEASURED)
    assert rest.seconds == pytest.approx(300e-6, rel=0.1)
    assert any(coarse.reasons["alone"] in text for text in coarse.not_measured)
    assert len(kept) == 2
    with_kernels = answers[3]
    assert with_kernels.levels.native.median == pytest.approx(4e-6)
    assert with_kernels.levels.alone is None
    # The coarse rounds timed the step and the traced step only.
    levels = answers[-1].levels
    assert [levels.native.n, levels.alone.n, levels.in_context.n, levels.step.n] == [4, 4, 7, 7]


@pytest.mark.parametrize(
    ("operation", "native"), [("measure", False), ("build", True), ("sample", True)]
)
def test_an_interruption_leaves_all_that_was_timed(monkeypatch, operation, native):
    session, build = gpu_session(200e-6, 100e-6), Worker.build

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    def building(worker, request, facts, **words):
        kernel = build(worker, request, facts, **words)
        if request is requests.request_calls:
            kernel.sample = interrupted
            if operation == "build":
                interrupted()
        return kernel

    if operation == "measure":
        session.measure = interrupted
    monkeypatch.setattr(Worker, "build", building)
    answers = []
    with pytest.raises(KeyboardInterrupt):
        answers.extend(broken_down(STEP, session))
    last = answers[-1]
    assert sum(term.seconds for term in last.terms) == pytest.approx(last.measured.median)
    assert (last.levels.native is not None) is native
    assert last.levels.alone is None
    assert last.reasons["alone"] in " ".join(last.not_measured)


@pytest.mark.parametrize("answered", [5, 7])
def test_an_interruption_of_a_later_round_takes_no_part_for_unmeasured(monkeypatch, answered):
    build, answers = Worker.build, []

    def building(worker, request, facts, **words):
        kernel = build(worker, request, facts, **words)
        if request is requests.request_calls:
            sample = kernel.sample

            def sampled(request):
                if len(answers) == answered:
                    raise KeyboardInterrupt
                return sample(request)

            kernel.sample = sampled
        return kernel

    monkeypatch.setattr(Worker, "build", building)
    with pytest.raises(KeyboardInterrupt):
        list(map(answers.append, broken_down(STEP, gpu_session(200e-6, 100e-6))))
    last, early = answers[-1], answers[0]
    assert last.levels.alone is not None
    assert early.reasons["alone"] not in " ".join(last.not_measured)
    assert any("rounds" in text for text in last.not_measured)


def test_native_rows_that_are_known_are_not_measured_again():
    rows = {}
    list(broken_down(STEP, gpu_session(200e-6, 100e-6), keep=rows.__setitem__))
    session = gpu_session(200e-6, 100e-6)
    session.measure = None
    *_, found = broken_down(STEP, session, known=rows.get)
    assert found.levels.native.median == pytest.approx(4e-6)


@pytest.mark.parametrize(("deaths", "rounds"), [(1, 6), (2, 3)])
def test_a_lost_process_costs_a_round_and_a_second_one_the_rest(monkeypatch, deaths, rounds):
    session = gpu_session(200e-6, 100e-6)
    build, steps, lost = Worker.build, [], []

    def mortal(kernel, sample):
        def sampled(request):
            if kernel in lost:
                raise WorkerError("was killed by SIGKILL")
            return sample(request)

        return sampled

    def building(worker, operation, facts, **words):
        kernel = build(worker, operation, facts, **words)
        if operation is requests.request_step:
            kernel.sample = mortal(kernel, kernel.sample)
            steps.append(kernel)
        elif operation is requests.request_calls:  # after the coarse rounds
            _traced, even, odd = steps
            lost.extend((odd, even)[:deaths])
        return kernel

    monkeypatch.setattr(Worker, "build", building)
    found = whole(STEP, session)
    assert found.measured.n == rounds
    assert sum(term.seconds for term in found.terms) == pytest.approx(found.measured.median)
    assert any("SIGKILL" in text for text in (*found.notes, *found.not_measured))


@pytest.mark.parametrize("feed", ["resident", "host"])
def test_a_breakdown_says_from_where_its_images_come(feed):
    found, _ = gpu_breakdown(200e-6, model="mnist", own=None, feed=feed)
    assert found.spec.feed == feed


@pytest.mark.parametrize(("share", "said"), [(0.9, False), (2.5, True)])
def test_native_layers_that_are_faster_than_their_limit_are_named(share, said):
    found, _ = gpu_breakdown(200e-6, 100e-6, share=share)
    assert any("2.5x" in note for note in found.notes) is said


@pytest.mark.parametrize(
    ("seconds", "further", "worth"),
    [
        ((1.0,), 3, True),
        ((1.0, 1.01, 1.0, 1.02, 1.0, 1.03), 3, False),
        ((1.0, 1.01, 1.0, 1.02, 1.0, 1.05), 3, True),
        ((1.0, 1.01, 1.0, 1.02, 1.0, 1.05), 2, False),  # of eight, the slowest is in the interval
        ((1.0, 1.01, 1.0, 1.02, 1.0, 1.05, 1.0, 1.01, 0.9), 3, False),
        ((0.9, 0.95, 1.0, 1.0, 1.05, 1.2), 3, True),  # from 0.3 to 0.1
        ((0.9, 0.9, 1.0, 1.0, 1.1, 1.1), 3, False),
    ],
)
def test_further_processes_are_for_a_wide_interval_that_they_can_make_narrow(
    seconds, further, worth
):
    assert is_worth_more(steps_of(*seconds), further) is worth


def test_further_processes_end_with_one_that_others_disturb():
    *others, last = steps_of(1.0, 1.01, 1.0, 1.02, 1.0, 1.05)
    disturbed = msgspec.structs.replace(last, wall_s=1.0, run_delay_s=0.5)
    assert is_worth_more(Series([*others, last]), 3)
    assert not is_worth_more(Series([*others, disturbed]), 3)


@pytest.mark.parametrize(("bound_s", "share"), [(0.009, "0.90%"), (0.011, ""), (math.inf, "")])
def test_what_saves_less_than_a_hundredth_of_the_step_is_named_with_its_bound(bound_s, share):
    why = why_negligible(bound_s, steps_of(1.0, 1.1, 0.9))
    assert share in why
    assert bool(why) is bool(share)


def steps_of(*seconds):
    return Series([Visit(subject="step", round=n, seconds=[s]) for n, s in enumerate(seconds)])


# Six to nine new processes of PyTorch.
@pytest.mark.deep
def test_a_real_step_is_broken_down():
    pytest.importorskip("torch")
    case = StepSpec(model="mnist", batch=4, phase="training", framework="torch", mode="eager")
    with Session(RunnerOptions(budget_s=0.01, threads=1, repetitions=1, estimate=True)) as session:
        found = whole(case, session)
    assert sum(one.seconds for one in found.terms) == pytest.approx(found.measured.median)
    assert found.measured == found.levels.step
    assert 2 + 4 <= found.processes <= 2 + 4 + 3  # coarse rounds, whole ones, further ones
    assert found.levels.native is not None
    assert found.levels.alone is not None
    assert sum(one.in_context_s for one in found.calls) + found.between_calls_s == pytest.approx(
        found.measured.median
    )
    modules = {one.module: one for one in found.modules}
    assert modules["conv1"].native_s
    names = {one.term.removeprefix("rest ") for one in found.terms}
    assert names >= {"limit", "kernels", "reorders", "between calls"}
    assert {one.term for one in found.terms} >= {"caches"}

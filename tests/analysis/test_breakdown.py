"""Breakdowns of tables of invented visits: terms sum to the step, and planted errors show."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace as replace_struct

from pydlbench.analysis.breakdown import break_down
from pydlbench.analysis.call_times import (
    ALONE,
    STEP,
    TRACED,
    Experiment,
    NativeKernel,
    StepParts,
)
from pydlbench.records.trace import ProgramCall
from pydlbench.study.table import Interference, SampleTable, Visit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.records.breakdown import Breakdown, Term

MS = 1e-3
ROUNDS = 8

CONVOLUTION = ProgramCall(
    operator="aten.convolution", module="conv1", direction="forward", signature="conv"
)
RELU = ProgramCall(operator="aten.relu", module="relu1", direction="forward", signature="relu")
VIEW = ProgramCall(operator="aten.view", module="flat", direction="forward", signature="view")
CALLS = (CONVOLUTION, RELU, CONVOLUTION, RELU, VIEW)


@dataclass
class Machine:
    """Invented seconds: of a step of two convolutions, two activations and a view.

    A step takes 40 ms: 30 in convolutions, 8 in activations, none in the view, 2 between calls.
    """

    in_context: list[float] = field(default_factory=lambda: [15 * MS, 4 * MS, 15 * MS, 4 * MS, 0.0])
    between: float = 2 * MS
    alone: dict[str, float] = field(
        default_factory=lambda: {"conv": 13 * MS, "relu": 3 * MS, "view": 0.0}
    )
    native: dict[str, float] = field(default_factory=lambda: {"nconv": 10 * MS, "nrelu": 2 * MS})
    limit: dict[str, float] = field(default_factory=lambda: {"nconv": 8 * MS, "nrelu": 2 * MS})
    tracing: float = 1.02
    noise: float = 0.0
    slow_rounds: tuple[int, ...] = ()
    slow: float = 1.0

    def table(self) -> SampleTable:
        """Return the visits of so many rounds."""
        table = SampleTable()
        noise = random.Random(1)
        for number in range(ROUNDS):
            drift = 1 + self.noise * noise.gauss(0, 1)
            beside = Interference()
            if number in self.slow_rounds:
                drift *= self.slow
                beside = Interference(fma=1 / self.slow)

            def add(
                subject: str,
                seconds: float,
                parts: tuple[float, ...] = (),
                number: int = number,
                beside: Interference = beside,
            ) -> None:
                table.add(
                    Visit(
                        subject=subject,
                        round=number,
                        seconds=[seconds],
                        parts=[parts] if parts else (),
                        interference=beside,
                        clock_hz=2e9,
                    )
                )

            step_s = drift * (sum(self.in_context) + self.between)
            add(STEP, step_s)
            scale = drift * self.tracing
            traced = tuple(scale * one for one in self.in_context)
            add(TRACED, scale * (sum(self.in_context) + self.between), traced)
            alone = tuple(drift * one for one in self.alone.values())
            add(ALONE, sum(alone), alone)
            for name, seconds in self.native.items():
                add(name, drift * seconds)
        return table

    def parts(self, **changes: object) -> StepParts:
        """Return what the columns are of."""
        native: Mapping[tuple[str, str], tuple[NativeKernel, ...]] = {
            ("conv", "forward"): (NativeKernel(subject="nconv", limit_s=self.limit["nconv"]),),
            ("relu", "forward"): (NativeKernel(subject="nrelu", limit_s=self.limit["nrelu"]),),
            ("view", "forward"): (),
        }
        known = {"calls": CALLS, "alone": tuple(self.alone), "native": native, **changes}
        return StepParts(**known)  # type: ignore[arg-type]  # fields by name


def terms(found: Breakdown) -> dict[str, Term]:
    return {one.term: one for one in found.terms}


def milliseconds(found: Breakdown) -> dict[str, float]:
    return {one.term: round(one.seconds / MS, 6) for one in found.terms}


def every_round(seconds: float) -> dict[int, float]:
    return dict.fromkeys(range(ROUNDS), seconds)


CACHES = Experiment(
    term="caches", level="in_context", seconds=every_round(5 * MS), how="called twice, hot and cold"
)
REORDERS = Experiment(
    term="reorders",
    level="alone",
    seconds=every_round(6 * MS),
    how="the library's log",
    signatures=frozenset({"conv"}),
)


def test_levels_and_terms_are_those_that_were_invented() -> None:
    machine = Machine()
    found = break_down(machine.table(), machine.parts())
    levels = found.levels
    assert [
        round(one.median / MS, 6)
        for one in (levels.limit, levels.native, levels.alone, levels.in_context, levels.step)
        if one is not None
    ] == [20, 24, 32, 38, 40]
    assert milliseconds(found) == {
        "limit": 20,
        "kernels": 4,
        "choice": 8,
        "context": 6,
        "between calls": 2,
    }
    assert found.between_calls_s == pytest.approx(2 * MS)
    assert found.unexplained is None
    assert found.not_measured == (
        "choice: no experiment covers all calls",
        "context: no experiment covers all calls",
    )


def test_terms_sum_to_the_step_whatever_the_noise() -> None:
    machine = Machine(noise=0.1)
    found = break_down(machine.table(), machine.parts(), [CACHES, REORDERS])
    assert sum(one.seconds for one in found.terms) == pytest.approx(found.levels.step.median)
    for one in found.terms:
        assert one.ci_low is not None
        assert one.ci_high is not None
        assert one.ci_low <= one.seconds <= one.ci_high


def test_what_tracing_costs_is_in_no_term() -> None:
    found = break_down(Machine(tracing=1.5).table(), Machine().parts())
    assert milliseconds(found) == milliseconds(break_down(Machine().table(), Machine().parts()))


def test_experiments_explain_and_what_they_leave_has_a_sign_and_an_interval() -> None:
    machine = Machine(noise=0.02)
    found = break_down(machine.table(), machine.parts(), [CACHES, REORDERS])
    # Of 6 ms of choice in convolutions all is reorders; of 6 ms of context 5 are caches.
    assert terms(found)["unexplained choice"].share == pytest.approx(0, abs=0.005)
    assert terms(found)["unexplained context"].seconds == pytest.approx(1 * MS, abs=0.3 * MS)
    assert terms(found)["choice of other calls"].kind == "difference"
    assert "choice: no experiment covers 3 of 5 calls" in found.not_measured
    assert found.unexplained == pytest.approx(1 / 40, abs=0.01)
    assert found.unexplained_low is not None
    assert found.unexplained_high is not None
    assert found.unexplained_low < found.unexplained < found.unexplained_high


def test_what_was_not_measured_is_left_out_of_unexplained() -> None:
    machine = Machine()
    missing = {"in_context": {"fresh memory": "nobody counts page faults here"}}
    found = break_down(machine.table(), machine.parts(), [CACHES], missing)
    assert terms(found)["rest of context"].kind == "difference"
    assert found.unexplained is None
    assert "fresh memory: nobody counts page faults here" in found.not_measured


def test_a_native_row_50_times_off_shows_in_kernels_and_is_named() -> None:
    machine = Machine(native={"nconv": 500 * MS, "nrelu": 2 * MS})
    found = break_down(machine.table(), machine.parts())
    assert terms(found)["kernels"].seconds == pytest.approx(984 * MS)
    assert "conv1 aten.convolution" in terms(found)["kernels"].detail
    assert terms(found)["choice"].seconds == pytest.approx(-972 * MS)
    assert len(found.contradictions) == 1
    assert "conv1 aten.convolution" in found.contradictions[0]


@pytest.mark.parametrize(("slow_rounds", "contradictions"), [((0, 1, 2), 2), (range(ROUNDS), 1)])
def test_slow_native_layers_are_named_together_where_most_rounds_were_disturbed(
    slow_rounds: Sequence[int], contradictions: int
) -> None:
    native = {"nconv": 130 * MS, "nrelu": 30 * MS}
    machine = Machine(native=native, slow_rounds=tuple(slow_rounds), slow=3.0)
    broken_down = break_down(machine.table(), machine.parts())
    assert len(broken_down.contradictions) == contradictions


# Of twice the same call: 6 ms more than the framework's 3 in each, of a step of 40.
@pytest.mark.parametrize(("shorter", "named"), [(1.0, True), (0.025, True), (0.01, False)])
def test_a_native_layer_contradicts_only_where_it_matters_for_the_step(
    shorter: float, named: bool
) -> None:
    machine = Machine(native={"nconv": 10 * MS, "nrelu": shorter * 9 * MS})
    machine.alone["relu"] *= shorter
    found = break_down(machine.table(), machine.parts())
    assert bool(found.contradictions) == named


def test_a_call_in_place_that_is_faster_contradicts_nothing() -> None:
    machine = Machine(native={"nconv": 10 * MS, "nrelu": 9 * MS})
    found = break_down(machine.table(), machine.parts())
    assert ["relu1" in one for one in found.contradictions] == [True]
    parts = replace(machine.parts(), in_place={(RELU.signature, RELU.direction)})
    found = break_down(machine.table(), parts)
    assert found.contradictions == ()
    assert any("2 calls (aten.relu)" in one for one in found.not_measured)


def test_a_log_of_five_seconds_shows_as_unexplained_time_below_zero() -> None:
    machine = Machine(noise=0.02)
    log = Experiment(term="reorders", level="alone", seconds=every_round(5.0), how="log")
    found = break_down(machine.table(), machine.parts(), [log])
    assert terms(found)["reorders"].seconds == pytest.approx(5.0)
    assert found.unexplained is not None
    assert found.unexplained < -100
    assert found.unexplained_high is not None
    assert found.unexplained_high < -100


@pytest.mark.parametrize(
    ("sleeps", "expected"),
    [
        ("step", {"unexplained context": 6, "unexplained choice": 2}),
        ("alone", {"unexplained context": -9, "unexplained choice": 12}),
        ("between", {"between calls": 7, "unexplained context": 1}),
    ],
)
def test_a_call_that_sleeps_5_ms_shows_where_it_slept(
    sleeps: str, expected: dict[str, float]
) -> None:
    machine = Machine()
    if sleeps == "step":
        machine.in_context[0] += 5 * MS
    elif sleeps == "alone":
        machine.alone["conv"] += 5 * MS
    else:
        machine.between += 5 * MS
    choice = Experiment(term="reorders", level="alone", seconds=every_round(6 * MS), how="log")
    found = break_down(machine.table(), machine.parts(), [CACHES, choice])
    measured = milliseconds(found)
    assert {name: measured[name] for name in expected} == pytest.approx(expected)
    if sleeps == "step":
        assert "conv1 aten.convolution" in terms(found)["unexplained context"].detail
        assert found.calls[0].module == "conv1"
        assert found.calls[0].in_context_s == pytest.approx(35 * MS)
        assert found.calls[0].alone_s == pytest.approx(26 * MS)


def test_interference_widens_intervals_and_moves_no_number() -> None:
    quiet, shared = Machine(noise=0.01), Machine(noise=0.01, slow_rounds=(1, 4), slow=2.0)
    alone = break_down(quiet.table(), quiet.parts()).levels.step
    found = break_down(shared.table(), shared.parts())
    beside = found.levels.step
    assert found.disturbed == 2
    assert alone is not None
    assert beside is not None
    assert alone.ci_high is not None
    assert beside.median == pytest.approx(alone.median, rel=0.03)
    assert beside.ci_high is not None
    assert beside.ci_high > 1.5 * alone.ci_high


def test_where_half_of_the_rounds_were_quiet_numbers_are_of_these() -> None:
    machine = Machine()
    table = machine.table()
    native = table.series("nconv")
    table.forget("nconv")
    step = table.series(STEP)
    table.forget(STEP)
    for visit in native:  # in three rounds somebody else slows the native kernel down, not the step
        slow = visit.round in (0, 2, 4)
        table.add(replace_struct(visit, seconds=[9 * visit.median if slow else visit.median]))
    for visit in step:
        seen = "somebody else" if visit.round in (0, 2, 4) else None
        table.add(replace_struct(visit, disturbance=seen))
    found = break_down(table, machine.parts())
    undisturbed = break_down(machine.table(), machine.parts())
    assert milliseconds(found)["choice"] == milliseconds(undisturbed)["choice"]
    choice = terms(found)["choice"]
    assert choice.ci_low is not None
    assert choice.ci_low < -100 * MS
    assert found.disturbed == 3
    assert sum(one.seconds for one in found.terms) == pytest.approx(found.levels.step.median)


def test_calls_without_a_layer_and_calls_not_run_alone_have_terms_of_their_own() -> None:
    machine = Machine()
    machine.alone.pop("view")
    machine.in_context[4] = 1 * MS
    native = {key: kernels for key, kernels in machine.parts().native.items() if key[0] != "relu"}
    parts = machine.parts(native=native, lacks={"aten.relu": "no rule"})
    found = break_down(machine.table(), parts)
    assert milliseconds(found) == {
        "limit": 16,
        "kernels": 4,
        "choice": 6,
        "calls without a native layer": 6,
        "context": 6,
        "calls that are not run alone": 1,
        "between calls": 2,
    }
    assert found.without_layer == ("aten.relu 6.000 ms (no rule)",)
    (missing,) = [one for one in found.not_measured if one.startswith("calls")]
    assert missing == "calls that are not run alone: aten.view"
    rows = {one.module: one for one in found.modules}
    assert rows["relu1"].native_s is None
    assert rows["relu1"].alone_s == pytest.approx(6 * MS)
    assert rows["flat"].alone_s is None


@pytest.mark.parametrize(("seconds", "limit"), [(0.5 * MS, 16 * MS), (5 * MS, None)])
def test_a_small_call_without_a_layer_does_not_hide_the_limit_of_its_module(
    seconds: float, limit: float | None
) -> None:
    machine = Machine()
    machine.in_context.append(seconds)
    machine.alone["add"] = seconds
    add = replace_struct(CONVOLUTION, operator="aten.add", signature="add")
    found = break_down(machine.table(), machine.parts(calls=(*CALLS, add)))
    rows = {row.module: row for row in found.modules}
    assert rows["conv1"].seconds == pytest.approx(30 * MS + seconds)
    assert rows["conv1"].limit_s == (None if limit is None else pytest.approx(limit))
    assert rows["conv1"].native_s is None


def test_without_calls_alone_lower_levels_have_reasons() -> None:
    machine = Machine()
    found = break_down(machine.table(), StepParts(calls=CALLS))
    assert found.levels.alone is None
    assert set(found.reasons) >= {"limit", "native", "alone"}
    assert sum(one.seconds for one in found.terms) == pytest.approx(40 * MS)


@pytest.mark.parametrize(
    ("module", "operator", "signature", "name"),
    [
        ("a", "aten.add", "aten.add.Tensor(float32[8](1), 2)", "a aten.add"),
        ("triton_...7", "triton_poi_fused_add_7", "triton_poi_fused_add_7()", "triton_...7"),
    ],
)
def test_a_kernel_of_a_compiler_is_named_once(
    module: str, operator: str, signature: str, name: str
) -> None:
    machine = Machine()
    call = replace_struct(RELU, module=module, operator=operator, signature=signature)
    calls = (CONVOLUTION, call, CONVOLUTION, call, VIEW)
    found = break_down(machine.table(), machine.parts(calls=calls))
    (term,) = (one for one in found.terms if one.term == "calls that are not run alone")
    assert term.detail.startswith(f"{name} +")


def test_native_layers_of_calls_that_are_not_run_alone_are_a_level() -> None:
    machine = Machine()
    native = {key: kernels for key, kernels in machine.parts().native.items() if key[0] == "conv"}
    found = break_down(machine.table(), machine.parts(alone=(), native=native))
    assert milliseconds(found) == {
        "limit": 16,
        "kernels": 4,
        "choice and context": 10,
        "calls without a native layer": 8,
        "between calls": 2,
    }
    levels = found.levels
    assert levels.native is not None
    assert levels.native.median == pytest.approx(20 * MS)
    assert levels.alone is None
    assert levels.in_context is not None
    assert levels.in_context.median == pytest.approx(38 * MS)
    assert found.unexplained is None
    rows = {row.module: row for row in found.modules}
    assert rows["conv1"].native_s == pytest.approx(20 * MS)
    assert rows["relu1"].native_s is None


def test_the_limit_follows_the_clock_of_the_round() -> None:
    machine = Machine()
    native = {
        ("conv", "forward"): (NativeKernel(subject="nconv", limit_s=8 * MS, limit_hz=4e9),),
    }
    found = break_down(machine.table(), machine.parts(native=native))
    assert found.levels.limit is not None
    assert found.levels.limit.median == pytest.approx(32 * MS)


def test_a_kernel_that_missed_a_round_has_its_median_there() -> None:
    machine = Machine()
    table = machine.table()
    series = table.series("nconv")
    table.forget("nconv")
    for visit in series:
        if visit.round != 3:
            table.add(visit)
    assert milliseconds(break_down(table, machine.parts()))["kernels"] == 4


def test_a_trace_of_other_calls_is_refused() -> None:
    machine = Machine()
    with pytest.raises(ValueError, match="4 parts"):
        break_down(machine.table(), machine.parts(calls=CALLS[:4]))
    table = machine.table()
    table.forget(STEP)
    with pytest.raises(ValueError, match="no "):
        break_down(table, machine.parts())


def test_a_hiccup_of_one_call_is_in_no_term() -> None:
    machine = Machine()
    table = machine.table()
    table.forget(ALONE)
    for number in range(ROUNDS):
        rows = [[13 * MS, 3 * MS, 0.0] for _ in range(3)]
        rows[0][0] += 5 * MS
        rows[1][1] += 4 * MS
        table.add(Visit(subject=ALONE, round=number, seconds=[0.0] * 3, parts=rows))
    assert milliseconds(break_down(table, machine.parts())) == milliseconds(
        break_down(machine.table(), machine.parts())
    )


def test_on_a_gpu_kernels_take_what_they_take_however_long_a_traced_step_waits() -> None:
    machine = Machine()
    table = machine.table()
    table.forget(TRACED)
    for number in range(ROUNDS):
        # Kernels of 38 ms; the device waits for the host for 1 to 40 ms.
        waits = [(1 + (7 * number + 13 * sample) % 40) * MS for sample in range(4)]
        parts = [(*machine.in_context, wait, 0.0, *machine.in_context) for wait in waits]
        seconds = [sum(machine.in_context) + wait for wait in waits]
        table.add(Visit(subject=TRACED, round=number, seconds=seconds, parts=parts))
    found = break_down(table, machine.parts(gaps=("idle", "no call")))
    in_context = found.levels.in_context
    assert in_context is not None
    assert (in_context.ci_low, in_context.ci_high) == pytest.approx((38 * MS, 38 * MS))
    assert milliseconds(found)["idle"] == 2


def test_calls_alone_of_another_number_are_refused() -> None:
    machine = Machine()
    with pytest.raises(ValueError, match="shorter"):
        break_down(machine.table(), machine.parts(alone=("conv", "relu", "view", "more")))


@pytest.mark.parametrize(
    ("behind", "caches"),
    [
        (3.5 * MS, 5),
        (6 * MS, 6),  # 3 ms longer, of which the step has 1: its operands are in caches there
    ],
)
def test_calls_that_run_twice_in_a_row_tell_what_caches_cost(behind: float, caches: float) -> None:
    machine = Machine()
    table = machine.table()
    table.forget(ALONE)
    for number in range(ROUNDS):
        # Behind others each of the two convolutions takes 2 ms longer.
        parts = [15 * MS, 13 * MS, behind, 3 * MS, 0.0, 0.0]
        table.add(Visit(subject=ALONE, round=number, seconds=[sum(parts)], parts=[parts]))
    found = break_down(table, machine.parts(repeats=2))
    measured = milliseconds(found)
    assert measured["caches"] == caches
    assert measured["unexplained context"] == 6 - caches
    assert measured["choice"] == 8

"""Which experiments a check has, and what it says where one shows nothing."""

from types import SimpleNamespace

import msgspec
import pytest
from invented_laps import laps

from pydlbench.backends.frameworks.verbose import parse
from pydlbench.backends.steps.groups import CallGroup
from pydlbench.backends.steps.operators import LoggedOperators
from pydlbench.errors import WorkerError
from pydlbench.ladder.check import added_up
from pydlbench.ladder.experiments import OTHERS, Group, LogVisits, StepLog, experiments
from pydlbench.ladder.laps import fitting
from pydlbench.ladder.ledger import Ladder
from pydlbench.records.check import Lap
from pydlbench.records.operator import OperatorsFacts, RecordedCall
from pydlbench.records.step import StepSpec
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.statistics import median

CALLS = (
    RecordedCall(signature="feed nhwc 2x1x28x28", operator="feed", names=("feed",)),
    RecordedCall(signature="a", operator="aten.convolution", count=5, names=("conv",)),
    RecordedCall(signature="a", operator="aten.convolution", count=2, direction="backward"),
)
FACTS = OperatorsFacts(once_s=1e-5, dispatch_s=2e-6, dispatch_samples=(1e-6, 2e-6, 4e-6))


GROUP = RecordedCall(signature=CallGroup(calls=("a", "b")).text, operator="conv+relu")


def tried(
    taken,
    *,
    mode="eager",
    framework="torch",
    feed="resident",
    logged=None,
    reorders_s=(),
    convolutions=0,
    allocating=True,
    groups=None,
    computed=0,
    **faults,
):
    """Return the experiments by name, and the notes."""
    case = StepSpec(model="mnist", batch=2, framework=framework, mode=mode, feed=feed)
    found, notes = experiments(
        case,
        Ladder.of(taken),
        calls=CALLS if mode != "xla" else (GROUP,),
        facts=FACTS,
        logged=logged or {},
        faults=faults,
        reorders_s=reorders_s,
        convolutions=convolutions,
        allocating=allocating,
        groups=groups,
        computed=computed,
    )
    return {one.term: one for one in found}, notes


def test_kept_pages_are_held_against_the_step_lap_by_lap():
    taken = laps(without=("operator_chain",))
    found, _ = tried(taken, counted=50_000.0, kept=12.0)
    fresh = found["fresh memory"]
    assert (fresh.rung, fresh.paired) == ("step", True)
    assert list(fresh.seconds.values()) == [
        one.seconds["step"] - one.seconds["step_kept"] for one in taken
    ]
    assert {"50000", "12"} <= set(fresh.how.split())


def test_with_a_chain_of_calls_fresh_pages_lie_below_it():
    taken = laps(operator_chain_kept=109.0)
    fresh = tried(taken)[0]["fresh memory"]
    assert fresh.rung == "operator_chain"
    assert list(fresh.seconds.values()) == [
        one.seconds["operator_chain"] - one.seconds["operator_chain_kept"] for one in taken
    ]


def test_they_lie_below_the_chain_though_only_the_step_was_run_with_kept_pages():
    taken = laps()
    fresh = tried(taken)[0]["fresh memory"]
    assert fresh.rung == "operator_chain"
    assert list(fresh.seconds.values()) == [
        one.seconds["step"] - one.seconds["step_kept"] for one in taken
    ]


def test_a_chain_that_allocates_nothing_leaves_them_to_the_step():
    found, _ = tried(laps(), allocating=False, counted=50_000.0, kept=12.0)
    assert found["fresh memory"].rung == "step"


def test_where_nobody_counted_faults_the_difference_is_all_that_is_known():
    found, _ = tried(laps())
    assert "fresh memory" in found


@pytest.mark.parametrize("counted", [0.0, 20.0])
def test_two_processes_without_fresh_pages_show_nothing_of_their_cost(counted):
    found, notes = tried(laps(), counted=counted, kept=0.0)
    assert "fresh memory" not in found
    assert any("fresh memory" in one for one in notes)


def test_parts_have_no_page_faults_where_the_step_has_too_few_to_cost_time():
    seconds = {"operators": 0.1, "feed": 0.01, "blocks": 0.03, "blocks_kept": 0.02, "step": 0.2}
    taken = [Lap(seconds=seconds)]
    faulting = {"counted": 50_000.0, "kept": 12.0}
    assert added_up(taken, faulting) == pytest.approx(0.12)
    assert added_up(taken, {"counted": None, "kept": None}) == pytest.approx(0.12)
    assert added_up(taken, {"counted": 0.0, "kept": 0.0}) == pytest.approx(0.11)


@pytest.mark.parametrize(("counted", "whole"), [(50_000.0, 0.12), (100_000.0, 0.13), (20.0, 0.11)])
def test_parts_have_as_many_page_faults_as_the_step(counted, whole):
    seconds = {"operators": 0.11, "blocks": 0.03, "blocks_kept": 0.02, "step": 0.2}
    faults = {"counted": counted, "kept": 0.0, "played": 50_000.0}
    assert added_up([Lap(seconds=seconds)], faults) == pytest.approx(whole)


@pytest.mark.parametrize("played", [None, 0.0, 3.0])
def test_blocks_without_page_faults_do_not_tell_what_one_costs(played):
    seconds = {"operators": 0.11, "blocks": 0.03, "blocks_kept": 0.02, "step": 0.2}
    faults = {"counted": 50_000.0, "kept": 0.0, "played": played}
    assert added_up([Lap(seconds=seconds)], faults) == pytest.approx(0.12)


def test_what_a_library_logged_is_held_against_the_rungs_lap_by_lap():
    taken = laps(logged_reorders=2.0)
    reorders = tried(taken, logged=LOGGED)[0]["layout reorders"]
    assert (reorders.rung, reorders.paired) == ("operators", True)
    assert list(reorders.seconds.values()) == [one.seconds["logged_reorders"] for one in taken]
    found, notes = tried(laps())
    assert "layout reorders" not in found
    assert any("reorders" in one for one in notes)


LOGGED = {"oneDNN convolution": 7, "oneDNN reorder": 9}
SIDES = {"logged_reorders": 1.0, "logged_convolutions": 60.0, "native_convolutions": 40.0}


def test_logged_convolutions_are_held_against_the_native_rows_that_stand_for_them():
    taken = laps(**SIDES)
    found, _ = tried(taken, logged=LOGGED, convolutions=7)
    slower = found["slower convolutions"]
    assert (slower.rung, slower.paired) == ("operators", True)
    assert list(slower.seconds.values()) == [
        one.seconds["logged_convolutions"] - one.seconds["native_convolutions"] for one in taken
    ]


def test_recorded_convolutions_are_held_against_all_layers_of_their_calls():
    """The library adds a bias in the convolution; natively it is a layer of its own."""
    found, _ = tried(laps(**SIDES, native_convolved=45.0), logged=LOGGED, convolutions=7)
    assert median(found["slower convolutions"].seconds.values()) == pytest.approx(
        0.015 * 1.1, rel=0.2
    )


def test_a_machine_that_becomes_slower_invents_no_slower_convolutions():
    taken = laps(count=16, **{**SIDES, "native_convolutions": 60.0})
    first, *_, last = (one.seconds["logged_convolutions"] for one in taken)
    assert last - first > 0.009
    found, _ = tried(taken, logged=LOGGED, convolutions=7)
    (term,) = (one for name, one in found.items() if "convolutions" in name)
    assert abs(median(term.seconds.values())) < 0.0003


def test_convolutions_that_are_faster_in_a_step_are_called_so():
    found, _ = tried(laps(**{**SIDES, "native_convolutions": 65.0}), logged=LOGGED, convolutions=7)
    assert "slower convolutions" not in found
    assert median(found["faster convolutions"].seconds.values()) < -0.004


def test_a_log_beside_which_the_cores_were_others_explains_nothing():
    def disturbed(one, share):
        return msgspec.structs.replace(one, canary={**one.canary, "log": share})

    taken = laps(**SIDES)
    some = [disturbed(one, 0.5 if number < 2 else 1.0) for number, one in enumerate(taken)]
    found, _ = tried(some, logged=LOGGED, convolutions=7)
    for name in ("layout reorders", "slower convolutions"):
        assert list(found[name].seconds) == list(range(2, 8))
    every = [disturbed(one, 0.5) for one in taken]
    found, notes = tried(every, logged=LOGGED, convolutions=7)
    assert not {"layout reorders", "slower convolutions"} & found.keys()
    assert any("layout reorders" in one and "disturbed" in one for one in notes)


@pytest.mark.parametrize(
    ("logged", "convolutions", "noted"),
    [
        (LOGGED, 6, True),  # one of them is somebody else's
        (LOGGED, 0, False),
        ({"oneDNN reorder": 9}, 7, False),
    ],
)
def test_logged_convolutions_that_are_not_those_of_the_rows_explain_nothing(
    logged, convolutions, noted
):
    found, notes = tried(laps(**SIDES), logged=logged, convolutions=convolutions)
    assert not any(one.endswith("convolutions") for one in found)
    assert any("slower convolutions" in one for one in notes) is noted


def test_reorders_of_the_native_chain_are_in_the_rung_below_and_taken_off():
    own = [0.003, 0.001, 0.002]
    found, _ = tried(laps(logged_reorders=4.0), logged=LOGGED, reorders_s=own)
    assert "layout reorders" in found
    assert list(found["reorders of the native chain"].seconds.values()) == [-0.003, -0.001, -0.002]
    assert found["reorders of the native chain"].rung == "operators"
    # Without a chain there is nothing to be taken off, nor where no log is.
    alone = laps(without=("native_chain",), logged_reorders=4.0)
    assert "reorders of the native chain" not in tried(alone, logged=LOGGED, reorders_s=own)[0]
    assert "reorders of the native chain" not in tried(laps(), reorders_s=own)[0]


def test_dispatch_is_for_each_operator_and_once_for_the_step():
    found, _ = tried(laps())
    assert list(found["dispatch"].seconds.values()) == pytest.approx(
        [7 * 1e-6 + 1e-5, 7 * 2e-6 + 1e-5, 7 * 4e-6 + 1e-5]
    )


def test_what_joining_saves_is_not_measured_where_calls_run_as_one():
    assert not any("fusion" in one for one in tried(laps())[1])
    assert any("fusion" in one for one in tried(laps(), framework="tensorflow", mode="xla")[1])


def test_what_is_fed_from_the_host_is_held_against_images_that_lie_there():
    found, _ = tried(laps(step_resident=110.0), feed="host")
    assert found["host transfer"].rung == "step"
    assert median(found["host transfer"].seconds.values()) == pytest.approx(0.0033, rel=0.2)
    assert "host transfer" not in tried(laps(step_resident=110.0))[0]


def test_what_calls_take_beside_the_kernels_that_they_log_is_an_experiment():
    taken = laps(logged_reorders=1.0, logged_around=5.0)
    around = tried(taken, logged=LOGGED, computed=3)[0]["around the library's kernels"]
    assert (around.rung, around.paired) == ("operators", True)
    assert list(around.seconds.values()) == pytest.approx(
        [one.seconds["logged_around"] - 3 * FACTS.dispatch_s for one in taken]
    )
    assert "around the library's kernels" not in tried(taken, logged=LOGGED)[0]


# --- calls that the library does not compute ------------------------------------------------------

GROUPED = {
    "operators_outside": 30.0,
    "native_outside": 18.0,
    "operators_mkl": 40.0,
    "native_mkl": 45.0,
    "operators_layerless": 6.0,
}
GROUPS = {"outside": Group(4, "aten.max_pool2d +1.2 ms"), "mkl": Group(2), "layerless": Group(1)}


def test_calls_of_other_kernels_are_held_against_their_native_layers_lap_by_lap():
    taken = laps(**GROUPED)
    found, _ = tried(taken, groups=GROUPS)
    outside = found["calls outside of oneDNN and MKL"]
    assert (outside.rung, outside.paired) == ("operators", True)
    assert outside.detail == GROUPS["outside"].detail
    assert list(outside.seconds.values()) == pytest.approx(
        [
            one.seconds["operators_outside"] - one.seconds["native_outside"] - 4 * FACTS.dispatch_s
            for one in taken
        ]
    )
    # MKL's may be faster than the library's.
    assert median(found["calls of MKL"].seconds.values()) < 0
    layerless = found["calls without a native layer"]
    assert list(layerless.seconds.values()) == pytest.approx(
        [one.seconds["operators_layerless"] - FACTS.dispatch_s for one in taken]
    )


def test_a_group_without_calls_or_that_no_lap_has_both_sides_of_explains_nothing():
    empty = {name: Group(0) for name in GROUPS}
    assert set(OTHERS.values()) <= tried(laps(**GROUPED), groups=GROUPS)[0].keys()
    assert tried(laps(**GROUPED), groups=empty)[0].keys().isdisjoint(OTHERS.values())
    apart = laps(operators_outside=30.0)
    assert "calls outside of oneDNN and MKL" not in tried(apart, groups=GROUPS)[0]


def test_groups_are_left_out_where_the_cores_were_others_beside_their_visit():
    def disturbed(one):
        return msgspec.structs.replace(one, canary={**one.canary, "native": 0.5})

    taken = [disturbed(one) if number < 2 else one for number, one in enumerate(laps(**GROUPED))]
    found, _ = tried(taken, groups=GROUPS)
    assert list(found["calls outside of oneDNN and MKL"].seconds) == list(range(2, 8))
    assert len(found["calls without a native layer"].seconds) == 8


# --- the log of steps -----------------------------------------------------------------------------

LINE = "onednn_verbose,v1,primitive,exec,cpu,{},jit,forward,src:f32::blocked:ab::f0,,,mb1,{}\n"


class Logging:
    """A worker, its kernel and its session: steps of half a second, half of it in a convolution."""

    def __init__(self, step_s=0.5):
        self.step_s = step_s
        self.asked, self.dead, self.written = [], False, ""

    def worker(self, framework, device, *, warm, logging):
        assert (framework, device, warm, logging) == ("tensorflow", "cpu", True, True)
        return self

    def build(self, _builder, _facts, **_words):
        return self

    def sample(self, request):
        self.asked.append(request)
        if self.dead:
            raise WorkerError("it\ndied")
        lines = [LINE.format("reorder", 10), *[LINE.format("convolution", 30)] * 7]
        self.written = "".join(lines * request.samples)
        return Chunk(seconds=(self.step_s,) * request.samples)

    def said(self):
        return self.written


STEP = StepSpec(model="mnist", batch=2, framework="tensorflow")


def test_a_visit_of_the_log_tells_what_reorders_and_convolutions_take_in_a_step():
    session = Logging()
    log = StepLog(STEP, session)
    assert log.executions == {"oneDNN convolution": 7, "oneDNN reorder": 1}
    visits = LogVisits(log)
    for _ in range(2):
        session.asked.clear()
        found = visits()
        assert found["logged_reorders"] == pytest.approx(0.01)
        assert found["logged_convolutions"] == pytest.approx(0.21)
    # One step that is not logged, and one that is.
    assert [one.samples + one.untimed for one in session.asked] == [1, 1]
    assert visits.notes() == []


def test_a_visit_of_the_log_has_as_many_steps_as_any_other():
    session = Logging(step_s=0.02)
    log = StepLog(STEP, session)
    log.logged()
    session.asked.clear()
    log.logged()
    usual = fitting(
        SimpleNamespace(sample=lambda request: Chunk(seconds=(0.02,) * request.samples))
    )
    assert sum(one.samples for one in session.asked) == usual.samples + usual.untimed


def test_a_visit_of_the_log_that_fails_costs_only_itself():
    session = Logging()
    visits = LogVisits(StepLog(STEP, session))
    visits()
    session.dead = True
    assert visits() == {}
    (said,) = visits.notes()
    assert said.endswith("it died")


class Planted:
    """An operator of a given time whose library logs given lines."""

    def __init__(self, ran, name, seconds, *lines):
        self.ran, self.name, self.seconds = ran, name, seconds
        self.lines = "".join(LINE.format(*one) for one in lines)

    def run(self):
        self.ran.append(self.name)
        return self.seconds


def test_logged_operators_have_four_times_each():
    ran = []
    conv = Planted(ran, "conv", 0.007, ("reorder", 2), ("convolution", 3), ("sum", 1))
    relu = Planted(ran, "relu", 0.001)

    def log(run):
        run()
        return parse((conv if ran[-1] == "conv" else relu).lines)

    operators = LoggedOperators([conv, relu], log, OperatorsFacts(), (0,))
    found = operators.sample(Request(samples=2, untimed=1)).seconds
    assert ran == ["conv", "relu", *["conv", "relu"] * 4]
    assert found == pytest.approx((0.007, 0.006, 0.002, 0.003, 0.001, 0.0, 0.0, 0.0) * 2)

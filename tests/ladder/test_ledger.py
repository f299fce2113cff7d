"""The ledger on invented laps: differences, experiments, and errors that are planted."""

import itertools
import math

import msgspec
import pytest
from invented_laps import RUNGS, laps

from pydlbench.ladder.ledger import LEAST, Experiment, conclude, refused, settled
from pydlbench.timing.statistics import median

ALL = ("limit", "native", "native_chain", "operators", "operator_chain", "step")


def by_lap(taken, upper, lower, factor=1.0):
    return {
        index: factor * (lap.seconds[upper] - lap.seconds[lower]) for index, lap in enumerate(taken)
    }


def kept(taken):
    """The A/B of kept pages, as the laps have it."""
    return Experiment(
        term="fresh memory", rung="step", seconds=by_lap(taken, "step", "step_kept"), how="A/B"
    )


def log(seconds):
    """A log of six steps."""
    return Experiment(
        term="layout reorders",
        rung="operators",
        seconds=dict.fromkeys(range(6), seconds),
        how="a log",
        paired=False,
    )


def terms(found):
    return {one.term: one for one in found.ledger}


def total(found):
    return sum(one.seconds for one in found.ledger)


def unexplained(found):
    return sum(one.seconds for one in found.ledger if one.kind == "unexplained")


def test_without_an_experiment_all_that_lies_between_rungs_is_a_difference():
    found = conclude(laps())
    kinds = [one.kind for one in found.ledger]
    assert kinds == ["limit", *["difference"] * 5]
    assert [one.between for one in found.ledger[1:]] == list(itertools.pairwise(ALL))
    assert math.isclose(total(found), found.rungs.step.median)
    assert found.unexplained is None
    assert found.contradictions == ()
    assert found.reasons == {}


def test_every_rung_has_the_interval_of_its_laps():
    taken = laps()
    found = conclude(taken)
    for name in ALL:
        rung, values = found.rungs.of(name), [lap.seconds[name] for lap in taken]
        assert rung.median == median(values)
        assert rung.n == len(taken)
        assert min(values) <= rung.ci_low < rung.median < rung.ci_high <= max(values)


def test_a_drift_of_the_machine_is_in_rungs_and_not_in_what_lies_between():
    found = conclude(laps())
    step, overhead = found.rungs.step, terms(found)["framework overhead"]
    assert (step.ci_high - step.ci_low) / step.median > 0.1
    assert 0.005 < overhead.ci_low < overhead.seconds < overhead.ci_high < 0.008


def test_an_experiment_explains_a_part_and_leaves_the_rest():
    taken = laps()
    found = conclude(taken, [log(0.002), kept(taken)])
    assert [one.kind for one in found.ledger] == [
        *("limit", "difference", "difference", "experiment", "unexplained"),
        *("difference", "experiment", "unexplained"),
    ]
    named = terms(found)
    assert named["layout reorders"].seconds == 0.002
    left = named["unexplained, operators above native"]
    gap = found.rungs.operators.median - found.rungs.native_chain.median
    assert math.isclose(left.seconds, gap - 0.002)
    assert left.ci_low <= left.seconds <= left.ci_high
    assert math.isclose(total(found), found.rungs.step.median)
    low, high = found.unexplained
    assert low <= unexplained(found) / found.rungs.step.median <= high
    assert found.contradictions == ()


def test_what_is_left_has_the_scatter_of_a_log_that_was_not_taken_in_the_laps():
    taken = laps()
    spread = {number: 0.001 * number for number in range(7)}
    scattered = Experiment(
        term="layout reorders", rung="operators", seconds=spread, how="a log", paired=False
    )
    still, found = conclude(taken, [log(0.003)]), conclude(taken, [scattered])
    before, left = (terms(one)["unexplained, operators above native"] for one in (still, found))
    own = terms(found)["layout reorders"]
    assert left.seconds == before.seconds
    for end, other in (("ci_low", "ci_high"), ("ci_high", "ci_low")):
        width = abs(getattr(left, end) - left.seconds)
        reach = abs(getattr(own, other) - own.seconds)
        assert math.isclose(width, math.hypot(abs(getattr(before, end) - left.seconds), reach))
    low, high = found.unexplained
    assert low < still.unexplained[0] < still.unexplained[1] < high


def test_a_cause_has_a_name_only_where_an_experiment_stands_behind_it():
    taken = laps()
    found = conclude(taken, [log(0.002), kept(taken)])
    causes = {one.term for one in found.ledger if one.kind == "experiment"}
    assert causes == {"layout reorders", "fresh memory"}


def test_a_rung_that_is_not_there_leaves_one_difference_between_its_neighbours():
    taken = laps(without=("native_chain", "operator_chain"))
    found = conclude(taken, [kept(taken)], {"native_chain": "nobody has built it"})
    assert found.rungs.native_chain is None
    assert found.reasons["native_chain"] == "nobody has built it"
    assert found.reasons.keys() == {"native_chain", "operator_chain"}
    between = [one.between for one in found.ledger]
    assert between == [
        *(("limit",), ("limit", "native"), ("native", "operators")),
        *(("operators", "step"), ("operators", "step")),
    ]
    assert math.isclose(total(found), found.rungs.step.median)


def test_an_experiment_below_an_unknown_rung_goes_to_the_next_one():
    taken = laps(without=("native", "native_hot", "native_cold", "limit", "operators"))
    found = conclude(taken, [log(0.001)])
    assert terms(found)["layout reorders"].between == ("native_chain", "operator_chain")
    assert found.ledger[0].term == "up to native chain"
    assert found.ledger[0].kind == "difference"


def test_below_six_laps_nothing_has_an_interval():
    taken = laps(LEAST - 1)
    found = conclude(taken, [kept(taken)])
    assert found.rungs.step.n == LEAST - 1
    assert found.rungs.step.ci_low is None
    assert all(one.ci_low is None for one in found.ledger)
    assert found.unexplained is None


# --- planted errors: each moves the ledger, or is refused -----------------------------------------


def test_native_rows_that_are_fifty_times_off_are_contradicted_by_the_chain():
    wrong = {f"native{end}": 50 * RUNGS[f"native{end}"] for end in ("", "_hot", "_cold")}
    taken = laps(**wrong)
    right, found = conclude(laps(), [log(0.002)]), conclude(taken, [log(0.002)])
    moved = terms(found)["layers above the limit"].seconds
    assert moved > 100 * terms(right)["layers above the limit"].seconds
    assert terms(found)["context of native layers"].seconds < -found.rungs.step.median
    assert len(found.contradictions) == 2  # against the chain, and against the step
    assert any("below the native sum" in one for one in found.contradictions)


def test_without_a_chain_they_are_contradicted_by_the_step_and_by_what_is_left():
    wrong = {f"native{end}": 50 * RUNGS[f"native{end}"] for end in ("", "_hot", "_cold")}
    found = conclude(laps(without=("native_chain",), **wrong), [log(0.002)])
    assert unexplained(found) < -found.rungs.step.median
    assert found.unexplained[1] < 0
    assert any("native layers alone" in one for one in found.contradictions)
    assert any("layout reorders explain more" in one for one in found.contradictions)


def test_native_rows_that_are_too_fast_are_below_their_limit():
    wrong = {f"native{end}": RUNGS[f"native{end}"] / 50 for end in ("", "_hot", "_cold")}
    found = conclude(laps(**wrong))
    assert terms(found)["layers above the limit"].ci_high < 0
    assert any("faster than its limit" in one for one in found.contradictions)
    assert any("above the native sum" in one for one in found.contradictions)


def test_a_log_of_five_seconds_leaves_less_than_nothing():
    found = conclude(laps(), [log(5.0)])
    assert terms(found)["layout reorders"].seconds == 5.0
    assert unexplained(found) < -4.9
    assert found.unexplained[1] < 0
    assert math.isclose(total(found), found.rungs.step.median)
    (said,) = found.contradictions
    assert said.startswith("layout reorders explain more than there is")


def test_two_experiments_on_the_same_seconds_are_too_much():
    taken = laps()
    twice = Experiment(
        term="once more", rung="step", seconds=by_lap(taken, "step", "step_kept", 2.0), how="A/B"
    )
    found = conclude(taken, [kept(taken), twice])
    assert any("fresh memory and once more" in one for one in found.contradictions)


@pytest.mark.parametrize("visit", ["native", "native_chain", "operators", "operator_chain"])
def test_a_rung_at_another_clock_is_refused(visit):
    found = conclude(laps(clock={visit: 3.4}))
    lost = {"limit", "native"} if visit == "native" else {visit}
    assert found.reasons.keys() == lost
    assert all(one.startswith("refused: the clock was below") for one in found.reasons.values())
    assert all(found.rungs.of(name) is None for name in lost)
    assert all(set(one.between) & lost == set() for one in found.ledger)
    assert math.isclose(total(found), found.rungs.step.median)


def test_a_rung_beside_a_slow_canary_is_refused_and_so_is_its_side_of_an_experiment():
    found = conclude(laps(canary={"operators": 0.6}))
    assert found.reasons.keys() == {"operators"}
    assert "canary" in found.reasons["operators"]


def test_a_step_that_is_refused_has_no_ledger():
    taken = laps(clock={"step": 3.0})
    found = conclude(taken, [kept(taken)])
    assert found.rungs.step is None
    assert found.ledger == ()
    assert found.unexplained is None
    assert found.rungs.operators is not None


def test_a_few_laps_beside_somebody_else_are_left_out_and_the_rest_is_enough():
    found = conclude(laps(9, canary={"operators": 0.5}, marked=3, operators=108.0))
    assert found.reasons == {}
    assert found.rungs.operators.n == 6
    assert found.rungs.step.n == 9
    found = conclude(laps(9, canary={"operators": 0.5}, marked=4))
    assert found.reasons.keys() == {"operators"}


def test_a_rung_is_short_of_laps_until_enough_of_them_are_undisturbed():
    slow = {"operators": 0.5}
    assert refused(laps(LEAST)) == set()
    assert "operators" in refused(laps(LEAST, canary=slow, marked=1))
    assert "step" not in refused(laps(LEAST, canary=slow, marked=1))
    assert refused(laps(LEAST + 1, canary=slow, marked=1)) == set()


def test_a_machine_whose_clock_changes_between_laps_is_the_same_one_within_each():
    slow = dict.fromkeys(("native", "native_chain", "operators", "operator_chain"), 3.0)
    slow |= {"step": 3.0, "step_kept": 3.0}
    assert conclude(laps(clock=slow, marked=4)).reasons == {}


def test_cores_that_were_shared_all_the_time_are_said_to_be():
    slow = dict.fromkeys(("native", "native_chain", "operators", "operator_chain"), 0.5)
    slow |= {"step": 0.5, "step_kept": 0.5}
    found = conclude(laps(canary=slow))
    assert found.disturbed
    assert found.reasons == {}
    assert not conclude(laps()).disturbed


def test_a_native_chain_that_is_slower_than_the_step_is_a_contradiction():
    found = conclude(laps(native_chain=130.0))
    assert terms(found)["operators above native"].ci_high < 0
    assert any("longer than the step" in one for one in found.contradictions)


@pytest.mark.parametrize(("chain", "side"), [(80.0, "below"), (98.0, "above")])
def test_the_native_sum_has_to_bracket_the_native_chain(chain, side):
    (said,) = conclude(laps(native_chain=chain, limit=70.0)).contradictions
    assert f"lies {side} the native sum" in said


def test_reorders_that_only_the_chain_has_are_allowed_for():
    assert conclude(laps(native_chain=98.0), outside_s=0.010).contradictions == ()
    (said,) = conclude(laps(native_chain=98.0), outside_s=None).contradictions
    assert "were not timed" in said


def test_calls_that_take_longer_without_modules_and_autograd_are_a_contradiction():
    (said,) = conclude(laps(operator_chain=125.0)).contradictions
    assert "without modules and autograd" in said


def test_what_starting_the_chains_calls_from_python_takes_is_allowed_for():
    taken = laps(operator_chain=125.0)
    assert conclude(taken, calling_s=0.012).contradictions == ()
    assert len(conclude(taken, calling_s=0.002).contradictions) == 1


def test_noise_contradicts_nothing():
    assert conclude(laps(operator_chain=117.0, native_chain=94.0)).contradictions == ()


#: A step that takes less than its layers one by one.
FUSED = {"operators": 70.0, "step": 74.0, "step_kept": 73.0}


@pytest.mark.parametrize("experiments", [(), (log(1e-4),)])
def test_a_fused_step_may_take_less_than_its_layers_one_by_one(experiments):
    """Not so one that computes them one by one, and no native chain either."""
    taken = laps(**FUSED, native_fusible=25.0, without=("operator_chain",))
    found = conclude(taken, experiments, fused=True)
    assert found.contradictions == ()
    (term,) = [one for one in found.ledger if one.kind == "fused"]
    assert (term.between, term.seconds < 0) == (("native_chain", "operators"), True)
    assert len(found.fused) == 3  # below the limit, the chain, and the sum with hot caches
    assert math.isclose(total(found), found.rungs.step.median)
    eager = conclude(taken, experiments)
    assert len(eager.contradictions) == 3 + len(experiments)
    assert eager.fused == ()
    assert "fused" not in {one.kind for one in eager.ledger}


@pytest.mark.parametrize("experiments", [(), (log(1e-4),)])
@pytest.mark.parametrize("without", [(), ("native_chain",)])
def test_a_product_s_native_row_fifty_times_off_is_more_than_a_fused_step_saves(
    without, experiments
):
    """One row of 10 ms takes 500: computing layers together never saves a product."""
    slow = {name: RUNGS[name] + 490.0 for name in ("native", "native_hot", "native_cold")}
    taken = laps(**{**FUSED, **slow}, native_fusible=25.0, without=("operator_chain", *without))
    found = conclude(taken, experiments, fused=True)
    assert terms(found)["layers above the limit"].seconds > 0.4
    assert any("take longer than the step" in one for one in found.contradictions)
    assert math.isclose(total(found), found.rungs.step.median)
    (saved,) = [one for one in found.ledger if one.kind == "fused"]
    if without:
        assert saved.seconds == pytest.approx(-0.0275, rel=0.01)  # the middle of a drift by 20 %
        assert found.unexplained[0] <= unexplained(found) / found.rungs.step.median
        assert unexplained(found) < -0.4
        assert found.unexplained[1] < 0
        assert any("computed together explain more" in one for one in found.contradictions)
    else:
        # The chain is below the sum of rows, in which nothing is computed together.
        assert terms(found)["context of native layers"].seconds < -0.4
        assert any("below the native sum" in one for one in found.contradictions)


def test_without_any_row_of_a_layer_that_could_be_fused_nothing_is_excused():
    found = conclude(laps(**FUSED, without=("operator_chain",)), fused=True)
    assert found.fused == ()
    assert unexplained(found) < 0
    assert len(found.contradictions) == 4  # the limit, the chain, the hot sum, and what is left


def test_a_step_that_is_not_below_its_layers_has_nothing_fused():
    assert conclude(laps(), fused=True).fused == ()


def steady(count=8, drift=0.0, **changed):
    """Laps of a machine that is slower by another drift at their end."""
    return [
        msgspec.structs.replace(
            lap,
            seconds={
                name: seconds * (1 + drift * place / (count - 1)) / (1 + 0.2 * place / (count - 1))
                for name, seconds in lap.seconds.items()
            },
        )
        for place, lap in enumerate(laps(count, **changed))
    ]


@pytest.mark.parametrize(("drift", "enough"), [(0.0, True), (0.004, True), (0.05, False)])
def test_laps_are_enough_once_all_intervals_are_narrow(drift, enough):
    assert settled(steady(drift=drift)) is enough


def test_laps_are_not_enough_while_a_rung_is_refused_or_a_difference_is_not_known():
    assert settled(steady(6))
    assert not settled(steady(5))
    refusing = steady(canary={"step": 0.5})
    assert "step" in refused(refusing)
    assert not settled(refusing)
    jumping = [
        msgspec.structs.replace(one, seconds={**one.seconds, "operators": 0.1 + 0.01 * (n % 2)})
        for n, one in enumerate(steady())
    ]
    assert not settled(jumping)

"""Visits: what a row makes of the medians of several, on invented samples."""

import pytest

from pydlbench.timing.policy import Policy
from pydlbench.timing.procedure import Round, Samples
from pydlbench.timing.stopping import WarmupOutcome
from pydlbench.timing.visits import VISITS, joined, more_wanted, visit_of, visit_policy

_STEADY = WarmupOutcome(reason="steady", seconds=0.01, detail="")


def _visit(seconds: float, *, contended: bool = False) -> Samples:
    return Samples(
        seconds=(seconds,) * 8,
        all_seconds=(seconds,) * 8,
        discarded=0,
        clock_hz=None,
        contended=contended,
        contention_reason="somebody else" if contended else None,
        stop_reason="precision",
        stop_detail="",
        warmup=_STEADY,
        rounds=(Round(index=0, seconds=seconds, clock_hz=None),),
        inner=1,
        retries=0,
        spent_s=0.1,
        confidence=0.95,
    )


def _visits(*seconds: float) -> dict[int, Samples]:
    return {lap: _visit(one) for lap, one in enumerate(seconds)}


def test_a_row_is_the_median_of_its_visits_however_many_samples_each_has():
    found = joined(_visits(1.0, 1.1, 1.2, 1.3, 1.4, 9.0), VISITS, processes=6)

    assert found.median == pytest.approx(1.25)
    assert found.visits == (1.0, 1.1, 1.2, 1.3, 1.4, 9.0)
    assert [visit_of(one.index) for one in found.rounds] == [0, 1, 2, 3, 4, 5]
    assert (found.stop_reason, found.processes) == ("visits", 6)


@pytest.mark.parametrize(("disturbed", "contended"), [(0, False), (2, False), (3, True), (6, True)])
def test_half_of_the_visits_disturbed_are_in_the_median(disturbed, contended):
    taken = {
        lap: _visit(2.0 if lap < disturbed else 1.0, contended=lap < disturbed) for lap in range(6)
    }
    found = joined(taken, VISITS)

    assert found.contended is contended
    assert (found.contention_reason is None) is not contended
    # What is not flagged is what the undisturbed visits say.
    assert contended or found.median == 1.0


def test_a_row_with_fewer_visits_than_wanted_is_interrupted():
    assert joined(_visits(1.0, 1.0), VISITS).stop_reason == "interrupted"
    with pytest.raises(ValueError, match="no visits"):
        joined({}, VISITS)


def test_a_row_is_visited_until_its_medians_agree_or_its_budget_has_no_room():
    policy = Policy(budget_s=2.0)
    alike = _visits(*[1.0] * VISITS)
    apart = _visits(1.0, 1.0, 1.1, 1.1, 1.2, 1.2)

    assert more_wanted(_visits(*[1.0] * (VISITS - 1)), policy, VISITS, cost_s=100.0)
    assert not more_wanted(alike, policy, VISITS, cost_s=0.6)
    assert more_wanted(apart, policy, VISITS, cost_s=0.6)
    assert not more_wanted(apart, policy, VISITS, cost_s=1.9)
    assert not more_wanted(_visits(1.0), policy, 1, cost_s=0.0)


def test_visits_share_the_budget_of_their_row():
    policy = Policy(budget_s=3.0)

    assert visit_policy(policy, 1) == policy
    assert VISITS * visit_policy(policy, VISITS).budget_s == pytest.approx(policy.budget_s)

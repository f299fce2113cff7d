"""Which experiments a check has, and what it says where one shows nothing."""

import pytest
from invented_laps import laps

from pydlbench.ladder.experiments import experiments
from pydlbench.ladder.ledger import Ladder
from pydlbench.ladder.operators import cut
from pydlbench.records.operator import RecordedCall
from pydlbench.records.step import StepSpec
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.timing.statistics import median

CALLS = (
    RecordedCall(signature="{}", operator="feed", names=("feed",)),
    RecordedCall(signature="a", operator="aten.convolution", count=5, names=("conv",)),
    RecordedCall(signature="a", operator="aten.convolution", count=2, direction="backward"),
)
FACTS = OperatorsFacts(once_s=1e-5, dispatch_s=2e-6, dispatch_samples=(1e-6, 2e-6, 4e-6))


def tried(
    taken,
    *,
    mode="eager",
    framework="torch",
    feed="resident",
    log=None,
    reorders_s=(),
    convolutions=(0, 0.0),
    allocating=True,
    **faults,
):
    """Return the experiments by name, and the notes."""
    case = StepSpec(model="mnist", batch=2, framework=framework, mode=mode, feed=feed)
    found, notes = experiments(
        case,
        Ladder.of(taken),
        calls=CALLS if mode == "eager" else cut(case),
        facts=FACTS,
        log=log or {},
        faults=faults,
        reorders_s=reorders_s,
        convolutions=convolutions,
        allocating=allocating,
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


def test_what_a_library_logged_has_the_scatter_of_its_steps():
    found, _ = tried(laps(), log={"reorders": [0.001, 0.002, 0.003]})
    reorders = found["layout reorders"]
    assert (reorders.rung, reorders.paired) == ("operators", False)
    assert median(reorders.seconds.values()) == 0.002
    found, notes = tried(laps())
    assert "layout reorders" not in found
    assert any("reorders" in one for one in notes)


LOGGED = {
    "reorders": [0.001] * 3,
    "convolutions": [0.05, 0.07, 0.06],
    "executions": {"convolution": 7, "reorder": 9},
}


def test_logged_convolutions_are_held_against_the_native_rows_that_stand_for_them():
    found, _ = tried(laps(), log=LOGGED, convolutions=(7, 0.04))
    slower = found["slower convolutions"]
    assert (slower.rung, slower.paired) == ("operators", False)
    assert list(slower.seconds.values()) == pytest.approx([0.01, 0.03, 0.02])


@pytest.mark.parametrize(
    ("log", "convolutions", "noted"),
    [
        (LOGGED, (6, 0.04), True),  # one of them is somebody else's
        (LOGGED, (0, 0.0), False),
        ({"reorders": [0.001] * 3, "convolutions": [0.0] * 3, "executions": {}}, (7, 0.04), False),
    ],
)
def test_logged_convolutions_that_are_not_those_of_the_rows_explain_nothing(
    log, convolutions, noted
):
    found, notes = tried(laps(), log=log, convolutions=convolutions)
    assert "slower convolutions" not in found
    assert any("slower convolutions" in one for one in notes) is noted


def test_reorders_of_the_native_chain_are_in_the_rung_below_and_taken_off():
    log, own = {"reorders": [0.004] * 6}, [0.003, 0.001, 0.002]
    found, _ = tried(laps(), log=log, reorders_s=own)
    assert median(found["layout reorders"].seconds.values()) == 0.004
    assert list(found["reorders of the native chain"].seconds.values()) == [-0.003, -0.001, -0.002]
    assert found["reorders of the native chain"].rung == "operators"
    # Without a chain there is nothing to be taken off, nor where no log is.
    bare, _ = tried(laps(without=("native_chain",)), log=log, reorders_s=own)
    assert "reorders of the native chain" not in bare
    assert "reorders of the native chain" not in tried(laps(), reorders_s=own)[0]


def test_dispatch_is_for_each_operator_and_once_for_the_step():
    found, _ = tried(laps())
    assert list(found["dispatch"].seconds.values()) == pytest.approx(
        [7 * 1e-6 + 1e-5, 7 * 2e-6 + 1e-5, 7 * 4e-6 + 1e-5]
    )


def test_what_joining_saves_is_an_experiment_where_both_were_run():
    found, _ = tried(laps(operators_apart=110.0), framework="tensorflow", mode="graph")
    assert median(found["fusion"].seconds.values()) == pytest.approx(-0.0022, rel=0.2)
    found, notes = tried(laps(), framework="tensorflow", mode="graph")
    assert "fusion" not in found
    assert any("fusion" in one for one in notes)


def test_what_is_fed_from_the_host_is_held_against_images_that_lie_there():
    found, _ = tried(laps(step_resident=110.0), feed="host")
    assert found["host transfer"].rung == "step"
    assert median(found["host transfer"].seconds.values()) == pytest.approx(0.0033, rel=0.2)
    assert "host transfer" not in tried(laps(step_resident=110.0))[0]

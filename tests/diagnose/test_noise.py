"""Noise is no finding, and a step that was disturbed is known better later."""

import pytest
from planted import World, run


@pytest.mark.parametrize("seed", range(12))
def test_noise_alone_is_no_finding(seed):
    # Far more noise than any threshold, and a dozen experiments.
    world = World(noise=0.1, seed=seed, efficiency=0.1, bound="compute", step_s=0.05)
    found = run(world, phase="training", model="mnist")
    assert found.findings == ()
    assert len(found.tried) > 8


def test_a_disturbed_step_is_known_better_once_something_ran_beside_it():
    # Disturbed, the step takes ten times as long: fc1's loss would be less than 1 % of it.
    world = World(step_s=0.05, disturbed=9.0, reorder_s=0.02, unpacked_s={"fc1": 0.004})
    found = run(world, layout="nchw", explained=False)
    assert any("other work disturbed the step" in note for note in found.notes)
    assert found.step.time.median > 0.7
    reorders, slow = found.findings
    assert (reorders.problem, slow.problem) == ("layout reorders", "slow operators")
    assert reorders.saving.seconds == pytest.approx(0.02, rel=0.05)
    assert slow.saving.seconds == pytest.approx(0.004, rel=0.05)
    assert slow.saving.share == pytest.approx(0.004 / 0.074, rel=0.05)

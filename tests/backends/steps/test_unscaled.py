"""What a step in float16 says about its gradients."""

import pytest

from pydlbench.backends.steps.definition import UNSCALED, StepModel
from pydlbench.records.step import StepSpec


class Bare(StepModel):
    """A model of which nothing is asked."""

    prepare = load = exchange = fed = None


@pytest.mark.parametrize(
    ("precision", "phase", "said"),
    [
        ("fp16-tc", "training", True),
        ("fp16-tc", "forward-backward", True),
        ("fp16-tc", "forward", False),
        ("bf16-tc", "training", False),
    ],
)
def test_gradients_in_float16_are_not_scaled(monkeypatch, precision, phase, said):
    monkeypatch.setattr(Bare, "__abstractmethods__", frozenset())
    made = Bare(StepSpec(model="mnist", device="cuda:0", precision=precision, phase=phase))
    assert (UNSCALED in made.notes) is said

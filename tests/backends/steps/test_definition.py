"""From a case to the definition of its step."""

import pytest
import tiny

from pydlbench.backends.steps.definition import check_trainable, definition_of
from pydlbench.errors import UsageError
from pydlbench.records.step import StepSpec


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            {"phase": "forward"},
            {"propagation": "inference", "loss": "none", "optimizer": "none", "fetch": ()},
        ),
        (
            {"phase": "forward-backward", "fetch": True, "feed": "host"},
            {
                "propagation": "training",
                "loss": "unregularised",
                "optimizer": "none",
                "fetch": ("gradients",),
                "feed": "host",
            },
        ),
        (
            {"phase": "training", "fetch": True},
            {"loss": "model", "optimizer": "model", "fetch": ("loss",), "keep_loss": True},
        ),
        (
            {"phase": "training", "dropout": False, "running_statistics": True},
            {"drops": False, "batch_statistics": False, "propagation": "training"},
        ),
    ],
)
def test_a_cases_step(words, expected):
    found = definition_of(StepSpec(model="chain", **words), tiny.chain())
    assert found.phase == words["phase"]
    assert {name: getattr(found, name) for name in expected} == expected
    assert not found.input_gradient


def test_images_have_a_gradient_where_the_model_says_so():
    cases = [StepSpec(model="maps", phase=phase) for phase in ("forward", "forward-backward")]
    assert [definition_of(case, tiny.maps()).input_gradient for case in cases] == [False, True]


def test_what_has_no_optimizer_is_not_trained():
    check_trainable(tiny.chain(), "another")
    with pytest.raises(UsageError, match="nearest: another"):
        check_trainable(tiny.maps(), "another")
    with pytest.raises(UsageError, match="nearest: --phase forward-backward"):
        definition_of(StepSpec(model="maps", phase="training"), tiny.maps())

"""Whether a step has room, and the largest batch that does."""

import re

import pytest

from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.records.step import StepSpec
from pydlbench.steps.run import check_memory, check_memory_of_parts

STEP = StepSpec(model="vgg11", phase="training", framework="torch")


def largest(message):
    return int(re.search(r"nearest: --batch (\d+)", message)[1])


def test_what_does_not_fit_is_refused_with_the_largest_batch_that_does():
    with pytest.raises(UsageError, match="vgg11 at batch 5000: ") as refused:
        check_memory(build_model("vgg11", 5000), STEP, 24 << 30)
    batch = largest(str(refused.value))
    assert 1 < batch < 5000
    check_memory(build_model("vgg11", batch), STEP, 24 << 30)
    with pytest.raises(UsageError):
        check_memory(build_model("vgg11", batch + 1), STEP, 24 << 30)


def test_a_breakdown_needs_room_for_five_steps():
    """The step, traced, with kept pages; and a log and operands, which compiled steps have not."""
    with pytest.raises(UsageError) as alone:
        check_memory(build_model("vgg11", 5000), STEP, 24 << 30)
    with pytest.raises(UsageError, match="for 5 times") as checked:
        check_memory_of_parts(build_model("vgg11", 5000), STEP, 24 << 30)
    assert 0.05 < largest(str(checked.value)) / largest(str(alone.value)) < 1 / 5
    compiled = StepSpec(model="vgg11", phase="training", framework="torch", mode="compiled")
    with pytest.raises(UsageError, match="for 3 times") as checked:
        check_memory_of_parts(build_model("vgg11", 5000), compiled, 24 << 30)
    assert 0.2 < largest(str(checked.value)) / largest(str(alone.value)) < 1 / 3
    for model, times in (("vgg11", 3), ("resnet50", 4)):
        forward = StepSpec(model=model, phase="forward", framework="torch", mode="compiled")
        with pytest.raises(UsageError, match=f"for {times} times"):
            check_memory_of_parts(build_model(model, 9000), forward, 24 << 30)
    check_memory_of_parts(build_model("vgg11", 5000), STEP, None)


def test_a_model_that_never_fits_has_no_batch_to_name():
    with pytest.raises(UsageError, match="nearest: a smaller model"):
        check_memory_of_parts(build_model("vgg11", 1), STEP, 1 << 30)


def test_on_a_gpu_three_processes_hold_weights_on_the_host_and_no_activations():
    step = StepSpec(model="vgg16", phase="training", framework="torch", device="cuda:0")
    weights = 138_357_544 * 4
    # Three processes, each with three copies of the weights and two of their gradients.
    needed = 3 * 600_000_000 + 3 * 5 * weights
    model = build_model("vgg16", 100_000)
    check_memory_of_parts(model, step, int(1.01 * needed))
    with pytest.raises(UsageError, match=r"for 3 times .* nearest: a smaller model"):
        check_memory_of_parts(model, step, int(0.99 * needed))

"""What JAX's steps have of their own: state that is given away, parts of a step, a GPU's queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tiny

from pydlbench.backends.steps.definition import StepDefinition, definition_of
from pydlbench.backends.steps.inputs import make_batch, make_weights
from pydlbench.backends.steps.serving import serve_step
from pydlbench.backends.steps.timed_calls import CallCosts
from pydlbench.calls.groups import CallGroup, step_groups
from pydlbench.errors import UnsupportedError
from pydlbench.records.step import StepPreparation, StepSpec

if TYPE_CHECKING:
    from pydlbench.models.graph import Model

pytest.importorskip("jax")


def built(model: Model, **words: Any) -> Any:
    """Return a model in JAX, and the definition of a case's step."""
    from pydlbench.backends.jax.step import JaxModel

    case = StepSpec(model=model.name, framework="jax", **words)
    made = JaxModel(model, make_weights(model), case, make_batch(model))
    return made, definition_of(case, model)


@pytest.mark.deep
def test_an_update_takes_the_memory_of_what_it_replaces():
    """Weights, velocities and the key of dropout are given to the step, and it gives new ones."""
    made, definition = built(tiny.chain(), phase="training")
    before = dict(made.state["trained"]), made.state["key"]
    made.prepare(definition)()
    assert all(one.is_deleted() for one in before[0].values())
    assert before[1].is_deleted()
    assert not any(one.is_deleted() for one in made.state["trained"].values())
    made.initialize()
    np.testing.assert_array_equal(
        made.net.plain("conv1/weights", np.asarray(made.state["trained"]["conv1/weights"])),
        make_weights(made.model)["conv1/weights"],
    )


@pytest.mark.deep
def test_dropout_draws_anew_in_each_step_and_scales_what_it_keeps():
    from pydlbench.backends.steps.network import NetworkRun

    made, definition = built(tiny.chain(), phase="forward-backward")
    from pydlbench.backends.jax.settings import jax

    ones = jax.numpy.ones((64, 16))

    def dropped(seed: int) -> Any:
        run = NetworkRun({}, definition, jax.random.key(seed))
        return np.asarray(made.net.apply(made.model["drop1"], [ones], run))

    kept = dropped(1)
    assert set(np.unique(kept)) == {0.0, 2.0}
    assert 0.4 < (kept > 0).mean() < 0.6
    assert (kept != dropped(2)).any()
    step = made.prepare(definition)
    first = np.asarray(jax.random.key_data(made.state["key"]))
    step()
    assert (np.asarray(jax.random.key_data(made.state["key"])) != first).any()


def test_a_group_computes_what_its_equations_do():
    from pydlbench.backends.jax.calls import linked_calls, trace_step
    from pydlbench.backends.jax.settings import jax

    made, definition = built(tiny.chain(), phase="forward")
    program = trace_step(made.prepare(definition))
    operators = [one.operator for one in program.members]
    text, calls = next(
        (text, calls)
        for text, calls in step_groups(program.members, program.kept)
        if program.members[calls[-1]].names == ("conv2/relu",)
    )
    assert operators[calls[0]] == "conv_general_dilated"
    group = CallGroup.read(text)
    body, operands = linked_calls([program.equations[call] for call in calls], group)
    images, filters, bias = operands
    (found,) = body(*operands)
    convolution = program.equations[calls[0]]
    expected = convolution.primitive.bind(images, filters, **convolution.params) + bias
    np.testing.assert_allclose(found, jax.nn.relu(expected), rtol=1e-5, atol=1e-5)
    assert (np.asarray(found) == 0).any()


def test_repetitions_have_operands_of_their_own_and_share_a_call(monkeypatch):
    from pydlbench.backends.jax import calls
    from pydlbench.backends.jax.settings import jax, jax_device

    seen: list[Any] = []

    def body(value: Any) -> list[Any]:
        seen.append(value)
        return [value * 2.0]

    operand = jax.numpy.ones(3)
    asked: list[tuple[int, int]] = []

    def empty(operands: int, results: int) -> Any:
        asked.append((operands, results))
        return SimpleNamespace(run=lambda: 1.0)

    part = calls.repeat(jax_device("cpu", "fp32"), body, [[operand], [operand]], CallCosts(empty))
    assert len(seen) == 2
    assert asked == [(2, 1)]
    monkeypatch.setattr(calls.TimedCall, "run", lambda _: 5.0)
    assert part.run() == (5.0 - 1.0) / 2


@pytest.mark.parametrize(
    "words",
    [
        {"loss": "output", "phase": "backward-data"},
        {"zero_fill": True},
        {"weights": "host"},
    ],
)
def test_what_published_scripts_do_is_refused(words):
    made, _ = built(tiny.chain())
    definition = StepDefinition(**{"name": "script", "phase": "forward", **words})
    with pytest.raises(UnsupportedError, match="step script: published scripts"):
        made.prepare(definition)


@pytest.mark.deep
@pytest.mark.parametrize("precision", ["tf32", "bf16-tc"])
def test_a_step_on_a_gpu_is_queued_and_waited_for(backend_of, monkeypatch, precision):
    """A GPU that is none: the platform is the CPU's, all else as on a card."""
    from pydlbench.backends.jax import settings

    device = settings.choose("cpu")
    monkeypatch.setattr(settings, "choose", lambda _: device)
    model = tiny.branches()
    case = StepSpec(
        model=model.name, phase="training", framework="jax", precision=precision, device="cuda:0"
    )
    kernel = serve_step(backend_of("jax"), case, StepPreparation(), model)
    assert {one.name: one.detail for one in kernel.facts.checks if one.status != "ok"} == {}
    assert kernel.facts.timing == "host-sync"
    assert kernel.facts.environment["gpu"]["name"] == device.device_kind
    made, definition = built(
        model, phase="training", precision=precision, device="cuda:0", cast="whole"
    )
    step = made.prepare(definition)
    step()
    waited: list[bool] = []
    step._last = type("Loss", (), {"block_until_ready": lambda _: waited.append(True)})()
    made.synchronize()
    assert waited == [True]
    narrow = {"tf32": "float32", "bf16-tc": "bfloat16"}[precision]
    types = {name: str(one.dtype) for name, one in made.state["trained"].items()}
    assert types["right/weights"] == narrow
    assert types["stem/bn/bias"] == "float32"

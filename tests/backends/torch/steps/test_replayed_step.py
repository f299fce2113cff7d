"""Whether a replayed step does what the recorded step does."""

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.steps.serving import model_of  # noqa: E402 - needs torch
from pydlbench.backends.torch.backend import create  # noqa: E402 - not installed everywhere
from pydlbench.backends.torch.steps.profiled import ReplayedStep, below_autograd, compose  # noqa: E402 - needs torch
from pydlbench.backends.torch.steps.recording import by_module, record  # noqa: E402 - needs torch
from pydlbench.errors import UnsupportedError  # noqa: E402 - needs torch
from pydlbench.records.step import StepSpec  # noqa: E402 - needs torch


def differing(recording, step, parameters):
    """Run step and replay from the same state; return what they leave behind differently."""
    state = list(recording.given.values())
    before = [one.clone() for one in state]

    def after(run):
        with torch.no_grad():
            for one, value in zip(state, before, strict=True):
                one.copy_(value)
        torch.manual_seed(0)
        returned = run()
        return returned, [one.detach().clone() for one in state]

    _, expected = after(step)
    gradients = [one.grad.clone() for one in parameters if one.grad is not None]
    with below_autograd():
        kept, found = after(compose(recording))
    pairs = list(zip(found, expected, strict=True))
    # Gradients are what outlives the step, in the order in which autograd comes to them.
    pairs += [
        (next((x for x in kept if x.shape == one.shape and torch.allclose(x, one)), 0 * one), one)
        for one in gradients
    ]
    return [one for found, one in pairs if not torch.allclose(found, one, rtol=1e-5, atol=1e-9)]


def test_gradients_and_state_are_the_steps(odd):
    made = odd()
    assert differing(made.record(), made.step, made.parameters) == []


def test_a_replay_with_another_scalar_differs(odd):
    made = odd()
    recording = made.record()
    call = next(one for one in recording.calls if one.keywords.get("alpha") == -0.1)
    call.keywords = {"alpha": -0.11}
    assert differing(recording, made.step, made.parameters) != []


def test_a_replay_that_frees_too_early_cannot_run(odd):
    recording = odd().record()
    recording.calls[0].freed.append(recording.calls[0].results.number)
    with pytest.raises(RuntimeError, match="None"):
        compose(recording)()


def test_a_replayed_step_keeps_what_outlives_the_step_and_nothing_else(odd):
    made = odd()
    replayed = ReplayedStep(made.record())
    trace = replayed.trace()
    assert 0 < sum(trace.calls_s) < trace.step_s
    weights = {one.untyped_storage()._cdata for one in made.parameters}
    kept = {one.untyped_storage()._cdata for one in replayed.results} - weights
    assert len(kept) == len(made.parameters)  # their gradients


def test_a_sparse_gradient_is_said_to_be_in_the_way():
    table = torch.nn.Embedding(50, 4, sparse=True)
    words = torch.tensor([1, 3, 3])
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        table(words).sum().backward()
        optimizer.step()

    step()
    recording = record(step, naming=by_module(table), parameters={table.weight: "table"})
    assert any("sparse" in one.signature for one in recording.calls)
    with pytest.raises(UnsupportedError, match="sparse"):
        compose(recording)


@pytest.mark.parametrize(
    ("name", "batch", "phase"),
    [
        ("mnist", 4, "forward"),
        ("mnist", 4, "training"),
        pytest.param("resnet18", 2, "training", marks=pytest.mark.deep),
        pytest.param("densenet121", 1, "training", marks=pytest.mark.deep),
    ],
)
def test_replays_of_the_catalogues_models_do_what_their_steps_do(name, batch, phase):
    case = StepSpec(model=name, batch=batch, phase=phase)
    with model_of(create("cpu"), case) as made:
        recorded = made.record()
        assert differing(recorded.recording, recorded.step, made.parameters) == []

"""Whether a chain computes what its step computes, and says so where it cannot."""

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.steps import operations  # noqa: E402
from pydlbench.backends.torch.backend import create  # noqa: E402 - not installed everywhere
from pydlbench.backends.torch.chain import Chain, compose, verify  # noqa: E402
from pydlbench.backends.torch.recording import by_module, record  # noqa: E402
from pydlbench.errors import PrimitiveError, UnsupportedError  # noqa: E402
from pydlbench.records.step import StepSpec  # noqa: E402
from pydlbench.timing.chunk import Request  # noqa: E402


def test_results_gradients_and_state_are_the_steps_bit_by_bit(odd):
    made = odd()
    recording = made.record()
    before = [one.detach().clone() for one in made.parameters]
    checks = {one.name: one for one in verify(recording, made.step, made.parameters)}
    assert {one.status for one in checks.values()} == {"ok"}
    assert checks["results"].detail == "2 of 2 bit by bit"
    assert (
        checks["gradients"].detail == f"{len(made.parameters)} of {len(made.parameters)} bit by bit"
    )
    # Nothing of it is left in the weights.
    assert all(torch.equal(a, b) for a, b in zip(before, made.parameters, strict=True))


def test_a_chain_with_another_scalar_is_refused(odd):
    made = odd()
    recording = made.record()
    call = next(one for one in recording.calls if one.keywords.get("alpha") == -0.1)
    call.keywords = {"alpha": -0.11}
    with pytest.raises(PrimitiveError, match="state"):
        verify(recording, made.step, made.parameters)


def test_a_chain_that_updates_no_weight_is_refused_however_small_the_update():
    layer = torch.nn.Linear(8, 4)
    images = torch.rand(2, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)

    def step():
        optimizer.zero_grad()
        loss = layer(images).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step()
    parameters = {layer.weight: "weight", layer.bias: "bias"}

    def anew():
        return record(step, naming=by_module(layer), parameters=parameters, optimizer=optimizer)

    assert {one.status for one in verify(anew(), step, parameters)} == {"ok"}
    recording = anew()
    recording.calls = [one for one in recording.calls if one.direction != "optimizer"]
    with pytest.raises(PrimitiveError, match="state"):
        verify(recording, step, parameters)


def test_a_gradient_that_no_recorded_call_makes_is_refused(odd):
    made = odd()
    recording = made.record()
    first = next(iter(made.parameters))
    first.grad = torch.zeros_like(first)
    with pytest.raises(PrimitiveError, match=f"gradient of {made.parameters[first]}"):
        verify(recording, made.step, made.parameters)


def test_a_chain_that_frees_too_early_cannot_run(odd):
    recording = odd().record()
    recording.calls[0].freed.append(recording.calls[0].results.number)
    with pytest.raises(RuntimeError, match="None"):
        compose(recording)()


def test_a_chain_keeps_what_outlives_the_step_and_nothing_else(odd):
    made = odd()
    recording = made.record()
    chain = Chain(recording)
    chain.run()
    weights = {one.untyped_storage()._cdata for one in made.parameters}
    kept = {one.untyped_storage()._cdata for one in chain._left} - weights
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


@pytest.mark.parametrize("phase", ["forward", "training"])
def test_a_catalogue_models_chain_has_one_time_and_says_what_it_was_checked_against(phase):
    case = StepSpec(model="mnist", batch=4, phase=phase).to_dict()
    kernel = operations.prepare_chain(create("cpu"), case)
    chunk = kernel.sample(Request(samples=3, untimed=1))
    assert len(chunk.seconds) == 3
    assert kernel.facts.dispatch_s > 0
    assert [one.status for one in kernel.facts.checks] == ["ok"] * 3
    assert sum(one.count for one in kernel.facts.calls) == int(kernel.facts.how.split()[0])


def test_compiled_modes_have_no_recording():
    case = StepSpec(model="mnist", batch=4, mode="compiled").to_dict()
    with pytest.raises(UnsupportedError, match="eager"):
        operations.prepare_chain(create("cpu"), case)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "batch"), [("alexnet-owt", 2), ("resnet18", 2), ("densenet121", 1)]
)
def test_chains_of_large_models_compute_what_their_steps_do(name, batch):
    case = StepSpec(model=name, batch=batch, phase="training").to_dict()
    kernel = operations.prepare_chain(create("cpu"), case)
    assert {one.status for one in kernel.facts.checks} == {"ok"}

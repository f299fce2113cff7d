"""The chain of a step on a GPU, from the graph to a kernel, on an invented native module."""

import fake_cuda
import numpy as np
import pytest
import tiny

from pydlbench.backends.native.links import list_step
from pydlbench.backends.native.model_chain import prepare_model
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.step import StepSpec
from pydlbench.timing.chunk import Request


@pytest.fixture
def chains(monkeypatch):
    """Chains that the backend makes, channels last being the fastest way."""
    made = fake_cuda.Chain.made
    made.clear()
    times = {"channels_last": 1e-3, "channels_first": 2e-3, "chosen": 3e-3}
    monkeypatch.setattr(fake_cuda.Chain, "times", times)
    monkeypatch.setattr(fake_cuda.Chain, "fails", "")
    return made


def prepare(backend, **words):
    case = StepSpec(model="chain", device="cuda:3", **words)
    return lambda **how: prepare_model(backend, tiny.chain(), case, **how)


def test_the_fastest_way_is_timed_as_one_graph(backend, chains):
    kernel = prepare(backend)()

    facts = kernel.facts
    assert (facts.timing, facts.layouts) == ("cuda-graph", "channels last")
    assert facts.tried == {"channels last": 0.5e-3, "channels first": 1e-3, "as each row": 1.5e-3}
    assert [one.layouts.name for one in chains] == ["channels_last", "channels_first", "chosen"]
    assert facts.library == "CUDA 13.0"
    assert {one.seconds for one in facts.steps} == {1e-3}
    assert facts.loaded == ("input as acdb",)

    chunk = kernel.sample(Request(samples=3, inner=2, untimed=1))
    assert chunk.seconds == (0.5e-3,) * 3
    assert chains[0].requests[-1] == (3, 2, 1, True)


def test_a_chain_that_cannot_be_captured_is_timed_between_events(backend, chains, monkeypatch):
    monkeypatch.setattr(fake_cuda.Chain, "fails", "capture")
    kernel = prepare(backend)()

    assert kernel.facts.timing == "events"
    assert kernel.facts.tried["channels last"] == 1e-3
    # The other ways are not asked for a graph again.
    assert not any(graph for *_, graph in chains[1].requests)
    kernel.sample(Request(samples=1))
    assert chains[0].requests[-1] == (1, 1, 0, False)
    with pytest.raises(PrimitiveError):
        prepare(backend)(timing="cuda-graph")


@pytest.mark.usefixtures("chains")
def test_how_it_is_timed_can_be_said(backend):
    assert prepare(backend)(timing="events").facts.timing == "events"
    with pytest.raises(UnsupportedError, match="steady"):
        prepare(backend)(timing="steady")


@pytest.mark.usefixtures("chains")
def test_a_stream_without_a_gate_is_noted(backend, monkeypatch):
    gated = prepare(backend)().facts.notes
    monkeypatch.setattr(fake_cuda.Chain, "gated", False)
    assert len(prepare(backend)().facts.notes) == len(gated) + 1


def test_links_are_those_of_the_step_with_the_fastest_rows_as_choices(backend, chains):
    listing = list_step(tiny.chain(), "forward")
    prepare(backend)(choices={})
    links = chains[0].links
    assert [one.name for one in links] == [one.name for one in listing.links]
    assert {one.pass_ for one in links} == {"forward-inference"}
    prepare(backend)(choices={links[0].problem: "engine 1 nhwc"})
    assert chains[-1].links[0].choice == "engine 1 nhwc"
    assert chains[-1].links[1].choice == ""


def test_output_and_gradients_are_read_by_name(backend, chains, monkeypatch, tmp_path):
    model = tiny.chain()
    listing = list_step(model, "forward")
    output = np.arange(model.batch * model.output.shape[0], dtype=np.float32)
    results = {listing.output: output}
    monkeypatch.setattr(fake_cuda.Chain, "results", results, raising=False)
    prepare(backend)(save=tmp_path / "native")

    saved = np.load(tmp_path / "native" / "0.npy")
    np.testing.assert_array_equal(saved.reshape(-1), output)
    assert saved.shape[0] == model.batch
    assert chains[0].kept == {listing.output}


def test_only_float32_has_a_chain(backend):
    with pytest.raises(UnsupportedError, match="tf32"):
        prepare(backend, precision="tf32")()

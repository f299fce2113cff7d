"""Chains on a GPU: the same numbers as on a CPU, as a stream and as a graph."""

import importlib
from typing import Any

import numpy as np
import pytest
import tiny

from pydlbench.backends.native.links import list_step
from pydlbench.backends.native.model_chain import NativeChain, prepare_model
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.step import StepSpec
from pydlbench.timing.chunk import Request

pytestmark = pytest.mark.gpu

WAYS = ("channels last", "channels first", "as each row")


MODELS = {"chain": tiny.chain, "joins": lambda: tiny.joins(left=4, right=1)}


@pytest.fixture(scope="module")
def backend():
    pytest.importorskip("pydlbench._cuda", reason="built without CUDA")
    module = importlib.import_module("pydlbench.backends.native.cuda")
    try:
        return module.create("cuda:0")
    except UnsupportedError as error:
        pytest.skip(str(error))


def error(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_output_and_gradients_are_those_of_a_cpu(backend, name, phase, way):
    pytest.importorskip("pydlbench._cpu")
    listing = list_step(MODELS[name](), phase, dropout=False)
    wanted = NativeChain(listing, "channels last")
    wanted.chain.run()
    gradients = dict(wanted.gradients())
    made = NativeChain(listing, way, chains=backend.chains())

    # Twice from the first weights: nothing of the first run is left in the second.
    for _ in range(2):
        made.chain.load()
        made.chain.run()
        assert error(made.output(), wanted.output()) < 1e-5
        for tensor, gradient in made.gradients():
            assert error(gradient, gradients[tensor]) < 1e-4, tensor
    if phase == "training":
        assert made.check_update().status == "ok"


@pytest.mark.parametrize("timing", ["events", "cuda-graph"])
def test_a_chain_is_a_kernel_to_be_sampled(backend, timing):
    case = StepSpec(model="chain", phase="training", device="cuda:0")
    kernel = prepare_model(backend, tiny.chain(), case, timing=timing)

    assert kernel.facts.timing == timing
    assert [one.status for one in kernel.facts.checks] == ["ok"]
    assert min(one.seconds for one in kernel.facts.steps) > 0
    chunk = kernel.sample(Request(samples=3, inner=2))
    assert len(chunk.seconds) == 3
    assert min(chunk.seconds) > 0


def test_a_graph_computes_what_the_stream_does(backend):
    made = NativeChain(list_step(tiny.chain(), "forward"), WAYS[0], chains=backend.chains())
    made.chain.run()
    output = made.output()
    chain: Any = made.chain
    chain.sample(1, graph=True)
    np.testing.assert_array_equal(made.output(), output)


def relus(cuda: Any, device: Any, count: int) -> Any:
    """A chain of so many kernels that hand one tensor on."""
    fields = build_layer("relu", channels=4, height=8, width=8).problem_fields()
    links = [
        cuda.Link(
            name=f"relu {i}",
            problem="relu",
            kind="pointwise",
            fields=fields,
            pass_="forward-inference",
            reads={"src": f"x{i}"},
            writes={"dst": f"x{i + 1}"},
        )
        for i in range(count)
    ]
    offers = cuda.Offers(device, "fp32", 1 << 30)
    given = {"x0": np.linspace(-1, 1, 256, dtype=np.float32)}
    return cuda.Chain(offers, links, given, {f"x{count}"}, cuda.Layouts.channels_last)


@pytest.mark.parametrize("count", [1, 256, 257, 768, 769])
def test_a_chain_of_more_kernels_than_the_launch_queue_takes_has_no_gate(backend, count):
    cuda = importlib.import_module("pydlbench._cuda")
    chain = relus(cuda, backend.device, count)
    assert chain.gated == (count <= 768)
    for graph in (False, True):
        raw = chain.sample(2, graph=graph)
        assert min(raw["seconds"]) > 0
        assert raw["gate_timeouts"] == 0
    assert len(chain.step_seconds()) == count
    wanted = np.maximum(np.linspace(-1, 1, 256, dtype=np.float32), 0)
    np.testing.assert_array_equal(chain.tensor(f"x{count}"), wanted)
    # Two tensors at a time, however many there are; the last one is kept.
    assert chain.memory["shared"] <= 2 * 1024


def test_narrow_formats_have_no_chain(backend):
    cuda = importlib.import_module("pydlbench._cuda")
    with pytest.raises(UnsupportedError, match="fp16"):
        cuda.Offers(backend.device, "fp16", 1 << 30)

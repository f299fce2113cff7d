"""JAX on the CPU, through the backend: every kind and pass, verified against the reference."""

from __future__ import annotations

import problems
import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.verification.inputs import make_inputs
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.pointwise import Pointwise
from pydlbench.records.specs import KernelSpec
from pydlbench.timing.chunk import Request

pytest.importorskip("jax")

CONV = Conv2d.of(batch=1, in_channels=2, in_size=5, out_channels=3, kernel=3, padding=1)
# XLA compiles each: these are of every kind, and use every field of a shape.
_DEFAULT = ("groups, dilation", "batched product", "max", "avg, padding counted")


@pytest.fixture(scope="module")
def backend():
    from pydlbench.backends.jax.backend import create

    return create("cpu")


@pytest.mark.parametrize(("name", "pass_"), problems.each_pass(_DEFAULT))
def test_every_variant_of_every_pass_is_right(backend, name, pass_):
    case = KernelSpec(layer=problems.LAYERS[name], pass_=pass_, backend="jax", mode="xla")
    facts = backend.prepare(case, Preparation(seed=3, all_candidates=True)).facts
    assert [one["status"] for one in facts.candidates] == ["ok", "ok"]
    assert all(one["correct"]["unwritten"] == 0 for one in facts.candidates)
    assert len({one["layout"] for one in facts.candidates}) == 2
    assert facts.library.startswith("JAX ")


def test_a_row_is_named_after_what_xla_made_of_it(backend):
    facts = backend.prepare(KernelSpec(layer=CONV, backend="jax"), Preparation()).facts
    function, _, behind = facts.algorithm.partition(": ")
    assert function == "lax.conv_general_dilated"
    assert "f32" in behind
    assert facts.evidence["kernel"] == f"XLA {behind}"
    (chosen,) = [one for one in facts.candidates if one["chosen"]]
    assert chosen["algorithm"] == facts.algorithm


def test_a_gradient_computes_nothing_of_the_forward_pass(backend):
    """One convolution each, and a maximum's gradient reads what the forward pass read."""
    for pass_ in ("backward-data", "backward-weights"):
        case = KernelSpec(layer=CONV, pass_=pass_, layout="nhwc")
        (variant,) = [one for one in backend.variants(case) if one.variant == "nhwc"]
        operator = variant.build(make_inputs(CONV, pass_, "fp32", 1))
        assert operator.program().count(" convolution(") == 1


def test_calls_are_samples_that_end_with_their_result(backend):
    kernel = backend.prepare(KernelSpec(layer=CONV), Preparation())
    chunk = kernel.sample(Request(samples=3, inner=2, untimed=1))
    assert len(chunk.seconds) == 3
    assert min(chunk.seconds) > 0
    assert chunk.threads == len(backend.cpus)


def test_a_wrong_function_is_a_failure(backend, monkeypatch):
    from pydlbench.backends.jax import layers

    right = layers.lax.conv_general_dilated

    def wrong(*operands, **words):
        return right(*operands, **words).at[0, 1, 1, 1].add(0.01)

    monkeypatch.setattr(layers.lax, "conv_general_dilated", wrong)
    with pytest.raises(PrimitiveError, match=r"right result: dst\["):
        backend.prepare(KernelSpec(layer=CONV), Preparation())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "bf16"}, "XLA converts narrower operands to float32"),
        ({"mode": "eager"}, "no mode eager"),
        ({"timing": "events"}, "for GPUs"),
        ({"fuse": "bias"}, "no function for --fuse bias"),
        ({"cache": "all-cold"}, "hot caches only"),
        ({"layout": "blocked"}, "no operator with --layout blocked"),
        ({"layer": Pointwise(op="relu", batch=1, channels=2, height=2, width=2)}, "no relu layers"),
    ],
)
def test_what_it_lacks_is_one_sentence(backend, changes, sentence):
    case = KernelSpec(**{"layer": CONV, **changes})
    with pytest.raises(UnsupportedError, match=sentence):
        backend.prepare(case, Preparation())


def test_it_has_nothing_for_gpus():
    from pydlbench.backends.jax.backend import create

    with pytest.raises(UnsupportedError, match="on CPUs so far"):
        create("cuda:0")


def test_the_empty_call_is_a_call(backend):
    assert backend.empty("xla").outputs()["dst"].tolist() == [0.0]
    assert backend.probe("empty_call", {"mode": "xla", "samples": 3, "inner": 2})["seconds"] > 0
    assert backend.describe()["threads"] == len(backend.cpus)

"""Memory-bound layers through TensorFlow: every operation, pass, precision, format and mode."""

from __future__ import annotations

import numpy as np
import problems
import pytest

from pydlbench.backends.base import Preparation
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import OPS, build_layer, ops_of_kind
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.verification.inputs import make_inputs

BY_OP = problems.POINTWISE
STEPS = [
    step
    for step in problems.steps_by_mode("graph", "xla")
    if step.values[0][0].op not in problems.TORCH_ONLY
]


def test_every_operation_is_tried():
    """But those in place, which TensorFlow does not have."""
    known = set(ops_of_kind("pointwise"))
    assert set(BY_OP) == {op for op in known if not op.endswith("-in-place")}


@pytest.mark.parametrize("op", sorted(problems.TORCH_ONLY))
def test_what_tensorflow_lacks_is_refused_by_name(backend, op):
    spec = KernelSpec(layer=BY_OP[op], pass_="forward", precision="fp32", mode="graph")
    with pytest.raises(UnsupportedError, match=f"no {op} layers here"):
        backend.prepare(spec, Preparation(seed=3))


@pytest.mark.product
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("step", "mode"), STEPS)
def test_right(backend, monkeypatch, step, precision, mode):
    layer, pass_, propagation = step
    words = {"layer": layer, "pass_": pass_, "propagation": propagation}
    monkeypatch.setattr(backend, "_isa", frozenset({"avx512_bf16"}))
    monkeypatch.setattr(backend, "complete_facts", lambda facts, *_: facts)
    seen = []
    for variant, facts in problems.every_variant(
        backend, monkeypatch, precision=precision, mode=mode, **words
    ):
        assert facts.correct.status == "ok", (variant.algorithm, variant.layout, facts.correct)
        assert "not compared" not in facts.correct.detail
        assert facts.correct.points >= np.prod(layer.shapes()[layer.result(pass_)])
        seen.append(variant.variant)
    images = {"nhwc"} if layer.op == "lrn" else {"nchw", "nhwc"}
    assert set(seen) == ({"plain"} if OPS[layer.op].in_one_order else images)


@pytest.mark.parametrize("op", ["relu", "momentum"])
def test_the_whole_way_names_what_is_behind(backend, op):
    kernel = backend.prepare(KernelSpec(layer=BY_OP[op], mode="graph"), Preparation())
    name = {"relu": "Relu", "momentum": "ResourceApplyMomentum"}[op]
    assert kernel.facts.algorithm.startswith(name)
    assert kernel.facts.correct.status == "ok"
    assert min(kernel.sample(ChunkRequest(samples=3, inner=2)).seconds) > 0


@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("op", ["sgd", "momentum", "batchnorm"])
def test_updates_do_not_drift(backend, op, mode):
    layer = BY_OP[op]
    case = KernelSpec(layer=layer, mode=mode, propagation="training")
    variant = backend.variants(case)[0]
    operator = variant.build(make_inputs(layer, "forward", "fp32", 3, propagation="training"))
    before = operator.outputs()
    variables = [one for one in operator.operands if hasattr(one, "assign")]
    values = [one.numpy() for one in variables]
    backend.clock(operator).sample(ChunkRequest(samples=3, inner=50))
    moved = np.abs(variables[0].numpy() - values[0]).max()
    # One step of an SGD is at most rate * |gradient|, one with a velocity rate * 10 * |gradient|.
    assert 0 < moved < {"sgd": 0.011, "momentum": 0.11, "batchnorm": 1.5}[op]
    assert operator.function.experimental_get_tracing_count() == 1
    after = operator.outputs()
    for role, array in before.items():
        assert np.array_equal(array, after[role]), role


def test_a_small_probability_at_the_label_keeps_its_digits(backend):
    layer = build_layer("softmax-xent", batch=4, channels=5000)
    facts = backend.prepare(KernelSpec(layer=layer), Preparation()).facts
    assert facts.correct.status == "ok"


def test_many_sources_are_split_and_few_are_sliced(backend):
    for count, name in ((16, "Slice"), (17, "SplitV")):
        layer = build_layer("concat", batch=2, channels=count, sources=(1,) * count)
        case = KernelSpec(layer=layer, pass_="backward-data", layout="nhwc")
        facts = backend.prepare(case, Preparation()).facts
        assert facts.algorithm.startswith(name)
        assert facts.correct.status == "ok"


def test_a_normalisation_without_an_operator_for_a_format_says_so(backend):
    with pytest.raises(UnsupportedError, match="--layout nchw"):
        backend.prepare(KernelSpec(layer=BY_OP["lrn"], layout="nchw"), Preparation())

"""Convolutions and products with a bias in one graph, and the gradients of both."""

from __future__ import annotations

from typing import Any

import pytest
from this_cpu import HAS_BF16

from pydlbench.backends.base import Preparation
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

THOROUGH = Preparation(seed=3, all_candidates=True)
CONV = build_layer(
    "conv", batch=2, in_channels=3, in_size=(7, 6), out_channels=5, kernel=3, padding=1
)
UNEVEN = build_layer(
    "conv",
    batch=2,
    in_channels=3,
    in_size=(7, 6),
    out_channels=5,
    kernel=(3, 2),
    padding=(1, 0, 2, 1),
)
GEMM = build_layer("gemm", m=5, k=7, n=3)
BATCHED = build_layer("gemm", m=4, k=3, n=5, src_batch=(2, 1), weights_batch=(1, 3))


@pytest.mark.product
@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("pass_", ["forward", "backward-weights"])
@pytest.mark.parametrize("layer", [CONV, UNEVEN, GEMM, BATCHED], ids=lambda layer: layer.problem)
def test_right(backend, monkeypatch, layer, pass_, precision, mode):
    if precision == "bf16" and not HAS_BF16:
        pytest.skip("TensorFlow sums in bf16 on this CPU")
    monkeypatch.setattr(backend, "_isa", frozenset({"avx512_bf16"}))
    monkeypatch.setattr(backend, "complete_facts", lambda facts, *_: facts)
    case = KernelSpec(layer=layer, pass_=pass_, precision=precision, mode=mode, fuse="bias")
    facts = backend.prepare(case, THOROUGH).facts
    assert facts.correct.status == "ok"
    wrong = [one for one in facts.candidates if (one["correct"] or {}).get("status") == "failed"]
    if precision == "fp32":
        assert wrong == []
    if pass_ == "backward-weights":
        assert "; bias: " in facts.correct.detail


def test_sums_in_bfloat16_are_known_as_such(backend, monkeypatch):
    monkeypatch.setattr(backend, "_isa", frozenset({"avx512_bf16"}))
    found = {}
    for mode in ("graph", "xla"):
        words = {"layer": CONV, "precision": "bf16", "mode": mode, "fuse": "bias"}
        variants = backend.variants(KernelSpec(pass_="backward-weights", **words))
        found[mode] = {(one.accumulate, one.bias_accumulate) for one in variants}
    assert found == {"graph": {("float32", "bfloat16")}, "xla": {("float32", "float32")}}


@pytest.mark.parametrize(("layer", "kernel"), [(CONV, "FusedConv2D"), (GEMM, "FusedMatMul")])
def test_a_graph_is_fused(backend, layer, kernel):
    case = KernelSpec(layer=layer, mode="graph", fuse="bias")
    facts = backend.prepare(case, Preparation()).facts
    assert "BiasAdd" in facts.algorithm
    assert kernel in facts.algorithm


@pytest.mark.parametrize("what", ["left out", "of another channel"])
def test_a_wrong_bias_is_found(backend, monkeypatch, what):
    from pydlbench.backends.tensorflow.layers import layer_pass as with_bias

    real = with_bias.tf.nn.bias_add

    def wrong(value: Any, bias: Any, data_format: str) -> Any:
        return value if what == "left out" else real(value, bias[::-1], data_format)

    monkeypatch.setattr(with_bias.tf.nn, "bias_add", wrong)
    for layer in (CONV, GEMM):
        with pytest.raises(PrimitiveError, match=r"result: .* expected"):
            backend.prepare(KernelSpec(layer=layer, fuse="bias"), Preparation())


def test_where_there_is_no_bias(backend):
    case = KernelSpec(layer=GEMM, pass_="backward-data", fuse="bias")
    with pytest.raises(UnsupportedError, match="--fuse bias: backward-data"):
        backend.prepare(case, Preparation())

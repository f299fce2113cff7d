"""What frameworks compute for ops of any number of sides is right."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from right_results import drawn, judged

from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

LAYERS = (
    build_layer("conv", batch=2, in_channels=4, in_size=(9,), out_channels=6, kernel=3, padding=1),
    build_layer(
        "conv", batch=2, in_channels=4, in_size=(5, 6, 7), out_channels=6, kernel=3, stride=2
    ),
    build_layer(
        "conv",
        batch=2,
        in_channels=4,
        in_size=(5, 6, 7),
        out_channels=6,
        kernel=(3, 2, 1),
        padding=(0, 1, 0, 1, 1, 1),
    ),
    build_layer("deconv", batch=2, in_channels=4, in_size=(9,), out_channels=6, kernel=3, stride=2),
    build_layer(
        "deconv", batch=2, in_channels=4, in_size=(4, 5, 3), out_channels=6, kernel=3, stride=2
    ),
    build_layer("pool", batch=2, channels=3, in_size=(9,), kernel=3, stride=2),
    build_layer("pool", batch=2, channels=3, in_size=(7, 9, 5), kernel=3, stride=2, padding=1),
    build_layer("pool", batch=2, channels=3, in_size=(7, 8, 5), kernel=3, stride=2, mode="avg"),
    build_layer("rmsnorm", batch=3, channels=6, height=5, width=4),
    build_layer("softmax", batch=3, channels=6, height=5, width=4, axis=1),
    build_layer("log-softmax", batch=3, channels=6, height=5, width=4, axis=2),
    build_layer("cumsum", batch=3, channels=6, height=5, width=4, axis=1),
    build_layer("groupnorm", batch=3, channels=6, height=5, width=4, groups=6),
    build_layer("prelu", batch=3, channels=6, height=5, width=4, shared=True),
    build_layer("attention", batch=2, heads=4, kv_heads=2, queries=5, keys=7, size=8),
    build_layer("attention", batch=2, heads=4, queries=6, size=8, causal=True),
)


def outputs(backend: Any, layer: Any, pass_: str, inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each variant writes for a pass; some are refused, not all of them."""
    variants = backend.variants(KernelSpec(layer=layer, pass_=pass_))
    found = []
    for variant in variants:
        try:
            found.append(variant.build(inputs).outputs())
        except Exception:
            if variant.variant != "nchw":  # which TensorFlow has on GPUs only
                raise
    assert found
    return found


#: Of the frameworks that build code for each: one of each op, the one with most fields.
QUICK = (LAYERS[2], LAYERS[4], LAYERS[6], LAYERS[8], LAYERS[9])


@pytest.mark.parametrize(
    ("framework", "layer"),
    [
        pytest.param(
            framework,
            layer,
            marks=() if framework == "torch" or layer in QUICK else pytest.mark.deep,
            id=f"{framework}-{layer.problem}",
        )
        for framework in ("torch", "tensorflow", "jax")
        for layer in LAYERS
    ],
)
def test_right(framework, layer):
    pytest.importorskip(framework)
    backend = importlib.import_module(f"pydlbench.backends.{framework}.backend").create("cpu")
    for pass_ in layer.passes:
        inputs = drawn(layer, pass_, "fp32")
        for results in outputs(backend, layer, pass_, inputs):
            verdict = judged(layer, pass_, "fp32", inputs, results)
            assert verdict.status == "ok", (pass_, verdict)

"""What frameworks compute for ops of any number of sides, against the ops' references.

Gradients are compared with differences of the reference: along a random direction, what a step
changes in the result times the incoming gradient is the gradient times that direction.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from pydlbench.ops.table import build_layer
from pydlbench.records.specs import KernelSpec

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
    build_layer("attention", batch=2, heads=4, kv_heads=2, queries=5, keys=7, size=8),
    build_layer("attention", batch=2, heads=4, queries=6, size=8, causal=True),
)
_STEP = 1e-4


def tensors(layer: Any) -> dict[str, np.ndarray]:
    """Return a value for each role of the forward pass."""
    rng = np.random.default_rng(5)
    return {
        role: rng.uniform(-1, 1, layer.shapes()[role]).astype(np.float32)
        for role in layer.reads("forward")
    }


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


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.problem)
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax"])
def test_right(framework, layer):
    pytest.importorskip(framework)
    backend = importlib.import_module(f"pydlbench.backends.{framework}.backend").create("cpu")
    given = tensors(layer)
    result = layer.reference(given)["dst"]
    for found in outputs(backend, layer, "forward", given):
        assert np.allclose(found["dst"], result, atol=1e-5)
    rng = np.random.default_rng(7)
    incoming = rng.uniform(-1, 1, result.shape).astype(np.float32)
    for pass_ in layer.passes[1:]:
        directions = {role: rng.uniform(-1, 1, given[role].shape) for role in layer.writes(pass_)}
        moved = [
            layer.reference(
                given | {role: given[role] + step * one for role, one in directions.items()}
            )
            for step in (_STEP, -_STEP)
        ]
        change = ((moved[0]["dst"] - moved[1]["dst"]) * incoming).sum() / (2 * _STEP)
        for found in outputs(backend, layer, pass_, given | {"dst": incoming, "result": result}):
            along = sum((found[role] * one).sum() for role, one in directions.items())
            assert along == pytest.approx(change, rel=1e-3, abs=1e-3)

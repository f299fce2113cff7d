"""Our own normalisation by the root of the mean square, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from pydlbench import _cpu

EPSILON = 1e-3
PASSES = ["forward", "backward-data"]


def rounded(values, precision):
    """The values that the precision can store."""
    if precision == "fp32":
        return values
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("pass_", ["forward_inference", "forward_training", "backward_data"])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (2, 3, 5, 37), (1, 7, 1, 64), (5, 1, 133, 19), (1, 3, 300, 16)], ids=str
)
def test_every_candidate_is_right(sizes, pass_, precision):
    batch, channels, height, width = sizes
    fields = {"op": "rmsnorm", "batch": batch, "channels": channels, "height": height}
    fields |= {"width": width, "passes": PASSES, "in_one_order": True, "epsilon": EPSILON}
    rng = np.random.default_rng(7)
    rows = batch * channels * height
    given = {
        "src": rounded(rng.uniform(-1, 1, (rows, width)).astype(np.float32), precision),
        "dst": rounded(rng.uniform(-1, 1, (rows, width)).astype(np.float32), precision),
        "weights": rng.uniform(-1, 1, width).astype(np.float32),
    }
    x, dy, w = (given[role].astype(np.float64) for role in ("src", "dst", "weights"))
    r = 1 / np.sqrt((x**2).mean(1, keepdims=True) + EPSILON)
    expected = {
        "src": r * w * dy - x * r**3 * (w * dy * x).mean(1, keepdims=True),
        "weights": (dy * x * r).sum(0),
    }
    if pass_.startswith("forward"):
        expected = {"dst": x * r * w}
        del given["dst"]
    unit = 2.0**-8 if precision == "bf16" else 2.0**-21
    arena = _cpu.Arena(given)
    found = _cpu.candidates(
        "pointwise", _cpu.Pass[pass_], _cpu.Precision[precision], fields, thorough=True
    )
    assert [one.implementation for one in found] == [
        f"own:{name}" for name in ("avx512", "avx2", "generic") if name in _names()
    ]
    for candidate in found:
        kernel = _cpu.Kernel(candidate, arena)
        kernel.run_poisoned()
        outputs = kernel.outputs()
        assert set(outputs) == set(expected)
        for role, values in expected.items():
            stored = 2.0**-21 if role == "weights" else unit
            scale = np.sqrt(rows) if role == "weights" else 1.0
            np.testing.assert_allclose(
                outputs[role].reshape(values.shape),
                values,
                rtol=stored,
                atol=2.0**-20 * scale,
                err_msg=f"{candidate.implementation} {role}",
            )


def _names():
    """The instruction sets that there are loops for."""
    isa = _cpu.isa()
    names = {"generic"}
    return (
        names
        | ({"avx2"} if "avx2" in isa else set())
        | ({"avx512"} if any(one.startswith("avx512") for one in isa) else set())
    )

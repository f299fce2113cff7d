"""Results with fused operations and results of integers: right ones pass, wrong ones fail."""

import numpy as np
import pytest

from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.fused import canonical_fusion, fused_ops
from pydlbench.ops.op import Functions
from pydlbench.verification.inputs import INTEGER_RANGES, fused_inputs, make_inputs, round_to
from pydlbench.verification.verify import verify

SCALES = "src_scale+weights_scale+dst_scale"
CASES = [
    ("mb2ic6ih7oc8kh3ph1", "int8", "none"),
    ("g2mb2ic6ih7oc8kh3ph1", "u8s8s32", "none"),
    ("mb2ic6ih7oc8kh3ph1", "u8s8u8", f"{SCALES}+src_zero_point+dst_zero_point+bias+relu"),
    ("mb2ic6ih7oc8kh3ph1", "fp32", "bias+sum:0.5+add:per_oc+tanh"),
    ("9x40:40x5", "s8s8s8", f"{SCALES}+bias+mul:per_tensor"),
    ("3x9x40:3x40x5", "int8", "none"),
    ("9x40:40x5", "fp32", "bias+relu"),
]


def case(problem, precision, fuse):
    layer = parse_problem(problem)
    inputs = make_inputs(layer, "forward", precision, 3) | fused_inputs(layer, precision, 3, fuse)
    given = {role: array.astype(np.float64) for role, array in inputs.items()}
    # Padding is zero, wherever the zero point of the source is.
    result = layer.reference(
        {"src": given["src"] - given.get("src_zero_point", 0), "weights": given["weights"]}
    )["dst"]
    along = [1] * result.ndim
    along[-1 if layer.op == "gemm" else 1] = -1
    for role, array in given.items():
        given[role] = array.reshape(along) if array.ndim == 1 else array
    result = result * given.get("src_scale", 1) * given.get("weights_scale", 1)
    for op in fused_ops(fuse):
        if op.name == "bias" or not op.role or op.role.startswith("operand"):
            result = op.apply(Functions(), result, given)
    result = result / given.get("dst_scale", 1) + given.get("dst_zero_point", 0)
    kind = {"int8": "s32", "fp32": "f32"}.get(precision, precision[4:])
    if kind in INTEGER_RANGES:
        result = np.clip(np.rint(result), *INTEGER_RANGES[kind])
    return layer, inputs, result.astype(np.float32 if kind == "f32" else np.int32)


def within(result, precision):
    """Return the elements that are not at the ends of the type's range."""
    low, high = INTEGER_RANGES.get(precision[4:], (-np.inf, np.inf))
    return np.flatnonzero((result > low + 2) & (result < high - 2))


@pytest.mark.parametrize(("problem", "precision", "fuse"), CASES)
def test_a_right_result_passes(problem, precision, fuse):
    layer, inputs, result = case(problem, precision, fuse)
    assert len(within(result, precision)) > result.size / 2
    fuse = canonical_fusion(fuse)
    verdict = verify(layer, "forward", precision, inputs, result, seed=1, fuse=fuse)
    assert verdict.status == "ok", verdict.detail
    assert verdict.points == result.size


@pytest.mark.parametrize(("problem", "precision", "fuse"), CASES)
@pytest.mark.parametrize("where", [0, -1])
def test_one_wrong_element_fails(problem, precision, fuse, where):
    layer, inputs, result = case(problem, precision, fuse)
    result.flat[within(result, precision)[where]] += 2 if result.dtype == np.int32 else 1e-4
    fuse = canonical_fusion(fuse)
    verdict = verify(layer, "forward", precision, inputs, result, seed=1, fuse=fuse)
    assert verdict.status == "failed"


def test_sums_of_integers_are_exact():
    """An error of one in 2**24 and more, which float32 does not have."""
    layer = parse_problem("40x4096:4096x24")
    inputs = {
        "src": np.full((1, 40, 4096), 127, np.float32),
        "weights": np.full((1, 4096, 24), 127, np.float32),
    }
    result = np.full((1, 40, 24), 127 * 127 * 4096, np.int32)
    assert verify(layer, "forward", "int8", inputs, result, seed=1).status == "ok"
    result[0, 17, 3] += 1
    assert verify(layer, "forward", "int8", inputs, result, seed=1).status == "failed"


def test_elements_that_are_not_recomputed_are_covered_by_exact_checksums():
    layer = parse_problem("mb4ic64ih32oc512kh3ph1")
    inputs = make_inputs(layer, "forward", "int8", 3)
    source, weights = inputs["src"], inputs["weights"]
    padded = np.pad(source, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    result = np.einsum("nchwyx,ocyx->nohw", windows, weights, optimize=True).astype(np.int32)
    verdict = verify(layer, "forward", "int8", inputs, result, seed=1)
    assert verdict.status == "ok"
    assert verdict.points < result.size
    for place in np.random.default_rng(0).integers(0, result.size, 3):
        result.flat[place] += 1
        assert verify(layer, "forward", "int8", inputs, result, seed=1).status == "failed"
        result.flat[place] -= 1


@pytest.mark.parametrize("scale", [1, 1.1])
def test_operators_of_short_floats_round_their_results(scale):
    fuse = "sum:0.5-relu:0.1-add:per_tensor"
    layer = parse_problem("9x400:400x50")
    inputs = make_inputs(layer, "forward", "bf16", 3) | fused_inputs(layer, "bf16", 3, fuse)
    y = round_to("bf16", inputs["src"] @ inputs["weights"])
    y = round_to("bf16", y + np.float32(0.5) * inputs["dst"])
    y = round_to("bf16", np.where(y > 0, y, y * np.float32(0.1)))
    y = round_to("bf16", y + inputs["operand2"])
    y.flat[np.abs(y).argmax()] *= scale
    given = {"inputs": inputs, "output": y, "seed": 1, "fuse": fuse}
    verdict = verify(layer, "forward", "bf16", accumulate="bfloat16", **given)
    assert verdict.status == ("ok" if scale == 1 else "failed")
    assert verify(layer, "forward", "bf16", **given).status == "failed"  # of one kernel

"""Matrix products in float64 on the device, against NumPy's."""

from typing import TYPE_CHECKING

import numpy as np
import pytest

from pydlbench.ops.table import build_layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RESULT = {"forward": "dst", "backward-data": "src", "backward-weights": "weights"}


@pytest.mark.parametrize("pass_", RESULT)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 17, 5, 33), (3, 16, 18, 16), (2, 4, 35, 20)])
def test_each_error_of_a_product_is_the_one_that_numpy_finds(checker, numpy_sums, pass_, sizes):
    batch, m, k, n = sizes
    shapes = {"src": (batch, m, k), "weights": (batch, k, n), "dst": (batch, m, n)}
    inputs = {
        role: numpy_sums.uniform(seed, shape)
        for seed, (role, shape) in enumerate(shapes.items())
        if role != RESULT[pass_]
    }
    a, b = {
        "forward": ("src", "weights"),
        "backward-data": ("dst", "weights"),
        "backward-weights": ("src", "dst"),
    }[pass_]
    equation = {
        "forward": "bmk,bkn->bmn",
        "backward-data": "bmn,bkn->bmk",
        "backward-weights": "bmk,bmn->bkn",
    }[pass_]
    left, right = inputs[a].astype(np.float64), inputs[b].astype(np.float64)
    sums = numpy_sums.Sums(np.einsum(equation, left, right), np.einsum(equation, left**2, right**2))
    for kind, format_ in (("plain", "float32"), ("channels-last", "float16"), ("gaps", "bfloat16")):
        stored = numpy_sums.Stored(sums.value, kind, format_)
        result = checker.gemm(pass_, sizes, inputs, stored, per_launch=5000)
        numpy_sums.assert_found(result, sums.errors(stored), stored, sums.value)
    layer = build_layer("gemm", batch_count=sizes[0], m=sizes[1], k=sizes[2], n=sizes[3])
    evidence = numpy_sums.evidence(layer, pass_, inputs, sums.value)
    assert result.terms == evidence.terms
    assert evidence.worst.error < 1e-12


@pytest.mark.parametrize("per_matrix", [False, True])
def test_a_product_has_one_bias_for_all_matrices_or_one_for_each(checker, numpy_sums, per_matrix):
    sizes = batch, m, k, n = 3, 5, 7, 18
    inputs = {
        "src": numpy_sums.uniform(1, (batch, m, k)),
        "weights": numpy_sums.uniform(2, (batch, k, n)),
    }
    inputs["bias"] = numpy_sums.uniform(3, (batch, 1, n) if per_matrix else (n,))
    left, right, bias = (inputs[role].astype(np.float64) for role in ("src", "weights", "bias"))
    sums = numpy_sums.Sums(left @ right + bias, left**2 @ right**2 + bias**2)
    expected = np.maximum(sums.value, 0)
    stored = numpy_sums.Stored(expected, "plain", "float16")
    result = checker.gemm("forward", sizes, inputs, stored)
    numpy_sums.assert_found(result, sums.errors(stored, relu=True), stored, expected)
    assert result.terms == k + 1

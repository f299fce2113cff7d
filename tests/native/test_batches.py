"""Matrix products over batches of any dimensions: every candidate against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from pydlbench import _cpu
from pydlbench.errors import UnsupportedError

FP32 = _cpu.Precision.fp32
PASSES = ("forward_inference", "backward_data", "backward_weights")
M, K, N = 6, 20, 31
# Batches of src and of weights, and the gradients that are sums over a batch in between.
BATCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]] = {
    "none": ((), (), ()),
    "of one": ((1, 1), (1,), ()),
    "one dimension": ((3,), (3,), ()),
    "four dimensions": ((2, 1, 3, 2), (2, 1, 3, 2), ()),
    "the same weights for all": ((2, 3), (), ()),
    "the same weights for inner ones": ((2, 3), (2, 1), ()),
    "the same weights for outer ones": ((2, 3), (1, 3), ("backward_weights",)),
    "the same source for all": ((), (4,), ("backward_data",)),
    "both": ((2, 1, 5), (1, 4, 5), ("backward_data", "backward_weights")),
    "both, weights innermost": ((1, 4), (3, 1), ("backward_data",)),
}
RESULTS = {"forward_inference": "dst", "backward_data": "src", "backward_weights": "weights"}


def fields(src_batch, weights_batch, tag="any"):
    sizes = {"m": M, "k": K, "n": N, "weights_tag": tag}
    return {**sizes, "src_batch": src_batch, "weights_batch": weights_batch}


def shapes(src_batch, weights_batch):
    return {
        "src": (*src_batch, M, K),
        "weights": (*weights_batch, K, N),
        "dst": (*np.broadcast_shapes(src_batch, weights_batch), M, N),
    }


def reference(pass_, given, shape):
    """The product, or a gradient summed over what its operand is broadcast to."""
    operands = {role: array.astype(np.float64) for role, array in given.items()}
    if pass_ == "forward_inference":
        return operands["src"] @ operands["weights"]
    if pass_ == "backward_data":
        result = operands["dst"] @ operands["weights"].swapaxes(-1, -2)
    else:
        result = operands["src"].swapaxes(-1, -2) @ operands["dst"]
    result = result.sum(tuple(range(result.ndim - len(shape))))
    wide = [axis for axis, size in enumerate(shape) if size == 1 != result.shape[axis]]
    return result.sum(tuple(wide), keepdims=True)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", BATCHES)
def test_every_candidate_of_a_batch_is_right(name, pass_):
    src_batch, weights_batch, summed = BATCHES[name]
    asked = fields(src_batch, weights_batch)
    if pass_ in summed:
        role = RESULTS[pass_]
        with pytest.raises(UnsupportedError, match=f"matmul: .*{role} is a"):
            _cpu.candidates("gemm", _cpu.Pass[pass_], FP32, asked)
        return
    rng = np.random.default_rng(3)
    given = {
        role: rng.uniform(-1, 1, shape).astype(np.float32)
        for role, shape in shapes(src_batch, weights_batch).items()
        if role != RESULTS[pass_]
    }
    expected = reference(pass_, given, shapes(src_batch, weights_batch)[RESULTS[pass_]])
    arena = _cpu.Arena(given)
    found = _cpu.candidates("gemm", _cpu.Pass[pass_], FP32, asked)
    for candidate in found:
        kernel = _cpu.Kernel(candidate, arena)
        kernel.run_poisoned()
        result = kernel.output().reshape(expected.shape)
        np.testing.assert_allclose(result, expected, 1e-4, 1e-4, err_msg=repr(candidate))
    assert "plain" in {candidate.variant for candidate in found}


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", ["none", "one dimension", "the same weights for all"])
@pytest.mark.parametrize("tag", ["kn", "nk"])
def test_weights_lie_as_they_are_wanted(name, tag, pass_):
    asked = fields(*BATCHES[name][:2], tag)
    found = _cpu.candidates("gemm", _cpu.Pass[pass_], FP32, asked)
    letters = f"g{tag}" if name == "one dimension" else tag
    assert {candidate.variant for candidate in found} == {"plain"}
    for candidate in found:
        assert f"weights {letters}" in candidate.layout


def test_batches_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"gemm: .* 2 and 3 "):
        _cpu.candidates("gemm", _cpu.Pass.forward_inference, FP32, fields((4, 2), (3,)))
    with pytest.raises(ValueError, match=r"weights_tag: mn; .*any, kn, nk"):
        _cpu.candidates("gemm", _cpu.Pass.forward_inference, FP32, fields((), (), "mn"))

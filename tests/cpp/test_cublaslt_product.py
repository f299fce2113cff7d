"""Row-major products as column-major ones: every pass, storage and batch against NumPy.

What the library would do with the described matrices is done here by NumPy on the same memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import product as combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from numpy.typing import NDArray

PASSES = ("forward-inference", "forward-training", "backward-data", "backward-weights")
SIZES = ((1, 3, 5, 7), (1, 1, 1, 1), (1, 1, 6, 4), (1, 5, 1, 3), (1, 4, 3, 1), (3, 2, 5, 4))
RESULT = {"backward-data": "src", "backward-weights": "weights"}


@dataclass(frozen=True)
class Seen:
    """A matrix as cuBLAS reads it."""

    tensor: int
    rows: int
    columns: int
    leading: int
    batch_stride: int
    transpose: bool


@dataclass(frozen=True)
class Stored:
    """A tensor of the plan."""

    role: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    use: int
    type: int


@dataclass(frozen=True)
class Product:
    """The product as it is described to the library."""

    a: Seen
    b: Seen
    d: Seen
    batch: int
    bias: int
    tensors: tuple[Stored, ...]
    layout: str


@pytest.fixture(scope="module")
def library(cpp_library):
    """Return the compiled mapping."""
    loaded = cpp_library
    loaded.product_of.restype = ctypes.c_char_p
    loaded.storages_of.restype = ctypes.c_char_p
    return loaded


def _describe(
    library: ctypes.CDLL,
    pass_: str,
    storage: int,
    sizes: tuple[int, int, int, int],
    *,
    fused: bool = False,
    mode: str = "fp32",
) -> Product:
    numbers = (ctypes.c_int64 * 64)()
    answer = library.product_of(
        pass_.encode(),
        mode.encode(),
        storage,
        int(fused),
        *(ctypes.c_int64(size) for size in sizes),
        numbers,
    ).decode()
    if answer.startswith("!"):
        raise ValueError(answer[1:])
    roles, layout = answer.split("|")
    values = list(numbers)
    a, b, d = (
        Seen(
            tensor=values[i],
            rows=values[i + 1],
            columns=values[i + 2],
            leading=values[i + 3],
            batch_stride=values[i + 4],
            transpose=bool(values[i + 5]),
        )
        for i in (0, 6, 12)
    )
    batch, bias, count = values[18:21]
    tensors = []
    for i, role in enumerate(roles.split(",")):
        first = 21 + 8 * i
        dims, strides = values[first : first + 3], values[first + 3 : first + 6]
        use, type_ = values[first + 6 : first + 8]
        tensors.append(Stored(role, tuple(dims), tuple(strides), use, type_))
    assert len(tensors) == count
    return Product(a, b, d, batch, bias, tuple(tensors), layout)


def _place(array: NDArray[Any], stored: Stored) -> NDArray[Any]:
    """Return memory that holds ``array`` the way the tensor's strides say."""
    memory = np.full(array.size, np.nan)
    _caller(memory, stored)[...] = array
    assert not np.isnan(memory).any()
    return memory


def _caller(memory: NDArray[Any], stored: Stored) -> NDArray[Any]:
    return as_strided(memory, stored.dims, [s * memory.itemsize for s in stored.strides])


def _column_major(memory: NDArray[Any], seen: Seen, batch: int) -> NDArray[Any]:
    """Return what the library reads: column j starts ``leading`` elements after column j - 1."""
    last = (batch - 1) * seen.batch_stride + (seen.columns - 1) * seen.leading + seen.rows - 1
    assert last < memory.size
    size = memory.itemsize
    return as_strided(
        memory,
        (batch, seen.rows, seen.columns),
        (seen.batch_stride * size, size, seen.leading * size),
    )


def _multiply(product: Product, memory: list[NDArray[Any]]) -> None:
    """Do what cublasLtMatmul does: D = op(A) op(B), with ReLU and bias along D's rows if fused."""
    operands = []
    for seen in (product.a, product.b):
        assert seen.leading >= seen.rows
        matrix = _column_major(memory[seen.tensor], seen, product.batch)
        operands.append(matrix.transpose(0, 2, 1) if seen.transpose else matrix)
    result = operands[0] @ operands[1]
    if product.bias:
        bias = memory[product.bias]
        assert bias.size == product.d.rows
        result = np.maximum(result + bias[None, :, None], 0)
    assert not product.d.transpose
    _column_major(memory[product.d.tensor], product.d, product.batch)[...] = result


def _expected(pass_: str, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
    src, weights, dst = arrays["src"], arrays["weights"], arrays["dst"]
    result: NDArray[Any] = src @ weights
    if pass_ == "backward-data":
        result = dst @ weights.transpose(0, 2, 1)
    elif pass_ == "backward-weights":
        result = src.transpose(0, 2, 1) @ dst
    return result


def _arrays(sizes: tuple[int, int, int, int]) -> dict[str, NDArray[Any]]:
    batch, m, k, n = sizes
    rng = np.random.default_rng(3)
    shapes = {"src": (batch, m, k), "weights": (batch, k, n), "dst": (batch, m, n)}
    arrays = {role: rng.uniform(-1, 1, shape) for role, shape in shapes.items()}
    arrays["bias"] = rng.uniform(-1, 1, (1, 1, n))
    return arrays


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("pass_", "storage"), list(combinations(PASSES, range(8))))
def test_every_pass_and_storage_computes_the_product(library, pass_, storage, sizes):
    """The library, told what is described, computes what the pass means."""
    described = _describe(library, pass_, storage, sizes)
    arrays = _arrays(sizes)
    memory = [_place(arrays[tensor.role], tensor) for tensor in described.tensors]
    memory[-1][:] = np.nan
    _multiply(described, memory)
    result = described.tensors[-1]
    assert result.role == RESULT.get(pass_, "dst")
    np.testing.assert_allclose(_caller(memory[-1], result), _expected(pass_, arrays), rtol=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("storage", [0, 1, 2, 3])
def test_bias_lies_along_the_rows_of_the_library_s_result(library, storage, sizes):
    """A fused product adds one bias per output column of ours, then ReLU."""
    described = _describe(library, "forward-training", storage, sizes, fused=True)
    arrays = _arrays(sizes)
    memory = [_place(arrays[tensor.role], tensor) for tensor in described.tensors]
    assert [tensor.role for tensor in described.tensors] == ["src", "weights", "bias", "dst"]
    _multiply(described, memory)
    expected = np.maximum(arrays["src"] @ arrays["weights"] + arrays["bias"], 0)
    np.testing.assert_allclose(_caller(memory[-1], described.tensors[-1]), expected, atol=1e-12)


@pytest.mark.parametrize("pass_", ["backward-data", "backward-weights"])
def test_only_the_forward_pass_is_fused(library, pass_):
    """A gradient has no bias and no ReLU."""
    with pytest.raises(ValueError, match="only the forward pass"):
        _describe(library, pass_, 0, (1, 2, 3, 4), fused=True)


@pytest.mark.parametrize(
    ("pass_", "storage", "layout"),
    [
        ("forward-inference", 0, "src mk, weights kn, dst mn, NN"),
        ("forward-inference", 2, "src mk, weights nk, dst mn, TN"),
        ("backward-data", 0, "src mk, weights kn, dst mn, TN"),
        ("backward-data", 2, "src mk, weights nk, dst mn, NN"),
        ("backward-weights", 0, "src mk, weights kn, dst mn, NT"),
        ("backward-weights", 2, "src mk, weights nk, dst mn, NT"),
        ("backward-weights", 5, "src km, weights kn, dst nm, TN"),
    ],
)
def test_the_layout_says_what_the_library_sees(library, pass_, storage, layout):
    """Letters give each matrix's order in memory, the last two the operations on A and B."""
    assert _describe(library, pass_, storage, (1, 2, 3, 4)).layout == layout
    batched = _describe(library, pass_, storage, (2, 2, 3, 4)).layout
    assert batched.startswith("src g")


@pytest.mark.parametrize("pass_", PASSES)
def test_fp8_products_are_tn_with_plain_results(library, pass_):
    """FP8 tensor cores read both operands along the reduced dimension only."""
    storages = [int(word) for word in library.storages_of(pass_.encode(), b"fp8-tc").split()]
    assert storages
    for storage in storages:
        described = _describe(library, pass_, storage, (1, 16, 32, 48), mode="fp8-tc")
        assert (described.a.transpose, described.b.transpose) == (True, False)
        types = {tensor.type for tensor in described.tensors}
        assert types == {3}


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("mode", ["fp32", "tf32", "fp16", "fp16-tc", "bf16-tc"])
def test_plain_storage_comes_first(library, pass_, mode):
    """The caller's own storage is tried first, then weights as frameworks keep them."""
    assert library.storages_of(pass_.encode(), mode.encode()).split() == [b"0", b"2"]

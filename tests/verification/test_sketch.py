"""One pass over a tensor of any strides equals the plain tensor product."""

import itertools

import numpy as np
import pytest

from pydlbench.verification import checksums as sketch

ORDERS = list(itertools.permutations(range(4)))[::3]


def in_order(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Return an equal array whose memory runs through the axes in ``order``."""
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


@pytest.mark.product
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("piece", [1, 7, 50, 10**6])
def test_contract(order, piece, monkeypatch):
    monkeypatch.setattr(sketch.pieces, "__defaults__", (piece, ()))
    rng = np.random.default_rng(0)
    array = in_order(rng.standard_normal((3, 4, 5, 6)).astype(np.float32), order)
    rows, columns, images = (rng.standard_normal(s) for s in ((5, 2), (6, 3), (3, 1)))
    first, second = sketch.contract(array, {2: rows, 3: columns}, {0: images})
    wide = array.astype(np.float64)
    np.testing.assert_allclose(first, np.einsum("nchw,hr,ws->ncrs", wide, rows, columns))
    np.testing.assert_allclose(second, np.einsum("nchw,nr->rchw", wide**2, images))


@pytest.mark.product
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("elements", [1, 9, 40, 10**6])
def test_pieces_cover_every_element_once(order, elements):
    array = in_order(np.zeros((3, 1, 5, 4)), order)
    for cut in sketch.pieces(array, elements):
        assert 0 < array[cut].size <= elements
        array[cut] += 1
    assert np.all(array == 1)


def test_slices_of_a_larger_tensor_and_repeated_axes():
    base = np.arange(2 * 3 * 8 * 9, dtype=np.float32).reshape(2, 3, 8, 9)
    ones = {axis: np.ones((size, 1)) for axis, size in ((2, 4), (3, 3))}
    view = base[:, :, ::2, 1::3]
    assert np.array_equal(
        sketch.contract(view, ones, {})[0][:, :, 0, 0], view.sum(axis=(2, 3), dtype=float)
    )
    repeated = np.broadcast_to(base[:, :, :4, :1], (2, 3, 4, 3))
    assert np.array_equal(
        sketch.contract(repeated, ones, {})[0][:, :, 0, 0], repeated.sum(axis=(2, 3), dtype=float)
    )


def test_no_float64_copy_of_the_tensor():
    import tracemalloc

    array = np.ones((8, 64, 64, 64), np.float32)
    viewed = array.transpose(0, 3, 1, 2)
    ones = {axis: np.ones((64, 1)) for axis in (2, 3)}
    for tensor in (array, viewed):
        tracemalloc.start()
        sketch.contract(tensor, ones, ones)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < array.nbytes / 4

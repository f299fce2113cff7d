"""The mask of a dropout: the same whatever piece of it is asked for."""

import numpy as np
import pytest

from pydlbench.ops.table import build_layer
from pydlbench.verification.inputs import kept_elements, make_inputs
from pydlbench.verification.verify import verify

#: Hashes of the first indices, computed apart with whole numbers.
FIRST = (0x1EFEF68C, 0xC92A6A32, 0x70179679, 0x11E93E85)
WHOLE = (slice(None),)


@pytest.mark.parametrize("number", range(4))
def test_an_element_stays_where_its_hash_is_below_the_share(number):
    share = FIRST[number] / 2**32
    assert not kept_elements((4,), WHOLE, share)[number]
    assert kept_elements((4,), WHOLE, (FIRST[number] + 1) / 2**32)[number]


def test_indices_beyond_32_bits_have_hashes_of_their_own():
    shape = (6, 1 << 16, 1 << 16)
    for row, column, value in ((1, 5, 0x1DE8BDC2), (5, 7, 0xBA51F0D3)):
        cut = slice(row, row + 1), slice(0, 1), slice(column, column + 1)
        assert not kept_elements(shape, cut, value / 2**32).any()
        assert kept_elements(shape, cut, (value + 1) / 2**32).all()


def test_neighbours_are_independent():
    """In any direction of an image: a correlation would be a pattern."""
    kept = kept_elements((1 << 20,), WHOLE, 0.5) - 0.5
    for distance in (1, 2, 3, 4, 7, 8, 16, 32, 49, 64, 3136, 65536):
        correlation = float((kept[:-distance] * kept[distance:]).mean()) * 4
        assert abs(correlation) < 5 / 2**10, distance


def test_the_share_is_kept():
    shape = (8, 16, 30, 31)
    for keep in (0.1, 0.5, 0.9):
        kept = kept_elements(shape, (slice(None),) * 4, keep)
        assert kept.shape == shape
        assert abs(kept.mean() - keep) < 0.005
    assert kept_elements(shape, (slice(None),) * 4, 1.0).all()


def test_a_piece_is_a_part_of_the_whole():
    shape = (3, 4, 5, 6)
    whole = kept_elements(shape, (slice(None),) * 4, 0.5)
    cut = slice(1, 3), slice(0, 2), slice(4, 5), slice(2, 6)
    np.testing.assert_array_equal(kept_elements(shape, cut, 0.5), whole[cut])
    flat = kept_elements((360,), WHOLE, 0.5)
    np.testing.assert_array_equal(whole.reshape(-1), flat)


@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
def test_elements_are_numbered_in_nchw_wherever_they_lie(pass_):
    layer = build_layer("dropout", batch=2, channels=3, height=4, width=5, keep=0.7)
    (source,) = make_inputs(layer, pass_, "fp32", 1).values()
    role = "src" if pass_ == "forward" else "dst"
    kept = kept_elements(source.shape, (slice(None),) * 4, 0.7)
    right = np.where(kept, source / np.float32(0.7), np.float32(0))
    viewed = np.ascontiguousarray(right.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for output in (right, viewed):
        assert verify(layer, pass_, "fp32", {role: source}, output, 1).status == "ok"
    by_pixel = kept.reshape(-1).reshape(2, 4, 5, 3).transpose(0, 3, 1, 2)
    wrong = np.where(by_pixel, source / np.float32(0.7), np.float32(0))
    assert verify(layer, pass_, "fp32", {role: source}, wrong, 1).status == "failed"

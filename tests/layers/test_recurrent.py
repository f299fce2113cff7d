"""Recurrent layers: descriptors, shapes, counts, and what cannot be."""

import pytest

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.layers.descriptor import parse_problem


@pytest.mark.parametrize(
    "text",
    [
        "lstm:l1t25mb64slc512dhc512",
        "gru:l1t187mb32slc80dhc2816",
        "lstm:l3t5mb2slc8dhc8",
        "gru:l1d2t5mb2slc7dhc8",
        "lstm:l2d2t5mb2slc16dhc8",
    ],
)
def test_a_descriptor_is_read_as_it_is_written(text):
    layer = parse_problem(text)
    assert layer.problem == text
    assert parse_problem(f"{text}nmine").name == "mine"
    assert layer.with_batch(9).shapes()["src"][1] == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lstm:l1t25mb64slc512", r"expected dhc \(size of the state\)"),
        ("lstm:mb64slc512dhc512", r"expected t \(steps\)"),
        ("lstm:t25slc512oc512", "column 15: expected a field"),
        ("lstm:t25t25", "expected t only once"),
        ("gru:t0mb1slc2dhc2", "at least 1"),
        ("gru:d3t1mb1slc2dhc2", "directions=3: too many; nearest: 2"),
        ("gru:l2t1mb1slc5dhc2", "nearest: 2, or layers=1"),
        ("gru:l2d2t1mb1slc2dhc2", "nearest: 4, or layers=1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could_be(text, message):
    with pytest.raises(UsageError, match=message):
        parse_problem(text)


def test_shapes_follow_from_gates_layers_and_directions():
    lstm = parse_problem("lstm:l2d2t5mb3slc8dhc4").shapes()
    assert lstm == {
        "src": (5, 3, 8),
        "src_iter": (2, 2, 3, 4),
        "src_iter_c": (2, 2, 3, 4),
        "weights": (2, 2, 8, 4, 4),
        "weights_iter": (2, 2, 4, 4, 4),
        "bias": (2, 2, 4, 4),
        "dst": (5, 3, 8),
    }
    gru = parse_problem("gru:t5mb3slc7dhc4")
    assert "src_iter_c" not in gru.shapes()
    assert gru.shapes()["weights"] == (1, 1, 7, 3, 4)
    # What the reset gate multiplies has a bias of its own.
    assert gru.shapes()["bias"] == (1, 1, 4, 4)
    assert gru.weight_elements == 7 * 12 + 4 * 12 + 16


def test_what_is_counted():
    lstm = parse_problem("lstm:l2t5mb3slc8dhc8")
    products = 2 * 5 * 3 * 4 * 8 * (8 + 8)  # layers, steps, batch, gates, matrices
    assert lstm.flops("forward") == lstm.flops_executed("forward") == 2 * products
    assert lstm.flops("backward-data") == 4 * products
    read = 5 * 3 * 8 + 2 * (2 * 3 * 8) + 2 * (2 * 4 * 64 + 32)
    assert lstm.bytes("forward", 4) == 4 * (read + 5 * 3 * 8)
    assert lstm.bytes("backward-data", 2) == 2 * (2 * read + 5 * 3 * 8)
    assert lstm.writes("backward-data")[0] == "src"
    assert set(lstm.writes("backward-data")) == set(lstm.reads("forward"))
    with pytest.raises(UnsupportedError, match="recurrent has no such pass"):
        lstm.flops("backward-weights")

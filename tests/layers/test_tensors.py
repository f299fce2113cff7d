"""Layers on tensors of any shape: descriptors, merged dimensions, counts, and what cannot be."""

import pytest

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.layers.descriptor import parse_problem
from pydlbench.layers.elementwise import Elementwise
from pydlbench.layers.move import Move
from pydlbench.layers.reduction import Reduction


@pytest.mark.parametrize(
    "text",
    [
        "elementwise:add:8x128x768:1x1x768",
        "elementwise:add:1x6:4x6by-1",
        "elementwise:power:7by0.1",
        "elementwise:addcdiv:7:7:1by1e-05",
        "elementwise:exp:2x3x4x5x6x7",
        "reduction:sum:8x128x768:1x1x768",
        "reduction:norm:9:1",
        "move:permute:8x128x12x64by0213",
        "move:copy:8",
        "move:fill:8x3",
        "gather:rows:30522x768:4096",
        "gather:add-rows:9x4:17",
    ],
)
def test_a_descriptor_is_read_as_it_is_written(text):
    layer = parse_problem(text)
    assert layer.problem == text
    assert parse_problem(f"{text}nmine").name == "mine"
    assert (layer.batch, layer.with_batch(7)) == (1, layer)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("elementwise:ad:8", "column 13: .*nearest: .*add"),
        ("elementwise:add", "column 16: expected :"),
        ("elementwise:add:8x", "column 19: .*whole number"),
        ("elementwise:add:8:8by", "column 22: expected a number"),
        ("elementwise:mul:8:8by2", "column 20: expected x, : or a name"),
        ("elementwise:add:8", "1 operands; nearest: 2"),
        ("elementwise:exp:8:8:8:8", "4 operands; nearest: 1"),
        ("elementwise:add:8x4:8x3", r"src2=.*nearest: 8x4"),
        ("elementwise:add:8x4:4", r"src2=.*nearest: 8x4"),
        ("elementwise:exp:1x1x1x1x1x1x2", "at most 6"),
        ("elementwise:exp:3000000000x3000000000", "overflow"),
        ("reduction:sum:8", "1 shapes; nearest: 2"),
        ("reduction:sum:8x4:1x2", "nearest: 1x1"),
        ("reduction:median:8:1", "column 11: .*nearest: mean"),
        ("move:permute:8x4", "nearest: 10"),
        ("move:permute:8x4by-1", "order -1"),
        ("move:copy:8:8", "2 shapes; nearest: 1"),
        ("gather:rows:8", "ROWSxWIDTH:COUNT"),
        ("gather:rows:20000000x8:3", "at most 16777216"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could_be(text, message):
    with pytest.raises(UsageError, match=message):
        parse_problem(text)


def test_dimensions_that_lie_behind_one_another_are_one():
    def operands(*shapes):
        layer = Elementwise.of("mul", *shapes)
        return layer.src, layer.src2

    assert operands((2, 3, 5), (2, 3, 5)) == ((30,), (30,))
    assert operands((2, 3, 5, 5), (2, 1, 1, 5)) == ((2, 15, 5), (2, 1, 5))
    assert operands((2, 3), ()) == ((6,), (1,))
    assert operands((3,), (4, 1)) == ((1, 3), (4, 1))
    assert operands((), ()) == ((1,), (1,))


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3, 5), (15, 5, 1), "move:copy:30"),
        # From heads within rows to rows within heads, and a matrix turned over.
        ((2, 3, 7, 5), (105, 5, 15, 1), "move:permute:2x7x3x5by0213"),
        ((2, 3, 5), (15, 1, 3), "move:permute:2x5x3by021"),
        # NCHW from NHWC; rows of a larger tensor; one element.
        ((2, 3, 4, 5), (60, 1, 15, 3), "move:permute:2x20x3by021"),
        ((4, 5), (50, 1), "move:copy:20"),
        ((1, 1), (7, 7), "move:copy:1"),
    ],
)
def test_a_move_is_told_from_strides(shape, strides, expected):
    layer = Move.of(shape, strides)
    assert layer.problem == expected
    assert sorted(layer.shapes()["dst"]) == sorted(layer.src)


def test_dimensions_that_are_reduced_together_are_one():
    assert Reduction.of("sum", (2, 3, 5), {1, 2}).problem == "reduction:sum:2x15:2x1"
    assert Reduction.of("mean", (2, 3, 5, 7), {0, 2}).problem == "reduction:mean:2x3x5x7:1x3x1x7"
    assert Reduction.of("max", (2, 1, 5), {0, 1, 2}).problem == "reduction:max:10:1"
    with pytest.raises(UsageError, match="no reduction"):
        Reduction.of("max", (1, 5), {0})


def test_of_a_table_only_what_is_named_is_read():
    rows, sums = parse_problem("gather:rows:9x4:2"), parse_problem("gather:add-rows:9x4:2")
    assert rows.bytes("forward", 4) == 4 * 4 * (2 + 2) + 4 * 2
    assert parse_problem("gather:rows:2x4:9").bytes("forward", 4) == 4 * 4 * (2 + 9) + 4 * 9
    assert sums.bytes("forward", 4) == 4 * 4 * (2 + 9) + 4 * 2
    assert (rows.flops("forward"), sums.flops("forward")) == (0, 8)
    assert parse_problem("move:fill:8").bytes("forward", 4) == 32
    assert parse_problem("move:copy:8").bytes("forward", 4) == 64
    assert parse_problem("reduction:norm:6x2:1x2").flops("forward") == 24


def test_each_operand_and_the_result_are_moved_once():
    layer = parse_problem("elementwise:addcmul:4x1:4x6:1x6by0.5")
    assert layer.shapes()["dst"] == (4, 6)
    assert layer.flops("forward") == layer.flops_executed("forward") == 3 * 24
    assert layer.bytes("forward", 2) == 2 * (4 + 24 + 6 + 24)
    assert parse_problem("elementwise:add:9:9by-1").flops("forward") == 9
    assert parse_problem("elementwise:add:9:9by2").flops("forward") == 18
    with pytest.raises(UnsupportedError, match="backward-data: elementwise has no such pass"):
        layer.flops("backward-data")

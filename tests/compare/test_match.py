"""Which rows of two runs are of one thing, and along which axis they differ."""

import pytest

from pydlbench.compare.match import describe, match
from pydlbench.errors import UsageError


def test_rows_belong_together_by_name_problem_and_setting(row, side):
    a = side("a", [row("x"), row("y"), row("x", pass_="backward-data")])
    b = side("b", [row("x", pass_="backward-data"), row("z"), row("x")])
    found = match(a, b)
    assert [(one.a, one.b) for one in found.pairs] == [
        (a.rows[0], b.rows[2]),
        (a.rows[2], b.rows[0]),
    ]
    assert [one.layer for one in found.only_a] == ["y"]
    assert [one.layer for one in found.only_b] == ["z"]
    assert found.axis is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch", 2), ("precision", "bf16"), ("cache", "all-cold"), ("fuse", "bias"), ("threads", 1)],
)
def test_another_setting_is_another_row(row, side, name, value):
    a, b = side("a", [row(), row("y")]), side("b", [row(**{name: value}), row("y")])
    assert [one.layer for one in match(a, b).only_a] == ["net/conv"]


def test_a_name_and_a_descriptor_of_one_problem_belong_together(row, side):
    a, b = side("a", [row("alexnet/conv3", problem="p")]), side("b", [row("p", problem="p")])
    assert len(match(a, b).pairs) == 1


def test_a_poolings_descriptor_does_not_say_which_it_is(row, side):
    a = side("a", [row("net/max", kind="pool2d", problem="p"), row()])
    b = side("b", [row("net/mean", kind="pool2d", problem="p"), row()])
    assert [one.layer for one in match(a, b).only_b] == ["net/mean"]


def test_steps_of_two_models_do_not_belong_together(row, side):
    step = {"kind": "check measured", "problem": "{}", "backend": "torch", "mode": "eager"}
    a, b = side("a", [row("vgg11", **step)]), side("b", [row("resnet50", **step)])
    with pytest.raises(UsageError, match="they differ in layer;"):
        match(a, b)
    a, b = side("a", [*a.rows, row()]), side("b", [row(), *b.rows])
    found = match(a, b)
    assert [one.a.layer for one in found.pairs] == ["net/conv"]
    assert [one.layer for one in (*found.only_a, *found.only_b)] == ["vgg11", "resnet50"]


def test_one_of_several_names_of_a_problem_cannot_be_chosen(row, side):
    a = side("a", [row("x", problem="p"), row("y", problem="p")])
    b = side("b", [row("z", problem="p")])
    with pytest.raises(UsageError, match=r"a: x .*, y .* 2 rows of one problem .* to z"):
        match(a, b)


def test_a_row_that_is_there_twice_has_no_partner(row, side):
    with pytest.raises(UsageError, match=r"b: net/conv .* 2 rows of one problem .* to net/conv"):
        match(side("a", [row()]), side("b", [row(), row(median=1.0)]))


def test_cards_are_of_one_kind(row, side):
    on_card = {"threads": None, "timing": "cuda-graph"}
    a, b = (side(name, [row(device=f"cuda:{n}", **on_card)]) for n, name in enumerate("ab"))
    assert len(match(a, b).pairs) == 1


def test_backward_passes_know_one_propagation(row, side):
    a = side("a", [row(pass_="backward-data", propagation="training")])
    b = side("b", [row(pass_="backward-data")])
    assert len(match(a, b).pairs) == 1


def test_rows_without_a_time_are_named_not_compared(row, side):
    a = side("a", [row(), row("y")])
    b = side("b", [row(), row("y", median=None, status="failed")])
    found = match(a, b)
    assert len(found.pairs) == 1
    assert [(one.a.status, one.b.status) for one in found.untimed] == [("ok", "failed")]


@pytest.mark.parametrize(
    ("axis", "changes", "values"),
    [
        ("backend", {"backend": "torch", "mode": "eager"}, ("native", "torch eager")),
        ("threads", {"threads": 1}, ("2 threads", "1 thread")),
        ("layout", {"layout_request": "nhwc"}, ("best", "nhwc")),
        ("cache", {"cache": "all-cold"}, ("hot", "all-cold")),
        ("precision", {"precision": "bf16"}, ("fp32", "bf16")),
        ("fuse", {"fuse": "bias"}, ("none", "bias")),
        ("device", {"device": "cuda:0", "threads": None, "timing": "events"}, ("cpu", "cuda:0")),
    ],
)
def test_runs_that_differ_in_one_axis_are_matched_across_it(row, side, axis, changes, values):
    a = side("a", [row("x"), row("y")])
    b = side("b", [row("y", **changes), row("x", **changes)])
    found = match(a, b)
    assert (found.axis, found.values) == (axis, values)
    assert [(one.a.layer, one.b.layer) for one in found.pairs] == [("x", "x"), ("y", "y")]


def test_modes_of_one_backend_are_an_axis_of_their_own(row, side):
    a = side("a", [row(backend="torch", mode="eager")])
    b = side("b", [row(backend="torch", mode="compiled")])
    assert match(a, b).axis == "mode"


def test_two_axes_at_once_are_too_many(row, side):
    a, b = side("a", [row()]), side("b", [row(threads=1, cache="all-cold")])
    with pytest.raises(UsageError, match=r"they differ in cache, threads"):
        match(a, b)


def test_rows_that_differ_in_different_axes_are_not_mixed(row, side):
    a = side("a", [row("x"), row("y")])
    b = side("b", [row("x", threads=1), row("y", cache="all-cold")])
    with pytest.raises(UsageError, match=r"threads \(1 rows\) and cache \(1 rows\)"):
        match(a, b)


def test_two_values_of_an_axis_on_one_side_are_ambiguous(row, side):
    a = side("a", [row()])
    b = side("b", [row(backend="torch", mode=mode) for mode in ("eager", "compiled")])
    with pytest.raises(UsageError, match=r"is there 2 times \(torch eager, torch compiled\)"):
        match(a, b)


def test_an_empty_run_is_said_to_be_empty(row, side):
    with pytest.raises(UsageError, match="b: nothing was measured"):
        match(side("a", [row()]), side("b", []))


def test_other_layers_are_said_to_be_others(row, side):
    with pytest.raises(UsageError, match=r"they differ in layer, problem"):
        match(side("a", [row("x")]), side("b", [row("y")]))


def test_a_row_is_described_by_what_is_not_usual(row):
    assert describe(row()) == "net/conv forward fp32"
    found = describe(row(backend="torch", mode="eager", cache="all-cold", layout_request="nhwc"))
    assert found == "net/conv forward fp32 torch eager all-cold nhwc"

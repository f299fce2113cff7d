"""Which rows of two runs are of one thing, and along which axis they differ."""

import pytest

from pydlbench.compare.rows import describe, match, row_of_step
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


ON_CARD = {"threads": None, "timing": "cuda-graph"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"layer": "alexnet/conv3", "problem": "p"}, {"layer": "p", "problem": "p"}),
        ({"device": "cuda:0", **ON_CARD}, {"device": "cuda:1", **ON_CARD}),
        # A gradient knows one propagation.
        ({"pass_": "backward-data", "propagation": "training"}, {"pass_": "backward-data"}),
    ],
    ids=["a name and a descriptor", "cards of one kind", "gradients"],
)
def test_rows_of_one_thing_belong_together(row, side, first, second):
    found = match(side("a", [row(**first)]), side("b", [row(**second)]))
    assert (len(found.pairs), found.axis) == (1, None)


def test_a_poolings_descriptor_does_not_say_which_it_is(row, side):
    a = side("a", [row("net/max", kind="pool2d", problem="p"), row()])
    b = side("b", [row("net/mean", kind="pool2d", problem="p"), row()])
    assert [one.layer for one in match(a, b).only_b] == ["net/mean"]


def test_steps_of_two_models_do_not_belong_together(row, side):
    step = {"kind": "check measured", "problem": "{}", "backend": "torch", "mode": "eager"}
    a, b = side("a", [row("vgg11", **step)]), side("b", [row("resnet50", **step)])
    with pytest.raises(UsageError, match=r"they differ in layer \(vgg11 against resnet50\);"):
        match(a, b)
    a, b = side("a", [*a.rows, row()]), side("b", [row(), *b.rows])
    found = match(a, b)
    assert [one.a.layer for one in found.pairs] == ["net/conv"]
    assert [one.layer for one in (*found.only_a, *found.only_b)] == ["vgg11", "resnet50"]


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


def step(side, name, options, batch=8, **own):
    """A run of a step of a model of one's own."""
    document = {"model": "net.py:build", "options": options, "batch": batch, "own": own}
    timed = {"status": "ok", "time_s": {"median": 1e-3}}
    return side(name, [row_of_step({**document, **timed, "phase": "forward", "precision": "fp32"})])


@pytest.mark.parametrize(
    ("first", "second", "axis", "values"),
    [
        ({"options": {"hidden": "8"}}, {"options": {"hidden": "9"}}, "options", "hidden"),
        ({"options": {}, "batch": 4}, {"options": {"batch": "8"}}, "options", "batch"),
        ({"options": {"hidden": "8"}, "batch": 4}, {"options": {"hidden": "8"}}, "batch", "batch"),
    ],
)
def test_steps_with_other_options_are_matched_across_them(side, first, second, axis, values):
    matched = match(step(side, "a", **first), step(side, "b", **second))
    assert (len(matched.pairs), matched.axis) == (1, axis)
    assert matched.values[1].startswith(values)
    assert matched.values[0] != matched.values[1]


def test_what_steps_of_ones_own_model_differ_in_is_named_with_its_values(side):
    a, b = (
        step(side, name, {"hidden": "8"}, loss=loss) for name, loss in (("a", "sum"), ("b", "x:y"))
    )
    with pytest.raises(
        UsageError, match=r"net.py:build hidden=8 .*; they differ in loss \(sum aga"
    ):
        match(a, b)


def test_modes_of_one_backend_are_an_axis_of_their_own(row, side):
    a, b = (
        side(name, [row(backend="torch", mode=mode)])
        for name, mode in (("a", "eager"), ("b", "compiled"))
    )
    assert match(a, b).axis == "mode"


TORCH = [{"backend": "torch", "mode": mode} for mode in ("eager", "compiled")]


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (
            [{"layer": "x", "problem": "p"}, {"layer": "y", "problem": "p"}],
            [{"layer": "z", "problem": "p"}],
            r"a: x .*, y .* 2 rows of one problem .* to z",
        ),
        ([{}], [{}, {"median": 1.0}], r"b: net/conv .* 2 rows of one problem .* to net/conv"),
        (
            [{}],
            [{"threads": 1, "cache": "all-cold"}],
            r"they differ in cache \(hot against all-cold\), threads \(2 against 1\)",
        ),
        (
            [{"layer": "x"}, {"layer": "y"}],
            [{"layer": "x", "threads": 1}, {"layer": "y", "cache": "all-cold"}],
            r"threads \(1 rows\) and cache \(1 rows\)",
        ),
        ([{}], TORCH, r"is there 2 times \(torch eager, torch compiled\)"),
        ([{}], [], "b: nothing was measured"),
        ([{"layer": "x"}], [{"layer": "y"}], "they differ in layer .*, problem"),
    ],
    ids=[
        *("several names", "twice", "two axes", "different axes"),
        *("two values of an axis", "empty", "other layers"),
    ],
)
def test_runs_that_cannot_be_matched_are_refused_with_the_reason(row, side, first, second, reason):
    a, b = (
        side(name, [row(**changes) for changes in rows])
        for name, rows in (("a", first), ("b", second))
    )
    with pytest.raises(UsageError, match=reason):
        match(a, b)


def test_a_row_is_described_by_what_is_not_usual(row):
    assert describe(row()) == "net/conv forward fp32"
    found = describe(row(backend="torch", mode="eager", cache="all-cold", layout_request="nhwc"))
    assert found == "net/conv forward fp32 torch eager all-cold nhwc"

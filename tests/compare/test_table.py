"""The table of a comparison: its columns, and its lines."""

from __future__ import annotations

from pydlbench.compare.match import match
from pydlbench.compare.stored import compare
from pydlbench.report.compare import render_comparison


def rendered(side, rows):
    a, b = side("a", rows), side("b", rows)
    return render_comparison(compare(a, b, match(a, b))).splitlines()


def titles(lines):
    return next(line for line in lines if "95 % CI" in line).split()


def test_what_steps_have_not_needs_no_column(row, side):
    step = {"kind": "step", "problem": "{}", "cache": None, "fuse": None, "propagation": None}
    found = titles(rendered(side, [row(), row("net/fc"), row("net", **step)]))
    assert "kind" in found
    assert not {"cache", "fuse", "propagation"} & set(found)
    found = titles(rendered(side, [row(), row(cache="all-cold"), row("net", **step)]))
    assert "cache" in found


def test_a_row_is_a_line_however_many_columns_there_are(row, side):
    rows = [
        row(f"net/block3/unit{unit}/branch2/conv1/relu", pass_=pass_, **setting)
        for unit in (1, 2)
        for pass_ in ("forward", "backward-weights")
        for setting in (
            {"precision": "fp32", "threads": 1, "cache": "all-cold"},
            {"precision": "bf16", "backend": "tensorflow", "mode": "graph", "fuse": "bias+relu"},
            {"layout_request": "nhwc", "backend": "torch", "mode": "compiled"},
        )
    ]
    lines = rendered(side, rows)
    assert sum(line.startswith("net/") and "UNCLEAR" in line for line in lines) == len(rows)
    assert max(map(len, lines)) > 150

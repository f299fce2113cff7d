"""The table of a comparison: its columns, and its lines."""

from pydlbench.compare.rows import match
from pydlbench.compare.stored import compare
from pydlbench.records import comparison
from pydlbench.report.compare import comparison_report
from pydlbench.report.text import Style, as_text


def rendered(side, rows, width=1000):
    a, b = side("a", rows), side("b", rows)
    report = comparison_report(compare(a, b, match(a, b)))
    return as_text(report, Style(width=width, terminal=True)).splitlines()


def titles(lines):
    return next(line for line in lines if "90 % interval" in line).split()


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
    assert sum(line.startswith("net/") for line in lines) == len(rows)
    narrow = rendered(side, rows, width=80)
    assert max(map(len, narrow)) <= 80
    parts = [line for line in narrow if line.startswith("layer ")]
    assert sum(line.startswith("net/") for line in narrow) == len(parts) * len(rows)
    assert {title for part in parts for title in part.split()} >= {"pass", "cache", "ratio"}


def test_the_documents_names_are_those_of_its_structs(row, side):
    a, b = side("a", [row(), row("net/fc")]), side("b", [row(), row("net/fc")])
    found = compare(a, b, match(a, b)).to_dict()

    def names(struct):
        return set(struct.__struct_encode_fields__)

    assert found.keys() == names(comparison.CompareDocument)
    first = found["rows"][0]
    assert first.keys() == names(comparison.ComparisonRow)
    assert first["a"].keys() == first["b"].keys() == names(comparison.ComparisonSide)
    assert first.keys() >= names(comparison.ComparisonEstimate)

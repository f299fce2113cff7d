"""The modules of a checked step on its page: rows of bars, and a tree."""

import invented_runs as invented
import pytest
from page_reading import by_id, parse

from pydlbench.report.page.page import build_page


def row(name, seconds):
    return {
        "signature": name,
        "operator": "x",
        "names": [name],
        "kind": "layer",
        "seconds": seconds,
    }


def test_modules_have_bars_within_each_other_and_a_tree(tmp_path, native):
    document = invented.check_document(native)
    names = ("features.0.conv", "features.0.norm", "features.1.conv", "head")
    document["operators"] = [row(name, 0.001 * (1 + i)) for i, name in enumerate(names)]
    document["native_parts"] = {"head": 0.002}
    page = build_page(invented.read(tmp_path, document))
    root = parse(page.html)
    marks = {one["module"]: float(one["time-s"]) for one in by_id(root, "modules-1").marks()}
    assert marks["features"] == pytest.approx(0.006)
    assert marks["features.0"] == pytest.approx(0.003)
    # A module with a single child is that child.
    assert marks.keys() == {*names[:2], "features", "features.0", "features.1", "head"}
    assert sum(marks[one] for one in ("features", "head")) == pytest.approx(0.010)
    folded = [one.text().split(":")[0] for one in root.all("summary")]
    assert [one for one in folded if one.startswith("features")] == ["features", "features.0"]


def test_two_thousand_calls_are_no_trouble_for_the_page(tmp_path, native):
    document = invented.check_document(native)
    document["operators"] = [row(f"layers.{i // 20}.block.{i % 20}", 1e-4) for i in range(2000)]
    page = build_page(invented.read(tmp_path, document))
    assert len(page.html) < 5_000_000
    root = parse(page.html)
    assert len(list(root.all("details"))) > 100
    assert by_id(root, "modules-1").marks()

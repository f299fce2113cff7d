"""benchmarks/repeatability.py: which intervals hold the next median, and what is kept."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script():
    sys.path.insert(0, str(_BENCHMARKS))
    yield importlib.import_module("repeatability")
    sys.path.remove(str(_BENCHMARKS))


def _stage(script: Any, **rows: tuple[float, Any, Any]) -> Any:
    """A stage: by layer the median, its own interval, and what is expected in another hour."""
    return {
        (name, "forward"): script.Row(
            median=median,
            within=own and script.Interval(*own),
            expected=expected and script.Interval(*expected),
            contended=False,
            algorithm="jit",
        )
        for name, (median, own, expected) in rows.items()
    }


def test_a_median_is_held_by_the_interval_of_the_stage_before(script):
    before = _stage(
        script,
        a=(1.0, (0.9, 1.1), (0.8, 1.2)),
        b=(1.0, (0.99, 1.01), (0.9, 1.1)),
        c=(1.0, (0.0, 2.0), None),
        d=(1.0, None, (0.5, 1.5)),
    )
    after = _stage(script, a=(1.1, None, None), b=(1.2, None, None), c=(1.3, None, None))
    # a's own end counts; c has no expectation, d no second row
    assert script.held(before, after, "expected") == [True, False]
    assert script.held(before, after, "within") == [True, False, True]


def test_a_stage_is_kept_once_it_is_done(script, tmp_path):
    path = script.rows_file(tmp_path, 1)
    assert not script.is_done(path)
    for interrupted in (True, False):
        path.write_text(json.dumps({"interrupted": interrupted}))
        assert script.is_done(path) is not interrupted


def _document(name: str, median: float, expected: tuple[float, float] | None) -> Any:
    """What ``layers --json`` writes of a row."""
    row = {
        "layer": name,
        "pass": "forward",
        "status": "ok",
        "time_s": {"median": median, "ci_low": 0.99 * median, "ci_high": 1.01 * median},
        "expected_s": expected and {"low": expected[0], "high": expected[1]},
        "contended": False,
        "algorithm": "jit",
    }
    device = {"name": "Invented 9000", "clock_hz": 4e9}
    environment = {"kernel": "Invented 6", "packages": {"pydlbench": "1"}, "code": "c0de"}
    run = {"created_utc": "2030-01-02T03:04:05Z", "device": device, "environment": environment}
    return {"run": run, "measurements": [row]}


def test_the_page_scores_a_stage_against_what_was_expected_before_it(script):
    medians = {1: 0.010, 2: 0.011, 3: 0.010, 4: 0.012}
    expected = {3: (0.009, 0.013), 4: (0.008, 0.014)}
    documents = {
        stage: _document("conv3", median, expected.get(stage)) for stage, median in medians.items()
    }
    page = script.page(documents)
    assert "100 % (1 of 1), aim 90 %: reached" in page
    last = next(line for line in page.splitlines() if line.startswith("| 3, 4"))
    assert [cell.strip() for cell in last.split("|")[2:4]] == ["100 % (1 of 1)", "0.0 % (0 of 1)"]

    documents[4] = _document("conv3", 0.014, expected[4])
    assert "0.0 % (0 of 1), aim 90 %: not reached" in script.page(documents)
    del documents[4]
    assert "needs four stages, half an hour apart" in script.page(documents)

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

"""benchmarks/repeatability.py: whose interval holds whose median, and what goes on."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from invented_runs import RUN

from pydlbench.store.store import Store

_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script():
    sys.path.insert(0, str(_BENCHMARKS))
    yield importlib.import_module("repeatability")
    sys.path.remove(str(_BENCHMARKS))


def _stage(script: Any, **rows: tuple[float, float | None, float | None, bool]) -> Any:
    return {(name, "forward"): script.Row(*row, algorithm="jit") for name, row in rows.items()}


def test_a_median_is_held_by_the_interval_of_the_other_stage(script):
    first = _stage(script, a=(1.0, 0.9, 1.1, False), b=(1.0, 0.99, 1.01, True), c=(1, 0, 2, False))
    second = _stage(script, a=(1.1, 1.05, 1.2, False), b=(1.2, 0.9, 1.5, False))
    assert script.held(first, second) == (1, 2)  # a's own end counts; c has no second row
    assert script.held(second, first) == (1, 2)  # b's wide interval
    assert script.held(*script.quiet(first, second)) == (1, 1)


def test_a_row_without_an_interval_is_in_no_count(script):
    first = _stage(script, a=(1.0, None, None, False))
    assert script.held(first, _stage(script, a=(1.0, 0.9, 1.1, False))) == (0, 0)
    assert script.held(_stage(script, a=(1.0, 0.9, 1.1, False)), first) == (1, 1)


def test_a_stage_begins_goes_on_and_is_kept(script, tmp_path):
    words = script.words(tmp_path, 1, "mnist", None)
    assert words[:3] == ["layers", "--model", "mnist"]
    assert "--batch" not in words
    with Store.open(tmp_path / "stage-1.sqlite") as store:
        store.begin(RUN, "layers")
    assert script.words(tmp_path, 1, "mnist", None)[:3] == ["layers", "--resume", "last"]
    for interrupted in (True, False):
        script.rows_file(tmp_path, 1).write_text(json.dumps({"interrupted": interrupted}))
        assert script.done(tmp_path, 1) is not interrupted

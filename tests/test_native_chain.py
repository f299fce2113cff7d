"""benchmarks/native_chain.py: what its rows say of a chain beside steps."""

import importlib
from pathlib import Path

import pytest

from pydlbench.study.table import Series, Visit

_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MS = 1e-3


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(_BENCHMARKS))
    return importlib.import_module("native_chain")


def series(*milliseconds, seen=None):
    return Series(
        [
            Visit(subject="", round=number, seconds=[each * MS], disturbance=seen)
            for number, each in enumerate(milliseconds)
        ]
    )


@pytest.mark.parametrize(("seen", "contended"), [(None, False), ("somebody else", True)])
def test_a_row_has_the_chain_and_its_ratio_to_each_step(script, seen, contended):
    own = series(10, 11, 12, 11, 10, 12, seen=seen)
    steps = {"torch": ("eager", series(20, 22, 24, 22, 20, 24))}
    row = script.compared(own, steps)
    assert row["chain_s"] == pytest.approx(11 * MS)
    assert row["low_s"] <= row["chain_s"] <= row["high_s"]
    assert row["contended"] is contended
    ratio = row["ratios"]["torch"]
    assert (ratio["mode"], ratio["rounds"]) == ("eager", 6)
    assert ratio["ratio"] == pytest.approx(0.5)
    assert script.ratio_text(row, "torch").startswith("0.500 (0.500 .. 0.500) eager")
    assert script.ratio_text(row, "tensorflow") == "-"

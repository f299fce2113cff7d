"""Rows of breakdowns."""

import invented_runs as invented
import pytest
from breakdown_records import make_record

from pydlbench.compare.rows import match, read_side, row_of_step
from pydlbench.compare.stored import compare
from pydlbench.errors import UsageError


@pytest.fixture
def side(tmp_path):
    """Return a function that reads a breakdown with some fields changed."""

    def read(name, factor=1.0, **changes):
        document = {
            "schema_version": 1,
            "run": {**invented.RUN.to_dict(), "id": name},
            **make_record(factor=factor).to_dict(),
            **changes,
        }
        return read_side(str(invented.write(tmp_path / f"{name}.json", document)), None)

    return read


def test_the_levels_of_a_breakdown_are_rows(side):
    """Calls alone twice as slow are told, and no level that has not changed."""
    sides = side("a"), side("b", 2.0)
    rows = {row.b.kind: row for row in compare(*sides, match(*sides)).rows}
    assert rows["breakdown alone"].verdict == "SLOWER"
    assert rows["breakdown native"].verdict == "SAME"
    assert 1.05 < rows["breakdown native"].estimate.resolution < 1.5
    assert "breakdown limit" not in rows


def test_images_from_elsewhere_are_another_breakdown(side):
    """Breakdowns of earlier versions do not say where theirs came from: they were resident."""
    resident = side("a")
    assert match(resident, side("earlier", feed=None)).pairs
    with pytest.raises(UsageError):
        match(resident, side("fed", feed="host"))


def test_a_step_with_a_swapped_kernel_is_another_step():
    plain = {"model": "mnist", "batch": 8, "status": "ok", "time_s": {"median": 1.0}}
    swapped = plain | {"swaps": ["aten.relu=mine.py:launch"]}
    assert row_of_step(plain) != row_of_step(swapped)
    assert row_of_step(plain) == row_of_step(plain | {"swaps": None})

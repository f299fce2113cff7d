"""Rows of breakdowns."""

import invented_runs as invented
from breakdown_records import make_record

from pydlbench.compare.match import match
from pydlbench.compare.rows import read_side
from pydlbench.compare.stored import compare


def test_the_levels_of_a_breakdown_are_rows(tmp_path):
    """Calls alone twice as slow are told, and no level that has not changed."""
    sides = []
    for name, factor in (("a", 1.0), ("b", 2.0)):
        document = {
            "run": {**invented.RUN.to_dict(), "id": name},
            **make_record(factor=factor).to_dict(),
        }
        path = invented.write(tmp_path / f"{name}.json", {"schema_version": 1, **document})
        sides.append(read_side(str(path), None))
    rows = {row.b.kind: row for row in compare(*sides, match(*sides)).rows}
    assert rows["breakdown alone"].verdict == "SLOWER"
    assert rows["breakdown native"].verdict == "UNCLEAR"
    assert 1.05 < rows["breakdown native"].estimate.resolution < 1.5
    assert "breakdown limit" not in rows

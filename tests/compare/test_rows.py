"""Rows of steps and checks."""

import invented_runs as invented
from check_records import make_laps, make_record

from pydlbench.compare.match import match
from pydlbench.compare.rows import read_side
from pydlbench.compare.stored import compare


def rows_of(folder, document, version=2):
    path = invented.write(folder / "run.json", {"schema_version": version, **document})
    return {row.kind: row for row in read_side(str(path), None).rows}


def test_the_levels_of_a_check_are_rows(tmp_path):
    """Operators twice as slow are told, and no level that has not changed."""
    sides = []
    for name, factor in (("a", 1.0), ("b", 2.0)):
        laps = make_laps(operators=108.0 * factor)
        record = make_record(laps=laps)
        document = {"run": {**invented.RUN.to_dict(), "id": name}, **record.to_dict()}
        path = invented.write(tmp_path / f"{name}.json", {"schema_version": 2, **document})
        sides.append(read_side(str(path), None))
    rows = {row.b.kind: row for row in compare(*sides, match(*sides)).rows}
    assert rows["check operators"].verdict == "SLOWER"
    assert rows["check native"].verdict == "UNCLEAR"
    assert 1.05 < rows["check native"].estimate.resolution < 1.5

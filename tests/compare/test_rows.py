"""Rows of steps and checks: what they were visited for, and how often."""

import math

import invented_runs as invented
import msgspec
import numpy as np
import pytest
from check_records import make_laps, make_record
from invented_rows import time_of

from pydlbench.compare.match import match
from pydlbench.compare.rows import read_side
from pydlbench.compare.scatter import visits_of
from pydlbench.compare.stored import compare


def rows_of(folder, document, version=2):
    path = invented.write(folder / "run.json", {"schema_version": version, **document})
    return {row.kind: row for row in read_side(str(path), None).rows}


def seconds(row):
    return np.exp(visits_of([row])[0])


def test_laps_of_a_check_are_visits_of_its_rungs(tmp_path):
    found = rows_of(tmp_path, invented.check_document())
    laps = make_laps()
    assert list(found) == ["check measured", "check native", "check operators"]
    for kind, name in (("measured", "step"), ("native", "native"), ("operators", "operators")):
        row = found[f"check {kind}"]
        assert row.visits == len(laps)
        assert seconds(row) == pytest.approx([lap.seconds[name] for lap in laps])
        assert row.median == pytest.approx(np.median(seconds(row)))


def test_a_lap_in_which_the_machine_was_another_one_is_no_visit(tmp_path):
    laps = list(make_laps())
    slow = {**laps[2].canary, "operators": 0.5}
    laps[2] = msgspec.structs.replace(laps[2], canary=slow)
    found = rows_of(tmp_path, {"run": invented.RUN.to_dict(), **make_record(laps=laps).to_dict()})
    assert [math.isnan(one) for one in seconds(found["check operators"])] == [
        lap == 2 for lap in range(len(laps))
    ]
    assert not np.isnan(seconds(found["check native"])).any()


def test_a_check_whose_laps_cannot_be_read_was_visited_once(tmp_path):
    document = {**invented.check_document(), "laps": [{"seconds": "many"}]}
    found = rows_of(tmp_path, document)
    assert found["check native"].visit_s is None
    assert found["check native"].ok


def test_visits_of_a_step_are_those_of_its_time(tmp_path):
    visits = (0.1, 0.101, 0.099, 0.1, 0.102, 0.098)
    time = msgspec.structs.replace(time_of(0.1), visits=6, visit_s=visits)
    step = msgspec.structs.replace(invented.step_record(), time=time)
    (row,) = rows_of(tmp_path, invented.steps_document([step]), 1).values()
    assert seconds(row) == pytest.approx(visits)


def test_checks_are_compared_by_their_laps(tmp_path):
    """Far slower operators are told, and no rung whose laps scatter as far as it has moved."""
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
    assert 1.05 < rows["check native"].counts.resolution < 1.5

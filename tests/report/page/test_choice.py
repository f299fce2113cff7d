"""Which rows of a large run the page shows."""

import math

import pytest

from pydlbench.report.page.runs import COLUMNS, MOST_ROWS, MOST_UNTIMED, choose


def column(layer, seconds, status="ok", **others):
    values = {"layer": layer, "kind": "conv2d", "pass": "forward", "status": status, **others}
    return tuple({**values, "median": seconds}[name] for name in COLUMNS)


def test_a_run_of_the_usual_size_is_taken_as_it_is():
    found = choose([column(f"layer{i}", 1.0) for i in range(MOST_ROWS)])
    assert found == (None, 0, 0)


def test_a_layer_comes_with_all_of_its_rows():
    # Two backends each; the fast one of the slowest layer is the fastest of all.
    rows = [column(f"layer{i}", 1.0 + i, backend="native") for i in range(MOST_ROWS)]
    rows += [column(f"layer{i}", 0.5, backend="torch") for i in range(MOST_ROWS)]
    found = choose(rows)
    assert len(found.places) == MOST_ROWS
    names = [rows[place][COLUMNS.index("layer")] for place in found.places]
    half = MOST_ROWS // 2
    assert sorted(set(names)) == sorted(f"layer{i}" for i in range(half, MOST_ROWS))
    assert all(names.count(name) == 2 for name in set(names))
    assert found.left_timed == MOST_ROWS
    assert found.places == sorted(found.places)


def test_one_layer_in_very_many_settings_is_cut():
    found = choose([column("layer", 1.0, batch=i) for i in range(3 * MOST_ROWS)])
    assert len(found.places) == MOST_ROWS
    assert found.left_timed == 2 * MOST_ROWS


@pytest.mark.parametrize("seconds", [None, 0.0, -1.0, math.inf, "text"])
def test_rows_without_a_time_are_counted_by_themselves(seconds):
    rows = [column(f"layer{i}", seconds) for i in range(MOST_ROWS + 1)]
    rows += [column("failed", 1.0, status="failed"), column("good", 1.0)]
    found = choose(rows)
    assert len(found.places) == 1 + MOST_UNTIMED
    assert found.places[-1] == len(rows) - 1
    assert (found.left_timed, found.left_untimed) == (0, MOST_ROWS + 2 - MOST_UNTIMED)

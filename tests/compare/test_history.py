"""Earlier repeats: how much two runs differ by where nothing has changed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pydlbench.compare.statistics import PRIOR_FREEDOM, RUN_SD, from_history, prior


def logs(sds, runs, run_sd=0.0, seed=3):
    rng = random.Random(seed)
    found = []
    for _ in range(runs):
        common = rng.gauss(0, run_sd)
        found.append({name: float(np.exp(common + rng.gauss(0, sd))) for name, sd in sds.items()})
    return found


def test_without_repeats_the_assumed_figures_stay(row):
    assumed = prior([row(), row("net/pool", median=50e-6)])
    assert from_history(assumed, ["x", "y"], []) is assumed
    assert from_history(assumed, ["x", "y"], [{"x": 1.0}]) is assumed
    assert assumed.rows.tolist() == pytest.approx([0.028, 0.14])
    assert assumed.freedom.tolist() == [PRIOR_FREEDOM] * 2


def test_many_repeats_outweigh_what_was_assumed(row):
    names = [f"row{number}" for number in range(8)]
    sds = dict.fromkeys(names, 0.005) | {"row0": 0.2}
    found = from_history(prior([row()] * 8), names, logs(sds, 200, run_sd=0.1))
    assert found.rows[0] == pytest.approx(0.2, rel=0.15)
    assert found.rows[1:] == pytest.approx([0.0075] * 7, rel=0.2)
    assert found.run == pytest.approx(0.1, rel=0.15)
    assert found.runs == 200
    assert found.freedom.tolist() == [PRIOR_FREEDOM + 199] * 8


def test_a_few_repeats_only_add_to_it(row):
    names = [f"row{number}" for number in range(6)]
    found = from_history(prior([row()] * 6), names, logs(dict.fromkeys(names, 1e-6), 2))
    weight = PRIOR_FREEDOM / (PRIOR_FREEDOM + 1)
    assert found.rows == pytest.approx([0.028 * weight**0.5] * 6, rel=1e-3)
    assert found.run == RUN_SD


def test_runs_that_lack_rows_count_for_the_others(row):
    runs = logs({"a": 0.01, "b": 0.01}, 6)
    for run in runs[1:]:
        del run["b"]
    found = from_history(prior([row()] * 2), ["a", "b"], runs)
    assert found.freedom.tolist() == [PRIOR_FREEDOM + 5, PRIOR_FREEDOM]
    assert found.rows[1] == pytest.approx(0.028)

"""Two runs of a fleet: nodes that changed, came and went, and what all have in common."""

from __future__ import annotations

import json

import numpy as np
import pytest
from invented_fleet import fleet, visits

from pydlbench.errors import UsageError
from pydlbench.fleet.verdict import WHOLE, compare_fleets
from pydlbench.records.schema import load_schema
from pydlbench.report.fleet import fleet_comparison
from pydlbench.report.json import dump
from pydlbench.report.text import as_text

NODES, METRICS, ROUNDS = 20, 3, 5


def run(seed, factors=None, **changes):
    """Return the visits of a run whose nodes are healthy, but for some factors of their times."""
    rng = np.random.default_rng(seed)
    own = np.random.default_rng(99).normal(0, 0.005, (NODES, 1))
    drift = rng.normal(0, 0.03, (ROUNDS, 1, 1))
    log_s = own + drift + rng.normal(-5, 0.003, (ROUNDS, NODES, METRICS))
    for node, factor in (factors or {}).items():
        log_s[:, node] += np.log(factor)
    return visits(log_s, **changes)


def of(found, node, metric=WHOLE):
    (one,) = (one for one in found.changes if (one.node, one.metric) == (node, metric))
    return one


def test_what_became_slower_or_faster_is_named_and_nobody_else():
    """Node 3 was slow before and is still: that is no change."""
    found = compare_fleets(run(1, {3: 1.2, 5: 1.06}), run(2, {3: 1.2, 4: 1.06}), 0.03)
    assert {one.node for one in found.with_verdict("SLOWER")} == {"node-4"}
    assert {one.node for one in found.with_verdict("FASTER")} == {"node-5"}
    assert of(found, "node-4").change == pytest.approx(0.06, abs=0.01)
    assert of(found, "node-3").change == pytest.approx(0, abs=0.01)
    assert of(found, "node-4").ci_low > 0.03
    assert found.nodes[:2] == ("node-0", "node-1")


def test_what_all_have_in_common_is_no_node_s_change():
    found = compare_fleets(run(1), run(1, dict.fromkeys(range(NODES), 1.2)), 0.03)
    assert not found.with_verdict("SLOWER")
    assert {one.metric for one in found.common} == {f"layer{n} forward fp32" for n in range(3)}
    for one in found.common:
        assert one.change == pytest.approx(0.2)
        assert (one.least, one.most) == (pytest.approx(0.2), pytest.approx(0.2))
    one = of(found, "node-7", "layer1 forward fp32")
    assert one.after_s / one.before_s == pytest.approx(1.2)


def test_nodes_that_came_went_or_are_other_machines_are_named_and_not_compared():
    before = [one for one in run(1) if one["node"] != "node-2"]
    after = [one for one in run(2) if one["node"] != "node-6"]
    for one in after:
        if one["node"] == "node-8":
            one["machine"] = "Invented 9001"
    found = compare_fleets(before, after, 0.03)
    assert found.gone == ("node-6", "node-8")
    assert found.came == ("node-2", "node-8")
    assert not {"node-2", "node-6", "node-8"} & {*found.nodes, *(one.node for one in found.changes)}
    assert any("Invented 9000 -> Invented 9001" in note for note in found.notes)


def test_nodes_that_came_or_went_change_nothing_for_all_others():
    """Twenty new nodes are a tenth slower than the ten that were there before."""
    few = [one for one in run(1) if int(one["node"].removeprefix("node-")) < 5]
    many = run(2, dict.fromkeys(range(5, NODES), 1.1))
    for before, after in ((few, many), (many, few)):
        found = compare_fleets(before, after, 0.03)
        assert len(found.nodes) == 5
        assert {one.verdict for one in found.changes if one.metric == WHOLE} == {"SAME"}
        assert max(abs(one.change) for one in found.changes) < 0.01


def test_a_node_without_others_of_its_kind_in_both_runs_has_no_verdict():
    before = [one for one in run(1) if int(one["node"].removeprefix("node-")) < 7]
    after = [one for one in run(2, {6: 1.5}) if int(one["node"].removeprefix("node-")) > 5]
    found = compare_fleets(before, after, 0.03)
    assert (found.nodes, found.changes) == (("node-6",), ())
    assert "no node is known to have changed" in as_text(fleet_comparison(found))


def test_nodes_are_held_against_those_that_had_the_same_versions_in_both_runs():
    """Half of the nodes are updated, which makes them slower: no node has changed by itself."""
    after = run(2, dict.fromkeys(range(10), 1.2))
    for one in after:
        if int(one["node"].removeprefix("node-")) < 10:
            one.update(kind="two", versions={"numpy": "3"})
    after = [one for one in after if one["node"] != "node-15"]
    found = compare_fleets(run(1, {15: 1.5}), after, 0.03)
    assert {one.verdict for one in found.changes if one.metric == WHOLE} == {"SAME"}
    changes = {round(one.change, 1) for one in found.common}
    assert changes == {0.0, 0.2}
    assert {one.nodes for one in found.common} == {9, 10}


def test_versions_that_differ_are_named():
    after = run(2, kind="two", versions={"numpy": "3", "torch": "2.13"})
    found = compare_fleets(run(1), after, 0.03)
    assert found.notes == ("all nodes: numpy 2 -> 3", "all nodes: torch none -> 2.13")
    assert len(found.nodes) == NODES


def test_fleets_without_anything_in_common_are_refused():
    other = [{**one, "node": f"other-{one['node']}"} for one in run(2)]
    with pytest.raises(UsageError, match=r"no node in common.*nearest"):
        compare_fleets(run(1), other, 0.03)
    renamed = [{**one, "values": {"a": {"time_s": 1.0}}} for one in run(2)]
    with pytest.raises(UsageError, match=r"no metric in common.*nearest"):
        compare_fleets(run(1), renamed, 0.03)


def test_the_document_is_as_its_schema_says_and_the_report_names_the_node():
    found = compare_fleets(run(1), run(2, {4: 1.06}), 0.03)
    assert "node-4" in as_text(fleet_comparison(found)).splitlines()[0]
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    head = {"kind": "compare-fleets", "runs": ["a", "b"]}
    document = json.loads(dump({**head, **found.to_dict()}))
    validator(load_schema("compare-fleets")).validate(document)


def test_two_clean_fleets_of_many_nodes_show_no_change():
    rng = np.random.default_rng(4)
    own = rng.normal(0, 0.007, (300, 5))
    runs = [own + fleet(rng, nodes=300, metrics=5) for _ in range(2)]
    found = compare_fleets(*map(visits, runs), 0.05)
    flags = [one for one in found.changes if one.verdict in ("SLOWER", "FASTER")]
    assert len(flags) <= len(found.changes) / 1000

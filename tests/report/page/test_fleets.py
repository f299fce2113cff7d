"""A fleet on its page: every node in each metric's strip, tables, and nodes over several runs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from invented_fleet import visits
from invented_runs import RUN
from page_reading import by_id, parse

from pydlbench.fleet.verdict import WHOLE, judge_visits
from pydlbench.records.run import RunInfo
from pydlbench.report.page.page import build_page
from pydlbench.report.page.runs import PageRun

STEP = "alexnet-owt step training fp32 torch eager batch 8"


def page_of(*runs):
    """Return the page of runs, each with its nodes' factors and their number."""
    found = []
    for number, (nodes, factors, machines) in enumerate(runs, start=1):
        rng = np.random.default_rng(number)
        log_s = rng.normal(-5, 0.002, (5, nodes, 2))
        for node, factor in factors.items():
            log_s[:, node] += np.log(factor)
        kept = visits(log_s)
        for one in kept:
            one["values"][STEP] = {**one["values"].pop("layer0 forward fp32"), "step": True}
            one["machine"] = machines.get(one["node"], "Invented 9000")
        status = "interrupted" if number == 2 else "done"
        info = RunInfo(id=f"run{number}", created_utc=RUN.created_utc, kind="fleet", status=status,
                       machine="", command=())  # fmt: skip
        verdict = judge_visits(kept, 0.03)
        found.append(PageRun(number=number, info=info, record=RUN, fleet=verdict))
    return build_page(found).html, [one.fleet for one in found]


def marks(root, name):
    return {(one["node"], one["metric"]): one for one in by_id(root, name).marks()}


def test_every_node_of_a_small_fleet_is_a_mark_in_each_strip():
    html, (fleet,) = page_of((8, {3: 1.08}, {}))
    found = marks(parse(html), "fleet-1")
    assert len(found) == 8 * 3
    assert found["node-3", WHOLE]["verdict"] == "SLOW"
    assert float(found["node-3", WHOLE]["effect"]) == pytest.approx(0.08, abs=0.01)
    assert {key for key, one in found.items() if one["verdict"] == "SLOW"} == {
        ("node-3", metric) for metric in ("layer1 forward fp32", STEP, WHOLE)
    }
    effects = {(one.node, one.metric): one.effect for one in fleet.effects}
    assert {key: float(one["effect"]) for key, one in found.items()} == effects


def test_of_a_large_fleet_those_that_stand_out_are_marks_and_all_others_are_drawn():
    html, (fleet,) = page_of((300, {3: 1.08, 200: 0.9}, {}))
    root = parse(html)
    assert {node for node, _ in marks(root, "fleet-1")} == {"node-3", "node-200"}
    # A dot is a move and a line; each strip has a dot for each node that is no mark.
    paths = [one.attributes.get("d", "") for one in by_id(root, "fleet-1").all("path")]
    dots = sum(len(re.findall(r"M [^M]+ L", path)) for path in paths if path.count("M") > 100)
    assert dots == 3 * (len(fleet.nodes) - 2)


def test_verdict_step_and_nodes_are_told():
    html, (fleet,) = page_of((8, {3: 1.08}, {}))
    root = parse(html)
    assert "node-3" in by_id(root, "conclusion").text()
    assert "waits for" in by_id(root, "conclusion").text()
    (step,) = fleet.steps
    rows = [one.text() for one in by_id(root, "fleets").all("tr")]
    (told,) = (
        row for row in rows if row.startswith(STEP) and step.slowest in row and "8 node-3" in row
    )
    assert "+8." in told or "+7." in told
    assert [row for row in rows if "taskset -c 0 pydlbench" in row]
    assert sum(row.startswith("node-") and row.endswith(" 5") for row in rows) == 8  # rounds
    assert not list(root.all("img")) + list(root.all("link"))


def test_nodes_over_runs_are_matched_by_name_and_machine():
    html, _ = page_of(
        (8, {3: 1.08}, {}), (8, {3: 1.12}, {"node-5": "Other"}), (9, {}, {"node-5": "Other"})
    )
    root = parse(html)
    found = [
        (one["node"], round(100 * float(one["effect"])))
        for one in by_id(root, "fleet-history").marks()
    ]
    assert found[:2] == [("node-3", 8), ("node-3", 12)]
    assert {node for node, _ in found} == {"node-3"}
    tables = [one.text() for one in by_id(root, "fleets").all("caption")]
    assert "Slower by, in all metrics together" in tables
    rows = [one.text() for one in by_id(root, "fleets").all("tr")]
    assert sum(
        row.startswith(("node-5 Other", "node-5 Invented 9000 ")) and " -" in row for row in rows
    )
    assert "interrupted" in by_id(root, "conclusion").text()


def test_a_lonely_node_has_a_page():
    html, _ = page_of((1, {}, {}))
    assert "only node of its kind" in parse(html).text()

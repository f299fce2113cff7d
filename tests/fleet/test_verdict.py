"""Verdicts on invented visits: kinds of nodes, why one is slow, and what a step loses."""

import json
import math
import re

import msgspec
import numpy as np
import pytest
from invented_fleet import fleet, visits
from invented_runs import RUN

from pydlbench.errors import UsageError
from pydlbench.fleet.verdict import WHOLE, judge_visits
from pydlbench.records.fleet import FleetVerdict
from pydlbench.records.schema import load_schema
from pydlbench.report.fleet import fleet_report, slow_rows
from pydlbench.report.json import dump
from pydlbench.report.text import as_text

SLOW = 3


@pytest.fixture
def some():
    """Twenty nodes of which one is 6 % slower, five rounds, three metrics."""
    log_s = fleet(
        np.random.default_rng(1), nodes=20, metrics=3, rounds=5, noise=0.002, slow={SLOW: 1.06}
    )
    return visits(log_s)


def of(verdict, node, metric=WHOLE):
    (found,) = [one for one in verdict.effects if (one.node, one.metric) == (node, metric)]
    return found


def alter(some, *nodes, number=None, **changes):
    """Change the visits of some nodes, in one round or in all."""
    for visit in some:
        if visit["node"] in nodes and number in (None, visit["round"]):
            visit.update(changes)


def change(some, node, *, number=None, factor=1.0, **values):
    """Put what was read beside a node's rows, or all nodes', into its visits; times by a factor."""
    for visit in some:
        if node in (None, visit["node"]) and number in (None, visit["round"]):
            for value in visit["values"].values():
                value.update(values, time_s=factor * value["time_s"])


def test_the_slow_node_is_named_and_nobody_else(some):
    verdict = judge_visits(some, 0.03)
    assert {one.node for one in verdict.slow} == {f"node-{SLOW}"}
    assert [one.node for one in verdict.nodes if one.verdict == "SLOW"] == [f"node-{SLOW}"]
    found = of(verdict, f"node-{SLOW}")
    assert found.effect == pytest.approx(0.06, abs=0.01)
    assert found.ci_low > 0.03
    assert of(verdict, "node-0").verdict == "SAME"


def test_a_wider_margin_calls_nobody_slow(some):
    assert not judge_visits(some, 0.2).slow


@pytest.mark.parametrize(
    ("read", "what", "share"),
    [
        ({"clock_hz": 4e9 / 1.06}, "clock", 1.0),
        ({"clock_hz": 4e9 / 1.06, "throttle": ["power cap"]}, "power cap", 1.0),
        (
            {"clock_hz": 4e9 / 1.03, "throttle": ["hardware thermal slowdown"]},
            "temperature",
            0.5,
        ),
        ({"bandwidth_gbps": 100 / 1.06}, "memory bandwidth", 1.0),
        ({"throttle": ["power cap"]}, "power cap", None),
        ({}, "unexplained", None),
    ],
)
def test_why_follows_from_what_was_read_beside_the_rows(some, read, what, share):
    change(some, None, clock_hz=4e9, bandwidth_gbps=100.0)
    change(some, f"node-{SLOW}", **read)
    (evidence,) = of(judge_visits(some, 0.03), f"node-{SLOW}").evidence
    assert evidence.what == what
    assert evidence.share == (None if share is None else pytest.approx(share, abs=0.15))


def test_what_all_nodes_have_is_no_reason(some):
    change(some, None, clock_hz=4e9, throttle=["power cap"])
    (evidence,) = of(judge_visits(some, 0.03), f"node-{SLOW}").evidence
    assert evidence.what == "unexplained"


def test_rows_that_other_work_disturbed_count_only_where_there_are_no_others(some):
    change(some, "node-5", number=2, factor=1.5, contended=True)
    verdict = judge_visits(some, 0.03)
    assert of(verdict, "node-5").rounds == 4
    assert of(verdict, "node-5").verdict == "SAME"
    change(some, f"node-{SLOW}", contended=True)
    slow = of(judge_visits(some, 0.03), f"node-{SLOW}")
    assert slow.verdict == "SLOW"
    assert [one.what for one in slow.evidence] == ["other work"]


def test_a_round_that_does_not_count_explains_nothing(some):
    change(some, None, clock_hz=4e9)
    beside = {"clock_hz": 2e9, "throttle": ["power cap"], "contended": True}
    change(some, f"node-{SLOW}", number=2, **beside)
    found = of(judge_visits(some, 0.03), f"node-{SLOW}")
    assert (found.verdict, found.rounds) == ("SLOW", 4)
    assert [one.what for one in found.evidence] == ["unexplained"]


def test_the_command_is_that_of_the_slowest_metric_on_that_slot(some):
    verdict = judge_visits(some, 0.03)
    slow = [one for one in verdict.slow if one.metric != WHOLE]
    assert slow
    for one in slow:
        layer = one.metric.partition(" ")[0]
        assert one.command == f"taskset -c 0 pydlbench layers --shape {layer}"
    assert of(verdict, f"node-{SLOW}").command == slow[0].command


def test_kinds_are_never_mixed_and_what_differs_is_named(some):
    alter(some, "node-8", "node-9", kind="two", versions={"numpy": "1"})
    for node in ("node-8", "node-9"):
        change(some, node, factor=2)
    verdict = judge_visits(some, 0.03)
    assert {one.node for one in verdict.slow} == {f"node-{SLOW}"}
    groups = {one.node: one.group for one in verdict.nodes}
    assert groups["node-8"] == groups["node-9"] != groups["node-0"]
    assert any("node-8, node-9: numpy 1 (the others: 2)" in note for note in verdict.notes)


def test_a_node_of_its_own_kind_and_one_that_was_changed_are_named(some):
    alter(some, "node-8", kind="other")
    alter(some, "node-9", number=0, kind="before")
    verdict = judge_visits(some, 0.03)
    assert any(note.startswith("node-8: the only node of its kind") for note in verdict.notes)
    assert any(note.startswith("node-9: changed between rounds") for note in verdict.notes)
    assert of(verdict, "node-9").rounds == 4


def test_cards_in_other_hosts_are_compared_and_their_hosts_named(some):
    for visit in some:
        visit["host"] = "Host 2" if visit["node"] == "node-2" else "Host 1"
    verdict = judge_visits(some, 0.03)
    assert verdict.notes == ("node-2: the card is in another host, Host 2 (the others: Host 1)",)
    assert of(verdict, "node-2").verdict == "SAME"


def test_clocks_that_disagree_and_rounds_that_failed_are_named(some):
    alter(some, "node-0", clock_offset_s=90.0)
    failed = {"status": "failed", "reason": "its worker has died", "values": {}}
    alter(some, "node-1", number=1, **failed)
    verdict = judge_visits(some, 0.03)
    assert any(note.startswith("node-0: clock differs") for note in verdict.notes)
    node = next(one for one in verdict.nodes if one.node == "node-1")
    assert (node.rounds, node.failed, node.reason) == (4, 1, "its worker has died")


def step(some, name="alexnet-owt step training fp32 torch eager batch 8"):
    """Make the first metric a step of a model."""
    for visit in some:
        visit["values"][name] = visit["values"].pop("layer0 forward fp32") | {"step": True}


def test_a_synchronous_step_waits_for_its_slowest_node(some):
    step(some)
    (found,) = judge_visits(some, 0.03, "alexnet-owt").steps
    assert found.slowest == f"node-{SLOW}"
    assert found.nodes == 20
    assert found.loss == pytest.approx(0.06, abs=0.02)
    assert found.slowest_s / found.median_s == pytest.approx(1 + found.loss)
    assert found.ci_low < found.loss < found.ci_high
    assert found.without_slow < 0.03


def test_a_model_without_a_step_is_refused(some):
    assert not judge_visits(some, 0.03).steps
    with pytest.raises(UsageError, match=r"--model vgg16: .*nearest"):
        judge_visits(some, 0.03, "vgg16")


def test_a_fleet_without_a_whole_visit_is_refused(some):
    for visit in some:
        visit.update(status="failed", reason="no", values={})
    with pytest.raises(UsageError, match="visits"):
        judge_visits(some, 0.03)


def test_the_document_is_as_its_schema_says_and_can_be_read_back(some):
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    step(some)
    verdict = judge_visits(some, 0.03)
    document = json.loads(dump({"kind": "fleet", "run": RUN.to_dict(), **verdict.to_dict()}))
    validator(load_schema("fleet")).validate(document)
    again = FleetVerdict.from_dict(document)
    assert msgspec.to_builtins(again) == msgspec.to_builtins(verdict)


def test_the_report_has_the_slow_node_first_and_every_number_a_spread(some):
    step(some)
    lines = as_text(fleet_report(judge_visits(some, 0.03))).splitlines()
    first = slow_rows(judge_visits(some, 0.03))[0]
    assert f"node-{SLOW}" in lines[0]
    assert f"{100 * first.effect:.2g} % in {WHOLE}" in lines[0]
    (row,) = [line for line in lines if re.match(rf"node-{SLOW} +{WHOLE} ", line)]
    assert row.count("%") >= 3
    assert lines[1] == f"next: {first.command}  # on node-{SLOW}"
    clean = visits(np.full((3, 1, 1), math.log(1e-3)))
    assert as_text(fleet_report(judge_visits(clean, 0.03)))


def test_the_report_names_the_largest_slowdown_of_all_nodes():
    slow = {2: 1.1, 7: 1.3}
    log_s = fleet(np.random.default_rng(1), nodes=20, metrics=3, rounds=5, noise=0.002, slow=slow)
    log_s[:, 2, 0] += math.log(1.4)  # in one metric more than the other node, in all less
    verdict = judge_visits(visits(log_s), 0.03)
    single, largest = (of(verdict, f"node-{node}").effect for node in slow)
    assert 0.03 < single < largest
    assert f"by up to {100 * largest:.2g} %" in as_text(fleet_report(verdict)).splitlines()[0]

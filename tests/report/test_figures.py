"""Figures: what is drawn of records."""

import itertools

import invented_runs as invented
import msgspec
import pytest
from invented_rows import time_of

from pydlbench.records.fleet import FleetEffect, FleetMetric, FleetNode, FleetVerdict
from pydlbench.report.drawing import labels, series
from pydlbench.report.figures.bars import Bar, Part, bars, waterfall
from pydlbench.report.figures.batches import Rate, batches
from pydlbench.report.figures.nodes import node_history, nodes
from pydlbench.report.figures.roofline import _flat, roofline
from pydlbench.report.figures.samples import RowSamples, samples


def test_labels_tell_rows_apart():
    rows = [f"alexnet/conv{n} batch 128 forward native eager" for n in (1, 2)]
    assert labels(rows) == ["alexnet/conv1", "alexnet/conv2"]
    long = [f"{'x' * 60}{n}" for n in (1, 2)]
    short = labels([*long, long[0]])
    assert len(set(short)) == 3
    assert max(map(len, short[:2])) <= 40
    assert labels(["one"]) == ["one"]


def test_causes_of_a_waterfall_lie_between_the_levels():
    parts = [
        Part("limit", 0.1, True),
        Part("kernels", 0.3),
        Part("caches", -0.1),
        Part("step", 0.3, True),
    ]
    (figure,) = waterfall("levels", "From the limit to the step", parts)
    drawn = [(one["name"], one["start"], one["end"], one["what"]) for one in values(figure)]
    assert drawn == [
        ("limit", 0, pytest.approx(100), "level"),
        ("+ kernels", pytest.approx(100), pytest.approx(400), "cause"),
        ("+ caches", pytest.approx(400), pytest.approx(300), "saved"),
        ("step", 0, pytest.approx(300), "level"),
    ]
    assert "kernels: 300 ms" in figure.text


def values(figure):
    """The data of all layers of a figure."""
    layers = [figure.spec, *figure.spec.get("layer", ())]
    return [one for layer in layers for one in layer.get("data", {}).get("values", ())]


def test_marks_of_the_roofline_are_the_rows_below_the_roofs_of_their_device(measurement):
    rows = invented.model_rows(measurement, who=("native", "torch eager"))
    (figure,) = roofline(invented.RUN, rows)
    marks = [one for one in values(figure) if "words" in one and "pass" in one]
    for row in rows:
        place = {"x": row.flops_executed / row.bytes, "y": row.tflops_executed, "series": row.who}
        assert any(place.items() <= one.items() for one in marks)
    roofs = {one["roof"]: one["kind"] for one in values(figure) if "roof" in one}
    assert list(roofs.values()).count("theoretical") == 1
    assert "measured memory 48.0 GB/s" in roofs
    assert all(roof in figure.text for roof in roofs)


def test_hollow_marks_of_the_roofline_have_an_outline(measurement):
    (figure,) = roofline(invented.RUN, [measurement(pass_="backward-data")])
    (marks,) = [layer for layer in figure.spec["layer"] if layer["mark"]["type"] == "point"]
    encoding = marks["encoding"]
    assert encoding["fillOpacity"]["value"] < 0.5
    assert encoding["stroke"]["scale"] == encoding["color"]["scale"]


def test_names_on_the_roofline_do_not_cover_each_other(measurement):
    rows = [measurement(layer=f"net/conv{at}", median=0.05 + 1e-6 * at) for at in range(40)]
    (figure,) = roofline(invented.RUN, rows)
    named = figure.spec["layer"][-1]["data"]["values"]
    assert [one["name"] for one in named] == ["conv39"]


def test_of_peaks_near_to_each_other_one_has_its_name_on_the_roofline():
    peaks = {"theoretical fp16-tc peak": 990.0, "measured fp16-tc peak": 780.0}
    peaks |= {"theoretical bf16-tc peak": 985.0, "theoretical fp32 peak": 67.0}
    drawn = list(_flat(peaks, {"measured memory": 4800.0}, (1.0, 1e4), span=5.0))
    assert {one["roof"] for one in drawn} == set(peaks)  # all have their lines
    named = [one["roof"] for one in drawn if one["label"]]
    assert named == ["theoretical fp16-tc peak", "measured fp16-tc peak", "theoretical fp32 peak"]


def test_cold_rows_are_left_out_where_there_are_hot_ones(measurement):
    cold = measurement(cache="all-cold")
    (both,) = roofline(invented.RUN, [measurement(), cold])
    assert len([one for one in values(both) if "pass" in one]) == 2  # the mark and its name
    assert roofline(invented.RUN, [cold])


def test_samples_are_thinned_and_what_is_far_out_is_at_the_edge():
    row = RowSamples("conv3", "native", time_of(0.05), invented.samples(0.05, 300))
    (figure,) = samples([row, RowSamples("none", "native", time_of(0.05), ())])
    drawn = [one for one in values(figure) if "off" in one]
    assert len(drawn) == 100
    reach = max(one["off"] for one in drawn)
    assert drawn[-1]["off"] == reach < 200
    assert samples([]) == []


def test_a_batch_sweep_has_a_line_for_what_has_several_batches():
    rates = [Rate("conv3", 1, 0.1), Rate("conv3", 8, 0.4), Rate("conv4", 1, 0.2)]
    (figure,) = batches(rates, "TFLOP/s")
    assert [(one["series"], one["batch"], one["rate"]) for one in values(figure)] == [
        ("conv3", 1, 0.1),
        ("conv3", 8, 0.4),
    ]
    assert batches(rates[1:], "TFLOP/s") == []


def test_bars_are_ordered_and_in_one_unit():
    parts = [Bar("a", 2e-3, {"limit": 1e-3}), Bar("b", 30e-3, ends=(29e-3, 31e-3))]
    (figure,) = bars("modules", "Where it goes", parts)
    times = [(one["name"], pytest.approx(one["time"])) for one in values(figure)]
    assert times == [("b", 30), ("a", 2), ("a", 1)]
    assert bars("modules", "Where it goes", []) == []


def test_series_differ_in_more_than_colour():
    names = [f"series {at}" for at in range(14)]
    look = series(names)
    pairs = [
        tuple(look[channel]["scale"]["range"][at] for channel in ("color", "shape"))
        for at in range(len(names))
    ]
    assert len(set(pairs)) == len(names)
    neighbours = itertools.pairwise(pairs[:7])
    assert all(a[0] != b[0] and a[1] != b[1] for a, b in neighbours)


@pytest.fixture
def fleet():
    effects = [
        FleetEffect(
            node=f"node{at}",
            metric="all",
            effect=effect,
            ci_low=None,
            ci_high=None,
            rounds=3,
            q=None,
            verdict="SLOW" if effect > 0.05 else "SAME",
        )
        for at, effect in enumerate((0.0, 0.01, 0.5))
    ]
    return FleetVerdict(
        beyond=0.03,
        nodes=tuple(
            FleetNode(
                node=one.node,
                machine="Invented 9000",
                group=0,
                rounds=3,
                failed=0,
                reason=None,
                verdict=one.verdict,
            )
            for one in effects
        ),
        metrics=(
            FleetMetric(
                metric="all",
                group=0,
                nodes=3,
                median_s=None,
                spread=0.01,
                least=0.0,
                most=0.5,
                resolution=0.02,
            ),
        ),
        effects=tuple(effects),
        steps=(),
        notes=(),
    )


def test_every_node_is_a_mark_and_those_far_out_stand_at_the_edge(fleet):
    (figure,) = nodes(fleet)
    marks = [(one["words"], one["effect"]) for one in values(figure) if "words" in one]
    assert sorted(effect for _, effect in marks) == [0.0, 1.0, 30.0]
    assert "node2" in figure.text


def test_the_history_is_of_nodes_that_stood_out_in_a_run(fleet):
    calm = msgspec.structs.replace(
        fleet,
        effects=tuple(
            msgspec.structs.replace(one, effect=0.0, verdict="SAME") for one in fleet.effects
        ),
    )
    (figure,) = node_history({"run 1": fleet, "run 2": calm})
    assert [(one["run"], one["effect"]) for one in values(figure)] == [("run 1", 50), ("run 2", 0)]
    assert node_history({"run 1": fleet}) == []

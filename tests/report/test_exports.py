"""Results in the formats of other tools, read back as those tools read them."""

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest

from pydlbench.cli import export
from pydlbench.cli.parser import read
from pydlbench.errors import UsageError
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepSpec
from pydlbench.report.csv import flat_row
from pydlbench.report.exports import (
    write_bencher,
    write_calls,
    write_github,
    write_trace,
    write_tritonbench,
)
from pydlbench.store.entry import Entry

DATA = Path(__file__).parents[1] / "traces" / "data"
RUN = RunRecord(id="20261126-00000000", created_utc="2026-11-26T00:00:00+00:00")
STEP = {"model": "net", "batch": 8, "phase": "training", "framework": "torch", "mode": "eager"}


def call(operator, module, seconds, **more):
    whole = {"direction": "forward", "count": 2, "share": seconds / 10.0}
    return {"operator": operator, "module": module, "in_context_s": seconds, **whole, **more}


BREAKDOWN = {
    **STEP,
    "calls": [
        call("conv", "a", 4.0, limit_s=1.0, native_s=2.0, alone_s=3.0, flops=600),
        call("relu", "b", 3.0, limit_s=0.5, native_s=None, alone_s=None),
        call("conv", "b", 1.0, limit_s=None, native_s=0.0, alone_s=1.0),
    ],
    "modules": [{"module": "a"}, {"module": "b"}],
    "between_calls_s": 2.0,
    "measured_s": {"median": 10.0, "ci_low": 9.0, "ci_high": 12.0, "n": 6},
}


def check_chrome_rules(events):
    """Hold events against Google's Trace Event Format, as far as these phases go."""
    for event in events:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0 <= event["dur"]
            assert math.isfinite(event["ts"] + event["dur"])
        else:
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            assert event["args"]
    # Slices of a track lie inside each other or apart.
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        for begin, end in slices:
            for other, last in slices:
                crosses = begin < other - 1e-3 < end - 2e-3 < last - 3e-3
                assert not crosses, (begin, end, other, last)


def tracks_of(events):
    """Slices by the name of their track."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[names[event["pid"], event["tid"]]].append(event)
    return found


def test_a_breakdown_has_a_track_per_level_and_a_slice_per_call():
    text, notes = write_trace([(RUN, [Entry("breakdown", BREAKDOWN), Entry("layer", {})])])
    events = json.loads(text)["traceEvents"]
    check_chrome_rules(events)
    tracks = tracks_of(events)
    assert set(tracks) == {"limit", "native", "alone", "in context", "step"}
    calls = {
        track: {
            (event["args"]["module"], event["name"]): event["dur"] / 1e6
            for event in tracks[track]
            if event["cat"] == "call"
        }
        for track in tracks
    }
    assert calls["limit"] == {("a", "conv"): 1.0, ("b", "relu"): 0.5}
    assert calls["native"] == {("a", "conv"): 2.0}
    assert calls["alone"] == {("a", "conv"): 3.0, ("b", "conv"): 1.0}
    assert calls["in context"] == {("a", "conv"): 4.0, ("b", "relu"): 3.0, ("b", "conv"): 1.0}
    modules = [(e["name"], e["ts"], e["dur"]) for e in tracks["in context"] if e["cat"] == "module"]
    assert modules == [("a", 0.0, 4e6), ("b", 4e6, 4e6)]
    (first,) = (e["args"] for e in tracks["in context"] if e["cat"] == "call" and e["ts"] == 0.0)
    assert first == {
        "module": "a",
        "direction": "forward",
        "count": 2,
        "flops": 600,
        "share of step": 0.4,
        "share of limit": 0.25,
    }
    assert [event["dur"] for event in tracks["step"]] == [10e6, 8e6, 2e6]
    assert notes == ["1 entries without calls are not in it"]


def test_a_call_that_takes_no_time_has_no_share_of_its_limit():
    free = call("view", "b", 0.0, limit_s=0.01, native_s=None, alone_s=0.02)
    entry = Entry("breakdown", {**BREAKDOWN, "calls": [*BREAKDOWN["calls"], free]})
    text, _ = write_trace([(RUN, [entry])])
    views = [one for one in json.loads(text)["traceEvents"] if one["name"] == "view"]
    assert views
    assert not any("share of limit" in one["args"] for one in views)


def test_runs_without_calls_are_no_trace():
    with pytest.raises(UsageError, match="neither breakdowns nor traced steps"):
        write_trace([(RUN, [Entry("step", STEP)])])


LAYER = {
    "layer": "alexnet/conv3",
    "batch": 128,
    "pass": "forward",
    "propagation": "inference",
    "precision": "fp32",
    "backend": "native",
    "cache": "hot",
    "layout_request": "best",
    "layout": "nhwc",
    "device": "cpu",
    "threads": 2,
    "status": "ok",
    "tflops": 0.5,
    "time_s": {"median": 0.002, "ci_low": 0.0019, "ci_high": 0.0022, "n": 60},
}
#: As Bencher publishes it: https://bencher.dev/bmf.json
BMF_SCHEMA = {
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {
                        name: {"type": "number"} for name in ("value", "lower_value", "upper_value")
                    },
                    "required": ["value"],
                }
            },
        }
    },
}
ROWS = [
    Entry("layer", LAYER),
    Entry("layer", {**LAYER, "cache": "all-cold", "tflops": None}),
    Entry("step", {**STEP, "images_per_s": 800.0, "time_s": {"median": 0.01, "n": 9}}),
    Entry("breakdown", BREAKDOWN),
    Entry("layer", {**LAYER, "status": "failed"}),
    Entry("layer", {**LAYER, "time_s": {**LAYER["time_s"], "median": 0.004}}),
]


def test_a_model_of_ones_own_has_samples_and_no_layout():
    spec = StepSpec(model="net.py:build", batch=8, framework="torch", mode="eager", layout="nchw")
    document = {**spec.to_dict(), "images_per_s": 800.0, "time_s": {"median": 0.01, "n": 9}}
    entry = Entry("step", {**document, "status": "ok"})
    name = "net.py:build batch 8 forward fp32 torch eager"
    bencher = json.loads(write_bencher([(RUN, [entry])])[0])
    assert bencher[name]["samples-per-second"] == {"value": 800.0}
    assert set(bencher[name]) == {"latency", "samples-per-second"}
    (github,) = json.loads(write_github([(RUN, [entry])])[0])
    assert github["name"] == name
    row = flat_row("step", entry.document)
    assert (row["samples_per_s"], row["images_per_s"], row["layout"]) == (800.0, None, "as-built")


def test_bencher():
    text, notes = write_bencher([(RUN, ROWS)])
    found = json.loads(text)
    pytest.importorskip("jsonschema").validate(found, BMF_SCHEMA)
    hot = found["alexnet/conv3 batch 128 forward fp32 native 2 threads"]
    assert hot == {
        "latency": {"value": 4e6, "lower_value": 1.9e6, "upper_value": 2.2e6},
        "flops-per-second": {"value": 5e11},
    }
    assert set(found["alexnet/conv3 batch 128 forward fp32 native all-cold 2 threads"]) == {
        "latency"
    }
    step = found["net batch 8 training torch eager"]
    assert "latency" in step
    assert len(found) == 3
    assert notes == [
        "1 entries without a time are not in it",
        "2 earlier times of the same rows are not in it",
    ]


def test_github_action_benchmark():
    found = json.loads(write_github([(RUN, ROWS[:2])])[0])
    assert found[0] == {
        "name": "alexnet/conv3 batch 128 forward fp32 native 2 threads",
        "unit": "ms",
        "value": 2.0,
        "range": "± 0.15",
        "extra": "n 60",
    }
    assert len(found) == 2
    with pytest.raises(UsageError, match="nearest"):
        write_github([(RUN, ROWS[4:5])])


def evaluated(text):
    """Evaluate inputs as TritonBench does, tensors as shape, type and strides."""
    names = {"f32": "f32", "bf16": "bf16", "i64": "i64", "inf": math.inf, "torch": None}
    return eval(text, {"T": lambda *parts: parts, **names})


def test_operator_inputs_are_read_back():
    signatures = [
        ("aten.mm.default(float32[8, 4](4, 1), bfloat16[4, 2](1, 4))", 2),
        ("aten.mm.default(float32[8, 4](4, 1), bfloat16[4, 2](1, 4))", 1),
        ("aten.cat.default([float32[2](1), float32[3](1)], 0)", 1),
        ("aten._to_copy.default(int64[()](), dtype=torch.float32, device=torch.device('cpu'))", 1),
        ("aten.clamp.default(float32[2](1), None, inf)", 1),
        ("aten.embedding.default(float32[9, 2](2, 1), int64[3](1))", 4),
        ("onednn:matmul,undef,,,,8x4:4x2", 1),
    ]
    text, notes = write_calls(signatures, "here")
    found = json.loads(text)
    (product,) = found["aten.mm.default"]
    assert product["count"] == 3
    tensors = (([8, 4], "f32"), ([4, 2], "bf16", [1, 4]))
    assert evaluated(product["inputs"]) == (tensors, {})
    assert evaluated(found["aten.cat.default"][0]["inputs"]) == (
        ([([2], "f32"), ([3], "f32")], 0),
        {},
    )
    copied = evaluated(found["aten._to_copy.default"][0]["inputs"])
    assert copied == ((([], "i64"),), {"dtype": "f32", "device": "cpu"})
    assert evaluated(found["aten.clamp.default"][0]["inputs"]) == (
        (([2], "f32"), None, math.inf),
        {},
    )
    assert "aten.embedding.default x 4" in notes[0]
    with pytest.raises(UsageError, match="PyTorch"):
        write_tritonbench([(RUN, [Entry("layer", LAYER)])])


def test_traces_are_exported_as_operator_inputs(capsys):
    trace = f"@{DATA / 'execution.json.gz'}"
    args = read(["export", trace, "--format", "tritonbench"])[0]
    assert export.run(args) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["count"] for one in found["aten.mm.default"]] == [1, 1]
    assert "aten.add_.Tensor" in found
    with pytest.raises(UsageError, match="nearest: --format tritonbench"):
        export.run(read(["export", trace, "--format", "csv"])[0])

"""Invented runs for the tests of the page: what each command would have written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from invented_rows import time_of

from pydlbench.cli.fleet import judged
from pydlbench.cli.runs import stored_report
from pydlbench.models import build_model
from pydlbench.models.passes import step_passes
from pydlbench.records.measurement import Peaks, Roofline
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.report.json import dump
from pydlbench.report.page import PageRun
from pydlbench.store.documents import load

if TYPE_CHECKING:
    from pathlib import Path

DEVICE = {
    "kind": "cpu",
    "name": "Invented 9000",
    "threads": 2,
    "cores": 2,
    "clock_hz": 4e9,
    "facts": {
        "isa": ["avx2", "fma"],
        "caches": [{"level": 3, "type": "Unified", "size_bytes": 1 << 25, "count": 1}],
        "memory_total_bytes": 64e9,
        "virtualised": True,
    },
    "peaks": [
        {
            "precision": "fp32",
            "measured_flops_per_s": 0.58e12,
            "kernel": "fma",
            "theoretical": {"flops_per_s": 0.59e12, "derivation": "36.9 FLOP/cycle x 4 GHz"},
        }
    ],
    "bandwidths": [
        {"level": "memory", "pattern": "read", "bytes_per_s": 40e9, "working_set_bytes": 1e8},
        {"level": "memory", "pattern": "copy", "bytes_per_s": 48e9, "working_set_bytes": 1e8},
        {"level": "llc", "pattern": "read", "bytes_per_s": 150e9, "working_set_bytes": 1e7},
        {"level": "l2", "pattern": "read", "bytes_per_s": 230e9, "working_set_bytes": 1e6},
    ],
    "libraries": {"oneDNN": "3.2.0"},
    "warnings": [{"symptom": "virtual machine", "remedy": "compare what ran interleaved"}],
}
RUN = RunRecord(
    id="20300102-030405-abcd",
    created_utc="2030-01-02T03:04:05Z",
    command=("pydlbench", "layers", "--model", "alexnet-owt"),
    device=DEVICE,
    environment={"python": "3.13.1", "os": "Invented OS 1", "packages": {"numpy": "2.4.6"}},
)
#: A run that says all by which the store finds its repetitions.
REPEATABLE = RunRecord(
    id="20300102-000000-0000",
    created_utc="2030-01-02T00:00:00+00:00",
    command=("pydlbench", "layers", "--shape", "conv3"),
    device={"name": "Invented 9000", "threads": 2, "cpus": [0, 1], "warnings": []},
    environment={
        "packages": {"numpy": "2.0"},
        "variables": {},
        "os": "Invented OS",
        "python": "3.11",
        "code": "c0de",
    },
)
ALL = ("native", "torch eager", "torch compiled", "tensorflow graph")
SLOWER = {"native": 1.0, "torch eager": 1.3, "torch compiled": 1.25, "tensorflow graph": 1.5}


def model_rows(build, name="alexnet-owt", batch=4, who=("native",), passes=("forward",), **changes):
    """A row for every distinct part of a model, as ``build`` (the fixture) makes them."""
    model = build_model(name, batch)
    rows, seen = [], set()
    for part in step_passes(model, "forward-backward" if len(passes) > 1 else "forward"):
        layer, pass_ = part.layer, part.pass_
        if pass_ not in passes or (layer.problem, pass_) in seen:
            continue
        seen.add((layer.problem, pass_))
        flops, moved = layer.flops(pass_), layer.bytes(pass_, 4)
        roof = max(flops / 0.58e12, moved / 100e9)
        for one in who:
            backend, _, mode = one.partition(" ")
            median = roof * SLOWER.get(one, 2.0) * (1.05 + 0.01 * (len(rows) % 7))
            rows.append(
                build(
                    **{
                        "layer": layer.name,
                        "kind": layer.kind,
                        "problem": layer.problem,
                        "batch": batch,
                        "pass_": pass_,
                        "propagation": part.propagation,
                        "backend": backend,
                        "mode": mode or None,
                        "time": time_of(median),
                        "flops": flops,
                        "flops_executed": flops,
                        "bytes": moved,
                        "tflops": flops / median / 1e12,
                        "gbps": moved / median / 1e9,
                        "peak": Peaks(theoretical=0.59, measured=0.58),
                        "roofline": Roofline(
                            bound="compute" if flops / 0.58e12 == roof else "memory",
                            time_s=roof,
                            efficiency=roof / median,
                        ),
                        **changes,
                    }
                )
            )
    return rows


def samples(median: float, count: int = 20) -> tuple[float, ...]:
    """Seconds around a median, the last one far away."""
    return (*(median * (0.98 + 0.04 * (i % 7) / 6) for i in range(count - 1)), 3 * median)


def layers_document(rows: Any, run: RunRecord = RUN, **changes: Any) -> dict[str, Any]:
    """What ``layers --json`` writes."""
    document = {"run": run.to_dict(), "measurements": [row.to_dict() for row in rows]}
    return {"interrupted": False, **document, **changes}


def step_record(seconds: float = 0.1, **changes: Any) -> StepRecord:
    """A framework's step."""
    case = {"model": "alexnet-owt", "batch": 4, "framework": "torch", "mode": "eager", **changes}
    batch = case["batch"]
    return StepRecord(
        spec=StepSpec(**case),
        status="ok",
        time=time_of(seconds),
        images_per_s=batch / seconds,
        samples_s=samples(seconds),
        rounds_s={0: seconds, 1: 1.01 * seconds},
        library=f"{case['framework']} 2.13",
    )


def steps_document(steps: Any) -> dict[str, Any]:
    """What ``step --json`` writes."""
    return {"run": RUN.to_dict(), "steps": [{**one.to_dict(), "flops": 10**9} for one in steps]}


def write(path: Path, document: dict[str, Any]) -> Path:
    """Write a document as its command would."""
    path.write_text(dump(document), encoding="utf-8")
    return path


def read(folder: Path, *documents: dict[str, Any]) -> list[Any]:
    """Write documents and read them back as the page's runs."""
    runs = []
    for number, document in enumerate(documents, start=1):
        # NaN, which a writer would turn into null, is kept: other tools write it.
        text = json.dumps({"schema_version": 1, **document})
        path = folder / f"run{number}.json"
        path.write_text(text, encoding="utf-8")
        loaded = load(str(path), None)
        fleet = judged(loaded) if loaded.info.kind == "fleet" else None
        runs.append(PageRun(loaded, stored_report(loaded), fleet))
    return runs

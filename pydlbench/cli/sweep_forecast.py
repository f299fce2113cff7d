"""What a forecast of a sweep is made from: this machine's facts and its store."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import PydlbenchError
from pydlbench.sweep.forecast import Forecast, Limits, step_key
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydlbench.backends.case import Case
    from pydlbench.results.store import Store
    from pydlbench.sweep import Job, Span
    from pydlbench.sweep.forecast import Key

__all__ = ["format_span", "make_forecast"]

# Earlier runs that are looked at, the newest first.
_RUNS: Final = 100
# Where the clock is not to be read; and what a core can move at least, in bytes per second.
_HZ: Final = 3e9
_CORE_BYTES: Final = 8e9
# A modest card: its worker is not started for a forecast.
_GPU: Final = Limits(flops_per_s={"fp32": 1e13, "fp16": 1e13}, bytes_per_s=4e11)


def make_forecast(store: Store | None) -> Forecast:
    """Return a forecast from what this machine has measured before, and from its facts.

    Args:
        store: earlier runs; None where there is none, or none can be read.
    """
    from pydlbench.devices.cpu import choose_cpus, read_cpu_facts, theoretical_peak

    facts = read_cpu_facts()
    every = len(choose_cpus(facts, None))
    layers: dict[Key, float] = {}
    steps: dict[Key, float] = {}
    if store is not None:
        with contextlib.suppress(PydlbenchError):  # a forecast is worth no complaint
            _read(store, facts.name, layers, steps)

    def limits(device: str, threads: int) -> Limits:
        if device != "cpu":
            return _GPU
        hz = facts.nominal_hz or _HZ
        peaks = {
            name: theoretical_peak(facts, name, threads, hz) for name in ("fp32", "bf16", "fp16")
        }
        known = {name: peak.flops_per_s for name, peak in peaks.items() if peak is not None}
        return Limits(flops_per_s=known, bytes_per_s=_CORE_BYTES * threads)

    return Forecast(limits, every, layers, steps, _kernels, _step_work)


def format_span(span: Span) -> str:
    """Return an interval in one unit: ``2 to 9 min``."""
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if span.high >= 2 * unit:
            low, high = span.low / unit, span.high / unit
            return f"{_short(low)} to {_short(high)} {name}"
    if span.high < 1:
        return f"{format_seconds(span.low)} to {format_seconds(span.high)}"
    return f"{_short(span.low)} to {_short(span.high)} s"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}"


def _read(store: Store, cpu: str, layers: dict[Key, float], steps: dict[Key, float]) -> None:
    """Collect the medians of this machine's earlier runs, the newest of each kind."""
    from pydlbench.results.store import LAYER_COLUMNS
    from pydlbench.results.store.machine import machine_name

    place = {name: index for index, name in enumerate(LAYER_COLUMNS)}
    # As forecast.layer_key has them.
    names = ("problem", "pass", "precision", "device", "backend", "mode", "threads")
    for info in store.runs(limit=_RUNS):
        if info.machine != machine_name({"name": cpu}):
            continue
        for row in store.columns(info.id):
            if row[place["status"]] == "ok" and row[place["median"]]:
                key = tuple(str(row[place[name]] or "") for name in names)
                layers.setdefault(key, row[place["median"]])
        for table, time in (("step", "time_s"), ("check", "measured_s")):
            for entry in store.entries(info.id, table):
                document = entry.document
                if document.get(time):
                    fields = {name: str(value) for name, value in document.items()}
                    options = document.get("options", {})
                    fields["option"] = " ".join(sorted(f"{k}={v}" for k, v in options.items()))
                    key = step_key(fields, document.get("threads"))
                    steps.setdefault(key, document[time]["median"])


def _kernels(job: Job) -> Iterable[Case]:
    """Return the native kernels behind an estimate or a cross-check."""
    from pydlbench.compose import plan

    asked = job.request
    return plan(asked.model, asked.phase, asked.precision, getattr(asked, "device", "cpu")).cases


def _step_work(job: Job) -> tuple[float, float]:
    """Return FLOPs and bytes of a step."""
    from pydlbench.models.work import work

    fields: Mapping[str, Any] = job.rows[0].fields
    model = job.request[0] if job.kind == "e2e" else job.request.model
    items = work(model, fields["phase"])
    return (
        float(sum(one.layer.flops_executed(one.pass_) for one in items)),
        float(sum(one.layer.bytes(one.pass_, 4) for one in items)),
    )

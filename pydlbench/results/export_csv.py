"""CSV in long form: one line per measurement, nested values flattened, every line with its run."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.results.records import Measurement, RunRecord

__all__ = ["CSV_COLUMNS", "to_csv"]

# Written out, so that files of different runs can be concatenated whatever their rows hold.
CSV_COLUMNS = (
    *("run_id", "created_utc", "layer", "kind", "problem", "batch", "pass", "propagation"),
    *("precision", "accumulate", "device", "threads", "backend", "mode", "library"),
    *("algorithm", "layout", "layout_request", "cache", "timing", "status", "reason"),
    *("time_s_median", "time_s_ci_low", "time_s_ci_high", "time_s_confidence"),
    *("time_s_q1", "time_s_q3", "time_s_min", "time_s_n"),
    *("flops", "flops_executed", "bytes", "tflops", "gbps", "arithmetic_intensity", "clock_hz"),
    *("peak_tflops_theoretical", "peak_tflops_measured"),
    *("roofline_bound", "roofline_time_s", "roofline_efficiency", "roofline_bandwidth"),
    *("correct_status", "correct_rel_error", "correct_tolerance", "correct_detail"),
    *("contended", "contention_reason", "discarded", "stop_reason"),
    *("workspace_bytes", "reorder_s", "setup_s", "warnings"),
    *("stop_rule", "inner", "cycles", "retries"),
    *("fuse", "tensor_cores", "notes", "launch_s_event", "launch_s_graph", "launch_s_host"),
    "launch_s_enqueue",
    *("energy_j", "power_w", "gflops_per_watt"),
    *("gpu_sm_clock_hz", "gpu_memory_clock_hz", "gpu_power_w", "gpu_temperature_c", "gpu_reasons"),
    *("gpu_others", "gpu_readings"),
    *("ratio_to", "ratio_median", "ratio_ci_low", "ratio_ci_high", "ratio_rounds"),
    *("warm_s", "faults_default", "faults_warm", "empty_call_s", "causes", "clock_from"),
)
_NESTED = ("time_s", "peak_tflops", "roofline", "correct", "launch_s", "gpu", "ratio", "faults")
_LISTS = ("warnings", "notes", "gpu_reasons", "gpu_others", "causes")


def to_csv(run: RunRecord, measurements: Sequence[Measurement]) -> str:
    """Return the header and one line per measurement.

    What is unknown is an empty cell. ``reorder_s`` is the sum over the operands; raw samples and
    candidates are in JSON only.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for measurement in measurements:
        row: dict[str, Any] = {"run_id": run.id, "created_utc": run.created_utc}
        row |= measurement.to_dict()
        for name in _NESTED:
            for key, value in (row[name] or {}).items():
                row[f"{name}_{key}"] = value
        row["reorder_s"] = sum(measurement.reorder_s.values()) if measurement.reorder_s else None
        row["causes"] = [f"{one['cause']} {one['share']:.0%}" for one in measurement.causes]
        for name in _LISTS:
            row[name] = "; ".join(map(str, row.get(name) or ()))
        writer.writerow({name: _cell(row.get(name)) for name in CSV_COLUMNS})
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value

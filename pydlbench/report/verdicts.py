"""Conclusions from rows: how near a kernel is to its roof, why, and what to try next."""

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pydlbench.analysis.dominance import TimedItem, dominance
from pydlbench.grouping import group_by, sum_by
from pydlbench.ops.table import ITEM_BYTES, without_sides
from pydlbench.records.measurement import (
    MATERIAL,
    NEAR_ROOF,
    Measurement,
    Roofline,
    disturbed_share,
)
from pydlbench.records.run import RunRecord, command_text
from pydlbench.records.trace import Dominant
from pydlbench.report.columns import (
    LEVEL_NAMES,
    MAX_RIVALS,
    by_problem,
    label,
    short_name,
    varying,
)
from pydlbench.report.rivals import compare_backends, compare_settings
from pydlbench.timing.guards import HARMFUL
from pydlbench.timing.statistics import CONFIDENCE
from pydlbench.units import format_seconds, join_names, number, percent, quantity

# Maximum efficiency that the error of a clock read beside the load, not during it, can explain.
_MAX_EFFICIENCY = 1.03
_VECTOR_LANES = 8  # of a 256-bit float32 vector
_MIN_BATCH = 8
# Faster alternatives to each precision, the one with the largest range of numbers first.
_CHEAPER = {
    "cpu": {"fp32": ("bf16", "fp16"), "bf16": ("fp16",)},
    "cuda": {
        "fp32": ("bf16-tc", "fp16-tc", "tf32"),
        "tf32": ("bf16-tc", "fp16-tc"),
        "fp16": ("bf16-tc", "fp16-tc"),
        "bf16-tc": ("fp8-tc",),
        "fp16-tc": ("fp8-tc",),
    },
}


def verdict(row: Measurement) -> str:
    """Return one sentence about an ``ok`` row."""
    name, roof = short_name(row.layer), row.roofline
    if roof is None:
        time = format_seconds(row.time.median) if row.time else "an unknown time"
        lacking = "a measured peak" if row.peak.measured is None else "an undisturbed bandwidth"
        return f"{name} takes {time}; without {lacking} there is no roof to compare it with."
    chip = "GPU" if _on_gpu(row) else "CPU"
    reached = percent(roof.efficiency)
    if roof.bound == "launch":
        return f"{name} is too short for this {chip}: starting it costs more than computing it."
    if roof.bound == "memory":
        return _memory_verdict(name, roof)
    if row.fewer_flops is not None:
        return (
            f"{name} runs at {reached} of a direct kernel's limit; {row.algorithm} "
            f"({row.fewer_flops}) needs fewer FLOPs than that counts, so how much faster it "
            "could be is not known."
        )
    if roof.efficiency > _MAX_EFFICIENCY:
        return (
            f"{name} runs at {reached} of the measured peak: the clock moved between probe and "
            "kernel, or the kernel needs fewer FLOPs than are counted."
        )
    if roof.efficiency >= NEAR_ROOF:
        return (
            f"{name} runs at {reached} of what this {chip}'s {_units(row)}: "
            f"only {_remedy(row)} would make it much faster."
        )
    return (
        f"{name} reaches {reached} of what this {chip}'s {_units(row)}: "
        f"a better kernel could be up to {_gain(roof)} as fast{_cause(row)}."
    )


def _gain(roof: Roofline) -> str:
    return f"{number(1 / roof.efficiency, 2)}x" if roof.efficiency > 0 else "many times"


def _memory_verdict(name: str, roof: Roofline) -> str:
    """Return the sentence on a row bound by memory, with the spread of the bandwidth's probes.

    There is no verdict if it depends on whether the slowest or the fastest probe is right.
    """
    where = LEVEL_NAMES.get(roof.bandwidth, roof.bandwidth)
    low, high = percent(roof.efficiency), percent(roof.efficiency_high)
    reached = low if low == high else f"{low} to {high}"
    if roof.efficiency > _MAX_EFFICIENCY:
        return (
            f"{name} moves its bytes at {reached} of the measured {where} bandwidth: the "
            "probe ran in a slower moment, or part of the data stayed in caches; no verdict."
        )
    if roof.efficiency >= NEAR_ROOF:
        return (
            f"{name} moves its bytes at {reached} of the measured {where} bandwidth: "
            "only fewer bytes (fusion, lower precision) would make it much faster."
        )
    if roof.efficiency_high >= NEAR_ROOF:
        gbps = f"{number(roof.bandwidth_low_gbps)} to {number(roof.bandwidth_gbps)} GB/s"
        return (
            f"{name} is bound by {where} bandwidth and reaches {reached} of it: its probes spread "
            f"from {gbps}, so whether the kernel could be much faster is not known."
        )
    return (
        f"{name} is bound by {where} bandwidth but reaches {reached} of it: "
        f"a better kernel could be up to {_gain(roof)} as fast."
    )


def next_step(row: Measurement, peaks: Mapping[str, float]) -> list[str]:
    """Return up to one line about costs outside the kernel, and one with an option to try."""
    lines = []
    reorders = sum(row.reorder_s.values())
    if row.time is not None and reorders > 0.05 * row.time.median:
        roles = ", ".join(role for role, seconds in row.reorder_s.items() if seconds)
        share = percent(reorders / row.time.median)
        lines.append(
            f"in addition: bringing {roles} into the kernel's layout takes "
            f"{format_seconds(reorders)} ({share} more) where it is not kept in it."
        )
    roof = row.roofline
    launch_bound = roof is not None and roof.bound == "launch"
    near_roof = roof is not None and (roof.efficiency >= NEAR_ROOF or roof.bound == "memory")
    if row.layout_request != "best":
        lines.append("try: --layout best (times every layout and keeps the fastest)")
    elif launch_bound or (not near_roof and row.batch < _MIN_BATCH):
        lines.append(f"try: --batch {16 * row.batch} (more work for each start of the kernel)")
    elif near_roof:
        lines += _lower_precision(row, peaks)
    elif row.candidates is None:
        lines.append("try: --algorithms (what the library's other kernels reach)")
    return lines


def _lower_precision(row: Measurement, peaks: Mapping[str, float]) -> list[str]:
    base = peaks.get(row.precision)
    lower = [name for name in _cheaper(row) if peaks.get(name)]
    if not base or not lower:
        return []
    if row.roofline is not None and row.roofline.bound == "memory":
        narrow = [name for name in lower if 2 * ITEM_BYTES[name] == ITEM_BYTES[row.precision]]
        return [f"try: --precision {narrow[0]} (half the bytes)"] if narrow else []
    best = max(lower, key=lambda name: peaks[name])
    gain = peaks[best] / base
    if gain < 1.05:
        return []
    return [f"try: --precision {best} (the measured {best} peak is {number(gain, 2)}x higher)"]


def _on_gpu(row: Measurement) -> bool:
    return row.device.startswith("cuda")


def _cheaper(row: Measurement) -> tuple[str, ...]:
    """Return the faster alternatives to a row's precision; fp8 has matrix products only."""
    lower = _CHEAPER["cuda" if _on_gpu(row) else "cpu"].get(row.precision, ())
    return tuple(name for name in lower if name != "fp8-tc" or row.kind == "gemm")


def _units(row: Measurement) -> str:
    """Return the arithmetic units whose peak is a row's limit, with their verb."""
    if row.precision == "fp32":
        return "FMA units deliver"
    if not _on_gpu(row):
        return f"{row.precision} units deliver"
    if row.precision == "fp16":
        wide = " with float32 accumulation" if row.accumulate == "float32" else ""
        return f"FMA units deliver in fp16{wide}"
    return f"tensor cores deliver in {row.precision}"


def _remedy(row: Measurement) -> str:
    if row.precision == "fp32":
        return "fewer FLOPs or lower precision"
    if not _on_gpu(row) or not _cheaper(row):
        return "fewer FLOPs"
    return f"fewer FLOPs or {'tensor cores' if row.precision == 'fp16' else 'lower precision'}"


def _cause(row: Measurement) -> str:
    if row.tensor_cores is False and row.precision not in ("fp32", "fp16"):
        return "; it uses no tensor cores"
    channels = re.match(r"(?:g\d+)?mb\d+ic(\d+)", row.problem)
    if without_sides(row.kind) == "conv" and channels and int(channels[1]) < _VECTOR_LANES:
        count = int(channels[1])
        filled = "little of a tile" if _on_gpu(row) else "few vector lanes"
        return f"; {count} input channel{'s' if count > 1 else ''} fill {filled}"
    return f"; batch {row.batch} gives it little work" if row.batch < _MIN_BATCH else ""


# -----------------------------------------------------------------------------
# Conclusions from a table: one sentence, and what to try next.

# Minimum share of a sum that a layer must lose to be named.
_MIN_EXCESS = 0.02
# Axes along which rows are parts of one step, not alternatives: their times may be added up.
_ADDITIVE = {"layer", "pass"}
# Intervals of at least this width are printed in per cent without a decimal.
_MIN_WIDTH_WITHOUT_DECIMAL = 0.02


def conclude(rows: Sequence[Measurement], peaks: Mapping[str, float] | None = None) -> list[str]:
    """Return the conclusions, a line each, the most important first.

    If other work disturbed rows, a line says so, and the first one has the times as upper bounds:
    backends are compared only on problems without a disturbed row, and layers are ranked only if
    the disturbed ones are a small part of the sum.

    Args:
        rows: All measurements of a run, including those without a time.
        peaks: Measured compute peak of the device by precision, in any unit.
    """
    timed = [row for row in rows if row.ok]
    if not timed:
        return [untimed([row.status for row in rows])]
    lines = disturbance(timed)
    if len(timed) > 1 or lines:
        lines = [*(_side_by_side(timed) or (at_most(timed) if lines else ())), *lines]
    else:
        lines = [verdict(timed[0]), *next_step(timed[0], peaks or {})]
    failed = sum(row.status == "failed" for row in rows)
    if failed:
        lines.append(f"{failed} of {len(rows)} rows failed; their reasons stand above.")
    return lines


# An option to try, and why.
_ADVICE: Final = re.compile(r"try: (?P<option>\S+.*?) \((?P<why>.*)\)")


def conclude_run(run: RunRecord, rows: Sequence[Measurement]) -> list[str]:
    """Return the conclusions from a run's rows, with the measured peaks of its device.

    The command to run next is the same one after a disturbed run, and explains slower backends.

    Args:
        run: the run; the peaks are those for the number of threads of the first row.
        rows: all measurements of the run, as in :func:`conclude`.
    """
    threads = next((row.threads for row in rows if row.ok), None)
    peaks = run.device_for(threads).get("peaks")
    measured = {
        peak["precision"]: peak["measured_flops_per_s"]
        for peak in (peaks if isinstance(peaks, list) else ())
        if peak.get("measured_flops_per_s")
    }
    command = run.command
    lines = [text for line in conclude(rows, measured) for text in _pasted(line, command)]
    if "layers" not in command[:2] or any(line.startswith("next: ") for line in lines):
        return lines
    timed = [row for row in rows if row.ok]
    if any(row.contended for row in timed):
        return [*lines, f"next: pydlbench {command_text(command)}"]
    if any(row.ratio for row in timed) and "--explain" not in command:
        return [*lines, f"next: pydlbench {command_text(command)} --explain"]
    limited = {row.layer for row in timed if row.roofline is not None}
    if len(limited) > 1 and any(word.partition("=")[0] == "--shape" for word in command):
        return [*lines, _command_with(f"--shape {shlex.quote(_largest_excess(timed)[0])}", command)]
    return lines


def _command_with(option: str, command: Sequence[str]) -> str:
    """Return the command to run next: one with another value of an option."""
    name = option.partition(" ")[0]
    words = [
        word
        for before, word in itertools.pairwise(["", *command])
        if name not in (before, word.partition("=")[0])
    ]
    return f"next: pydlbench {command_text(words)} {option}"


def _pasted(line: str, command: Sequence[str]) -> list[str]:
    """Return a line; of one with an option to try, why, and the command with that option."""
    advice = _ADVICE.fullmatch(line)
    if advice is None or "layers" not in command[:2]:
        return [line]
    option = advice["option"]
    return [f"{option}: {advice['why']}", _command_with(option, command)]


def _side_by_side(timed: Sequence[Measurement]) -> list[str]:
    """Compare backends, or else settings, or add up the layers of one model."""
    disturbed = any(row.contended for row in timed)
    quiet = [rows for rows in by_problem(timed) if not any(row.contended for row in rows)]
    lines = compare_backends([row for rows in quiet for row in rows])
    if lines or (disturbed and any(row.ratio for row in timed)):
        return lines
    settings = _settings(timed)
    if not settings and len({row.layer.rpartition("/")[0] for row in timed}) == 1:
        return [] if sum_is_disturbed(timed) else _sum(timed)
    if disturbed:
        timed = [row for row in timed if not row.contended]
        settings = _settings(timed)
        if len(timed) < 2 or not settings:
            return []
    return compare_settings(timed, settings)


def _settings(timed: Sequence[Measurement]) -> list[str]:
    """Return the axes along which rows are alternatives, whose times must not be added up."""
    axes = [axis for axis in varying(timed) if axis not in _ADDITIVE]
    layers = {row.layer for row in timed}
    if "batch" in axes and len({(row.layer, row.batch) for row in timed}) == len(layers):
        axes.remove("batch")
    return axes


def sum_is_disturbed(rows: Sequence[Measurement]) -> bool:
    """Whether disturbed rows are too large a part of a sum for conclusions."""
    timed = [row for row in rows if row.ok and row.time is not None]
    return disturbed_share((row.time.median, row.contended) for row in timed if row.time) > MATERIAL


def dominance_text(leader: Dominant, whole: str, count: int = 1) -> str:
    """Return the layers that dominate: ``conv2 dominates: 21 % (95 % 19 .. 23) of the step``.

    Rivals have no share of their own: they differ from the leader by less than the interval.

    Args:
        leader: the first layer of the group that takes most time; its rivals do not differ
            significantly.
        whole: what the share is of.
        count: number of layers in that group.
    """
    group = leader.name if count == 1 else f"{leader.name} and {count - 1} like it"
    ending, share = "s" if count == 1 else "", f"{share_text(leader)} of {whole}"
    if leader.rivals:
        more = len(leader.rivals) - MAX_RIVALS
        names = [*leader.rivals[:MAX_RIVALS], *[f"{more} more"] * (more > 0)]
        return (
            f"no layer dominates alone: {group} take{ending} {share}, "
            f"and {join_names(names)} may take as much"
        )
    return f"{group} dominate{ending}: {share}"


def share_text(leader: Dominant) -> str:
    """Return a share with its interval, if it has one: ``21 % (95 % 19 .. 23)``."""
    if leader.ci_low is None or leader.ci_high is None:
        return percent(leader.share)
    narrow = leader.ci_high - leader.ci_low < _MIN_WIDTH_WITHOUT_DECIMAL
    low, high = (f"{100 * end:.{int(narrow)}f}" for end in (leader.ci_low, leader.ci_high))
    return f"{percent(leader.share, decimal=narrow)} ({100 * CONFIDENCE:g} % {low} .. {high})"


def at_most(rows: Sequence[Measurement]) -> list[str]:
    """Return a line on disturbed times: the sum over layers and passes, of settings the shortest.

    Times are upper bounds, so shares of the limit are lower ones.
    """
    timed = [row for row in rows if row.time is not None]
    alike = group_by(timed, lambda row: (row.layer, row.pass_)).values()
    best = [min(some, key=lambda row: row.time.median if row.time else 0.0) for some in alike]
    total = sum(row.time.median for row in best if row.time is not None)
    roofs = [row.roofline.time_s for row in best if row.roofline is not None]
    names = list(dict.fromkeys(row.layer for row in best))
    name = short_name(names[0]) if len(names) == 1 else quantity(len(names), "layer")
    if len(best) == 1 < len(timed):
        name = f"The fastest row, {label(best[0], varying(timed))},"
    takes, reaches = ("takes", "reaches") if len(names) == 1 else ("take", "reach")
    text = f"{name} {takes} at most {format_seconds(total)}"
    if len(roofs) == len(best) and total > 0:
        text += f" and {reaches} at least {percent(sum(roofs) / total)} of the measured limit"
    return [f"{text}."]


def disturbance(rows: Sequence[Measurement]) -> list[str]:
    """Return a line on the number of disturbed rows; empty if there are none."""
    timed = [row for row in rows if row.ok]
    rows = [row for row in timed if row.contended]
    if not rows:
        return []
    bounds = upper_bounds(len(rows), len(timed))
    slowed = [any(name in (row.contention_reason or "") for name in HARMFUL) for row in rows]
    if all(slowed):
        return [f"the GPU was slowed down: {bounds}; repeat when it is cool."]
    what = "heat and other work" if any(slowed) else "other work"
    return [f"{what} disturbed the run: {bounds}; repeat on an idle machine."]


def upper_bounds(disturbed: int, timed: int) -> str:
    """Return the clause on disturbed times: ``3 of 5 times are upper bounds``."""
    which = "this time" if timed == 1 else f"{disturbed} of {timed} times"
    return f"{which} {'is an upper bound' if disturbed == 1 else 'are upper bounds'}"


def untimed(statuses: Sequence[str]) -> str:
    """Return the conclusion from rows of which none has a time."""
    counts = [(statuses.count(status), status) for status in ("failed", "skipped")]
    parts = [f"{count} {status}" for count, status in counts if count]
    return f"nothing was timed: of {quantity(len(statuses), 'row')} {' and '.join(parts)}."


def _sum(timed: Sequence[Measurement]) -> list[str]:
    """Return the layer that dominates, the share of the limit, and the layer that loses most.

    Layers that other work disturbed are not named.
    """
    leader = _leader(timed)
    if leader is None:
        return []
    times = sum_by((row.layer, row.time.median) for row in timed if row.time is not None)
    roofs = sum_by((row.layer, row.roofline.time_s if row.roofline else 0.0) for row in timed)
    total, roof, top = sum(times.values()), sum(roofs.values()), leader.name
    passes = dict.fromkeys(row.pass_ for row in timed)
    over = "" if len(passes) == 1 else f" over {len(passes)} passes"
    known = all(row.roofline is not None for row in timed)
    if len(times) == 1:
        slow = max(timed, key=lambda row: row.time.median if row.time else 0.0)
        share = slow.time.median / total if slow.time else 0.0
        text = f"{short_name(top)} takes {format_seconds(total)}{over}"
        text += f", {percent(share)} of it in {slow.pass_}"
        return [f"{text}; the measured limit is {percent(roof / total)} of it." if known else text]
    whole = f"the {format_seconds(total)} that {len(times)} layers add up to{over}"
    rivals = tuple(map(short_name, leader.rivals))
    text = dominance_text(
        msgspec.structs.replace(leader, name=short_name(top), rivals=rivals), whole
    )
    if not known:
        return [f"{text}."]
    direct = " of direct kernels" if any(row.fewer_flops for row in timed) else ""
    text += f"; the measured limit{direct} is {percent(roof / total)} of the sum"
    worst, loss = _largest_excess(timed)
    if any(row.contended for row in timed if row.layer == worst):
        return [f"{text}."]
    if loss <= _MIN_EXCESS * total:
        return [f"{text}, and no layer loses more than {100 * _MIN_EXCESS:g} % of it."]
    who = "it" if worst == top and not leader.rivals else short_name(worst)
    return [f"{text}, and {who} loses most: {format_seconds(loss)} above its limit."]


def _largest_excess(timed: Sequence[Measurement]) -> tuple[str, float]:
    """Return the layer that takes most time above its limit, all passes together, and that time.

    Rows without a limit have no part in it.
    """
    excess = sum_by(
        (row.layer, row.time.median - row.roofline.time_s)
        for row in timed
        if row.time is not None and row.roofline is not None
    )
    return max(excess.items(), key=lambda pair: pair[1])


def _leader(timed: Sequence[Measurement]) -> Dominant | None:
    """Return the layer that takes most of the sum; None if other work disturbed it."""
    parts: dict[str, dict[int, float]] = {}
    times: dict[int, TimedItem] = {}
    for place, row in enumerate(timed):
        if row.time is not None:
            parts.setdefault(row.layer, {})[place] = 1.0
            times[place] = TimedItem.from_summary(row.time)
    leader = dominance(parts, times)
    if leader is None or any(row.contended for row in timed if row.layer == leader.name):
        return None
    return leader

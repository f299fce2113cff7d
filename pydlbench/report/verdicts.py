"""What to conclude from rows: how near a kernel is to its roof, what holds it, what to try."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from pydlbench.analysis.dominance import Dominance, TimedItem, dominance
from pydlbench.ops.table import ITEM_BYTES, without_sides
from pydlbench.records.measurement import MATERIAL, NEAR_ROOF, disturbed_share, is_tied, less_exact
from pydlbench.report.columns import AXES, axis_values, by_problem, label, varying
from pydlbench.timing.guards import HARMFUL
from pydlbench.timing.statistics import CONFIDENCE
from pydlbench.units import counted, format_seconds, listed, number, percent, time_in, time_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.records.measurement import Measurement, Roofline
    from pydlbench.records.run import RunRecord


# A clock read beside the load, not during it, wanders by this much.
_ABOVE_ROOF = 1.03
_LEVELS = {"llc": "last-level cache", "l2": "L2 cache"}
_FEW_CHANNELS = 8  # fewer than the lanes of a 256-bit float32 vector
_SMALL_BATCH = 8
# What each precision could be exchanged for, the one with the widest range of numbers first.
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


def short_name(layer: str) -> str:
    """Return a catalog name without its model: ``conv3``."""
    return layer.rsplit("/", 1)[-1]


def verdict(row: Measurement) -> str:
    """Return one sentence about an ``ok`` row."""
    name, roof = short_name(row.layer), row.roofline
    if roof is None:
        time = format_seconds(row.time.median) if row.time else "an unknown time"
        lacking = "a measured peak" if row.peak.measured is None else "an undisturbed bandwidth"
        return f"{name} takes {time}; without {lacking} there is no roof to compare it with."
    chip = "GPU" if _on_gpu(row) else "CPU"
    reached = percent(roof.efficiency)
    faster = f"{number(1 / roof.efficiency, 2)}x" if roof.efficiency > 0 else "many times"
    if roof.bound == "launch":
        return f"{name} is too short for this {chip}: starting it costs more than computing it."
    if roof.bound == "memory":
        return _of_bandwidth(name, roof)
    if row.fewer_flops is not None:
        return (
            f"{name} runs at {reached} of a direct kernel's limit; {row.algorithm} "
            f"({row.fewer_flops}) needs fewer FLOPs than that counts, so how much faster it "
            "could be is not known."
        )
    if roof.efficiency > _ABOVE_ROOF:
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
        f"a better kernel could be up to {faster} as fast{_cause(row)}."
    )


def _of_bandwidth(name: str, roof: Roofline) -> str:
    """The sentence of a row bound by memory, with the spread of the bandwidth it is held against.

    Where the slowest probe and the fastest one lead to different verdicts there is none.
    """
    where = _LEVELS.get(roof.bandwidth, roof.bandwidth)
    low, high = percent(roof.efficiency), percent(roof.efficiency_high)
    reached = low if low == high else f"{low} to {high}"
    if roof.efficiency > _ABOVE_ROOF:
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
    faster = f"{number(1 / roof.efficiency, 2)}x" if roof.efficiency > 0 else "many times"
    return (
        f"{name} is bound by {where} bandwidth but reaches {reached} of it: "
        f"a better kernel could be up to {faster} as fast."
    )


def next_step(row: Measurement, peaks: Mapping[str, float]) -> list[str]:
    """Return at most one line about costs beside the kernel and one with an option to try."""
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
    if row.layout_request != "best":
        lines.append("try: --layout best (times every layout and keeps the fastest)")
    elif roof is not None and roof.bound == "launch":
        lines.append(_larger_batch(row))
    elif roof is not None and (roof.efficiency >= NEAR_ROOF or roof.bound == "memory"):
        lines += _lower_precision(row, peaks)
    elif row.batch < _SMALL_BATCH:
        lines.append(_larger_batch(row))
    elif row.candidates is None:
        lines.append("try: --algorithms (what the library's other kernels reach)")
    return lines


def _larger_batch(row: Measurement) -> str:
    return f"try: --batch {16 * row.batch} (more work for each start of the kernel)"


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
    """The precisions that a row could be exchanged for; of fp8 only products are known."""
    lower = _CHEAPER["cuda" if _on_gpu(row) else "cpu"].get(row.precision, ())
    return tuple(name for name in lower if name != "fp8-tc" or row.kind == "gemm")


def _units(row: Measurement) -> str:
    """The arithmetic units that a row is held against, with their verb."""
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
    if without_sides(row.kind) == "conv" and channels and int(channels[1]) < _FEW_CHANNELS:
        count = int(channels[1])
        filled = "little of a tile" if _on_gpu(row) else "few vector lanes"
        return f"; {count} input channel{'s' if count > 1 else ''} fill {filled}"
    if row.batch < _SMALL_BATCH:
        return f"; batch {row.batch} gives it little work"
    return ""


# -----------------------------------------------------------------------------
# Backends side by side: who is fastest, by how much, and how far from the limit.


def compare_backends(timed: Sequence[Measurement]) -> list[str]:
    """Return a sentence or two about rows whose backends were interleaved.

    Args:
        timed: ``ok`` rows; those without a ratio to the fastest are left out.
    """
    problems = by_problem([row for row in timed if row.ratio is not None])
    several = [rows for rows in problems if len(rows) > 1]
    if not several:
        return []
    return _single(several[0]) if len(several) == 1 else _many(several)


def _single(rows: Sequence[Measurement]) -> list[str]:
    best = _best(rows)
    coarse = sorted((row for row in rows if _coarser(row, best)), key=_backends_ratio)
    slower = sorted(
        (row for row in rows if row is not best and row not in coarse), key=_backends_ratio
    )
    tied = [row.who for row in slower if is_tied(row)]
    layer = short_name(best.layer)
    limit = ""
    if best.roofline is not None:
        whose = "a direct kernel's" if best.fewer_flops else "its"
        limit = f", at {percent(best.roofline.efficiency)} of {whose} measured limit"
    if tied:
        text = f"{listed([best.who, *tied])} cannot be told apart on {layer}"
        text += " and are the fastest" if len(tied) + 1 < len(rows) else ""
        text += limit.replace(", at", f", {best.who} at")
    else:
        text = f"{best.who} runs {layer} fastest{limit}"
    others = [
        f"{row.who} takes {number(_backends_ratio(row), 3)}x as long"
        for row in slower
        if not is_tied(row)
    ]
    lines = [f"{text}; {', '.join(others)}." if others else f"{text}."]
    return [*lines, *(_why_coarse(row, best) for row in coarse)]


def _coarser(row: Measurement, best: Measurement) -> bool:
    return less_exact(row.accumulate, best.accumulate)


def _why_coarse(row: Measurement, best: Measurement) -> str:
    """What a row that sums in fewer bits takes, which no other row is to be measured by."""
    high = row.ratio["ci_high"] if row.ratio else None
    faster = (_backends_ratio(row) if high is None else high) < 1
    because = ", faster because less exact" if faster else ", and less exact"
    return (
        f"{row.who} sums in {row.accumulate}, {best.who} in {best.accumulate}: it takes "
        f"{number(_backends_ratio(row), 3)}x as long{because}."
    )


def _many(problems: Sequence[Sequence[Measurement]]) -> list[str]:
    """Geometric means, each sentence over the problems that all of its backends have in common."""
    bests = [(rows, _best(rows)) for rows in problems]
    exactly = [{row.who: row for row in rows if not _coarser(row, best)} for rows, best in bests]
    winners = [
        None if any(map(is_tied, exact.values())) else best.who
        for exact, (_, best) in zip(exactly, bests, strict=True)
    ]
    coarse = Counter(
        (row.who, row.accumulate) for rows, best in bests for row in rows if _coarser(row, best)
    )
    ran = {
        who: tuple(i for i, exact in enumerate(exactly) if who in exact)
        for who in dict.fromkeys(name for exact in exactly for name in exact)
    }
    lines = []
    for common in sorted(dict.fromkeys(ran.values()), key=len, reverse=True):
        names = [name for name, where in ran.items() if set(where) >= set(common)]
        if len(names) < 2:
            continue
        own = [name for name, where in ran.items() if where == common]
        over = f"over {counted(len(common), 'problem')}"
        if len(common) < len(problems):
            over += f" of {len(problems)}, those of {listed(own)}"
        lines.append(f"{over}, geometric mean: {_means(names, common, exactly, winners)}.")
    for (who, sums), count in coarse.items():
        lines.append(
            f"{who} sums in {sums} in {counted(count, 'problem')}, less exactly than the fastest: "
            "the means leave these out."
        )
    undecided = winners.count(None)
    if undecided:
        lines.append(
            f"in {undecided} of {len(problems)} problems the fastest cannot be told apart from "
            "another and none counts as the fastest."
        )
    return lines


def _means(
    names: Sequence[str],
    common: Sequence[int],
    problems: Sequence[Mapping[str, Measurement]],
    winners: Sequence[str | None],
) -> str:
    means = {
        name: math.exp(
            sum(math.log(_backends_ratio(problems[i][name])) for i in common) / len(common)
        )
        for name in names
    }
    return ", ".join(
        f"{name} {number(means[name], 3)}x the fastest "
        f"({[winners[i] for i in common].count(name)} of {len(common)} fastest)"
        for name in sorted(means, key=lambda name: means[name])
    )


def _best(rows: Sequence[Measurement]) -> Measurement:
    """The row that the ratios refer to; without it, the one that is nearest to it."""
    names = {row.ratio["to"] for row in rows if row.ratio}
    return min(rows, key=lambda row: (row.who not in names, _backends_ratio(row)))


def _backends_ratio(row: Measurement) -> float:
    return float(row.ratio["median"]) if row.ratio else math.inf


# -----------------------------------------------------------------------------
# Settings side by side: which precision, layout, cache state... is faster, and by how much.

# Rows of one run are timed one after another, and the machine drifts in between by several
# percent, which no interval of a single row shows.
_CLAIM = 1.10
_TOO_CLOSE = "too close to tell apart unless interleaved"


def compare_settings(timed: Sequence[Measurement], settings: Sequence[str]) -> list[str]:
    """Return one sentence about rows that differ along ``settings``.

    With one such axis its fastest and slowest value are compared over the rows that all values
    have; with several, the single extremes of a layer, or the row furthest from its roof.

    Args:
        timed: ``ok`` rows, at least two.
        settings: Axes other than layer and pass along which they differ.
    """
    if len(settings) == 1:
        return _one_axis(timed, settings[0])
    one_problem = len({(row.layer, row.problem, row.pass_) for row in timed}) == 1
    if one_problem:
        ordered = sorted(timed, key=lambda row: row.time.median if row.time else 0.0)
        fast, slow = ordered[0], ordered[-1]
        ratio = slow.time.median / fast.time.median if slow.time and fast.time else 1.0
        name = label(fast, settings)
        if ratio < _CLAIM:
            return [f"{len(timed)} settings of {fast.layer} differ by {_gap(ratio)}: {_TOO_CLOSE}."]
        text = f"fastest of {len(timed)} settings: {name}, {_comparison_ratio(ratio)} faster than "
        return [f"{text}{_without_layer(slow, settings)}."]
    known = [row for row in timed if row.roofline is not None]
    if not known:
        return [f"{len(timed)} rows were timed."]
    worst = min(known, key=lambda row: row.roofline.efficiency if row.roofline else 0.0)
    reached = percent(worst.roofline.efficiency) if worst.roofline else "-"
    passes = ["pass"] if len({row.pass_ for row in timed}) > 1 else []
    name = label(worst, [*passes, *settings])
    return [f"furthest from its roof: {name} with {reached} of it."]


def _one_axis(timed: Sequence[Measurement], axis: str) -> list[str]:
    values = axis_values(timed, axis)
    others = [name for name in AXES if name not in {axis, "accumulate"}]
    groups: dict[tuple[str, ...], dict[str, Measurement]] = {}
    for row in timed:
        key = tuple(AXES[name](row) for name in others)
        groups.setdefault(key, {})[AXES[axis](row)] = row
    common = [group for group in groups.values() if all(value in group for value in values)]
    if not common:
        return [f"{len(timed)} rows were timed; no row was timed for every {axis}."]
    sums = {value: _add([group[value] for group in common], axis) for value in values}
    fast = min(values, key=lambda value: sums[value][1])
    slow = max((value for value in values if value != fast), key=lambda value: sums[value][1])
    over = "" if len(common) == 1 else f", added up over {len(common)} rows each"
    per = " per image" if axis == "batch" else ""
    quick, late = _name(axis, fast), _name(axis, slow)
    unit = time_unit([sums[fast][1], sums[slow][1]])
    times = f"{time_in(unit, sums[fast][1])} against {time_in(unit, sums[slow][1])}"
    ratio = sums[slow][1] / sums[fast][1] if sums[fast][1] > 0 else 1.0
    if ratio < _CLAIM:
        return [f"{quick} and {late} differ by {_gap(ratio)}{per}{over} ({times}): {_TOO_CLOSE}."]
    if sums[fast][2] >= sums[slow][0]:
        return [f"{quick} and {late} do not differ{per} beyond their intervals{over} ({times})."]
    return [f"{quick} is {_comparison_ratio(ratio)} faster{per} than {late}{over} ({times})."]


def _comparison_ratio(value: float) -> str:
    """Two digits: more would be drift."""
    return f"{number(float(f'{value:.1e}'), 2)}x"


def _gap(ratio: float) -> str:
    gap = int(100 * (ratio - 1))  # rounded down: 9.9 % is not yet the 10 % of a claim
    return f"{gap} %" if gap else "less than 1 %"


def _add(rows: Sequence[Measurement], axis: str) -> tuple[float, float, float]:
    """Add up lower ends, medians and upper ends; ends of a sum so are wider than needed."""
    terms = [
        (row.time, row.batch if axis == "batch" else 1) for row in rows if row.time is not None
    ]
    return (
        sum((time.q1 if time.ci_low is None else time.ci_low) / per for time, per in terms),
        sum(time.median / per for time, per in terms),
        sum((time.q3 if time.ci_high is None else time.ci_high) / per for time, per in terms),
    )


def _name(axis: str, value: str) -> str:
    threads = "1 thread" if value == "1" else f"{value} threads"
    plain = {"batch": f"batch {value}", "threads": threads}
    return plain.get(axis, value or {"propagation": "inference"}.get(axis, f"no {axis}"))


def _without_layer(row: Measurement, settings: Sequence[str]) -> str:
    return label(row, settings).removeprefix(row.layer).strip() or row.layer


# -----------------------------------------------------------------------------
# What to conclude from a table: one sentence, and what to try next.

# Rows of one step, not alternatives: their times may be added up.
_ADDITIVE = {"layer", "pass"}
# So many of those that may dominate are named.
_RIVALS = 3
# From this width on an interval's ends in per cent need no decimal.
_WIDE = 0.02


def conclude(rows: Sequence[Measurement], peaks: Mapping[str, float] | None = None) -> list[str]:
    """Return the conclusion, a line each; the first one is the sentence to remember.

    Where other work disturbed rows that is said first, and nothing is concluded from them: of
    backends only those problems are compared in which no row was disturbed, and layers are added
    up only where the disturbed ones are a small part of the sum.

    Args:
        rows: All measurements of a run, those without a time too.
        peaks: Measured compute peak of the device by precision, in any unit.
    """
    timed = [row for row in rows if row.ok]
    if not timed:
        return [_nothing(rows)]
    lines = disturbance(timed)
    if len(timed) > 1:
        lines += _side_by_side(timed)
    elif not lines:
        lines = [verdict(timed[0]), *next_step(timed[0], peaks or {})]
    failed = sum(row.status == "failed" for row in rows)
    if failed:
        lines.append(f"{failed} of {len(rows)} rows failed; their reasons stand above.")
    return lines


def conclude_run(run: RunRecord, rows: Sequence[Measurement]) -> list[str]:
    """Return the conclusion from a run's rows; only of a single one does it speak of other peaks.

    Args:
        run: has the measured peaks of its device, at the number of threads of the first row.
        rows: see :func:`conclude`.
    """
    threads = next((row.threads for row in rows if row.ok), None)
    peaks = run.device_for(threads).get("peaks")
    measured = {
        peak["precision"]: peak["measured_flops_per_s"]
        for peak in (peaks if isinstance(peaks, list) else ())
        if peak.get("measured_flops_per_s")
    }
    return conclude(rows, measured)


def _side_by_side(timed: Sequence[Measurement]) -> list[str]:
    """Compare several rows: backends, else settings, or add up the layers of one model."""
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
    """Return the axes along which rows are alternatives, whose times are not added up."""
    axes = [axis for axis in varying(timed) if axis not in _ADDITIVE]
    if "batch" in axes and not _same_layer_in_two_batches(timed):
        axes.remove("batch")
    return axes


def sum_is_disturbed(rows: Sequence[Measurement]) -> bool:
    """Whether rows that other work disturbed are so large a part of a sum that it tells nothing."""
    timed = [row for row in rows if row.ok and row.time is not None]
    return disturbed_share((row.time.median, row.contended) for row in timed if row.time) > MATERIAL


def dominates(name: str, count: int = 1, rivals: Sequence[str] = ()) -> str:
    """Return subject and verb: ``conv2 dominates``, ``conv2 and 3 like it dominate``.

    Args:
        name: of the first of the layers that take most.
        count: how many they are.
        rivals: what cannot be told from them; then it is ``conv2 or conv3 dominates``.
    """
    group = name if count == 1 else f"{name} and {count - 1} like it"
    if not rivals:
        return f"{group} {'dominates' if count == 1 else 'dominate'}"
    *shown, last = [group, *rivals[:_RIVALS]]
    if len(rivals) > _RIVALS:
        shown, last = [*shown, last], f"{len(rivals) - _RIVALS} more"
    return f"{', '.join(shown)} or {last} dominates"


def share_text(leader: Dominance) -> str:
    """Return a share with its interval: ``21 % (95 % 19 .. 23)``; without one where it has none."""
    if leader.ci_low is None or leader.ci_high is None:
        return percent(leader.share)
    narrow = leader.ci_high - leader.ci_low < _WIDE
    low, high = (f"{100 * end:.{int(narrow)}f}" for end in (leader.ci_low, leader.ci_high))
    return f"{percent(leader.share, decimal=narrow)} ({100 * CONFIDENCE:g} % {low} .. {high})"


def disturbance(rows: Sequence[Measurement]) -> list[str]:
    """Return a line on how many of the rows other work disturbed; none where it did not."""
    timed = [row for row in rows if row.ok]
    rows = [row for row in timed if row.contended]
    if not rows:
        return []
    which = "this time" if len(timed) == 1 else f"{len(rows)} of {len(timed)} times"
    few = "is an upper bound" if len(rows) == 1 else "are upper bounds"
    slowed = [any(name in (row.contention_reason or "") for name in HARMFUL) for row in rows]
    if all(slowed):
        return [f"the GPU was slowed down: {which} {few}; repeat when it is cool."]
    what = "heat and other work" if any(slowed) else "other work"
    return [f"{what} disturbed the run: {which} {few}; repeat on an idle machine."]


def _same_layer_in_two_batches(rows: Sequence[Measurement]) -> bool:
    return len({(row.layer, row.batch) for row in rows}) > len({row.layer for row in rows})


def _nothing(rows: Sequence[Measurement]) -> str:
    failed = sum(row.status == "failed" for row in rows)
    skipped = f"{len(rows) - failed} of {len(rows)} rows skipped"
    if failed:
        skipped = f"{failed} of {len(rows)} rows failed, {len(rows) - failed} skipped"
    return f"nothing was timed: {skipped}."


def _sum(timed: Sequence[Measurement]) -> list[str]:
    """Which layer dominates, how much is physics, and which one loses most.

    Of layers that other work disturbed none is named, and none of what they would lead.
    """
    leader = _leader(timed)
    if leader is None:
        return []
    times, roofs = defaultdict[str, float](float), defaultdict[str, float](float)
    for row in timed:
        if row.time is not None:
            times[row.layer] += row.time.median
        roofs[row.layer] += row.roofline.time_s if row.roofline else 0.0
    total, roof, top = sum(times.values()), sum(roofs.values()), leader.name
    passes = dict.fromkeys(row.pass_ for row in timed)
    over = "" if len(passes) == 1 else f" over {len(passes)} passes"
    known = all(row.roofline is not None for row in timed)
    if len(times) == 1:
        slow = max(timed, key=lambda row: row.time.median if row.time else 0.0)
        share = slow.time.median / total if slow.time else 0.0
        text = f"{short_name(top)} takes {format_seconds(total)}{over}"
        text += f", {percent(share)} of it in {slow.pass_}"
        return [f"{text}; {percent(roof / total)} of it is the measured limit." if known else text]
    text = f"{dominates(short_name(top), 1, list(map(short_name, leader.rivals)))}: "
    text += f"{share_text(leader)} of the " if leader.clear else f"{percent(leader.share)} of the "
    text += f"{format_seconds(total)} that {len(times)} layers add up to{over}"
    if not leader.clear:
        text += ", which their intervals cannot tell apart"
    if not known:
        return [f"{text}."]
    direct = " of direct kernels" if any(row.fewer_flops for row in timed) else ""
    text += f"; {percent(roof / total)} of the sum is the measured limit{direct}"
    worst = max(times, key=lambda name: times[name] - roofs[name])
    loss = times[worst] - roofs[worst]
    if any(row.contended for row in timed if row.layer == worst):
        return [f"{text}."]
    if loss <= 0.02 * total:
        return [f"{text}, and no layer loses more than 2 % of it."]
    lost = f"{format_seconds(loss)} above its roof"
    return [f"{text}, and {short_name(worst)} loses most: {lost}."]


def _leader(timed: Sequence[Measurement]) -> Dominance | None:
    """The layer that takes most of several; None where other work disturbed it."""
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

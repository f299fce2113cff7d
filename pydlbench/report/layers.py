"""The report of ``layers``: what the rows share, the table, and what could not be timed and why."""

from __future__ import annotations

import math
import re
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydlbench.ops.table import without_sides
from pydlbench.records.fields import Column, columns_of
from pydlbench.records.measurement import Candidate
from pydlbench.report.backends import interleaved_legend, interleaved_table
from pydlbench.report.blocks import Heading, Lines, Table
from pydlbench.report.columns import by_problem, columns, heading, label, varying
from pydlbench.report.figures.batches import Rate, batches
from pydlbench.report.figures.roofline import roofline
from pydlbench.report.figures.samples import Sampled, samples
from pydlbench.units import (
    format_bytes,
    format_seconds,
    number,
    percent,
    some_names,
    time_in,
    time_unit,
)
from pydlbench.words import PROFILED_RANGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.report.blocks import Block


def layers_report(
    run: RunRecord,
    rows: Sequence[Measurement],
    conclusion: Sequence[str] = (),
    *,
    algorithms: bool = False,
    explain: bool = False,
    ncu: bool = False,
) -> list[Block]:
    """Return heading, table, rows without a time, footnotes and conclusion.

    Args:
        run: The run, for the device's name.
        rows: Measurements, in the order in which they are to stand.
        conclusion: Sentences.
        algorithms: List the candidates of every row.
        explain: Show the measurements behind what is said of slower backends.
        ncu: Show the command that profiles each native row of a GPU.
    """
    if not rows:
        return [Lines(["nothing was timed"])]
    timed = [row for row in rows if row.ok]
    compared = any(row.ratio for row in timed)
    # Sums follow from the backend that a row is named after: "bf16 float32" says nothing.
    axes = [axis for axis in varying(rows) if not (compared and axis == "accumulate")]

    def name(row: Measurement) -> str:
        return label(row, axes)

    apart = [row for row in timed if disagreement(row) is not None]
    blocks: list[Block] = [
        Heading(heading(run, timed or rows)),
        interleaved_table(timed)
        if compared
        else Table.from_rows(columns(timed) if timed else (), timed),
        *roofline(run, timed),
        *samples(
            [
                Sampled(name(row), row.who, row.time, row.samples_s or ())
                for row in timed
                if row.time
            ]
        ),
        *batches(_rates(timed), "TFLOP/s"),
        *_refused(rows, name),
        Lines([*_footnotes(timed, name), *gpu_notes(timed, name), *explanations(timed, name)]),
        *_named_table(apart if len(apart) > _NAMED else (), name, _BY_CLOCK),
        *_named_table([row for row in timed if row.sustained_s], name, _SUSTAINED),
    ]
    if algorithms:
        for row in rows:
            blocks += algorithms_report(row, name(row)) if row.candidates else []
    if explain:
        blocks.append(Lines(list(evidence(timed, name))))
    profiled = [row for row in timed if ncu and row.device != "cpu" and row.backend == "native"]
    return [*blocks, Lines(conclusion), *(Lines(ncu_command(row)) for row in profiled)]


def _rates(rows: Sequence[Measurement]) -> list[Rate]:
    """Return what each layer, in each setting, reaches with its batches."""
    axes = [axis for axis in varying(rows) if axis not in ("batch", "accumulate", "timing")]
    return [Rate(label(row, axes), row.batch, row.tflops) for row in rows if row.tflops]


def ncu_command(row: Measurement) -> list[str]:
    """Return the command that has Nsight Compute profile a native row's execution, line by line.

    The launch gate, which holds kernels back, is off, the clock is left as it is in use, and the
    row's own execution is a range of NVTX. The plan is the row's: a search under a profiler, which
    takes milliseconds for each launch, was seen to end with one that takes twice as long.
    """
    file = re.sub(r"[^A-Za-z0-9.]+", "-", f"{row.layer}-{row.pass_}-{row.precision}")
    more = ["--fuse", row.fuse] if row.fuse != "none" else []
    more += ["--workspace-limit", str(row.workspace_bytes)] if row.workspace_bytes else []
    plan = shlex.quote(f"{row.algorithm} {row.layout}")
    lines = [
        ["ncu", "--set", "full", "--clock-control", "none", "--target-processes", "all"],
        ["--nvtx", "--nvtx-include", f"pydlbench@{PROFILED_RANGE}/", "-o", file],
        ["pydlbench", "layers", "--shape", row.problem, "--pass", row.pass_],
        ["--precision", row.precision, "--cache", row.cache, "--device", row.device],
        ["--layout", row.layout_request, *more, "--repetitions", "1", "--budget", "0.01"],
        ["--store", "none"],
    ]
    first, *others = (shlex.join(words) for words in lines)
    return [
        f"PYDLBENCH_GATE=0 PYDLBENCH_PLAN={plan} \\",
        f"  {first} \\",
        *(f"  {other} \\" for other in others[:-1]),
        f"  {others[-1]}",
    ]


def _refused(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[Lines]:
    """Yield the rows without a time, those together that have the same reason."""
    for status in ("failed", "skipped"):
        group = [row for row in rows if not row.ok and row.status == status]
        reasons = _by(group, name_of, lambda row: row.reason or "no reason recorded")
        lines = [f"{status}  {names}: {reason}" for reason, names in reasons]
        yield Lines(lines, alarm=status == "failed", listed=True)


def _by(
    rows: Iterable[Measurement],
    name_of: Callable[[Measurement], str],
    key: Callable[[Measurement], str],
) -> list[tuple[str, str]]:
    """Group rows by a text and name the members: ``[(text, "conv1, conv2 and 3 more")]``."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(" ".join(key(row).split()), []).append(name_of(row))
    return [(text, some_names(names)) for text, names in groups.items()]


def _footnotes(
    timed: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> Iterator[str]:
    if any(row.ratio for row in timed):
        yield from interleaved_legend(timed)
    several = len(timed) > 1
    stops = _by((row for row in timed if row.stop_reason), name_of, _stop_of(several))
    if len(stops) == 1:
        yield f"stopped: {stops[0][0]}"
    else:
        yield from (f"stopped: {reason}: {names}" for reason, names in stops)
    if not several:
        yield from map(_few_visits, filter(_in_one_process, timed))
        yield from (f"outside the kernel: {cost}" for cost in map(_outside, timed) if cost)
    yield from _contended(timed, name_of)
    for algorithm, names in _fewer_flops(timed, name_of).items():
        yield (
            f"{algorithm}: {_some(names, len(timed))}: fewer FLOPs than a direct kernel's, which "
            "rates and percentages count"
        )
    if any(row.flops_executed != row.flops for row in timed):
        yield "TFLOP/s counts padding, as papers do; percentages use the executed FLOPs only"


def _in_one_process(row: Measurement) -> bool:
    return row.time is not None and row.time.repetitions > 1 and row.time.processes == 1


def _few_visits(row: Measurement) -> str:
    count = 0 if row.time is None else row.time.repetitions
    return (
        f"the interval covers {count} repetitions within seconds, in one process; "
        f"--repetitions {2 * count}, each in a process of its own, would tell more"
    )


def _fewer_flops(
    timed: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> dict[str, list[str]]:
    """Return the rows whose algorithm needs fewer FLOPs than are counted, by the algorithm."""
    by_algorithm: dict[str, list[str]] = {}
    for row in timed:
        if row.fewer_flops is not None:
            by_algorithm.setdefault(row.fewer_flops, []).append(name_of(row))
    return by_algorithm


def _stop_of(several: bool) -> Callable[[Measurement], str]:
    if several:
        # "known to 0.43% at" and "known to 0.44% at" are one reason; a column has the figures.
        figures = re.compile(r" (?:to|at) [\d.]+ ?%|^[\d.]+ s of |, [\d.e-]+ s$")
        return lambda row: figures.sub("", row.stop_reason or "")
    return lambda row: row.stop_reason or ""


def _contended(
    timed: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> Iterator[str]:
    """Say once which rows other work disturbed, and how; figures only of a single row."""
    rows = [row for row in timed if row.contended]
    if not rows:
        return
    reasons = [row.contention_reason or "other work" for row in rows]
    if len(rows) > 1:
        reasons = list(dict.fromkeys(reason.partition(":")[0] for reason in reasons))
    names = _some(list(map(name_of, rows)), len(timed))
    yield f"contended: {names}: {'; '.join(reasons)}"


def _outside(row: Measurement) -> str:
    """What the kernel needs and its time leaves out: reorders, memory, creation."""
    parts = []
    if row.reorder_s:
        times = ", ".join(f"{role} {format_seconds(s)}" for role, s in row.reorder_s.items())
        parts.append(f"reorders from and to plain layouts {times}")
    if row.workspace_bytes:
        parts.append(f"workspace {format_bytes(row.workspace_bytes)}")
    if row.setup_s is not None:
        parts.append(f"created in {format_seconds(row.setup_s)}")
    return "; ".join(parts)


# -----------------------------------------------------------------------------
# ``--algorithms``: every implementation that was tried for one layer, fastest first.


_TIMES: Final = "star algorithm layout summary.median summary.spread=CI summary.n"
_MORE: Final = "reorders workspace_bytes tensor_cores setup_s verdict"


def algorithms_report(row: Measurement, name: str) -> list[Block]:
    """Return the table of a measurement's candidates, or one line where there are none.

    Those that failed or were wrong stand last, with the reason in the place of a verdict.

    Args:
        row: Measurement with ``candidates``.
        name: What to call it in the title.
    """
    known = [(each, each.summary) for each in map(Candidate.from_dict, row.candidates or ())]
    if not known:
        return [Lines([f"{name}: no candidates were recorded"])]
    # On a GPU only those of the finals are timed as the row is.
    known.sort(key=lambda pair: (not pair[0].chosen, pair[1].median if pair[1] else math.inf))
    many = f"{len(known)} candidate{'s' if len(known) > 1 else ''}"
    title = f"{name}: {many}, fastest first; * is the row above"
    candidates = [each for each, _ in known]
    medians = [time.median for _, time in known if time]

    def ratio(candidate: Candidate) -> str:
        time = candidate.summary
        return f"{number(time.median / medians[0])}x" if time and medians[0] > 0 else "-"

    seconds = partial(time_in, time_unit(medians))
    columns = [
        *columns_of(candidates, _TIMES, seconds=seconds),
        *([Column("ratio", ratio)] if medians else []),
        *columns_of(candidates, _MORE),
    ]
    launched = [_launch(kernel) for kernel in row.kernels]
    return [Lines([title, *launched]), Table.from_rows(columns, candidates)]


def _launch(kernel: Mapping[str, Any]) -> str:
    """Return what a GPU runs for one execution, as the driver tells it."""
    grid, block = ("x".join(map(str, kernel[name])) for name in ("grid", "block"))
    return (
        f"runs {kernel['name']}: grid {grid}, block {block}, "
        f"{format_bytes(kernel['shared_bytes'])} shared, {kernel['registers']} registers"
    )


# -----------------------------------------------------------------------------
# Footnotes to rows of a GPU: clocks that disagree, units that were not used, throttling.

# The three clocks of one kernel agree within this, or the row says how they differ.
_AGREE = 0.10
_NAMED = 4
_CLOCKS: Final = ("event", "graph", "host")


def gpu_notes(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """Yield a line for each thing that a reader of these rows has to know.

    Args:
        rows: ``ok`` rows; those of a CPU have nothing to say here.
        name_of: names a row.
    """
    apart = [(row, text) for row in rows if (text := disagreement(row)) is not None]
    if len(apart) > _NAMED:
        yield (
            f"the times of {len(apart)} rows differ between clocks by more than "
            f"{100 * _AGREE:.0f} %: see the table below"
        )
    else:
        yield from (f"{name_of(row)}: {text}" for row, text in apart)
    for remark, names in _units(rows, name_of).items():
        yield f"{remark}: {_some(names, len(rows))}"
    for reason, names in _held_down(rows, name_of).items():
        yield f"clock held down by {reason}: {_some(names, len(rows))}"
    slower = [row for row in rows if _slowed(row)]
    if slower:
        hz = min(row.sustained_hz for row in slower if row.sustained_hz)
        yield (
            "sustained clocks are lower than those of bursts, by power and heat: "
            f"{_some([name_of(row) for row in slower], len(rows))}. For runs that can be compared "
            "an administrator may lock the clock below both: nvidia-smi "
            f"--lock-gpu-clocks={hz / 1e6:.0f} (undone by --reset-gpu-clocks); nothing is set here"
        )


# A clock that is so much lower than that of a burst is no noise of its readings.
_SLOWED: Final = 0.03


def _slowed(row: Measurement) -> bool:
    """Whether executions for a second run at a lower clock than a burst of them."""
    if row.sustained_hz is None or row.clock_hz is None:
        return False
    return row.sustained_hz < (1 - _SLOWED) * row.clock_hz


# What rows reach in a burst and for a second, with the clock, power and energy of it.
_SUSTAINED: Final = "tflops=burst_TFLOP/s clock_hz sustained_tflops sustained_hz power_w picojoules"
# The times by three clocks of the rows whose clocks disagree, where these are many.
_BY_CLOCK: Final = (
    "launch_s.event=between_events launch_s.graph=in_a_graph launch_s.host=host's_clock "
    "launch_s.enqueue=launching_it"
)


def _named_table(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str], names: str
) -> Iterator[Table]:
    """Yield rows by their names, with some of their fields; nothing without a row."""
    if rows:
        yield Table.from_rows([Column("row", name_of, right=False), *columns_of(rows, names)], rows)


def _some(names: Sequence[str], rows: int) -> str:
    return f"all {rows} rows" if len(names) == rows > 1 else some_names(names)


def _units(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> dict[str, list[str]]:
    """Which rows ran on other arithmetic units than their precision suggests."""
    by_remark: dict[str, list[str]] = {}
    for row in rows:
        if not row.device.startswith("cuda") or without_sides(row.kind) not in ("conv", "gemm"):
            continue
        if row.precision == "fp16" and row.accumulate == "float32":
            remark = "fp16 accumulated in float32, so compared with the fp32 peak"
        elif row.precision.endswith(("-tc", "tf32")) and row.tensor_cores is False:
            remark = "the fastest correct kernel uses no tensor cores"
        else:
            continue
        by_remark.setdefault(remark, []).append(name_of(row))
    return by_remark


def disagreement(row: Measurement) -> str | None:
    """Say how a kernel's three times differ, if by more than 10 %; None where they agree.

    The time in a CUDA graph is what the kernel needs; between events the start of each launch
    counts too; on the host's clock a launch that takes longer than the kernel shows, as it does in
    a framework's step.
    """
    times = row.launch_s
    if not times or not all(times.get(name) for name in _CLOCKS):
        return None
    seconds = [times[name] for name in _CLOCKS]
    if max(seconds) <= (1 + _AGREE) * min(seconds):
        return None
    event, graph, host = map(format_seconds, seconds)
    text = f"{event} between events, {graph} in a graph, {host} on the host's clock"
    enqueue = times.get("enqueue")
    if enqueue is None:
        return text
    return f"{text} (launching it takes the host {format_seconds(enqueue)})"


def _held_down(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> dict[str, list[str]]:
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        for reason in (row.gpu or {}).get("reasons", ()):
            if reason != "idle":
                by_reason.setdefault(reason, []).append(name_of(row))
    return by_reason


# -----------------------------------------------------------------------------
# Why the slower backends are slower: one line each, and with ``--explain`` the measurements.

_UNEXPLAINED = "unexplained"
# Two measurements that agree this well, as a share of the gap, add up.
_SLACK = 0.05


def explanations(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> Iterator[str]:
    """Yield a line for each row that is much slower than the fastest backend on its problem.

    Where other work disturbed one of the two nothing is explained.

    Args:
        rows: ``ok`` rows.
        name_of: names a row.
    """
    # A ratio to a row that was disturbed is as worthless as one of it.
    disturbed = {
        id(row)
        for problem in by_problem(rows)
        for row in problem
        if row.ratio
        and any(each.contended for each in problem if each.who in (row.who, row.ratio["to"]))
    }
    for row in rows:
        if not row.causes or row.ratio is None or id(row) in disturbed:
            continue
        known = [cause for cause in row.causes if cause["cause"] != _UNEXPLAINED]
        rest = next((cause for cause in row.causes if cause["cause"] == _UNEXPLAINED), None)
        parts = [_share(cause) for cause in known] or ["no cause found"]
        if rest is not None and known:
            share = rest["share"]
            more = f"together {percent(-share)} more than the gap"
            parts.append(more if share < -_SLACK else f"unexplained {percent(max(0.0, share))}")
        times = f"{number(row.ratio['median'], 3)}x the time of {row.ratio['to']}"
        yield f"{name_of(row)}: {times}: {', '.join(parts)}"


def evidence(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """Yield the measurements behind :func:`explanations`, and what each backend's calls cost.

    Args:
        rows: ``ok`` rows.
        name_of: names a row.
    """
    for row in rows:
        lines = [
            f"  {cause['cause']}: {format_seconds(cause['seconds'])} "
            f"({_signed(cause['share'])} of the gap): {cause['how']}"
            for cause in row.causes
        ]
        if row.empty_call_s is not None:
            empty = format_seconds(row.empty_call_s)
            lines.append(f"  a call that does nothing takes {empty}, which is not subtracted")
        faults = row.faults or {}
        if faults.get("default") is not None:
            kept = faults.get("warm")
            warm = "" if kept is None else f", {kept:.0f} with pages kept"
            lines.append(f"  page faults per call: {faults['default']:.0f}{warm}")
        lines += [f"  {note}" for note in row.notes]
        if lines:
            yield f"{name_of(row)}:"
            yield from lines


def _share(cause: Mapping[str, Any]) -> str:
    return f"{cause['cause']} {format_seconds(cause['seconds'])} ({percent(cause['share'])})"


def _signed(share: float) -> str:
    return f"-{percent(-share)}" if share < 0 else percent(share)

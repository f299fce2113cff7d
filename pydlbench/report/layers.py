"""The report of ``layers``: heading, table, rows without a time, footnotes, conclusion."""

import itertools
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydlbench.ops.table import without_sides
from pydlbench.records.measurement import UNCERTAIN_LEGEND, Candidate, Measurement, is_uncertain
from pydlbench.records.record import Column, columns_of
from pydlbench.records.run import RunRecord
from pydlbench.report.blocks import Block, Heading, Headline, Lines, TableBlock
from pydlbench.report.columns import (
    AXES,
    BACKEND_AXES,
    by_problem,
    columns,
    common_model,
    group_names,
    heading,
    label,
    unit_of,
    varying,
)
from pydlbench.report.figures.batches import Rate, batches
from pydlbench.report.figures.roofline import roofline
from pydlbench.report.figures.samples import RowSamples, samples
from pydlbench.units import (
    format_bytes,
    format_flops,
    format_seconds,
    holding,
    known_text,
    merge_notes,
    number,
    percent,
    quantity,
    some_names,
    time_in,
    time_unit,
)
from pydlbench.words import PROFILED_RANGE, option_words


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
        rows: Measurements in the order of the table.
        conclusion: Sentences.
        algorithms: List the candidates of every row.
        explain: Show the measurements behind the explanations of slower backends.
        ncu: Show the command that profiles each native row of a GPU.
    """
    if not rows:
        return [Lines(["nothing was timed"])]
    timed = [row for row in rows if row.ok]
    compared = any(row.ratio for row in timed)
    # Backends determine their accumulators: names do not need them.
    axes = [axis for axis in varying(rows) if not (compared and axis == "accumulate")]

    def name(row: Measurement) -> str:
        return label(row, axes)

    disagreeing = [row for row in timed if disagreement(row) is not None]
    blocks: list[Block] = [
        Headline(conclusion),
        Heading(heading(run, timed or rows)),
        interleaved_table(timed)
        if compared
        else TableBlock.from_rows(columns(timed) if timed else (), timed),
        *roofline(run, timed),
        *samples(
            [
                RowSamples(name(row), row.who, row.time, row.samples_s or ())
                for row in timed
                if row.time
            ]
        ),
        *batches(_rates(timed), "TFLOP/s"),
        *_refused(rows, name),
        Lines([*_footnotes(timed, name), *gpu_notes(timed, name), *explanations(timed, name)]),
        *_named_table(disagreeing if len(disagreeing) > _MAX_CLOCK_NOTES else (), name, _BY_CLOCK),
        *_named_table([row for row in timed if row.sustained_s], name, _SUSTAINED),
    ]
    listed = [row for row in rows if algorithms and row.candidates]
    profiled = [row for row in timed if ncu and row.device != "cpu" and row.backend == "native"]
    return [
        *blocks,
        *(block for row in listed for block in algorithms_report(row, name(row))),
        Lines(list(evidence(timed, name)) if explain else []),
        *(Lines(ncu_command(row)) for row in profiled),
    ]


def _rates(rows: Sequence[Measurement]) -> list[Rate]:
    """Return the rates of each layer and setting by batch."""
    axes = [axis for axis in varying(rows) if axis not in ("batch", "accumulate", "timing")]
    return [Rate(label(row, axes), row.batch, row.tflops) for row in rows if row.tflops]


def ncu_command(row: Measurement) -> list[str]:
    """Return the command that profiles a native row with Nsight Compute, line by line.

    The launch gate, which holds kernels back, is off, the clock is not changed, and the execution
    is a range of NVTX. The row's plan is given: with a profiler a launch takes milliseconds, and a
    search was seen to choose a plan that takes twice as long.
    """
    file = re.sub(r"[^A-Za-z0-9.]+", "-", f"{row.layer}-{row.pass_}-{row.precision}")
    more = option_words(
        ("--fuse", row.fuse, "none"), ("--workspace-limit", row.workspace_bytes or None, None)
    )
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
    """Yield the rows without a time, grouped by reason."""
    for status in ("failed", "skipped"):
        reasons = group_names(
            (" ".join((row.reason or "no reason recorded").split()), name_of(row))
            for row in rows
            if not row.ok and row.status == status
        )
        lines = [f"{status}  {some_names(names)}: {reason}" for reason, names in reasons.items()]
        yield Lines(lines, alarm=status == "failed", listed=True)


def _footnotes(
    timed: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> Iterator[str]:
    if any(row.ratio for row in timed):
        yield from interleaved_legend(timed)
    several = len(timed) > 1
    stops = group_names(
        (" ".join(row.stop_reason.split()), name_of(row)) for row in timed if row.stop_reason
    )
    for reason, names in stops.items():
        yield f"stopped: {reason}" + (f": {some_names(names)}" if len(stops) > 1 else "")
    if not several:
        yield from _few_visits(timed)
        yield from (f"outside the kernel: {cost}" for cost in map(_outside, timed) if cost)
    yield from _contended(timed, name_of)
    fewer = group_names((row.fewer_flops, name_of(row)) for row in timed if row.fewer_flops)
    for algorithm, names in fewer.items():
        yield (
            f"{algorithm}: {_some(names, len(timed))}: fewer FLOPs than a direct kernel's, which "
            "rates and percentages count"
        )
    if any(row.flops_executed != row.flops for row in timed):
        yield "TFLOP/s counts padding, as papers do; percentages use the executed FLOPs only"


def _few_visits(timed: Sequence[Measurement]) -> Iterator[str]:
    for row in timed:
        if row.time is not None and row.time.repetitions > 1 and row.time.processes == 1:
            count = row.time.repetitions
            yield (
                f"the interval covers {count} repetitions within seconds, in one process; "
                f"--repetitions {2 * count}, each in a process of its own, would tell more"
            )


def _contended(
    timed: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> Iterator[str]:
    """Yield the line on disturbed rows and the counters, with numbers for a single row."""
    rows = [row for row in timed if row.contended]
    if not rows:
        return
    reasons = [row.contention_reason or "other work" for row in rows]
    if len(rows) > 1:
        reasons = merge_notes(reason.partition(":")[0] for reason in reasons)
    names = _some(list(map(name_of, rows)), len(timed))
    yield f"contended: {names}: {'; '.join(reasons)}"


def _outside(row: Measurement) -> str:
    """Return costs of the kernel that its time does not contain: reorders, memory, creation."""
    times = ", ".join(f"{role} {format_seconds(s)}" for role, s in row.reorder_s.items())
    parts = (
        f"reorders from and to plain layouts {times}" if times else "",
        f"workspace {format_bytes(row.workspace_bytes)}" if row.workspace_bytes else "",
        "" if row.setup_s is None else f"created in {format_seconds(row.setup_s)}",
    )
    return "; ".join(filter(None, parts))


# -----------------------------------------------------------------------------
# ``--algorithms``: every implementation that was tried for one layer, fastest first.

_TIMES: Final = "star algorithm layout summary.median summary.spread=CI summary.n"
#: Number of samples from which on a candidate counts for the regret of the choice.
MIN_SAMPLES: Final = 5
_MORE: Final = "reorders workspace_bytes tensor_cores setup_s verdict"


def regret(candidates: Sequence[Candidate]) -> float | None:
    """Return how much slower the chosen kernel is than the fastest candidate, as a fraction.

    Only candidates that were measured long enough, and are not wrong, count. None if the chosen
    one was not, or is alone.
    """
    timed = [
        (time.median, candidate.chosen)
        for candidate in candidates
        if (time := candidate.summary) and time.n >= MIN_SAMPLES
    ]
    chosen = next((seconds for seconds, is_chosen in timed if is_chosen), None)
    if chosen is None or len(timed) == 1:
        return None
    return chosen / min(timed)[0] - 1


def algorithms_report(row: Measurement, name: str) -> list[Block]:
    """Return the table of a measurement's candidates, or one line if there are none.

    Candidates that failed or were wrong are last, with the reason instead of a verdict.

    Args:
        row: Measurement with ``candidates``.
        name: Its name in the title.
    """
    candidates = list(map(Candidate.from_dict, row.candidates or ()))
    if not candidates:
        return [Lines([f"{name}: no candidates were recorded"])]

    def rank(candidate: Candidate) -> tuple[bool, float]:
        # On a GPU only candidates of the last stage are timed as the row is.
        time = candidate.summary
        return not candidate.chosen, time.median if time else math.inf

    candidates.sort(key=rank)
    title = f"{name}: {quantity(len(candidates), 'candidate')}, fastest first; * is the row above"
    known = regret(candidates)
    if known is not None:
        title += f", regret {percent(known)}"
    medians = [time.median for candidate in candidates if (time := candidate.summary)]

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
    return [Lines([title, *launched]), TableBlock.from_rows(columns, candidates)]


def _launch(kernel: Mapping[str, Any]) -> str:
    """Return a kernel of one execution on a GPU, as the driver reports it."""
    grid, block = ("x".join(map(str, kernel[name])) for name in ("grid", "block"))
    return (
        f"runs {kernel['name']}: grid {grid}, block {block}, "
        f"{format_bytes(kernel['shared_bytes'])} shared, {kernel['registers']} registers"
    )


# -----------------------------------------------------------------------------
# Footnotes to rows of a GPU: clocks that disagree, unused units, throttling.

# Maximum difference between the times of one kernel by three clocks that is not reported.
_MAX_CLOCK_DIFFERENCE = 0.10
# Maximum number of notes on clocks that disagree; more rows are in a table instead.
_MAX_CLOCK_NOTES = 4
_CLOCKS: Final = ("event", "graph", "host")
# Minimum drop of the clock over a second of executions that is reported; readings scatter less.
_MIN_SLOWDOWN: Final = 0.03


def gpu_notes(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """Yield the notes on rows of a GPU.

    Args:
        rows: ``ok`` rows; there are no notes on those of a CPU.
        name_of: function that returns a row's name.
    """
    disagreeing = [(row, text) for row in rows if (text := disagreement(row)) is not None]
    if len(disagreeing) > _MAX_CLOCK_NOTES:
        yield (
            f"the times of {len(disagreeing)} rows differ between clocks by more than "
            f"{100 * _MAX_CLOCK_DIFFERENCE:.0f} %: see the table below"
        )
    else:
        yield from (f"{name_of(row)}: {text}" for row, text in disagreeing)
    remarks = group_names(
        (remark, name_of(row)) for row in rows if (remark := _units_remark(row)) is not None
    )
    reasons = group_names(
        (f"clock held down by {reason}", name_of(row))
        for row in rows
        for reason in (row.gpu or {}).get("reasons", ())
        if reason != "idle"
    )
    for remark, names in (*remarks.items(), *reasons.items()):
        yield f"{remark}: {_some(names, len(rows))}"
    slower = [
        (name_of(row), row.sustained_hz)
        for row in rows
        if row.sustained_hz is not None
        and row.clock_hz is not None
        and row.sustained_hz < (1 - _MIN_SLOWDOWN) * row.clock_hz
    ]
    if slower:
        hz = min(hertz for _, hertz in slower)
        yield (
            "sustained clocks are lower than those of bursts, by power and heat: "
            f"{_some([name for name, _ in slower], len(rows))}. For runs that can be compared "
            "an administrator may lock the clock below both: nvidia-smi "
            f"--lock-gpu-clocks={hz / 1e6:.0f} (undone by --reset-gpu-clocks); nothing is set here"
        )


# Rates in a burst and over a second, with clock, power and energy.
_SUSTAINED: Final = "tflops=burst_TFLOP/s clock_hz sustained_tflops sustained_hz power_w picojoules"
# Times by three clocks of rows whose clocks disagree.
_BY_CLOCK: Final = (
    "launch_s.event=between_events launch_s.graph=in_a_graph launch_s.host=host's_clock "
    "launch_s.enqueue=launching_it"
)


def _named_table(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str], names: str
) -> Iterator[TableBlock]:
    """Yield a table of rows with their names and some fields; nothing if there are no rows."""
    if rows:
        yield TableBlock.from_rows(
            [Column("row", name_of, right=False), *columns_of(rows, names)], rows
        )


def _some(names: Sequence[str], rows: int) -> str:
    return f"all {rows} rows" if len(names) == rows > 1 else some_names(names)


def _units_remark(row: Measurement) -> str | None:
    """Return a remark on a row that used other arithmetic units than its precision suggests."""
    if not row.device.startswith("cuda") or without_sides(row.kind) not in ("conv", "gemm"):
        return None
    if row.precision == "fp16" and row.accumulate == "float32":
        return "fp16 accumulated in float32, so compared with the fp32 peak"
    if row.precision.endswith(("-tc", "tf32")) and row.tensor_cores is False:
        return "the fastest correct kernel uses no tensor cores"
    return None


def disagreement(row: Measurement) -> str | None:
    """Return how a kernel's three times differ, if by more than 10 %, else None.

    The time in a CUDA graph is that of the kernel. The time between events includes the start of
    each launch. The time on the host's clock is that of the launch if it takes longer than the
    kernel, as in a framework's step.
    """
    times = row.launch_s
    if not times or not all(times.get(name) for name in _CLOCKS):
        return None
    seconds = [times[name] for name in _CLOCKS]
    if max(seconds) <= (1 + _MAX_CLOCK_DIFFERENCE) * min(seconds):
        return None
    event, graph, host = map(format_seconds, seconds)
    text = f"{event} between events, {graph} in a graph, {host} on the host's clock"
    return text + known_text(
        times.get("enqueue"),
        lambda enqueue: f" (launching it takes the host {format_seconds(enqueue)})",
    )


# -----------------------------------------------------------------------------
# Explanations of slower backends: one line each, and with ``--explain`` the measurements.

_UNEXPLAINED = "unexplained"
# Maximum excess of the causes over the gap that is not reported, as a share of the gap.
_MAX_EXCESS = 0.05


def explanations(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> Iterator[str]:
    """Yield a line for each row that is much slower than the fastest backend on its problem.

    Nothing is explained if other work disturbed one of the two.

    Args:
        rows: ``ok`` rows.
        name_of: function that returns a row's name.
    """
    disturbed = {
        id(row)
        for problem in by_problem(rows)
        for row in problem
        if row.ratio
        and any(other.contended for other in problem if other.who in (row.who, row.ratio["to"]))
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
            parts.append(
                more if share < -_MAX_EXCESS else f"unexplained {percent(max(0.0, share))}"
            )
        times = f"{number(row.ratio['median'], 3)}x the time of {row.ratio['to']}"
        yield f"{name_of(row)}: {times}: {', '.join(parts)}"


def evidence(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """Yield the measurements behind :func:`explanations`, and what each backend's calls cost.

    Args:
        rows: ``ok`` rows.
        name_of: function that returns a row's name.
    """
    for row in rows:
        lines = [
            f"  {cause['cause']}: {format_seconds(cause['seconds'])} "
            f"({percent(cause['share'])} of the gap): {cause['how']}"
            for cause in row.causes
        ]
        faults = row.faults or {}
        kept = known_text(faults.get("warm"), ", {:.0f} with pages kept".format)
        read = (
            known_text(
                row.empty_call_s,
                lambda seconds: (
                    f"a call that does nothing takes {format_seconds(seconds)}, which is not "
                    "subtracted"
                ),
            ),
            known_text(faults.get("default"), f"page faults per call: {{:.0f}}{kept}".format),
        )
        lines += [f"  {text}" for text in (*filter(None, read), *row.notes)]
        if lines:
            yield f"{name_of(row)}:"
            yield from lines


def _share(cause: Mapping[str, Any]) -> str:
    return f"{cause['cause']} {format_seconds(cause['seconds'])} ({percent(cause['share'])})"


# -----------------------------------------------------------------------------
# The table of interleaved backends: times, ratios to the fastest, shares of the limit.

_CONTENDED, _UNCERTAIN, _OTHER_SUMS, _FEWER_FLOPS, _INTERRUPTED = "!", "~", "a", "f", "i"
# Columns that follow the column of the backend.
_METRICS: Final = (
    "algorithm short_layout time.median time.spread tflops of_theoretical=theory of_measured "
    "roofline.efficiency gflops_per_watt to_best warm_s=kept checked"
)


def interleaved_table(rows: Sequence[Measurement]) -> TableBlock:
    """Return the table; a line above each problem has the values that only its rows share.

    Args:
        rows: ``ok`` rows, some of them with a ratio to the fastest.
    """
    problems = by_problem(rows)
    above, at = {}, 0
    for problem in problems if len(problems) > 1 else ():
        above[at] = _above(problem, rows)
        at += len(problem)
    ordered = [row for problem in problems for row in problem]
    return TableBlock.from_rows(_columns(rows, problems), ordered, above=above)


def interleaved_legend(rows: Sequence[Measurement]) -> list[str]:
    """Return a line for each mark, and for titles that need an explanation."""
    other = [row for problem in by_problem(rows) for row in _other_sums(problem)]
    formats = ", ".join(dict.fromkeys(row.accumulate or "" for row in other))
    fewer = " and ".join(dict.fromkeys(row.fewer_flops for row in rows if row.fewer_flops))
    return holding(
        {
            "kept: the same call with an allocator that keeps freed pages": any(
                row.warm_s for row in rows
            ),
            f"{_UNCERTAIN}: {UNCERTAIN_LEGEND}": any(map(is_uncertain, rows)),
            f"{_CONTENDED}: contended, the time is an upper bound": any(
                row.contended for row in rows
            ),
            f"{_INTERRUPTED}: interrupted, only some of its repetitions were made": not all(
                row.complete for row in rows
            ),
            f"{_FEWER_FLOPS}: {fewer} need fewer FLOPs than a direct kernel: "
            "rates and percentages count the direct kernel's": fewer,
            f"{_OTHER_SUMS}: accumulates in another format than the row it is compared with: "
            f"{formats}": other,
            "to best: over the rounds that both rows share; medians are over all repetitions, so "
            "where the two disagree on an order, the ratio counts": any(
                map(_disagree, by_problem(rows))
            ),
        }
    )


def _columns(
    rows: Sequence[Measurement], problems: Sequence[Sequence[Measurement]]
) -> list[Column[Measurement]]:
    inside = {axis for problem in problems for axis in varying(problem)}
    inside -= {"backend", "mode", "accumulate"}  # a mark shows other accumulators
    other = {id(row) for problem in problems for row in _other_sums(problem)}

    def marks(row: Measurement) -> str:
        return _marks(row) + (_OTHER_SUMS if id(row) in other else "")

    return [
        Column("backend", lambda row: row.who, right=False),
        *(Column(axis, AXES[axis], right=False) for axis in AXES if axis in inside),
        *columns_of(rows, _METRICS, seconds=unit_of(rows)),
        *([Column("note", marks, right=False)] if any(map(marks, rows)) else []),
    ]


def _above(problem: Sequence[Measurement], rows: Sequence[Measurement]) -> str:
    """Return the line above a problem: values that its rows share, and all rows do not."""
    axes = [axis for axis in varying(rows) if axis not in BACKEND_AXES]
    first, model = problem[0], common_model(rows)
    name = label(first, axes)
    bounds = {row.roofline.bound for row in problem if row.roofline is not None}
    items = (
        name.removeprefix(f"{model}/") if model else name,
        first.problem if first.problem != first.layer else "",
        format_flops(first.flops),
        format_bytes(first.bytes),
        f"{bounds.pop()} bound" if len(bounds) == 1 else "",
    )
    return "  ".join(filter(None, items))


def _marks(row: Measurement) -> str:
    marks = {
        _UNCERTAIN: is_uncertain(row),
        _CONTENDED: row.contended,
        _INTERRUPTED: not row.complete,
        _FEWER_FLOPS: row.fewer_flops,
    }
    return "".join(holding(marks))


def _other_sums(problem: Sequence[Measurement]) -> list[Measurement]:
    """Return the rows of a problem with another accumulator than the row they are compared with.

    Without such a row, the most frequent accumulator is the reference.
    """
    known = [row.accumulate for row in problem if row.accumulate]
    if len(set(known)) < 2:
        return []
    names = {row.ratio["to"] for row in problem if row.ratio}
    references = [row.accumulate for row in problem if row.who in names and row.accumulate]
    usual = references[0] if references else max(dict.fromkeys(known), key=known.count)
    return [row for row in problem if row.accumulate not in (None, usual)]


def _disagree(problem: Sequence[Measurement]) -> bool:
    """Whether the printed medians of a problem have another order than the ratios."""
    shown = sorted(
        (_digits(row.ratio["median"]), _digits(row.time.median))
        for row in problem
        if row.ratio and row.time is not None
    )
    return any(
        first[0] < second[0] and first[1] > second[1] for first, second in itertools.pairwise(shown)
    )


def _digits(value: float) -> float:
    return float(f"{value:.3g}")

"""The report of ``step``: heading, table, modules, rows without a time, and conclusion."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydlbench.devices.gpu.cards import find_card
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import on_tensor_cores
from pydlbench.grouping import group_by
from pydlbench.models import build_model
from pydlbench.models.graph import Model
from pydlbench.models.passes import macs
from pydlbench.records.measurement import TimeSummary
from pydlbench.records.record import Column, columns_of, flat_names
from pydlbench.records.run import RunRecord, command_text
from pydlbench.records.step import StepRecord, StepRow, options_text
from pydlbench.records.user_model import rate_unit
from pydlbench.report.blocks import Block, Heading, Headline, Lines, TableBlock
from pydlbench.report.columns import device_name
from pydlbench.report.csv import flat_lines
from pydlbench.report.figures.batches import Rate, batches
from pydlbench.report.figures.samples import RowSamples, samples
from pydlbench.report.module_tree import context_blocks, dominant_line, next_line
from pydlbench.report.text import csv_text
from pydlbench.report.verdicts import untimed, upper_bounds
from pydlbench.study.estimate import Estimate, estimate_values
from pydlbench.units import (
    format_flops,
    format_seconds,
    known_text,
    merge_notes,
    per_second,
    percent,
    quantity,
)

# -----------------------------------------------------------------------------
# Facts about timed steps besides their records: FLOP/s, and ratios to other steps.


def step_rows(records: Sequence[StepRecord]) -> list[StepRow]:
    """Return records with the titles and FLOPs of their models; each graph is built once."""
    graphs: dict[tuple[str, int | None, str], Model] = {}
    rows = []
    for record in records:
        spec = record.spec
        if spec.own is not None:
            rows.append(StepRow(record=record, title=_user_title(record), flops=None))
            continue
        key = spec.model, spec.batch, options_text(spec.options)
        if key not in graphs:
            graphs[key] = build_model(spec.model, spec.batch, **spec.options)
        model = graphs[key]
        multiply_adds = macs(model, "forward" if spec.phase == "forward" else "training")
        flops = 2 * multiply_adds * (spec.batch or model.batch)
        rows.append(StepRow(record=record, title=model.title, flops=flops))
    return rows


def _user_title(record: StepRecord) -> str:
    """Return the class and the size of a user's module, if it could be built."""
    if record.parameters is None:
        return ""
    kind = "" if record.spec.framework == "onnxruntime" else "trainable "
    module = record.environment.get("module", "a module")
    return f"{module}, {record.parameters:,} {kind}parameters"


def ratio(row: StepRow, other: StepRow) -> Estimate | None:
    """Return the time of a row over the time of another one, from the rounds of both."""
    times, others = row.record.rounds_s, other.record.rounds_s
    both = [number for number in times.keys() & others.keys() if others[number] > 0]
    ratios = {number: times[number] / others[number] for number in both}
    return estimate_values(ratios, ()) if ratios else None


def fastest(rows: Sequence[StepRow]) -> StepRow | None:
    """Return the row with the smallest median; None if no row has a time."""
    timed = [row for row in rows if row.record.ok]
    return min(
        timed,
        key=lambda row: row.record.time.median if row.record.time else 0.0,
        default=None,
    )


def device_ratio(row: StepRow, rows: Sequence[StepRow]) -> Estimate | None:
    """Return the ratio of the CPU's time to that of a GPU for the same step.

    Args:
        row: a GPU's row.
        rows: all rows; the CPU's row has the same framework, mode, precision, batch and phase.
    """
    if not (row.record.spec.on_gpu and row.record.ok):
        return None
    for other in rows:
        same = _on_any_device(other) == _on_any_device(row)
        if same and other.record.ok and not other.record.spec.on_gpu:
            return ratio(other, row)
    return None


def _on_any_device(row: StepRow) -> tuple[Any, ...]:
    """Return the key of a step that is the same on a CPU and a GPU."""
    return row.who, row.group, row.record.spec.precision.removesuffix("-tc")


#: Settings that have a column if rows differ in them.
_AXES = ("precision", "phase", "batch", "device")


def steps_report(
    run: RunRecord, records: Sequence[StepRecord], agreements: Sequence[Mapping[str, Any]] = ()
) -> list[Block]:
    """Return heading, table, modules, rows without a time, notes, and conclusion.

    Args:
        run: the run, which has the device's name.
        records: records in the order of the table; at least one.
        agreements: results of ``--agree``.
    """
    rows = step_rows(records)
    timed = [row for row in rows if row.record.time is not None]
    differing = _differing(rows)
    notes = merge_notes(f"{row.who}: {note}" for row in rows for note in row.record.notes)
    context = [
        block
        for row in timed
        for block in context_blocks(
            row.record, "  ".join(_names(row, differing)), alone=len(timed) == 1
        )
    ]
    table = TableBlock.from_rows(_columns(timed), timed)
    # The modules of a single step are the result; several steps are compared with each other.
    first = [*context, table] if len(timed) == 1 else [table, *context]
    lines = _conclusion(rows, agreements)
    if len(timed) == 1 and (dominates := dominant_line(timed[0].record)):
        lines[0] = f"{lines[0].removesuffix('.')}; {dominates}."
    following = []
    if best := fastest([row for row in timed if not row.record.contended]):
        following = [next_line(best.record)]
    elif timed:  # once more
        following = [f"next: pydlbench {command_text(run.command)}"]
    return [
        Headline([*lines, *following]),
        Heading(heading(run, rows)),
        *first,
        *batches(_rates(timed), rate_unit(records[0].spec.own)),
        *samples([_sampled(row, time, differing) for row in timed if (time := row.record.time)]),
        *(
            Lines(_refused(rows, status, differing), alarm=status == "failed", listed=True)
            for status in ("failed", "skipped")
        ),
        Lines(notes),
    ]


def _names(row: StepRow, axes: Sequence[str]) -> list[str]:
    """Return framework and mode, and the settings in which rows differ."""
    return [row.who, *(f"{axis} {getattr(row.record.spec, axis)}" for axis in axes)]


def _sampled(row: StepRow, time: TimeSummary, axes: Sequence[str]) -> RowSamples:
    return RowSamples(" ".join(_names(row, axes)), row.who, time, row.record.samples_s)


def _rates(timed: Sequence[StepRow]) -> list[Rate]:
    axes = [axis for axis in _differing(timed) if axis != "batch"]
    return [
        Rate(" ".join(_names(row, axes)), row.record.spec.batch, row.record.images_per_s)
        for row in timed
        if row.record.spec.batch and row.record.images_per_s
    ]


def heading(run: RunRecord, rows: Sequence[StepRow]) -> list[str]:
    """Return the lines above the table: settings that all rows share, and the machine."""
    first = rows[0].record.spec
    differ = _differing(rows)
    batch = next((row.record.spec.batch for row in rows if row.record.spec.batch), None)
    # A user's file computes in its own types.
    types = next((row.record.types for row in rows if row.record.types), first.precision)
    narrow = any(row.record.spec.precision not in ("fp32", "tf32") for row in rows)
    threads = {row.record.threads for row in rows if row.record.threads}
    images = [first.layout, f"{first.feed} images"]
    if first.own is not None:
        channels_last = "channels_last" if first.layout == "nhwc" else ""
        images = [channels_last, *first.own.described(first.phase)]
    items = (
        first.model,
        "" if "batch" in differ or batch is None else f"batch {batch}",
        "" if "phase" in differ else first.phase,
        "" if "precision" in differ else types,
        f"{first.cast} precision" if narrow else "",
        *images,
        *(f"{name}={value}" for name, value in first.options.items()),
        next((row.title for row in rows if row.title), ""),
    )
    where = (
        device_name(run.device) if not first.on_gpu or "device" in differ else "",
        *sorted({_gpu(row) for row in rows if row.record.spec.on_gpu}),
        quantity(threads.pop(), "thread") if len(threads) == 1 else "",
        *sorted({row.record.library for row in rows if row.record.library}),
    )
    return ["  ".join(filter(None, words)) for words in (items, where)]


def _refused(rows: Sequence[StepRow], status: str, differing: Sequence[str]) -> list[str]:
    """Return a line for each row with a status, ``skipped`` or ``failed``."""
    refused = [row for row in rows if row.record.status == status]
    wheres = ((str(getattr(row.record.spec, axis)) for axis in differing) for row in refused)
    return [
        f"{status}  {'  '.join([row.who, *where])}: "
        f"{' '.join((row.record.reason or 'no reason recorded').split())}"
        for row, where in zip(refused, wheres, strict=True)
    ]


def _differing(rows: Sequence[StepRow]) -> list[str]:
    # A step that could not be built has no batch.
    return [
        axis for axis in _AXES if len({getattr(row.record.spec, axis) for row in rows} - {None}) > 1
    ]


def _gpu(row: StepRow) -> str:
    name = row.record.environment.get("gpu", {}).get("name")
    return str(name or row.record.spec.device)


def _beside_cpu(row: StepRow, timed: Sequence[StepRow]) -> str:
    times = device_ratio(row, timed)
    return "-" if times is None else f"{times.median:.3g}x"


def _to_fastest(row: StepRow, timed: Sequence[StepRow]) -> str:
    """Return a row's ratio to the fastest of the rows that were interleaved with it."""
    best = fastest([other for other in timed if other.group == row.group])
    if best is row:
        return "1"
    times = None if best is None else ratio(row, best)
    return "-" if times is None else f"{times.median:.3g}"


def _columns(timed: Sequence[StepRow]) -> list[Column[StepRow]]:
    """Return the columns of a table of steps: their fields, and ratios between them."""
    titled = f"record.images_per_s={rate_unit(timed[0].record.spec.own if timed else None)}"
    columns = columns_of(timed, StepRow.columns.replace("record.images_per_s", titled))
    if len(timed) > 1:
        columns.append(Column("x fastest", lambda row: _to_fastest(row, timed)))
    if any(device_ratio(row, timed) for row in timed):
        columns.append(Column("CPU / GPU", lambda row: _beside_cpu(row, timed)))
    return columns


# -----------------------------------------------------------------------------
# Health of a GPU: a step's TFLOP/s against the datasheet's peak.
#
# Published end-to-end runs of dense networks (AlexNet, VGG, ResNet on Kepler to Volta) reach 24 to
# 140 % of the datasheet's peak on CUDA cores (more than 100 % by Winograd's algorithm and the boost
# clock), and 14 to 31 % of it on tensor cores. Steps of few FLOPs reach 6 to 18 % on a healthy
# card, because they wait for launches. So there is no verdict on small steps, and the thresholds
# are a little below the published shares.

#: Minimum FLOPs of a step that is judged: a smaller step waits more for launches than it computes.
MIN_JUDGED_FLOPS: Final = 1e11
#: Share of the datasheet's peak that a healthy card reaches: on CUDA cores, on tensor cores.
_HEALTHY_SHARE: Final = {False: 0.20, True: 0.10}
#: Part of that share below which the card is at fault; above it, the step may be the reason.
_FAULTY_PART: Final = 0.5


def verdicts(rows: Sequence[StepRow]) -> list[str]:
    """Return one line for each GPU that was timed.

    Args:
        rows: rows with a time; those of CPUs are ignored.
    """
    rows = [row for row in rows if row.flops is not None]
    devices = dict.fromkeys(row.record.spec.device for row in rows if row.record.spec.on_gpu)
    return [
        _verdict([row for row in rows if row.record.spec.device == device]) for device in devices
    ]


def _verdict(rows: Sequence[StepRow]) -> str:
    gpu = rows[0].record.environment.get("gpu", {})
    facts = GpuFacts(
        name=gpu.get("name", "unknown GPU"),
        capability=gpu.get("capability", ""),
        memory_bytes=gpu.get("memory_bytes", 0),
    )
    device = rows[0].record.spec.device
    card = find_card(facts)
    if card is None:
        return (
            f"{device} ({facts.name}): not among the known cards, so there is nothing to judge it "
            "by; see pydlbench device --known."
        )
    judged = [
        (row.tflops / promised, row, promised)
        for row in rows
        if row.tflops is not None
        and (row.flops or 0) >= MIN_JUDGED_FLOPS
        and (promised := card.tflops.get(row.record.spec.precision))
    ]
    if not judged:
        most = max(row.flops or 0 for row in rows)
        return (
            f"{device} ({card.name}): no verdict: steps of up to {format_flops(most)} say more "
            "about launches than about the card; nearest: a larger --batch."
        )
    # A healthy card reaches the share in its best mode.
    share, row, promised = max(judged, key=lambda item: item[0] / _healthy_share(item[1]))
    healthy = _healthy_share(row)
    spec = row.record.spec
    reached = (
        f"{row.tflops:.3g} TFLOP/s, {percent(share)} of the {promised:g} that a {card.name} "
        f"has in {spec.precision} ({row.who}, batch {spec.batch}, {spec.phase})"
    )
    usual = f"{percent(healthy)} or more is usual"
    if share >= healthy:
        return f"{device} works as a {card.name} should: {reached}; {usual}."
    if share >= _FAULTY_PART * healthy:
        return f"{device} may be held back: {reached}; {usual}; nearest: a larger --batch."
    return (
        f"{device} does not work as a {card.name} should: {reached}; {usual}; next: pydlbench "
        f"layers --device {device}."
    )


def _healthy_share(row: StepRow) -> float:
    return _HEALTHY_SHARE[on_tensor_cores(row.record.spec.precision)]


# -----------------------------------------------------------------------------
# The conclusion of ``step``: the fastest step, the best batch, the health of the GPU.


def conclude(rows: Sequence[StepRow]) -> list[str]:
    """Return the conclusion; steps that other work disturbed are compared with none.

    Args:
        rows: all rows, at least one.
    """
    timed = [row for row in rows if row.record.ok]
    if not timed:
        return [untimed([row.record.status for row in rows])]
    quiet = [row for row in timed if not row.record.contended]
    disturbed = len(timed) - len(quiet)
    groups = group_by(timed, lambda row: row.group)
    failed = sum(row.record.status == "failed" for row in rows)
    disturbance = (
        f"* other work disturbed the run: {upper_bounds(disturbed, len(timed))}; repeat on an "
        "idle machine."
    )
    lines = (
        *(
            _group_line([row for row in group if row in quiet] or group, len(groups) > 1)
            for group in groups.values()
        ),
        disturbance if disturbed else "",
        *_sweep(quiet),
        *_devices(quiet),
        *verdicts(quiet),
        f"{failed} of {len(rows)} rows failed; their reasons stand above." if failed else "",
    )
    return list(filter(None, lines))


def _conclusion(rows: Sequence[StepRow], agreements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the conclusion, and a line for each comparison of the frameworks' results."""
    compared = (
        f"agreement of the frameworks, batch {agreement['batch']}, {agreement['phase']}: "
        f"{agreement['status']}: {agreement['detail']}"
        for agreement in agreements
    )
    return [*(conclude(rows) if rows else ()), *compared]


def _name(row: StepRow, rows: Sequence[StepRow]) -> str:
    """Return framework and mode, with the precision and the device if rows differ in them."""
    axes = [
        axis
        for axis in ("precision", "device")
        if len({getattr(row.record.spec, axis) for row in rows}) > 1
    ]
    return " ".join([row.who, *(getattr(row.record.spec, axis) for axis in axes)])


def _span(times: Estimate) -> str:
    """Return the interval of a ratio in parentheses, if it has one."""
    interval = times.interval
    return "" if interval is None else f" ({interval.low:.3g} to {interval.high:.3g})"


def _group_line(rows: Sequence[StepRow], several: bool) -> str:
    """Return the line on interleaved steps: the fastest one, and the others' ratios to it.

    The time of a disturbed step is an upper bound, so its rate is a lower one.
    """
    best = fastest(rows)
    assert best is not None, "all of them have a time"
    assert best.record.time is not None, "all of them have a time"
    batch, phase = best.group
    bound = best.record.contended
    verb = "takes at most" if bound else "is fastest:" if len(rows) > 1 else "takes"
    least = "at least " if bound else ""
    unit = rate_unit(best.record.spec.own)
    rate = known_text(best.record.images_per_s, lambda rate: f", {least}{per_second(rate)} {unit}")
    time = format_seconds(best.record.time.median)
    text = f"{_name(best, rows)} {verb} {time} per step{rate}"
    others = [
        f"{_name(row, rows)} {_longer(times)}{_span(times)}"
        for row in rows
        if not bound and row is not best and (times := ratio(row, best)) is not None
    ]
    end = "; ".join([text, *others]) + "."
    return f"batch {batch}, {phase}: {end}" if several else end


def _longer(times: Estimate) -> str:
    tied = (times.interval.low if times.interval else times.median) <= 1
    return "cannot be told from it" if tied else f"takes {times.median:.3g} times as long"


def _sweep(timed: Sequence[StepRow]) -> list[str]:
    """Return a line for each phase on the batch with the highest rate."""
    if len({row.record.spec.batch for row in timed}) < 2:
        return []
    by_phase = group_by(timed, lambda row: row.record.spec.phase)
    best = {
        phase: max(rows, key=lambda row: row.record.images_per_s or 0.0)
        for phase, rows in by_phase.items()
    }
    return [
        f"highest rate in {phase}: {per_second(row.record.images_per_s or 0.0)} "
        f"{rate_unit(row.record.spec.own)} at batch {row.record.spec.batch} with "
        f"{_name(row, by_phase[phase])}."
        for phase, row in best.items()
    ]


def _devices(timed: Sequence[StepRow]) -> list[str]:
    """Return a line for each step of a GPU on its ratio to the CPU."""
    return [
        f"{row.record.spec.device} is {times.median:.3g} times as fast as the CPU{_span(times)}: "
        f"{row.who} {row.record.spec.precision}, batch {row.record.spec.batch}, "
        f"{row.record.spec.phase}."
        for row in timed
        if (times := device_ratio(row, timed)) is not None
    ]


# -----------------------------------------------------------------------------
# Steps as JSON and CSV.

CSV_COLUMNS: Final = ("run_id", "created_utc", *flat_names(StepRow))


def steps_document(
    run: RunRecord,
    records: Sequence[StepRecord],
    agreements: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return one object with the run, its steps and the comparisons of frameworks."""
    rows = step_rows(records)
    return {
        "kind": "step",
        "interrupted": False,
        "run": run.to_dict(),
        "model": records[0].spec.model if records else None,
        "steps": [row.to_dict() for row in rows],
        "agreements": [dict(agreement) for agreement in agreements],
        "conclusion": _conclusion(rows, agreements),
    }


def to_csv(run: RunRecord, records: Sequence[StepRecord]) -> str:
    """Return the header and one line per step; what is unknown is an empty cell."""
    documents = (row.to_dict() for row in step_rows(records))
    return csv_text(CSV_COLUMNS, flat_lines(run, "step", CSV_COLUMNS, documents))

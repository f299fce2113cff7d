"""From a recorded step to its ledger: rows that add up to the device's time, with their limits."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from pydlbench.calls.meaning import Meaning
from pydlbench.devices.gpu.cards import KnownCard
from pydlbench.grouping import group_by, sum_by
from pydlbench.models.tree import RepeatedModule, fold
from pydlbench.records.ledger import (
    DeviceTime,
    DominantPart,
    IdleTime,
    LedgerCall,
    LedgerCategory,
    LedgerCollective,
    LedgerModule,
    StepLedger,
)
from pydlbench.records.trace import ProgramCall
from pydlbench.steps.traced import executed_flops, meaning_of_call, moved_bytes
from pydlbench.timing.statistics import sum_known
from pydlbench.traces import kernel_names, timeline
from pydlbench.traces.timeline import Activity, RecordedTrace, StepTimeline

#: Categories by the kinds of meanings; other kinds are categories themselves.
_CATEGORIES: Final = {
    "normalisation": "norm",
    "activation": "element-wise",
    "elementwise": "element-wise",
    "update": "optimizer",
    "view": "data movement",
    "copy": "data movement",
}
#: Modes of a card's tensor cores by the type of the operands.
_TENSOR_MODES: Final = {
    "float16": "fp16-tc",
    "bfloat16": "bf16-tc",
    "float8_e4m3fn": "fp8-tc",
    "float8_e5m2": "fp8-tc",
}
#: Kernels of TensorFloat-32, by their names: those of tensor cores, of float32 operands.
_TF32: Final = re.compile(r"tf32|xf32|^(?!.*f16).*(?:s1688|s16816|tensorop_s)", re.IGNORECASE)
#: Why kernels that belong to no operator, or to one without shapes, have no limit.
NO_OPERANDS: Final = "its operands were not recorded"
_NO_LINKS: Final = "the bandwidth of the links is not known"
_NO_HOST_LINK: Final = "the bandwidth between host and device is not known"
#: Directions in the order of a step.
_DIRECTIONS: Final = ("forward", "loss", "backward", "optimizer")
#: Operators that name what takes most of a module's time.
_NAMED_CALLS: Final = 2
#: Equal parts of time that the time line of a step is shown in.
TIMELINE_PARTS: Final = 100
#: Sums of the same numbers in another order differ by less than this share.
ROUNDING: Final = 1e-9
#: Limits above the time by more than this factor contradict it.
_MAX_ABOVE: Final = 1.05
#: A part that takes less than this share of the time above the limit does not dominate a step.
_DOMINANT_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class CallLimit:
    """The least time of a call.

    Attributes:
        seconds: None if it is not known.
        missing: why.
        bound: ``memory`` or ``compute``, which takes longer.
    """

    seconds: float | None
    missing: str | None = None
    bound: str = "memory"


class CardLimits:
    """Limits of calls by the published peaks of a card.

    Args:
        card: whose peaks; None knows no limit.
        missing: the reason if there is no card.
    """

    def __init__(self, card: KnownCard | None, missing: str) -> None:
        self._card = card
        self._missing = missing

    def of_call(self, meaning: Meaning, kernels: Iterable[str], seconds: float) -> CallLimit:
        """Return the limit of a call: FLOPs over the peak, or bytes over the bandwidth.

        Args:
            meaning: of the call.
            kernels: names of its kernels, which tell TensorFloat-32.
            seconds: that it took. A float32 product faster than the CUDA cores' peak ran on the
                tensor cores.
        """
        if self._card is None:
            return CallLimit(None, self._missing)
        moved, flops = _amounts(meaning)
        if moved == 0 and meaning.kind != "view":
            return CallLimit(None, meaning.flops_missing or NO_OPERANDS)
        if moved and meaning.kind == "random":
            return CallLimit(moved / self._bandwidth)
        if moved is None or flops is None:
            reason = meaning.flops_missing or meaning.layers_missing or "its bytes are not known"
            return CallLimit(None, reason)
        memory_s = moved / self._bandwidth
        if not meaning.product_flops:
            return CallLimit(memory_s)
        # Only products and convolutions run on the tensor cores.
        flops -= (meaning.flops or 0) - meaning.product_flops
        dtype = next(iter(meaning.dtypes), "float32")
        modes = [_TENSOR_MODES.get(dtype, "")]
        if dtype == "float32":
            modes = ["tf32", "fp32"] if any(map(_TF32.search, kernels)) else ["fp32"]
            peak = self._card.tflops.get(modes[0])
            if peak and flops / (peak * 1e12) > seconds:
                modes = ["tf32", *modes]
        peak = next((self._card.tflops[mode] for mode in modes if mode in self._card.tflops), None)
        if peak is None:
            return CallLimit(None, f"no peak of {self._card.name} in {dtype} is known")
        compute_s = flops / (peak * 1e12)
        if compute_s > memory_s:
            return CallLimit(compute_s, bound="compute")
        return CallLimit(memory_s)

    def of_bytes(self, moved: int | None, missing: str) -> CallLimit:
        """Return the limit of what only moves bytes.

        Args:
            moved: bytes read and written; None if they are not known.
            missing: the reason then.
        """
        if self._card is None:
            return CallLimit(None, self._missing)
        return CallLimit(None, missing) if moved is None else CallLimit(moved / self._bandwidth)

    @property
    def _bandwidth(self) -> float:
        """Bytes per second of the card's memory."""
        assert self._card is not None
        return self._card.bandwidth_gb_per_s * 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one call launched in one step.

    Attributes:
        activities: of the device, in order.
        category: see :class:`LedgerCall`.
        limit: of the call.
        meaning: of the call; None of a kernel that belongs to no operator.
    """

    activities: tuple[Activity, ...]
    category: str
    limit: CallLimit
    meaning: Meaning | None

    @property
    def seconds(self) -> float:
        return self.activities[0].seconds + sum(each.seconds for each in self.activities[1:])

    @property
    def operator(self) -> str:
        first = self.activities[0]
        return first.origin.call.operator if first.origin.call else self.kernel

    @property
    def kernel(self) -> str:
        return kernel_names.short_name(self.activities[0].name)

    @property
    def key(self) -> tuple[str, str, str, tuple[str, ...]]:
        """Operator, direction, shapes and types: equal for equal calls, in whichever module."""
        origin = self.activities[0].origin
        types = self.meaning.dtypes if self.meaning else ()
        return self.operator, origin.direction, origin.shapes, types


def ledger_of(
    recorded: RecordedTrace,
    file: str,
    *,
    card: KnownCard | None = None,
    missing: str = "no card is known",
    limit_s: Callable[[ProgramCall], float | None] | None = None,
    limits_of: str | None = None,
    best_s: Callable[[Meaning, str], float | None] = lambda *_: None,
) -> StepLedger:
    """Return the ledger of a recorded step.

    Args:
        recorded: the file, read.
        file: its name.
        card: whose published peaks are the limits.
        missing: why there is none.
        limit_s: limit of a call on a machine with measured peaks, in seconds; used without a card.
        limits_of: that machine.
        best_s: time of the fastest kernels that were measured for a meaning in a precision, in
            seconds.
    """
    limits = CardLimits(card, missing)
    by_step = [list(_parts_of(step, limits, limit_s)) for step in recorded.timelines]
    parts = [part for own in by_step for part in own]
    steps = len(by_step)
    tree = fold(
        (_path_of(part), (part.key, part.activities[0].origin.call is None), part) for part in parts
    )
    placed = {id(part): "/".join(path) for path, module in _with_paths(tree) for part in module.own}
    device_time, idle = _device_time(recorded)
    whole_s = device_time.span_s if device_time else 0.0
    calls = _calls(parts, placed, steps, whole_s, best_s)
    if not recorded.timed:  # the largest limit first
        untimed = (replace(call, device_s=None, kernels=0.0) for call in calls)
        calls = tuple(sorted(untimed, key=lambda call: -(call.limit_s or 0.0)))
    categories = _categories(calls, lambda call: call.category, whole_s)
    directions = _categories(calls, lambda call: call.direction, whole_s)
    modules = tuple(_module_row(path, module, steps, whole_s) for path, module in _with_paths(tree))
    kernel_s = device_time.kernel_s if device_time else 0.0
    limited = [call for call in calls if call.limit_s is not None]
    limited_s = sum((call.device_s or 0.0) - call.unlimited_s for call in limited)
    spans = [_length_s(step, recorded) for step in recorded.timelines]
    hosts_s = [step.host_s for step in recorded.timelines if step.host_s is not None]
    return StepLedger(
        file=file,
        source=recorded.source,
        device=recorded.device,
        card=card.name if card else None,
        limits_of=limits_of,
        steps=steps,
        step_s=whole_s if device_time else None,
        step_low_s=min(spans) if device_time else None,
        step_high_s=max(spans) if device_time else None,
        host_step_s=sum(hosts_s) / len(hosts_s) if hosts_s else None,
        device_time=device_time,
        limit_s=sum_known([call.limit_s for call in limited]) if limited else None,
        limited_share=limited_s / kernel_s if kernel_s else None,
        idle=idle,
        calls=calls,
        categories=categories,
        directions=directions,
        modules=modules,
        dominant=_dominant(device_time, idle, categories),
        unattributed_s=_without_rounding(
            kernel_s - sum(call.device_s or 0.0 for call in calls), kernel_s
        ),
        timeline=_timeline(recorded.timelines[0], by_step[0]),
        outside_s=recorded.outside_s,
        rank=recorded.rank,
        world_size=recorded.world_size,
        collectives=_collectives(recorded),
        notes=recorded.notes,
    )


def _without_rounding(difference: float, of: float) -> float:
    """Return a difference of sums; zero if it is no more than they are rounded by."""
    return 0.0 if abs(difference) < ROUNDING * of else difference


# -----------------------------------------------------------------------------
# Calls.


def _parts_of(
    step: StepTimeline,
    limits: CardLimits,
    limit_s: Callable[[ProgramCall], float | None] | None,
) -> Iterable[_Part]:
    """Yield the activities that each call of a step launched, with category and limit."""
    calls = group_by(step.activities, lambda each: (each.origin.number, each.origin.call is None))
    for (_, loose), activities in calls.items():
        # Kernels without an operator are rows of their own, also those that one launch replayed.
        for own in [[each] for each in activities] if loose else [activities]:
            call = own[0].origin.call
            meaning = _meaning(call) if call else None
            category = _CATEGORIES.get(meaning.kind, meaning.kind) if meaning else "other"
            if category == "other" or own[0].kind == timeline.COLLECTIVE:
                category = _category_of(max(own, key=lambda each: each.seconds))
            limit = _limit(own, meaning, limits, limit_s)
            yield _Part(activities=tuple(own), category=category, limit=limit, meaning=meaning)


def _limit(
    own: Sequence[Activity],
    meaning: Meaning | None,
    limits: CardLimits,
    limit_s: Callable[[ProgramCall], float | None] | None,
) -> CallLimit:
    """Return the limit of the activities of one call, or of one that belongs to no call."""
    origin = own[0].origin
    if all(each.kind == timeline.COLLECTIVE for each in own):
        return CallLimit(None, _NO_LINKS)
    if any("HtoD" in each.name or "DtoH" in each.name for each in own):
        return CallLimit(None, _NO_HOST_LINK)
    if meaning is None or origin.call is None:
        if own[0].kind == timeline.KERNEL:
            return CallLimit(None, NO_OPERANDS)
        times = 2 if own[0].kind == timeline.COPY else 1
        moved = None if own[0].bytes is None else times * own[0].bytes
        return limits.of_bytes(moved, "its bytes were not recorded")
    if origin.moved is not None:
        return limits.of_bytes(origin.moved, "")
    if limit_s is None:
        kernels = [each.name for each in own]
        return limits.of_call(meaning, kernels, sum(each.seconds for each in own))
    known = limit_s(origin.call)
    why = meaning.flops_missing or "no peak of this machine is measured in its type"
    return CallLimit(known, None if known is not None else why)


@functools.lru_cache(maxsize=1 << 14)
def _amounts(meaning: Meaning) -> tuple[int | None, float | None]:
    """Return the least bytes and the executed FLOPs of a call; None if unknown."""
    return moved_bytes(meaning), executed_flops(meaning)


@functools.lru_cache(maxsize=1 << 14)
def _meaning(call: ProgramCall) -> Meaning:
    return meaning_of_call(call)


def _category_of(activity: Activity) -> str:
    if activity.kind != timeline.KERNEL:
        return activity.kind
    return kernel_names.category_of(activity.name)


def _path_of(part: _Part) -> tuple[str, ...]:
    """Return the modules of a call; names of PyTorch's modules are parted at their dots."""
    return tuple(name for module in part.activities[0].origin.modules for name in module.split("."))


def _calls(
    parts: Sequence[_Part],
    placed: dict[int, str],
    steps: int,
    whole_s: float,
    best_s: Callable[[Meaning, str], float | None],
) -> tuple[LedgerCall, ...]:
    """Return the rows of calls, the longest first."""
    rows = []
    groups = group_by(parts, lambda part: (*part.key, placed.get(id(part), "")))
    for (operator, direction, shapes, _, module), own in groups.items():
        meanings = [part.meaning for part in own if part.meaning is not None]
        best = best_s(meanings[0], _precision(own[0])) if meanings else None
        flops = (
            sum_known([meaning.product_flops or meaning.flops for meaning in meanings])
            if meanings
            else None
        )
        moved = sum_known([moved_bytes(meaning) for meaning in meanings]) if meanings else None
        rows.append(
            LedgerCall(
                operator=operator,
                module=module,
                direction=direction,
                category=Counter(part.category for part in own).most_common(1)[0][0],
                shapes=shapes,
                kernel=_longest_kernel(own),
                count=len(own) / steps,
                flops=None if flops is None else flops / steps,
                bytes=None if moved is None else moved / steps,
                **_sums(own, steps, whole_s),
                limit_missing=next(
                    (part.limit.missing for part in own if part.limit.seconds is None), None
                ),
                contradiction=_contradiction(own),
                best_s=None if best is None else best * len(own) / steps,
            )
        )
    return tuple(sorted(rows, key=lambda row: -(row.device_s or 0.0)))


def _precision(part: _Part) -> str:
    """Return the precision in which a GPU computed a call."""
    dtype = next(iter(part.meaning.dtypes), "float32") if part.meaning else "float32"
    tf32 = any(_TF32.search(each.name) for each in part.activities)
    return _TENSOR_MODES.get(dtype, "tf32" if tf32 else "fp32")


def _contradiction(parts: Sequence[_Part]) -> str | None:
    """Return why calls cannot be faster than their limit; None if they are not."""
    limited = [part for part in parts if part.limit.seconds is not None]
    limits = sum(part.limit.seconds or 0.0 for part in limited)
    if not limits or limits <= _MAX_ABOVE * sum(part.seconds for part in limited):
        return None
    if any(part.limit.bound == "compute" for part in parts):
        return "the peak or the FLOPs are others"
    return "operands were in a cache, or are fewer"


def _longest_kernel(parts: Sequence[_Part]) -> str:
    """Return the name of the kernel that takes most of the time of some calls."""
    times = sum_by(
        (kernel_names.short_name(each.name), each.seconds)
        for part in parts
        for each in part.activities
    )
    return max(times, key=lambda name: times[name])


def _sums(parts: Sequence[_Part], steps: int, whole_s: float) -> dict[str, Any]:
    """Return the fields of a :class:`LedgerRow` of some parts."""
    limited = [part for part in parts if part.limit.seconds is not None]
    seconds = sum(part.seconds for part in parts) / steps
    limit_s = sum(part.limit.seconds or 0.0 for part in limited) / steps if limited else None
    return {
        "device_s": seconds,
        "share": seconds / whole_s if whole_s else None,
        "limit_s": limit_s,
        "unlimited_s": seconds - sum(part.seconds for part in limited) / steps,
        "kernels": sum(len(part.activities) for part in parts) / steps,
    }


def _categories(
    calls: Sequence[LedgerCall], key: Callable[[LedgerCall], str], whole_s: float
) -> tuple[LedgerCategory, ...]:
    rows = []
    for category, own in group_by(calls, key).items():
        times = [call.device_s for call in own if call.device_s is not None]
        limits = [call.limit_s for call in own if call.limit_s is not None]
        rows.append(
            LedgerCategory(
                category=category,
                device_s=sum(times) if times else None,
                share=sum(times) / whole_s if whole_s else None,
                limit_s=sum(limits) if limits else None,
                unlimited_s=sum(call.unlimited_s for call in own),
                kernels=sum(call.kernels for call in own),
            )
        )
    if {row.category for row in rows} <= set(_DIRECTIONS):
        return tuple(sorted(rows, key=lambda row: _DIRECTIONS.index(row.category)))
    return tuple(sorted(rows, key=lambda row: -row.seconds))


# -----------------------------------------------------------------------------
# Modules.


def _with_paths(
    parts: Sequence[RepeatedModule[_Part]], outer: tuple[str, ...] = ()
) -> Iterable[tuple[tuple[str, ...], RepeatedModule[_Part]]]:
    """Yield each part of a model with the names from the root, before its own parts."""
    for part in parts:
        path = (*outer, part.name)
        yield path, part
        yield from _with_paths(part.inner, path)


def _module_row(
    path: tuple[str, ...], module: RepeatedModule[_Part], steps: int, whole_s: float
) -> LedgerModule:
    each_s = [sum(part.seconds for part in own) / steps for own in module.instances]
    operators = sum_by((part.operator, part.seconds) for part in module.items)
    slowest = sorted(operators, key=lambda name: -operators[name])[:_NAMED_CALLS]
    return LedgerModule(
        module="/".join(path),
        depth=len(path) - 1,
        repeats=module.repeats,
        low_s=min(each_s),
        high_s=max(each_s),
        slowest=", ".join(slowest),
        **_sums(module.items, steps, whole_s),
    )


# -----------------------------------------------------------------------------
# The time line, and what dominates it.


def _device_time(recorded: RecordedTrace) -> tuple[DeviceTime | None, tuple[IdleTime, ...]]:
    """Return the time line of a step, and its idle time; of a CPU the time between its calls."""
    if not recorded.timed:
        return None, ()
    steps, count = recorded.timelines, len(recorded.timelines)
    span_s = sum(_length_s(step, recorded) for step in steps)
    kernel_s = sum(step.kernel_s for step in steps)
    busy_s, exposed = min(kernel_s, span_s), {timeline.COPY: 0.0, timeline.COLLECTIVE: 0.0}
    causes = {timeline.BETWEEN_CALLS: span_s - busy_s}
    if _is_on_device(recorded):
        busy_s = sum(step.busy_s for step in steps)
        causes = sum_by(pair for step in steps for pair in step.idle().items())
        exposed = {kind: sum(step.exposed_s(kind) for step in steps) for kind in exposed}
    idle_s = _without_rounding(span_s - busy_s, span_s)
    rows = [
        IdleTime(cause=cause, seconds=seconds / count)
        for cause, seconds in causes.items()
        if idle_s and seconds > ROUNDING * sum(causes.values())
    ]
    return DeviceTime(
        span_s=span_s / count,
        busy_s=(span_s - idle_s) / count,
        idle_s=idle_s / count,
        kernel_s=kernel_s / count,
        overlapped_s=(kernel_s - busy_s) / count,
        exposed_copy_s=exposed[timeline.COPY] / count,
        exposed_communication_s=exposed[timeline.COLLECTIVE] / count,
    ), tuple(sorted(rows, key=lambda row: -row.seconds))


def _is_on_device(recorded: RecordedTrace) -> bool:
    """Whether a recording has the time line of a device, and not only that of its host."""
    return recorded.on_gpu and not recorded.host_times


def _collectives(recorded: RecordedTrace) -> tuple[LedgerCollective, ...]:
    return tuple(
        LedgerCollective(
            step=number,
            operator=each.origin.call.operator
            if each.origin.call
            else kernel_names.short_name(each.name),
            shapes=each.origin.shapes,
            group=each.group,
            device_s=each.seconds,
        )
        for number, step in enumerate(recorded.timelines)
        for each in step.activities
        if each.kind == timeline.COLLECTIVE
    )


def _timeline(step: StepTimeline, parts: Iterable[_Part]) -> dict[str, tuple[float, ...]]:
    """Return a step in equal parts of time, by category; nothing of a step without times."""
    if step.end <= step.begin:
        return {}
    part_s = (step.end - step.begin) / TIMELINE_PARTS
    rows: dict[str, list[float]] = {}
    for part in parts:
        row = rows.setdefault(part.category, [0.0] * TIMELINE_PARTS)
        for activity in part.activities:
            begin, end = (moment - step.begin for moment in activity.interval)
            first = min(TIMELINE_PARTS - 1, max(0, int(begin / part_s)))
            last = min(TIMELINE_PARTS - 1, max(0, int(end / part_s)))
            for place in range(first, last + 1):
                low, high = place * part_s, (place + 1) * part_s
                row[place] += max(0.0, min(end, high) - max(begin, low))
    return {category: tuple(row) for category, row in rows.items()}


def _length_s(step: StepTimeline, recorded: RecordedTrace) -> float:
    """Return the time of a step, on the device or the host; of its calls if nobody noted it."""
    if _is_on_device(recorded):
        return step.span_s
    return step.kernel_s if step.host_s is None else step.host_s


def _dominant(
    device_time: DeviceTime | None,
    idle: Sequence[IdleTime],
    categories: Sequence[LedgerCategory],
) -> DominantPart | None:
    """Return the part in which most of the time above the limit lies.

    Idle time, exposed copies and exposed communication lie above the limit as a whole, and so does
    the time of calls without a limit.
    """
    if device_time is None:
        return None
    exposed = (timeline.COLLECTIVE, timeline.COPY)
    candidates = [
        ("category", row.category, row.above_limit_s + row.unlimited_s)
        for row in categories
        if row.category not in exposed
    ]
    communication_s = device_time.exposed_communication_s
    candidates.append(("communication", "exposed communication", communication_s))
    candidates.append(("copy", "exposed copies", device_time.exposed_copy_s))
    if idle:
        candidates.append(("idle", idle[0].cause, device_time.idle_s))
    whole_s = sum(seconds for _, _, seconds in candidates)
    kind, name, seconds = max(candidates, key=lambda each: each[2])
    if not whole_s or seconds < _DOMINANT_SHARE * whole_s:
        return None
    return DominantPart(kind=kind, name=name, seconds=seconds, share=seconds / whole_s)

"""From traced steps to the times of modules and calls in the step, and the dominant module."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pydlbench.backends.steps.device import fit_to_step
from pydlbench.calls.meaning import Meaning, bytes_of_type
from pydlbench.calls.seen import meaning_of
from pydlbench.devices.bandwidths import LEVELS
from pydlbench.devices.roofline import memory_time, roof
from pydlbench.errors import PrimitiveError, PydlbenchError, UnsupportedError
from pydlbench.grouping import group_by
from pydlbench.records.step import StepFacts, StepSpec
from pydlbench.records.trace import (
    CallInContext,
    Dominant,
    ModuleInContext,
    ProgramCall,
    RecordedCall,
    TraceFacts,
    Tracing,
    program_hash,
)
from pydlbench.runner.machine import ROOF_PATTERNS
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.timing.policy import LEAST_ROUNDS
from pydlbench.timing.statistics import median, median_interval, middle_rounds, sum_known
from pydlbench.words import CPU_PEAKS, CPU_PRECISIONS, MIXED_TYPES, TYPE_PRECISIONS, arithmetic
from pydlbench.workers.host import RemoteKernel

# Maximum number of traced steps. At least LEAST_ROUNDS are traced, as many as there are processes.
# Short steps are traced for some seconds; long steps as often as fits into half a minute.
MAX_ROUNDS: Final = 18
_SHORT_STEPS_S: Final = 2.5
_LONG_STEPS_S: Final = 30.0
# Rounds that give the time of a round and the cost of tracing; more follow if that seems high.
_FIRST_ROUNDS: Final = 2
# Seconds of a step from which one round is enough to choose the way to trace it.
_LONG_STEP_S: Final = 0.25
# Maximum ratio of traced to untraced step; above it the trace does not represent the step.
_MAX_TRACING_COST: Final = 1.03
# Maximum share of a module's time taken by calls without a roofline if the module is to have one.
_MAX_UNKNOWN_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of traced steps, in seconds.

    Attributes:
        traced_s: time of the traced step, by round.
        plain_s: time of the untraced step beside it, by round; the last rounds may lack it.
        calls_s: time of each call in the traced step, by round.
        gaps_s: on a GPU, time of each other part of the traced step, by round.
        host_s: on a GPU, the host's time in each call, by round.
    """

    traced_s: Sequence[float]
    plain_s: Sequence[float]
    calls_s: Sequence[Sequence[float]]
    gaps_s: Sequence[Sequence[float]] = ()
    host_s: Sequence[Sequence[float]] = ()

    @classmethod
    def of_seconds(
        cls, seconds: Sequence[float], calls: int, gaps: int = 0, *, plain: bool = True
    ) -> Rounds:
        """Return the rounds of a chunk; see ``backends.steps.trace.TracedSteps``."""
        steps = 1 + plain
        behind = steps + calls
        width = behind + (gaps + calls if gaps else 0)
        rounds = [seconds[begin : begin + width] for begin in range(0, len(seconds), width)]
        return cls(
            [row[0] for row in rounds],
            [row[1] for row in rounds] if plain else (),
            [row[steps:behind] for row in rounds],
            [row[behind : behind + gaps] for row in rounds] if gaps else (),
            [row[behind + gaps :] for row in rounds] if gaps else (),
        )

    @property
    def ratios(self) -> list[float]:
        """The traced step over the untraced one, by round with both."""
        return [traced / plain for traced, plain in zip(self.traced_s, self.plain_s, strict=False)]

    def middle(self, calls: int) -> list[float]:
        """Return the seconds of each call, followed by the time between calls.

        They are means over the middle rounds (``middle_rounds``), so that they add up.
        """
        flat = [
            second
            for step_s, calls_s in zip(self.traced_s, self.calls_s, strict=True)
            for second in (*calls_s, step_s - sum(calls_s))
        ]
        return list(middle_rounds(flat, calls + 1))

    def only(self, places: Sequence[int]) -> Rounds:
        """Return the rounds at the given indices."""

        def some(rows: Sequence[Sequence[float]]) -> list[Sequence[float]]:
            return [rows[place] for place in places] if rows else []

        return Rounds(
            [self.traced_s[place] for place in places],
            [self.plain_s[place] for place in places],
            some(self.calls_s),
            some(self.gaps_s),
            some(self.host_s),
        )

    def __add__(self, other: Rounds) -> Rounds:
        return Rounds(
            [*self.traced_s, *other.traced_s],
            [*self.plain_s, *other.plain_s],
            [*self.calls_s, *other.calls_s],
            [*self.gaps_s, *other.gaps_s],
            [*self.host_s, *other.host_s],
        )

    @property
    def cheap(self) -> bool:
        """Whether the cost of tracing is acceptable in each round."""
        return max(self.ratios) <= _MAX_TRACING_COST

    @property
    def expensive(self) -> bool:
        """Whether the cost of tracing is too high, and not by chance."""
        interval = median_interval(self.ratios)
        return median(self.ratios) > _MAX_TRACING_COST and (interval is None or interval.low > 1)


def trace_step(
    step: StepSpec, kernel: RemoteKernel[StepFacts], session: Session, most: int = MAX_ROUNDS
) -> dict[str, Any]:
    """Trace a step, and return the fields of :class:`~pydlbench.records.step.StepRecord` for it.

    Args:
        step: the step.
        kernel: kernel of the step's last visit.
        session: its device has the rooflines.
        most: maximum number of traced steps.

    Returns:
        The fields; or the reason if the step cannot be traced.
    """
    try:
        facts = kernel.trace()
        rounds, tracing = traced_rounds(kernel, facts, most=most)
    except PydlbenchError as error:
        if isinstance(error, ValueError):
            raise
        return {"untraced": " ".join(str(error).split())}
    notes = list(tracing.notes)
    # Rooflines are those of the CPU.
    limit_s = (lambda _: None) if step.on_gpu else limits_of(facts.calls, session, notes)
    return {
        "trace": msgspec.structs.replace(tracing, notes=tuple(notes)),
        "program": program_hash((call.signature, call.direction) for call in facts.calls),
        **in_context(facts.calls, rounds, limit_s),
    }


def traced_rounds(
    kernel: RemoteKernel[StepFacts],
    facts: TraceFacts,
    *,
    briefly: bool = False,
    most: int = MAX_ROUNDS,
) -> tuple[Rounds, Tracing]:
    """Return rounds of traced steps: with the profiler, unless it fails or costs too much.

    Args:
        kernel: runs the step traced.
        facts: calls of the step, and the ways to trace it.
        briefly: only choose the way, with two rounds if tracing costs little; the caller takes the
            rounds.
        most: maximum number of rounds.
    """
    most = LEAST_ROUNDS if briefly else most
    notes: list[str] = []
    rounds = None
    way = next(iter(facts.sources))
    try:
        rounds = _sampled(kernel, facts, way, most, briefly=briefly)
        if not rounds.expensive:
            return rounds, tracing_of(facts, way, rounds)
        notes.append(
            f"{facts.sources[way]} makes the step {median(rounds.ratios):.2f} times as long"
        )
    except PrimitiveError as error:
        notes.append(str(error))
    if "stamps" in facts.sources and way != "stamps":
        try:
            stamped = _sampled(kernel, facts, "stamps", most, briefly=briefly)
        except UnsupportedError as error:
            notes.append(str(error))
        else:
            if median(map(sum, stamped.calls_s)) > median(stamped.plain_s):
                notes.append(
                    "the calls take longer one after another than the step: what is between them "
                    "cannot be told, and is below zero"
                )
            # The untraced step is the step: time stamps time its calls only.
            real = Rounds(stamped.plain_s, stamped.plain_s, stamped.calls_s)
            return real, tracing_of(facts, "stamps", stamped, notes)
    if rounds is None:
        raise UnsupportedError("; ".join(notes))
    shorter = "idle time is" if rounds.gaps_s else "seconds are"
    notes.append(f"{shorter} scaled to the step without a trace")
    return scaled(rounds), tracing_of(facts, way, rounds, notes)


def _sampled(
    kernel: RemoteKernel[StepFacts], facts: TraceFacts, way: str, most: int, *, briefly: bool
) -> Rounds:
    shape = len(facts.calls), len(facts.gaps)
    first = kernel.sample(ChunkRequest(samples=1, untimed=1, timing=way))
    rounds = Rounds.of_seconds(first.seconds, *shape)
    if not briefly or rounds.plain_s[0] < _LONG_STEP_S:
        others = kernel.sample(ChunkRequest(samples=_FIRST_ROUNDS - 1, timing=way))
        rounds += Rounds.of_seconds(others.seconds, *shape)
    # The cost of time stamps does not matter: they time calls in a row, beside the untraced step.
    if briefly and (way == "stamps" or rounds.cheap):
        return rounds
    done = len(rounds.traced_s)
    round_s = max(first.wall_s, (sum(rounds.traced_s) + sum(rounds.plain_s)) / done)
    more = rounds_wanted(round_s, most) - done
    if more > 0:
        # More would only tell again that tracing costs little.
        plain = way == "stamps" or not rounds.cheap
        chunk = kernel.sample(ChunkRequest(samples=more, timing=way, plain=plain))
        rounds += Rounds.of_seconds(chunk.seconds, *shape, plain=plain)
    return rounds


def rounds_wanted(round_s: float, most: int = MAX_ROUNDS) -> int:
    """Return the number of rounds of traced steps.

    Args:
        round_s: time of one round, with the untraced step, in seconds.
        most: maximum number of rounds of short steps.
    """
    round_s = max(round_s, 1e-6)
    if LEAST_ROUNDS * round_s > _LONG_STEPS_S:
        return max(_FIRST_ROUNDS, min(LEAST_ROUNDS - 1, int(_LONG_STEPS_S / round_s)))
    return max(LEAST_ROUNDS, min(most, int(_SHORT_STEPS_S / round_s)))


def scaled(rounds: Rounds) -> Rounds:
    """Return rounds scaled to the untraced step; on a GPU kernels are not scaled."""

    def shorter(rows: Sequence[Sequence[float]]) -> list[list[float]]:
        pairs = zip(rows, rounds.ratios, strict=bool(rows))
        return [[seconds / ratio for seconds in row] for row, ratio in pairs]

    if not rounds.gaps_s:
        return Rounds(rounds.plain_s, rounds.plain_s, shorter(rounds.calls_s))
    rows = zip(rounds.calls_s, rounds.gaps_s, rounds.plain_s, strict=True)
    calls_s, gaps_s = zip(*(fit_to_step(*row) for row in rows), strict=True)
    return Rounds(rounds.plain_s, rounds.plain_s, calls_s, gaps_s, shorter(rounds.host_s))


def tracing_of(facts: TraceFacts, way: str, rounds: Rounds, notes: Sequence[str] = ()) -> Tracing:
    """Return the record of how calls were timed.

    Args:
        facts: facts about the traced step.
        way: the way in which the step was traced.
        rounds: all rounds in this way.
        notes: deviations from the usual way.
    """
    return Tracing(
        source=facts.sources[way],
        way=way,
        rounds=len(rounds.traced_s),
        calls=len(facts.calls),
        traced_s=median(rounds.traced_s[: len(rounds.plain_s)]),
        untraced_s=median(rounds.plain_s),
        cost=median(rounds.ratios),
        notes=tuple(notes),
    )


# -----------------------------------------------------------------------------
# From rounds to modules and calls.


def in_context(
    calls: Sequence[ProgramCall],
    rounds: Rounds,
    limit_s: Callable[[ProgramCall], float | None] = lambda _: None,
) -> dict[str, Any]:
    """Return calls, modules, time between calls and the dominant module, as fields of a record.

    Seconds add up to the step, as means over the middle rounds (``middle_rounds``): calls and the
    time between them belong to the same executions.

    Args:
        calls: calls of the step, in their order.
        rounds: rounds of traced steps.
        limit_s: returns the roofline of a call, in seconds.
    """
    rows, between_s = calls_in_context(calls, rounds, limit_s)
    modules = _modules(rows, between_s + sum(row.in_context_s for row in rows))
    return {
        "calls": tuple(rows),
        "modules": modules,
        "between_calls_s": between_s,
        "dominant": _dominant(calls, rounds, modules) if modules else None,
    }


def alike(calls: Sequence[ProgramCall]) -> dict[tuple[str, str, str], list[int]]:
    """Return the positions of calls by module, direction and operator."""
    names = [(call.module, call.direction, call.operator) for call in calls]
    return group_by(range(len(calls)), names.__getitem__)


def calls_in_context(
    calls: Sequence[ProgramCall],
    rounds: Rounds,
    limit_s: Callable[[ProgramCall], float | None] = lambda _: None,
) -> tuple[list[CallInContext], float]:
    """Return the rows of calls, one for equal calls, the longest first; and the time between calls.

    Args:
        calls: calls of the step, in their order.
        rounds: rounds of traced steps.
        limit_s: returns the roofline of a call, in seconds.
    """
    *seconds, between_s = rounds.middle(len(calls))
    step_s = sum(seconds) + between_s
    host = list(zip(*rounds.host_s, strict=True))
    rows = [
        CallInContext(
            operator=operator,
            module=module,
            direction=direction,
            count=len(places),
            in_context_s=(taken := sum(seconds[place] for place in places)),
            host_s=sum(median(host[place]) for place in places) if host else None,
            share=taken / step_s,
            limit_s=sum_known(limit_s(calls[place]) for place in places),
            flops=flops_of([calls[place] for place in places]),
        )
        for (module, direction, operator), places in alike(calls).items()
    ]
    return sorted(rows, key=lambda row: -row.in_context_s), between_s


def _modules(calls: Sequence[CallInContext], step_s: float) -> tuple[ModuleInContext, ...]:
    """Return the modules, the longest first."""
    modules = []
    for module, own in group_by(calls, lambda call: call.module).items():
        seconds = sum(call.in_context_s for call in own)
        modules.append(
            ModuleInContext(
                module=module, seconds=seconds, share=seconds / step_s, limit_s=limit_of_module(own)
            )
        )
    return tuple(sorted(modules, key=lambda row: -row.seconds))


def limit_of_module(calls: Sequence[CallInContext]) -> float | None:
    """Return the sum of a module's rooflines; None if too many calls have none.

    Args:
        calls: calls of the module. If calls without a roofline take more than a tenth, there is no
            sum.
    """
    seconds = sum(call.in_context_s for call in calls)
    unknown_s = sum(call.in_context_s for call in calls if call.limit_s is None)
    known_s = sum(call.limit_s or 0.0 for call in calls)
    return known_s if unknown_s <= _MAX_UNKNOWN_SHARE * seconds else None


def _dominant(
    calls: Sequence[ProgramCall], rounds: Rounds, modules: Sequence[ModuleInContext]
) -> Dominant:
    """Return the share of the first module with its interval over rounds.

    With few rounds the median may differ from the share of the sums that add up: the interval
    covers both.
    """
    first, *others = modules
    shares = {row.module: _shares(calls, rounds, row.module) for row in modules}
    interval = median_interval(shares[first.module])
    return Dominant(
        name=first.module,
        share=first.share,
        ci_low=None if interval is None else min(interval.low, first.share),
        ci_high=None if interval is None else max(first.share, min(1.0, interval.high)),
        rivals=tuple(
            row.module for row in others if _alike(shares[first.module], shares[row.module])
        ),
    )


def _shares(calls: Sequence[ProgramCall], rounds: Rounds, module: str) -> list[float]:
    """Return a module's share of the step in each round."""
    own = [place for place, call in enumerate(calls) if call.module == module]
    return [
        sum(calls_s[place] for place in own) / step_s
        for step_s, calls_s in zip(rounds.traced_s, rounds.calls_s, strict=True)
    ]


def _alike(larger: Sequence[float], smaller: Sequence[float]) -> bool:
    """Whether two modules cannot be distinguished: the interval of their difference contains 0."""
    differences = [more - less for more, less in zip(larger, smaller, strict=True)]
    interval = median_interval(differences, signed=True)
    return interval is None or interval.low <= 0


# -----------------------------------------------------------------------------
# The roofline of a call.


def limits_of(
    calls: Sequence[ProgramCall], session: Session, refused: list[str]
) -> Callable[[ProgramCall], float | None]:
    """Return a function for the roofline of a call on the CPU, which returns None if unknown.

    Calls without FLOPs whose operands fit into the first cache have no roofline: the bandwidth of
    the first cache is not probed.

    Args:
        calls: the calls of a step.
        session: its devices are probed.
        refused: gets the reason if the device, or a peak, could not be probed.
    """
    meanings = {call: meaning_of_call(call) for call in calls}
    found = dict.fromkeys(arithmetic(precision_of(each)) for each in meanings.values())
    wanted = [precision for precision in found if precision in CPU_PEAKS]
    try:
        # A probe of the memory maps several times the last cache, which takes seconds.
        most = max((moved_bytes(meaning) or 0 for meaning in meanings.values()), default=0)
        fits = most <= session.cache_bytes()
        levels = [level for level in LEVELS if not (fits and level == "memory")]
        device = session.devices.cpu(wanted, ROOF_PATTERNS, levels)
        bandwidths = device.levels(levels)
        if all(level.bytes_per_s == math.inf for level in bandwidths):  # no cache has a probe
            device = session.devices.cpu(wanted, ROOF_PATTERNS, LEVELS)
            bandwidths = device.levels(LEVELS)
    except PydlbenchError as error:  # the times are valid without limits
        refused.append(f"no limit: {' '.join(str(error).split())}")
        return lambda _: None
    peaks: dict[str, float] = {}
    for precision in wanted:
        try:
            peaks[precision] = device.limits(precision).measured
        except UnsupportedError as error:
            refused.append(f"no limit in {precision}: {error}")

    def limit_s(call: ProgramCall) -> float | None:
        meaning = meanings[call]
        flops, peak = executed_flops(meaning), peaks.get(arithmetic(precision_of(meaning)))
        moved = moved_bytes(meaning)
        if flops is None or peak is None or moved is None:
            return None
        seconds = roof(flops, peak, *memory_time(0, moved, bandwidths)).time_s
        return seconds if seconds or not moved else None

    return limit_s


def peak_of(step: StepSpec, session: Session) -> float | None:
    """Return the measured peak of a step's precision on the CPU in FLOP/s; None if unknown."""
    if step.on_gpu or step.precision not in CPU_PRECISIONS:
        return None
    try:
        return session.devices.cpu([step.precision], levels=()).limits(step.precision).measured
    except PydlbenchError:  # no limit is known then
        return None


def flops_of(calls: Sequence[ProgramCall]) -> int | None:
    """Return the algorithmic FLOPs of calls; None if a call is unknown."""
    each = ((meaning_of_call(call).flops, count) for call, count in Counter(calls).items())
    return sum_known(None if flops is None else count * flops for flops, count in each)


def meaning_of_call(call: ProgramCall) -> Meaning:
    """Return the meaning of a call of a step."""
    return meaning_of(
        RecordedCall(
            signature=call.signature,
            operator=call.operator,
            direction=call.direction,
            bytes=call.bytes,
        )
    )


def executed_flops(meaning: Meaning) -> float | None:
    """Return the FLOPs of the layers that are known, without padded taps."""
    if meaning.flops is None:
        return None
    padded = sum(each.layer.flops(each.pass_) for each in meaning.layers)
    executed = sum(each.layer.flops_executed(each.pass_) for each in meaning.layers)
    return max(0, meaning.flops - (padded - executed))


def moved_bytes(meaning: Meaning) -> int | None:
    """Return the least bytes moved: bytes read, and bytes of results by their size or by layers."""
    if meaning.bytes is not None or not meaning.layers or meaning.reads is None:
        return meaning.reads if meaning.bytes is None else meaning.bytes
    itemsize = bytes_of_type(next(iter(meaning.dtypes), "float32"))
    layers = [(each.layer, each.pass_) for each in meaning.layers]
    # In a sequence of layers only the last result is that of the call.
    if len({layer for layer, _ in layers}) > 1:
        layers = layers[-1:]
    written = (layer.operands(pass_)[layer.result(pass_)] for layer, pass_ in layers)
    return meaning.reads + itemsize * sum(written)


def precision_of(meaning: Meaning) -> str:
    """Return the precision in which a call is computed, which has a peak; also a mixed one."""
    known = (TYPE_PRECISIONS[dtype] for dtype in meaning.dtypes if dtype in TYPE_PRECISIONS)
    own = meaning.dtypes[0] if meaning.dtypes else "fp32"
    # Only products, convolutions and layers of other types have a peak.
    has_peak = meaning.product_flops or (own in MIXED_TYPES and meaning.layers)
    return next(known, own if has_peak else "fp32")

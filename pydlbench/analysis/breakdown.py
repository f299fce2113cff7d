"""From a table of visits to the levels and terms of a step's time.

All is computed round by round, from the time of each call in it (``analysis.call_times``). Terms
are sums over calls in each round. The printed value of a term is its mean over the middle rounds
(:func:`pydlbench.timing.statistics.middle_rounds`), so that terms add up; its interval is that of
the median over all rounds.

An experiment explains a part of the difference between two levels. The rest of a difference is
*unexplained* if everything that could explain it was measured, and a bare difference if not:
``not_measured`` names what is missing. The time between calls is a bare difference, less the parts
that experiments name. An experiment that claims more than the difference shows as unexplained time
below zero. The one on caches is an upper bound for each call, limited to the call's difference.
Disturbed rounds are not refused: they widen intervals. If at least half of the rounds were
undisturbed, the printed values are taken from these.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from pydlbench.analysis.call_times import (
    ALONE,
    CallSeconds,
    CallTimes,
    Experiment,
    StepParts,
    in_round,
)
from pydlbench.grouping import group_by
from pydlbench.records.breakdown import (
    LEVELS,
    NOT_MEASURED,
    Breakdown,
    BrokenDownCall,
    BrokenDownModule,
    Level,
    Levels,
    Term,
)
from pydlbench.records.measurement import MIN_NAMED_SHARE
from pydlbench.records.trace import ProgramCall
from pydlbench.steps.traced import alike, calls_in_context, limit_of_module
from pydlbench.study.estimate import disturbances_by_round, estimate_values
from pydlbench.study.table import SampleTable
from pydlbench.timing.statistics import median, middle_rounds, sum_known
from pydlbench.units import Scale, some_names

#: Names of the differences between a level and the next lower one.
DIFFERENCES: Final = {
    "native": "kernels",
    "alone": "choice",
    "in_context": "context",
    "step": "between calls",
}
# Levels of terms whose parts are not timed in each round, as those of the step are.
_BELOW_STEP: Final = ("limit", "native", "alone", "in_context")
_METHODS: Final = {
    "limit": "FLOPs and bytes over measured peaks and bandwidths, at the clock of each round",
    "native": "the fastest native kernels of the layers that stand for the calls, minus the limit",
    "alone": "the framework's calls, each by itself, minus the native layers that stand for them",
    "in_context": "the calls' share of a traced step, of the step, minus the same calls alone",
    "step": "the share of a traced step that no call has, of the step",
}
_METHODS_ON_GPU: Final = {
    **_METHODS,
    "in_context": "the kernels of calls in a traced step, minus the same calls alone",
}
_GAPS_METHOD: Final = (
    "the trace has launches and kernels on one time axis: what kernels leave of the step is idle, "
    "in the trace's proportions"
)
#: The term for the time that a clock below the nominal one costs: power, heat, or a setting.
LOST_CLOCK: Final = "clock below nominal"
_NOMINAL_METHOD: Final = (
    "FLOPs and bytes over measured peaks and bandwidths, at the nominal boost clock"
)
# The share of a limit that clocks read in the same state differ by.
_LEAST_LOST: Final = 0.005
_WITHOUT_LAYER: Final = "calls without a native layer"
_NO_FAULTS: Final = "page faults are counted by step: no trace counts them by call"
# Ratio of a native layer to the framework's own call from which one of the two must be wrong: the
# row is not the fastest kernel, or the layer is not what the call computes.
_CONTRADICTION_RATIO: Final = 2.0
# Maximum number of calls that a detail names.
_MAX_NAMED_CALLS: Final = 2


class _Column(NamedTuple):
    """A term with its time in each round.

    Attributes:
        term: see :class:`~pydlbench.records.breakdown.Term`; so are ``kind``, ``level``, ``how``.
        seconds: time of the term, by round; rounds without a value count with the median, without
            adding to the scatter.
        detail: names of the calls with the largest part of the term.
    """

    term: str
    kind: str
    level: str
    how: str
    seconds: Mapping[int, float]
    detail: str = ""


def break_down(
    table: SampleTable,
    parts: StepParts,
    experiments: Sequence[Experiment] = (),
    missing: Mapping[str, Mapping[str, str]] | None = None,
) -> Breakdown:
    """Return levels, terms, calls and modules of a step.

    Args:
        table: with visits of :data:`STEP` and :data:`TRACED` in common rounds; of :data:`ALONE` and
            of native kernels as far as there are any.
        parts: the parts of the step, and their columns in the table.
        experiments: in the order in which they are listed.
        missing: by level (``alone``, ``in_context``), experiments on the difference below it that
            could not be made, with the reason.

    Raises:
        ValueError: a trace has other calls.
    """
    return _Analysis(table, parts, experiments, missing or {}).result()


class _Analysis:
    """Computes one breakdown."""

    def __init__(
        self,
        table: SampleTable,
        parts: StepParts,
        experiments: Sequence[Experiment],
        missing: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._parts = parts
        self._methods = _METHODS_ON_GPU if parts.gaps else _METHODS
        self._not_measured = [
            f"{name}: {reason}" for some in missing.values() for name, reason in some.items()
        ]
        self._without_layer: tuple[str, ...] = ()
        self._incomplete = {level for level, some in missing.items() if some}
        self._rounds = rounds = CallTimes(table, parts)
        self._disturbed = disturbances_by_round(rounds.steps).keys() & rounds.step_s.keys()
        quiet = [number for number in rounds.step_s if number not in self._disturbed]
        # All rounds, if the undisturbed ones are too few for a mean of the middle ones.
        self._quiet = quiet if 2 * len(quiet) >= len(rounds.step_s) else list(rounds.step_s)
        # The rounds that timed the levels below the traced step. Others count with the median.
        alone = table.series(ALONE).by_round() if ALONE in table else {}
        self._whole = set(rounds.step_s) & set(alone) or set(rounds.step_s)
        self._experiments = [*experiments, *rounds.in_a_row]
        known = next(iter(rounds.calls.values()))
        every = range(len(parts.calls))
        self._by_itself = [place for place in every if known[place].alone is not None]
        self._layered = [place for place in self._by_itself if known[place].native is not None]
        others = [place for place in every if known[place].alone is None]
        self._not_alone = [place for place in others if known[place].native]
        self._without_time = [place for place in others if not known[place].native]
        self._limited = [*self._layered, *self._not_alone]
        if parts.later:
            # The limit of a view alone, which is zero, is no limit of the step.
            limits = [known[place].limit for place in every]
            self._limited = [place for place in every if any(limits) and limits[place] is not None]
            self._not_measured.append(f"native layers, calls alone, experiments: {parts.later}")
        self._columns: list[_Column] = []
        places = [place for place in self._layered if self._in_place(self._call(place))]
        if places:
            names = ", ".join(dict.fromkeys(self._call(place).operator for place in places))
            self._not_measured.append(
                f"native kernels that overwrite an operand, for {len(places)} calls ({names}): "
                "native layers write to memory of their own, which takes longer"
            )

    def result(self) -> Breakdown:
        self._make_columns()
        flat = [
            in_round(column.seconds, number) for number in self._quiet for column in self._columns
        ]
        middles = middle_rounds(flat, len(self._columns))
        step_s = sum(middles)
        terms = tuple(
            self._term(column, seconds, step_s)
            for column, seconds in zip(self._columns, middles, strict=True)
        )
        levels, reasons = self._levels(terms)
        calls = self._call_rows()
        step = estimate_values(self._rounds.step_s, self._rounds.steps)
        unexplained = [term.share for term in terms if term.kind == "unexplained"]
        low, high = self._unexplained(sum(unexplained))
        return Breakdown(
            levels=levels,
            reasons=reasons | {"faults": _NO_FAULTS},
            terms=terms,
            calls=calls,
            modules=_modules(calls, step_s),
            between_calls_s=sum(term.seconds for term in terms if term.level == "step"),
            not_measured=tuple(self._not_measured),
            without_layer=self._without_layer,
            unexplained=sum(unexplained) if unexplained else None,
            unexplained_low=low,
            unexplained_high=high,
            contradictions=self._contradictions(),
            disturbed=step.disturbed,
            disturbance=step.reason,
        )

    # --- terms --------------------------------------------------------------------------------

    def _make_columns(self) -> None:
        """Make the terms in order: the hardware limit, then what is added to it.

        In each round they add up to the time of the step.
        """
        if self._limited:
            every = [call for calls in self._rounds.calls.values() for call in calls]
            lost = any(call.lost_clock > _LEAST_LOST * (call.limit or 0.0) for call in every)
            self._add(
                "limit",
                "limit",
                "limit",
                self._limited,
                lambda call: (call.limit or 0.0) - (call.lost_clock if lost else 0.0),
                _NOMINAL_METHOD if lost else "",
            )
            if lost:
                self._add(
                    LOST_CLOCK,
                    "difference",
                    "limit",
                    self._limited,
                    lambda call: call.lost_clock,
                    "the same limit at the clock of each round, minus that",
                )
        if self._parts.later:
            self._add(
                NOT_MEASURED,
                "difference",
                "in_context",
                range(len(self._parts.calls)),
                lambda call: call.in_context - (call.limit or 0.0),
                "the calls' share of a traced step, of the step, minus the limit",
            )
        else:
            self._add_levels()
        self._add_between()

    def _add_levels(self) -> None:
        """Add the terms between the limit and the calls in the step."""
        if self._limited:
            self._add(DIFFERENCES["native"], "difference", "native", self._limited, _kernels)
        for level, calls, of_call in (
            ("alone", self._layered, _choice),
            ("in_context", self._by_itself, _context),
        ):
            if calls:
                self._explain(level, calls, of_call)
            if level == "alone":
                self._add_incomplete(
                    level,
                    _WITHOUT_LAYER,
                    [place for place in self._by_itself if place not in set(self._layered)],
                    lambda call: call.alone or 0.0,
                    "calls that no native layer stands for, each by itself",
                )
        self._add_incomplete(
            "in_context",
            "choice and context",
            self._not_alone,
            lambda call: call.in_context - (call.native or 0.0),
            "calls that are not run alone: their share of the traced step, minus the native layers",
        )
        self._add_incomplete(
            "in_context",
            "calls that are not run alone" if self._by_itself else _WITHOUT_LAYER,
            self._without_time,
            lambda call: call.in_context,
            "calls that are not run alone: their share of the traced step",
        )

    def _add_between(self) -> None:
        """Add the time between the calls of the step."""
        for place, name in enumerate(self._parts.gaps):
            every = [gaps_s[place] for gaps_s in self._rounds.in_step.gaps_s]
            seconds = dict(zip(self._rounds.step_s, every, strict=True))
            self._columns.append(_Column(name, "experiment", "step", _GAPS_METHOD, seconds))
        if self._parts.gaps:  # there is nothing else between the kernels of calls
            return
        explained = [each for each in self._experiments if each.level == "step"]
        for each in explained:
            self._columns.append(_Column(each.term, "experiment", "step", each.how, each.seconds))
        between = {
            number: step_s
            - sum(call.in_context for call in self._rounds.calls[number])
            - sum(in_round(each.seconds, number) for each in explained)
            for number, step_s in self._rounds.step_s.items()
        }
        name, how = DIFFERENCES["step"], _METHODS["step"]
        if explained:
            name, how = f"rest {name}", f"{how}, minus what experiments explain"
        self._columns.append(_Column(name, "difference", "step", how, between))

    def _add(
        self,
        term: str,
        kind: str,
        level: str,
        calls: Sequence[int],
        of_call: Callable[[CallSeconds], float],
        how: str = "",
        explained: Sequence[Experiment] = (),
    ) -> None:
        """Add a term: a sum over calls, minus the experiments that explain a part of it."""
        seconds = {
            number: sum(of_call(every[place]) for place in calls)
            - sum(in_round(experiment.seconds, number) for experiment in explained)
            for number, every in self._rounds.calls.items()
        }
        detail = "" if kind == "limit" else self._detail(calls, of_call)
        if detail and kind == "unexplained":
            # Experiments explain sums over calls: the rest of each call is not known.
            detail = f"differ most: {detail}"
        self._columns.append(
            _Column(term, kind, level, how or self._methods[level], seconds, detail)
        )

    def _explain(
        self, level: str, calls: Sequence[int], of_call: Callable[[CallSeconds], float]
    ) -> None:
        """Add experiments on a difference, the rest of it, and the calls without an experiment."""
        name = DIFFERENCES[level]
        own = [
            each
            for each in self._experiments
            if each.level == level and any(_is_about(each, self._call(place)) for place in calls)
        ]
        for experiment in own:
            if not experiment.whole:
                self._columns.append(
                    _Column(
                        experiment.term, "experiment", level, experiment.how, experiment.seconds
                    )
                )
                continue
            # From the calls of each round: rounds without the experiment add up, too.
            places = [place for place in calls if self._call(place).signature in experiment.whole]
            self._add(experiment.term, "difference", level, places, of_call, experiment.how)
        about = [
            place for place in calls if any(_is_about(each, self._call(place)) for each in own)
        ]
        others = [place for place in calls if place not in set(about)]
        whole = {signature for experiment in own for signature in experiment.whole}
        tested = [place for place in about if self._call(place).signature not in whole]
        if tested:
            complete = level not in self._incomplete
            self._add(
                f"unexplained {name}" if complete else f"rest of {name}",
                "unexplained" if complete else "difference",
                level,
                tested,
                of_call,
                f"{self._methods[level]}, minus what experiments explain",
                [experiment for experiment in own if not experiment.whole],
            )
        if others:
            self._add(
                name if not about else f"{name} of other calls",
                "difference",
                level,
                others,
                of_call,
            )
            what = "all calls" if not about else f"{len(others)} of {len(calls)} calls"
            self._not_measured.append(f"{name}: no experiment covers {what}")

    def _add_incomplete(
        self,
        level: str,
        term: str,
        calls: Sequence[int],
        of_call: Callable[[CallSeconds], float],
        how: str,
    ) -> None:
        """Add calls for which a lower level is not known."""
        if not calls:
            return
        self._add(term, "difference", level, calls, of_call, how)
        operators = self._ranked(calls, of_call, self._operator)
        if level == "alone":
            self._without_layer = tuple(
                f"{name} {Scale.fit(seconds).text(seconds)}{self._why(name)}"
                for name, seconds in operators.items()
            )
        else:
            names = some_names([f"{name}{self._why(name)}" for name in operators])
            self._not_measured.append(f"{term}: {names}")

    def _why(self, operator: str) -> str:
        reason = self._parts.lacks.get(operator)
        return f" ({reason})" if reason else ""

    def _operator(self, place: int) -> str:
        """Return a call's operator; the module for a compiler's kernel, which is its short name."""
        call = self._call(place)
        return call.module if call.signature == f"{call.operator}()" else call.operator

    def _in_place(self, call: ProgramCall) -> bool:
        return (call.signature, call.direction) in self._parts.in_place

    def _call(self, place: int) -> ProgramCall:
        return self._parts.calls[place]

    def _detail(self, calls: Sequence[int], of_call: Callable[[CallSeconds], float]) -> str:
        """Name the calls with the largest part of a term, in the median of the rounds."""

        def name_of(place: int) -> str:
            module, operator = self._call(place).module, self._operator(place)
            return module if operator == module else f"{module} {operator}"

        least = MIN_NAMED_SHARE * median(self._rounds.step_s.values())
        largest = [*self._ranked(calls, of_call, name_of).items()][:_MAX_NAMED_CALLS]
        return ", ".join(
            f"{name} {Scale.fit(seconds).signed(seconds)}"
            for name, seconds in largest
            if abs(seconds) > least
        )

    def _ranked(
        self,
        calls: Sequence[int],
        of_call: Callable[[CallSeconds], float],
        name_of: Callable[[int], str],
    ) -> dict[str, float]:
        """Return the part of a term by name of calls, median over the rounds, largest first."""
        seconds = {
            name: median(
                sum(of_call(every[place]) for place in own) for every in self._rounds.calls.values()
            )
            for name, own in group_by(calls, name_of).items()
        }
        return dict(sorted(seconds.items(), key=lambda item: -abs(item[1])))

    # --- numbers over rounds ------------------------------------------------------------------

    def _interval(
        self, values: Mapping[int, float], middle: float, level: str, *, signed: bool = False
    ) -> tuple[float | None, float | None]:
        """Return the interval over rounds, widened to cover the printed value.

        Args:
            values: the value in each round.
            middle: the printed value.
            level: level of the value. Terms below the step have no values in coarse rounds.
            signed: whether the values are differences.
        """
        if level in _BELOW_STEP:
            values = {number: values[number] for number in values if number in self._whole}
        interval = estimate_values(values, self._rounds.steps, signed=signed).interval
        if interval is None:
            return None, None
        return min(interval.low, middle), max(interval.high, middle)

    def _term(self, column: _Column, seconds: float, step_s: float) -> Term:
        signed = column.kind != "limit"
        low, high = self._interval(column.seconds, seconds, column.level, signed=signed)
        return Term(
            term=column.term,
            kind=column.kind,
            seconds=seconds,
            ci_low=low,
            ci_high=high,
            share=seconds / step_s,
            how=column.how,
            level=column.level,
            detail=column.detail,
        )

    def _levels(self, terms: Sequence[Term]) -> tuple[Levels, dict[str, str]]:
        """Sum terms up to each level."""
        levels: dict[str, Level] = {}
        reasons: dict[str, str] = {}
        for place, name in enumerate(LEVELS):
            below = LEVELS[: place + 1]
            own = [number for number, term in enumerate(terms) if term.level in below]
            if name in ("native", "alone") and self._parts.later:
                reasons[name] = self._parts.later
            elif name in ("limit", "native") and not self._limited:
                early = self._parts.no_limits or "no limit of a call is known"
                reasons[name] = early if self._parts.later else "no native layer stands for a call"
            elif name == "alone" and not self._by_itself:
                reasons[name] = "no call was run alone"
            else:
                middle = sum(terms[number].seconds for number in own)
                sums = {
                    number: sum(in_round(self._columns[each].seconds, number) for each in own)
                    for number in self._rounds.step_s
                }
                # The calls in the step are parts of it, and need no other visit.
                level = "step" if name == "in_context" else name
                low, high = self._interval(sums, middle, level)
                count = len(self._whole if level in _BELOW_STEP else sums)
                levels[name] = Level(median=middle, ci_low=low, ci_high=high, n=count)
        return Levels(**levels), reasons

    def _unexplained(self, share: float) -> tuple[float | None, float | None]:
        """Return the interval of the unexplained time, as shares of the step.

        Args:
            share: the printed value, as a share of the step; the interval includes it.
        """
        own = [column for column in self._columns if column.kind == "unexplained"]
        if not own:
            return None, None
        shares = {
            number: sum(each.seconds[number] for each in own) / step_s
            for number, step_s in self._rounds.step_s.items()
        }
        return self._interval(shares, share, "in_context", signed=True)

    # --- calls --------------------------------------------------------------------------------

    def _call_rows(self) -> tuple[BrokenDownCall, ...]:
        """Return the rows of calls, one for equal calls, the longest first."""
        numbers = list(self._rounds.step_s)
        quiet = self._rounds.in_step.only([numbers.index(number) for number in self._quiet])
        in_context, _ = calls_in_context(self._parts.calls, quiet)
        places_of = alike(self._parts.calls)
        rows = []
        for row in in_context:
            places = places_of[row.module, row.direction, row.operator]
            known = msgspec.structs.asdict(row) | {
                "signatures": tuple(dict.fromkeys(self._call(place).signature for place in places)),
                "limit_s": self._median_sum(places, lambda call: call.limit),
                "alone_s": self._median_sum(places, lambda call: call.alone),
                "native_s": self._median_sum(places, lambda call: call.native),
            }
            rows.append(BrokenDownCall(**known))
        return tuple(rows)

    def _median_sum(
        self, places: Sequence[int], of_call: Callable[[CallSeconds], float | None]
    ) -> float | None:
        """Return the median over rounds of a sum over calls; None if a call is unknown."""
        sums = [
            sum_known(of_call(self._rounds.calls[number][place]) for place in places)
            for number in self._quiet
        ]
        known = [total for total in sums if total is not None]
        return median(known) if known else None

    def _contradictions(self) -> tuple[str, ...]:
        """Name native layers that take much longer than the framework's own calls, if it matters.

        If most rounds were disturbed, that is the likely reason: then there is one sentence.
        """
        places = [place for place in self._layered if not self._in_place(self._call(place))]
        alike_places = group_by(
            places, lambda place: (self._call(place).signature, self._call(place).direction)
        )
        least_s = MIN_NAMED_SHARE * median(self._rounds.step_s.values())
        longer: list[tuple[float, int, float]] = []
        for place, *others in alike_places.values():
            every = [calls[place] for calls in self._rounds.calls.values()]
            pairs = [(call.native, call.alone) for call in every]
            known = [(native, alone) for native, alone in pairs if native is not None and alone]
            if (
                known
                and (ratio := median(native / alone for native, alone in known))
                > _CONTRADICTION_RATIO
            ):
                longer_s = median(native - alone for native, alone in known)
                longer.append(((1 + len(others)) * longer_s, place, ratio))
        # The longest ones, until the sum of the others does not matter.
        longer.sort(reverse=True)
        rest_s = sum(longer_s for longer_s, _, _ in longer)
        doubtful: dict[int, float] = {}
        for longer_s, place, ratio in longer:
            if rest_s <= least_s:
                break
            doubtful[place] = ratio
            rest_s -= longer_s
        disturbed, rounds = len(self._disturbed), len(self._rounds.step_s)
        if len(doubtful) > 1 and 2 * disturbed > rounds:
            together = (
                f"{len(doubtful)} native layers take {min(doubtful.values()):.1f} to "
                f"{max(doubtful.values()):.1f} times as long as the framework's own calls, and "
                f"{disturbed} of {rounds} rounds were disturbed: repeat on an idle machine"
            )
            return (together,)
        return tuple(
            f"the native layer of {self._call(place).module} {self._call(place).operator} takes "
            f"{ratio:.1f} times as long as the framework's own call"
            for place, ratio in doubtful.items()
        )


def _is_about(experiment: Experiment, call: ProgramCall) -> bool:
    return experiment.signatures is None or call.signature in experiment.signatures


def _kernels(call: CallSeconds) -> float:
    return (call.native or 0.0) - (call.limit or 0.0)


def _choice(call: CallSeconds) -> float:
    return (call.alone or 0.0) - (call.native or 0.0)


def _context(call: CallSeconds) -> float:
    return call.in_context - (call.alone or 0.0)


def _modules(calls: Sequence[BrokenDownCall], step_s: float) -> tuple[BrokenDownModule, ...]:
    """Return the modules, the longest first."""
    rows = [
        BrokenDownModule(
            module=module,
            seconds=(seconds := sum(each.in_context_s for each in own)),
            share=seconds / step_s,
            limit_s=limit_of_module(own),
            alone_s=sum_known(each.alone_s for each in own),
            native_s=sum_known(each.native_s for each in own),
        )
        for module, own in group_by(calls, lambda call: call.module).items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))

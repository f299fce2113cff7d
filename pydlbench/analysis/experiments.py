"""What explains a part of a difference: from logs, counters, and steps with one thing changed.

A log is of calls that ran behind others; calls alone are timed with their operands in caches. What
is taken from the log is therefore a share of the very call that was logged, less what writing the
log costs, and that share of the call alone; in rounds without a log the median share. Whatever
disturbs a call disturbs its log as well.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from pydlbench.analysis.call_times import (
    ALONE,
    STEP,
    STEP_KEPT,
    TRACED,
    Experiment,
    by_part,
    in_calls,
    in_round,
)
from pydlbench.backends.steps.timed_calls import LoggedOperators
from pydlbench.records.breakdown import Alternative
from pydlbench.study.estimate import estimate_values
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.analysis.call_times import StepParts
    from pydlbench.study.table import Series, Table

#: Subjects of the table: what libraries log of calls, with :data:`LOGGED` parts of each; a block
#: whose pages are new each time, and the same where they are kept.
LOG: Final = "log"
PAGES: Final = "pages"
PAGES_KEPT: Final = "pages kept"
#: A step with one thing changed, as :data:`STEP_KEPT`: batch normalisations are folded into the
#: convolutions before them.
STEP_FOLDED: Final = "folded batch norm"
#: Likewise, on a GPU: the same calls are replayed from a graph.
STEP_GRAPH: Final = "a CUDA graph"
#: A thread that another one wakes.
WAKEUP: Final = "wake-up"
#: Seconds of a call without a log and with one, and by the log of all that was executed in it, of
#: reorders among that, and of making primitives.
LOGGED: Final = LoggedOperators.PARTS

#: Terms.
ANOTHER_KERNEL: Final = "another kernel"
REORDERS: Final = "reorders"
CREATION: Final = "primitive creation"
DISPATCH: Final = "dispatch"
OVERHEAD: Final = "call overhead"
OWN_KERNELS: Final = "own kernels"
FRESH_MEMORY: Final = "fresh memory"
RETURNED_MEMORY: Final = "returned memory"
WAKEUPS: Final = "wake-up of threads"
#: Those that a log tells.
LOG_TERMS: Final = (ANOTHER_KERNEL, REORDERS, CREATION, OVERHEAD, OWN_KERNELS)

# Of a step: an upper bound below this explains nothing that matters.
_NEGLIGIBLE: Final = 0.01
#: Seconds. No page fault costs more: the kernel clears a page in less than a microsecond, and the
#: fault itself takes one or two on a virtual machine.
MOST_PER_FAULT_S: Final = 5e-6
# A log that has so much more than its call, beyond how it is rounded, is of several threads.
_AT_A_TIME: Final = 1.1
# Of so many calls at least, the shortest, the cost of writing a log is taken.
_SHORTEST: Final = 3
# A step that keeps its pages has no more of the step's page faults than this.
_FEW_KEPT: Final = 0.2
# Page faults of such a block; with fewer nobody has counted them.
_FEW_FAULTS: Final = 1.0


def log_experiments(
    table: Table,
    parts: StepParts,
    names: Sequence[str],
    executing: Mapping[str, int],
    dispatch_s: float,
    threads: int = 1,
) -> list[Experiment]:
    """Return what logs tell of calls: kernels, reorders, primitives; and what a call has besides.

    What a kernel takes longer than the fastest native one has a sign: it is below zero where the
    framework's is the faster one in a round, or somebody disturbed the native one. A call without
    all that its log has is overhead, and not below zero: a log that claims more than the call
    leaves unexplained time below zero. Calls in which no library logs anything run the framework's
    own kernels: what they take longer than the native layers is named by that.

    Args:
        table: with visits of :data:`LOG` and of calls alone.
        parts: of the step.
        names: signatures: the parts of :data:`LOG`.
        executing: how many executions a library logs in each of them in which it logs any.
        dispatch_s: seconds of starting a call that computes nothing.
        threads: of the framework.

    Returns:
        None of these where no library logs anything of a call with a native layer.
    """
    logged = set(names) & set(parts.alone)
    counted = Counter(
        (call.signature, call.direction)
        for call in parts.calls
        if call.signature in logged and (call.signature, call.direction) in parts.native
    )
    own = {key: count for key, count in counted.items() if key[0] in executing}
    if not own:
        return []
    others = {key: count for key, count in counted.items() if key[0] not in executing}
    experiments = _of_libraries(table, parts, own, names, executing, dispatch_s, threads)
    if others:
        signatures = frozenset(signature for signature, _ in others)
        experiments.append(
            Experiment(
                term=OWN_KERNELS,
                level="alone",
                seconds=_by_round(table, parts, others, _longer),
                how=f"{sum(others.values())} calls in which oneDNN and MKL log nothing: what the "
                "framework's own code takes longer than the native layers, with the start of each",
                signatures=signatures,
                whole=signatures,
            )
        )
    return experiments


def _by_round(
    table: Table,
    parts: StepParts,
    counts: Mapping[tuple[str, str], int],
    of_call: Callable[[str, int, float, float], float],
) -> dict[int, float]:
    """Return by round a sum over calls.

    Args:
        table: with visits of calls alone and of native kernels.
        parts: of the step.
        counts: executions of the calls, by signature and direction.
        of_call: returns what one execution adds, by its signature, the round, the seconds that it
            takes alone and those of the native layers that stand for it.
    """
    alone = by_part(table.series(ALONE), parts.alone, parts.repeats)
    subjects = {kernel.subject for key in counts for kernel in parts.native[key]}
    native = {subject: table.series(subject).by_round() for subject in subjects}
    return {
        visit.round: sum(
            count
            * of_call(
                key[0],
                visit.round,
                in_round(alone[key[0]][-1], visit.round),
                sum(in_round(native[each.subject], visit.round) for each in parts.native[key]),
            )
            for key, count in counts.items()
        )
        for visit in table.series(ALONE)
    }


def _longer(_signature: str, _number: int, alone_s: float, native_s: float) -> float:
    """Return what a call takes longer alone than the native layers that stand for it."""
    return alone_s - native_s


class _Logged(NamedTuple):
    """What a log has of a call, as shares of it: executed, reorders among that, and creation."""

    executed: float
    reordered: float
    created: float


def _of_libraries(
    table: Table,
    parts: StepParts,
    own: Mapping[tuple[str, str], int],
    names: Sequence[str],
    executing: Mapping[str, int],
    dispatch_s: float,
    threads: int,
) -> list[Experiment]:
    """Return what logs tell of calls in which libraries execute something; ``own`` counts them."""
    shares = _logged_shares(table.series(LOG), names, executing, threads)
    calls = sum(own.values())
    signatures = frozenset(key[0] for key in own)
    log = "by the log of oneDNN and MKL of each call, as a share of the call"

    def explained(
        term: str, how: str, of_call: Callable[[_Logged, float, float], float]
    ) -> Experiment:
        """Return an experiment by what it has of a call: its shares, itself, its native layers."""

        def seconds_of(signature: str, number: int, alone_s: float, native_s: float) -> float:
            logged = _Logged(*(in_round(each, number) for each in shares[signature]))
            return of_call(logged, alone_s, native_s)

        seconds = _by_round(table, parts, own, seconds_of)
        return Experiment(term=term, level="alone", seconds=seconds, how=how, signatures=signatures)

    return [
        explained(
            ANOTHER_KERNEL,
            f"what they execute in {calls} calls without reorders, {log}, minus the fastest native "
            "kernels in that round",
            lambda logged, alone_s, native_s: (
                alone_s * (logged.executed - logged.reordered) - native_s
            ),
        ),
        explained(
            REORDERS,
            f"reorders of {calls} calls, {log}",
            lambda logged, alone_s, _: alone_s * logged.reordered,
        ),
        explained(
            CREATION,
            f"primitives that oneDNN makes or takes from its cache in {calls} calls, {log}",
            lambda logged, alone_s, _: alone_s * logged.created,
        ),
        explained(
            DISPATCH,
            f"{dispatch_s * 1e6:.1f} us for each of {calls} calls: an operator that computes "
            "nothing",
            lambda *_: dispatch_s,
        ),
        explained(
            OVERHEAD,
            f"what {calls} calls take besides what their libraries execute and make, {log}, "
            "without dispatch: memory, descriptors, starting threads",
            lambda logged, alone_s, _: max(
                0.0, alone_s * (1 - logged.executed - logged.created) - dispatch_s
            ),
        ),
    ]


def kernel_experiment(
    table: Table,
    parts: StepParts,
    ran: Mapping[str, Sequence[str]],
    fastest: Mapping[tuple[str, str], Sequence[str]],
) -> Experiment | None:
    """Return what calls on a GPU take longer because they run other kernels than the fastest.

    Args:
        table: with visits of calls alone and of native kernels.
        parts: of the step.
        ran: by signature, the kernels of a call.
        fastest: by signature and direction, those of the native layers that stand for it.

    Returns:
        None where of no call both are known.
    """
    counted = Counter((call.signature, call.direction) for call in parts.calls)
    own = [
        key
        for key in counted
        if ran.get(key[0]) and fastest.get(key) and key[0] in parts.alone and parts.native.get(key)
    ]
    if not own:
        return None
    others = {key: counted[key] for key in own if Counter(ran[key[0]]) != Counter(fastest[key])}
    calls, known = sum(others.values()), sum(counted[key] for key in own)
    return Experiment(
        term=ANOTHER_KERNEL,
        level="alone",
        seconds=_by_round(table, parts, others, _longer),
        how=f"{calls} of {known} calls launch other kernels than the fastest native layers, by the "
        "driver's names: what they take longer alone than those",
        signatures=frozenset(key[0] for key in own),
        whole=frozenset(key[0] for key in others),
    )


def _logged_shares(
    series: Series, names: Sequence[str], executing: Mapping[str, int], threads: int
) -> dict[str, list[dict[int, float]]]:
    """Return what a log has of each call, as shares of it: executed, reorders among it, creation.

    Writing the log takes time that no call has without it. For one execution that is the median
    over the shortest calls, each its shortest time with a log less that without: of a long call
    this difference is mostly noise. It makes no call shorter than what was executed in it. Where
    more was executed than the call takes, each thread has executed and logged a part at a time.

    Returns:
        By name, each of the three by round.
    """
    known = {
        name: {
            visit.round: [row[LOGGED * n : LOGGED * (n + 1)] for row in visit.parts]
            for visit in series
        }
        for n, name in enumerate(names)
        if name in executing
    }
    writing = []
    for name, rounds in known.items():
        rows = [row for some in rounds.values() for row in some]
        plain_s, logged_s = (min(row[part] for row in rows) for part in (0, 1))
        writing.append((plain_s, (logged_s - plain_s) / executing[name]))
    shortest = sorted(writing)[: max(_SHORTEST, len(writing) // 4)]
    writing_s = max(0.0, median(each for _, each in shortest))

    def shares(name: str, row: Sequence[float]) -> list[float]:
        _, whole_s, executed_s, reordered_s, created_s = row
        if executed_s > _AT_A_TIME * whole_s:
            executed_s, reordered_s = executed_s / threads, reordered_s / threads
        least_s = min(whole_s, executed_s + created_s)
        call_s = max(whole_s - executing[name] * writing_s, least_s)
        logged = executed_s, reordered_s, created_s
        return [part / call_s if call_s > 0 else 0.0 for part in logged]

    return {
        name: [
            {
                number: median(shares(name, row)[part] for row in rows)
                for number, rows in rounds.items()
            }
            for part in range(LOGGED - 2)
        ]
        for name, rounds in known.items()
    }


def alternatives(table: Table, hows: Mapping[str, str]) -> list[Alternative]:
    """Return what steps with one thing changed take, beside the steps of the same rounds.

    Args:
        table: with visits of steps, and of those changed as far as there are some.
        hows: by subject, how such a step differs.
    """
    steps = table.series(STEP)
    rows = []
    for name, how in hows.items():
        if name not in table:
            continue
        changed = table.series(name)
        plain_s, changed_s = steps.by_round(), changed.by_round()
        saved = {number: plain_s[number] - each for number, each in changed_s.items()}
        made = estimate_values(saved, [steps, changed], signed=True)
        rows.append(
            Alternative(
                change=name,
                median=changed.median,
                saved=made.median,
                ci_low=None if made.interval is None else made.interval.low,
                ci_high=None if made.interval is None else made.interval.high,
                n=made.rounds,
                how=how,
            )
        )
    return rows


def fresh_memory(table: Table) -> Experiment | None:
    """Return what the pages cost that a step touches for the first time.

    It is the difference to a step that keeps its pages, see :func:`_against_kept`; else, and where
    that is less than 1 % of the step, the number of page faults times what one of a new block
    costs. Pages of another origin may cost four times as much (virtual machines).

    Args:
        table: with visits of steps, :data:`PAGES` and :data:`PAGES_KEPT`; of
            :data:`~pydlbench.analysis.call_times.STEP_KEPT` where it could be made ready.

    Returns:
        None where page faults were not counted, or not what one costs.
    """
    if PAGES not in table or PAGES_KEPT not in table:
        return None
    new, warm, steps = table.series(PAGES), table.series(PAGES_KEPT), table.series(STEP)
    more = (new.faults or 0.0) - (warm.faults or 0.0)
    new_s, warm_s = new.by_round(), warm.by_round()
    cost = {
        number: max(0.0, new_s[number] - warm_s[number]) / more
        for number in new_s.keys() & warm_s.keys()
        if more >= _FEW_FAULTS
    }
    counted = _faults(steps)
    if not cost or not counted:
        return None
    seconds = _priced(counted, cost)
    matters = median(seconds.values()) > _NEGLIGIBLE * steps.median
    if matters and (against := _against_kept(table, cost)) is not None:
        return against
    return Experiment(
        term=FRESH_MEMORY,
        level="in_context",
        seconds=seconds,
        how=f"{median(counted.values()):.0f} page faults of the step, counted in the steps that "
        f"were timed, at {1e6 * median(cost.values()):.2f} us each (a new block against one that "
        "is kept)",
    )


class _BesideKept(NamedTuple):
    """What steps take in the rounds in which one that keeps its pages ran as well.

    Attributes:
        calls_s: by round, in calls: of the step minus of that one.
        between_s: the same between calls.
        faults: page faults of the step.
        faults_kept: page faults of that one, by round.
    """

    calls_s: dict[int, float]
    between_s: dict[int, float]
    faults: float
    faults_kept: dict[int, float]


def _beside_kept(table: Table) -> _BesideKept | None:
    """Return how a step differs from one that keeps its pages.

    Returns:
        None where that one lacks more than one of the step's rounds, or has more than a fifth of
        its page faults.
    """
    if STEP_KEPT not in table:
        return None
    steps, kept = table.series(STEP), table.series(STEP_KEPT)
    counted, own = _faults(steps), _faults(kept)
    whole_s, kept_s = steps.by_round(), kept.by_round()
    calls_s, kept_calls_s = (
        {number: sum(each) for number, each in in_calls(*pair).items()}
        for pair in ((table.series(TRACED), steps), (kept, kept))
    )
    common = [number for number in own if number in calls_s and number in kept_calls_s]
    if not counted or len(common) < max(1, len(counted) - 1):
        return None
    faults = median(counted.values())
    if median(own.values()) > _FEW_KEPT * faults:
        return None
    in_both = {number: calls_s[number] - kept_calls_s[number] for number in common}
    return _BesideKept(
        calls_s=in_both,
        between_s={n: whole_s[n] - kept_s[n] - seconds for n, seconds in in_both.items()},
        faults=faults,
        faults_kept=own,
    )


def _against_kept(table: Table, cost: Mapping[int, float]) -> Experiment | None:
    """Return a step's calls minus those of one that keeps its pages, but for its page faults.

    Returns:
        None where there is none to compare it with, or the difference cannot be theirs.
    """
    kept = _beside_kept(table)
    if kept is None:
        return None
    kept_faults = median(kept.faults_kept.values())
    saved = median(kept.calls_s.values())
    if not 0 <= saved <= MOST_PER_FAULT_S * (kept.faults - kept_faults):
        return None
    own_s = _priced(kept.faults_kept, cost)
    return Experiment(
        term=FRESH_MEMORY,
        level="in_context",
        seconds={number: seconds + own_s[number] for number, seconds in kept.calls_s.items()},
        how=f"the calls of the step, with {kept.faults:.0f} page faults, minus those of the step "
        f"in a process that keeps its pages, plus the {kept_faults:.0f} page faults of that one at "
        f"{1e6 * median(cost.values()):.2f} us each (a new block against one that is kept)",
    )


def returned_memory(table: Table) -> Experiment | None:
    """Return what it takes to give memory back to the system, which lies between calls.

    A large block is unmapped when its tensor is freed, behind the last call that reads it.

    Args:
        table: with visits of steps, and of those that keep their pages.

    Returns:
        None without such a step, where it saves less than 1 % of the step between its calls, and
        where it saves more than its page faults explain.
    """
    kept = _beside_kept(table)
    if kept is None:
        return None
    saved = median(kept.between_s.values())
    most = MOST_PER_FAULT_S * (kept.faults - median(kept.faults_kept.values()))
    if not _NEGLIGIBLE * table.series(STEP).median < saved <= most:
        return None
    return Experiment(
        term=RETURNED_MEMORY,
        level="step",
        seconds=kept.between_s,
        how="time between the calls of the step minus that of the step in a process that keeps its "
        "pages: blocks are unmapped when tensors are freed",
    )


def _priced(faults: Mapping[int, float], cost: Mapping[int, float]) -> dict[int, float]:
    """Return what page faults of each round cost, by what one costs in it."""
    return {number: count * in_round(cost, number) for number, count in faults.items()}


def _faults(series: Series) -> dict[int, float]:
    """Return page faults of an execution by round, as far as they were counted."""
    return {visit.round: visit.faults for visit in series if visit.faults is not None}


def wakeups(table: Table) -> Experiment | str:
    """Return what it costs at most that threads of a step fall asleep, where that hardly matters.

    A thread that is woken is not always waited for: what all of them cost together is an upper
    bound, which explains something only where it is small.

    Args:
        table: with visits of steps and of :data:`WAKEUP`.

    Returns:
        Why it is not known, where sleeping threads or what waking one costs were not counted, or
        they may cost more.
    """
    counted = {
        visit.round: visit.voluntary / (len(visit.seconds) * visit.inner)
        for visit in table.series(STEP)
        if visit.voluntary is not None
    }
    if WAKEUP not in table or not counted:
        return "sleeping threads, or the cost of waking one, were not measured"
    cost, step_s = table.series(WAKEUP).by_round(), table.series(STEP).median
    seconds = {number: count * in_round(cost, number) for number, count in counted.items()}
    each = f"{1e6 * median(cost.values()):.1f} us each: a byte to a sleeping thread"
    asleep = f"threads fall asleep {median(counted.values()):.1f} times in a step"
    if median(seconds.values()) > _NEGLIGIBLE * step_s:
        return f"{asleep}, and waking one takes up to {each}; whether the step waits is not known"
    return Experiment(
        term=WAKEUPS,
        level="in_context",
        seconds=seconds,
        how=f"{asleep}, by the kernel's count, at {each}",
    )

"""Experiments that explain a part of a difference: logs, counters, and steps with one change.

Logged calls ran behind others; calls alone are timed with their operands in caches. So a log gives
shares of the very call that was logged, without the cost of writing the log, and these shares are
applied to the call alone. Rounds without a log have the median share. A disturbance affects a call
and its log alike.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from pydlbench.analysis.call_times import (
    ALONE,
    STEP,
    STEP_KEPT,
    TRACED,
    Experiment,
    StepParts,
    by_part,
    in_calls,
    in_round,
)
from pydlbench.backends.steps.timed_calls import LoggedOperators
from pydlbench.records.breakdown import Alternative
from pydlbench.study.estimate import estimate_values
from pydlbench.study.table import SampleTable, Series
from pydlbench.timing.statistics import median

#: Subjects of the table: logged calls, with :data:`LOGGED` parts each; a block of memory with new
#: pages each time, and a block with kept pages.
LOG: Final = "log"
PAGES: Final = "pages"
PAGES_KEPT: Final = "pages kept"
#: Steps with one change, like :data:`STEP_KEPT`: with batch normalisations folded into the
#: convolutions before them (PyTorch); without fused operators (TensorFlow); and on a GPU, replayed
#: from a graph.
STEP_FOLDED: Final = "folded batch norm"
STEP_UNFUSED: Final = "unfused operators"
STEP_GRAPH: Final = "a CUDA graph"
#: A subject of the table: waking a thread.
WAKEUP: Final = "wake-up"
#: Parts of a logged call: its seconds without a log and with a log; and, according to the log, the
#: seconds of all executions, of the reorders included in them, and of creating primitives.
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
#: Terms that need a log.
LOG_TERMS: Final = (ANOTHER_KERNEL, REORDERS, CREATION, OVERHEAD, OWN_KERNELS)

#: Share of a step below which an upper bound explains nothing that matters.
NEGLIGIBLE_SHARE: Final = 0.01
#: Upper bound of the cost of a page fault, in seconds: the kernel clears a page in less than a
#: microsecond, and the fault itself takes one or two on a virtual machine.
MAX_FAULT_S: Final = 5e-6
# Ratio of logged time to the time of the call from which on several threads must have logged; a
# smaller excess is rounding.
_SEVERAL_THREADS_RATIO: Final = 1.1
# Minimum number of calls, the shortest ones, from which the cost of writing a log is computed.
_MIN_SHORTEST_CALLS: Final = 3
# Maximum page faults of a step that keeps its pages, as a share of the step's page faults.
_MAX_KEPT_FAULTS: Final = 0.2
# Minimum number of page faults of the block with new pages; fewer mean that they were not counted.
_MIN_BLOCK_FAULTS: Final = 1.0


def log_experiments(
    table: SampleTable,
    parts: StepParts,
    names: Sequence[str],
    executing: Mapping[str, int],
    dispatch_s: float,
    threads: int = 1,
) -> list[Experiment]:
    """Return experiments on logs: kernels, reorders, primitives, and the overhead of calls.

    The difference of a kernel to the fastest native one has a sign: it is negative if the
    framework's kernel is faster in a round, or the native one was disturbed. The rest of a call
    without the logged time is overhead, at least zero: a log that claims more than the call shows
    as unexplained time below zero. Calls without a log run the framework's own kernels, and their
    difference to the native layers has that name.

    Args:
        table: with visits of :data:`LOG` and of calls alone.
        parts: parts of the step.
        names: signatures of the logged calls, in the order of their parts.
        executing: number of logged executions in each call that has any.
        dispatch_s: time to start a call that computes nothing, in seconds.
        threads: number of threads of the framework.

    Returns:
        Empty if no library logs anything in a call with a native layer.
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
    table: SampleTable,
    parts: StepParts,
    counts: Mapping[tuple[str, str], int],
    of_call: Callable[[str, int, float, float], float],
) -> dict[int, float]:
    """Return a sum over calls, by round.

    Args:
        table: with visits of calls alone and of native kernels.
        parts: parts of the step.
        counts: executions of the calls, by signature and direction.
        of_call: returns the seconds that one execution adds. Its arguments are the signature, the
            round, the seconds of the call alone, and the seconds of its native layers.
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
    """Return the time of a call alone minus the time of its native layers."""
    return alone_s - native_s


class _Logged(NamedTuple):
    """Shares of a call's time by the log: executions, reorders in them, creating primitives."""

    executed: float
    reordered: float
    created: float


def _of_libraries(
    table: SampleTable,
    parts: StepParts,
    counts: Mapping[tuple[str, str], int],
    names: Sequence[str],
    executing: Mapping[str, int],
    dispatch_s: float,
    threads: int,
) -> list[Experiment]:
    """Return experiments on calls with logged executions; ``counts`` has their number."""
    shares = _logged_shares(table.series(LOG), names, executing, threads)
    calls = sum(counts.values())
    signatures = frozenset(key[0] for key in counts)
    log = "by the log of oneDNN and MKL of each call, as a share of the call"

    def explained(
        term: str, how: str, of_call: Callable[[_Logged, float, float], float]
    ) -> Experiment:
        """Return an experiment from a function of logged shares, call alone and native layers."""

        def seconds_of(signature: str, number: int, alone_s: float, native_s: float) -> float:
            logged = _Logged(*(in_round(each, number) for each in shares[signature]))
            return of_call(logged, alone_s, native_s)

        seconds = _by_round(table, parts, counts, seconds_of)
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
    table: SampleTable,
    parts: StepParts,
    ran: Mapping[str, Sequence[str]],
    fastest: Mapping[tuple[str, str], Sequence[str]],
) -> Experiment | None:
    """Return the cost of other kernels than the fastest native ones, for calls on a GPU.

    Args:
        table: with visits of calls alone and of native kernels.
        parts: parts of the step.
        ran: by signature, the kernels of a call.
        fastest: by signature and direction, the kernels of its native layers.

    Returns:
        None if there is no call for which both are known.
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
    """Return the logged shares of each call: executions, reorders among them, creation.

    The cost of writing a log is subtracted from the logged call. For one execution it is the median
    over the shortest calls of the shortest time with a log less the shortest without: for long
    calls this difference is mostly noise. A call does not become shorter than its executions. If
    the logged executions exceed the call, each thread has executed and logged a part at the same
    time.

    Returns:
        The three shares by round, by name.
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
    shortest = sorted(writing)[: max(_MIN_SHORTEST_CALLS, len(writing) // 4)]
    writing_s = max(0.0, median(each for _, each in shortest))

    def shares(name: str, row: Sequence[float]) -> list[float]:
        _, whole_s, executed_s, reordered_s, created_s = row
        if executed_s > _SEVERAL_THREADS_RATIO * whole_s:
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


def alternatives(table: SampleTable, changes: Mapping[str, str]) -> list[Alternative]:
    """Return the times of steps with one change, beside the steps of the same rounds.

    Args:
        table: with visits of steps, and of changed steps if there are any.
        changes: the change in words, by subject.
    """
    steps = table.series(STEP)
    rows = []
    for name, how in changes.items():
        if name not in table:
            continue
        changed = table.series(name)
        plain_s, changed_s = steps.by_round(), changed.by_round()
        # An interrupted round may have one of the two.
        shared = sorted(plain_s.keys() & changed_s.keys())
        if not shared:
            continue
        saved = {number: plain_s[number] - changed_s[number] for number in shared}
        estimated = estimate_values(saved, [steps, changed], signed=True)
        rows.append(
            Alternative(
                change=name,
                median=changed.median,
                saved=estimated.median,
                ci_low=None if estimated.interval is None else estimated.interval.low,
                ci_high=None if estimated.interval is None else estimated.interval.high,
                n=estimated.rounds,
                how=how,
            )
        )
    return rows


def fresh_memory(table: SampleTable) -> Experiment | None:
    """Return the cost of pages that a step touches for the first time.

    It is the difference to a step that keeps its pages, see :func:`_against_kept`. If there is no
    such step, and page faults cost less than 1 % of the step, it is the number of page faults times
    the cost of one in a new block. Pages of other origin may cost four times as much on virtual
    machines.

    Args:
        table: with visits of steps, :data:`PAGES` and :data:`PAGES_KEPT`; and of
            :data:`~pydlbench.analysis.call_times.STEP_KEPT` if it could be prepared.

    Returns:
        None if page faults, or the cost of one, were not measured.
    """
    if PAGES not in table or PAGES_KEPT not in table:
        return None
    new, warm, steps = table.series(PAGES), table.series(PAGES_KEPT), table.series(STEP)
    more = (new.faults or 0.0) - (warm.faults or 0.0)
    new_s, warm_s = new.by_round(), warm.by_round()
    cost = {
        number: max(0.0, new_s[number] - warm_s[number]) / more
        for number in new_s.keys() & warm_s.keys()
        if more >= _MIN_BLOCK_FAULTS
    }
    counted = _faults(steps)
    if not cost or not counted:
        return None
    seconds = _priced(counted, cost)
    matters = median(seconds.values()) > NEGLIGIBLE_SHARE * steps.median
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
    """Differences of a step and one that keeps its pages, whose median stands for other rounds.

    Attributes:
        calls_s: time in calls, the step minus the step that keeps its pages, by round.
        between_s: time between calls, the step minus the step that keeps its pages, by round.
        faults: page faults of the step, by round.
        faults_kept: page faults of the step that keeps its pages, by round.
    """

    calls_s: dict[int, float]
    between_s: dict[int, float]
    faults: float
    faults_kept: dict[int, float]


def _beside_kept(table: SampleTable) -> _BesideKept | None:
    """Compare a step with one that keeps its pages.

    Returns:
        None if the step that keeps its pages lacks more than one of the step's rounds, or has more
        than a fifth of the step's page faults.
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
    # Earlier rounds were without it, and further ones have the step only.
    counted = {
        number: counted[number]
        for number in table.series(TRACED).by_round().keys() & counted.keys()
        if number >= min(own, default=0)
    }
    if not counted or len(common) < max(1, len(counted) - 1):
        return None
    faults = median(counted.values())
    if median(own.values()) > _MAX_KEPT_FAULTS * faults:
        return None
    # In all rounds of the step, so that terms do not depend on which of them have this one.
    in_calls_s = {n: seconds - in_round(kept_calls_s, n) for n, seconds in calls_s.items()}
    return _BesideKept(
        calls_s=in_calls_s,
        between_s={n: whole_s[n] - in_round(kept_s, n) - in_calls_s[n] for n in calls_s},
        faults=faults,
        faults_kept=own,
    )


def _against_kept(table: SampleTable, cost: Mapping[int, float]) -> Experiment | None:
    """Return a step's calls minus those of one that keeps its pages, plus its page faults.

    Returns:
        None if there is no such step, or if page faults cannot explain the difference.
    """
    kept = _beside_kept(table)
    if kept is None:
        return None
    kept_faults = median(kept.faults_kept.values())
    saved = median(kept.calls_s.values())
    if not 0 <= saved <= MAX_FAULT_S * (kept.faults - kept_faults):
        return None
    own_s = _priced(kept.faults_kept, cost)
    return Experiment(
        term=FRESH_MEMORY,
        level="in_context",
        seconds={n: seconds + in_round(own_s, n) for n, seconds in kept.calls_s.items()},
        how=f"the calls of the step, with {kept.faults:.0f} page faults, minus those of the step "
        f"in a process that keeps its pages, plus the {kept_faults:.0f} page faults of that one at "
        f"{1e6 * median(cost.values()):.2f} us each (a new block against one that is kept)",
    )


def returned_memory(table: SampleTable) -> Experiment | None:
    """Return the cost of giving memory back to the system, a part of the time between calls.

    A large block is unmapped when its tensor is freed, after the last call that reads it.

    Args:
        table: with visits of steps, and of steps that keep their pages.

    Returns:
        None if there is no such step, if it saves less than 1 % of the step between calls, or if it
        saves more than its page faults explain.
    """
    kept = _beside_kept(table)
    if kept is None:
        return None
    saved = median(kept.between_s.values())
    most = MAX_FAULT_S * (kept.faults - median(kept.faults_kept.values()))
    if not NEGLIGIBLE_SHARE * table.series(STEP).median < saved <= most:
        return None
    return Experiment(
        term=RETURNED_MEMORY,
        level="step",
        seconds=kept.between_s,
        how="time between the calls of the step minus that of the step in a process that keeps its "
        "pages: blocks are unmapped when tensors are freed",
    )


def _priced(faults: Mapping[int, float], cost: Mapping[int, float]) -> dict[int, float]:
    """Return the cost of the page faults of each round."""
    return {number: count * in_round(cost, number) for number, count in faults.items()}


def _faults(series: Series) -> dict[int, float]:
    """Return the page faults of an execution, for the rounds in which they were counted."""
    return {visit.round: visit.faults for visit in series if visit.faults is not None}


def wakeups(table: SampleTable) -> Experiment | str:
    """Return an upper bound of the cost of waking threads, if it is small.

    The step does not wait for every thread that is woken, so the sum over all of them is an upper
    bound, which explains something only if it is small.

    Args:
        table: with visits of steps and of :data:`WAKEUP`.

    Returns:
        The reason if the cost is not known: it was not measured, or the bound is large.
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
    if median(seconds.values()) > NEGLIGIBLE_SHARE * step_s:
        return f"{asleep}, and waking one takes up to {each}; whether the step waits is not known"
    return Experiment(
        term=WAKEUPS,
        level="in_context",
        seconds=seconds,
        how=f"{asleep}, by the kernel's count, at {each}",
    )

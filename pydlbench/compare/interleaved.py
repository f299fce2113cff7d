"""Two sides measured interleaved: ratios of rounds, with the variance between preparations.

In a pass both kernels are sampled alternately, round by round, so that interference cancels.
Effects of the preparation, such as other memory pages or another choice among similar kernels, do
not cancel. So every pass prepares both anew, in new processes, and only passes count as
independent: the interval is Student's for their trimmed mean, with a variance between passes of at
least that of the rows of its kind (:func:`pydlbench.compare.statistics.pool_variances`).

Two installations of this package are compared in the same way, each measured by workers of its own
interpreter. Anything that is installed may differ: the framework, oneDNN, a compiler's flags.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.base import KernelFacts
from pydlbench.compare.comparison import (
    ALPHA,
    CONFIDENCE,
    MARGIN,
    ComparedRow,
    Comparison,
    Estimate,
)
from pydlbench.compare.environment import differences
from pydlbench.compare.rows import LAYER_KINDS, Matching, Pair, Side, SideRow, kinds_of, row_of_step
from pydlbench.compare.statistics import (
    Spread,
    judge,
    scatter_of_means,
    trimmed_spread,
    weighted_spread,
)
from pydlbench.errors import PrimitiveError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.models.catalog import find_layers
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepFacts, StepPreparation, StepSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.steps.run import prepare_step
from pydlbench.study.estimate import contrast
from pydlbench.study.loop import sample_pair
from pydlbench.timing.policy import Policy, gpu_policy, step_policy
from pydlbench.timing.statistics import median
from pydlbench.units import quantity
from pydlbench.words import TIMINGS
from pydlbench.workers.host import RemoteKernel, releasing
from pydlbench.workers.installation import Installation

#: Minimum number of passes for a verdict: with fewer, the interval of their mean is many times as
#: wide as their differences.
MIN_PASSES: Final = 4


def compare_interleaved(
    a: Side,
    b: Side,
    matching: Matching,
    rerun: Sequence[RerunPair],
    margin: float = MARGIN,
    notes: tuple[str, ...] = (),
    confidence: float = CONFIDENCE,
    level: float = ALPHA,
    worth: float = 0.0,
) -> Comparison:
    """Compare two sides that were measured interleaved.

    Pairs without a finished pass become untimed.

    Args:
        a: the first side, with its machine and environment.
        b: the second side.
        matching: matched rows; its pairs correspond to ``rerun``.
        rerun: measured pairs.
        margin: ratios within 1 +- this count as the same.
        notes: notes for the reader.
        confidence: level of the interval of a single ratio.
        level: level of the test behind FASTER and SLOWER.
        worth: see ``Comparison``.
    """
    measured = [pair for pair in rerun if pair.logs]
    pairs, untimed = [], list(matching.untimed)
    for pair, again in zip(matching.pairs, rerun, strict=True):
        if again.logs:
            pairs.append(Pair(*(_row(row, again, side) for side, row in enumerate(pair))))
        else:
            untimed.append(Pair(*(row._replace(status="failed") for row in pair)))
    passes = sorted({number for pair in measured for number in pair.logs})
    logs = [[pair.logs.get(number, math.nan) for pair in measured] for number in passes]
    if len(measured) == 1 and measured[0].rounds:
        spread = weighted_spread(measured[0].rounds)
    else:
        spread = trimmed_spread(np.array(logs, dtype=float).reshape(len(passes), len(measured)))
    against = [
        None
        if len(pair.logs) >= MIN_PASSES
        else pair.reason
        or f"{quantity(len(pair.logs), 'repetition')}; a verdict takes {MIN_PASSES}"
        for pair in measured
    ]
    cycles = np.array([_mean(pair.cycles) for pair in measured])
    scatter = scatter_of_means(spread, kinds_of(pair.a for pair in pairs))
    estimates = judge(spread.means, scatter, against, margin, cycles, confidence, worth, level)
    return Comparison(
        a=dataclasses.replace(a, rows=[pair.a for pair in pairs]),
        b=dataclasses.replace(b, rows=[pair.b for pair in pairs]),
        matching=dataclasses.replace(matching, pairs=pairs, untimed=untimed),
        rows=[
            ComparedRow(
                *pair,
                estimate,
                passes=[math.exp(log) for log in again.logs.values()],
                libraries=again.libraries,
            )
            for pair, again, estimate in zip(pairs, measured, estimates, strict=True)
        ],
        geomean=_geomean(spread, margin, worth, level),
        differences=differences(a, b, pairs),
        margin=margin,
        passes=max((len(pair.logs) for pair in measured), default=0),
        notes=(*_lost(rerun), *notes),
        confidence=confidence,
        worth=worth,
    )


def as_remeasured(side: Side, run: RunRecord) -> Side:
    """Return a stored side as the side of a new run."""
    return dataclasses.replace(side, run_id="", device=run.device, environment=run.environment)


def _row(row: SideRow, pair: RerunPair, side: int) -> SideRow:
    clocks = pair.clocks[side]
    return row._replace(
        median=median(pair.seconds[side]),
        # Only ratios have intervals here, not the sides.
        ci_low=None,
        ci_high=None,
        n=len(pair.seconds[side]),
        clock_hz=median(clocks) if clocks else None,
        contended=None,
        algorithm=pair.algorithms[side] or row.algorithm,
    )


def _lost(rerun: Iterable[RerunPair]) -> tuple[str, ...]:
    """Return notes on rows that could not be measured."""
    reasons = Counter(pair.reason for pair in rerun if not pair.logs)
    return tuple(
        f"{count} {'row' if count == 1 else 'rows'} could not be measured: {reason}"
        for reason, count in reasons.items()
        if reason is not None
    )


def _mean(logs: Sequence[float]) -> float:
    return math.fsum(logs) / len(logs) if logs else math.nan


def _geomean(spread: Spread, margin: float, worth: float, level: float) -> Estimate | None:
    """Return the geometric mean of all rows that can have a verdict, from the means of passes.

    The mean over the rows of a pass contains whatever affects all of them. See :func:`judge`.
    """
    if not spread.counts.size:
        return None
    usable = spread.counts >= min(spread.counts.max(), MIN_PASSES)
    mean = np.array([spread.means[usable].mean()])
    scatter = scatter_of_means(spread.of_means(usable), np.array(["all"]))
    return judge(mean, scatter, [None], margin, worth=worth, level=level)[0]


Prepared = RemoteKernel[KernelFacts] | RemoteKernel[StepFacts]


# -----------------------------------------------------------------------------
# Specifications of stored rows.


def spec_of(row: SideRow) -> KernelSpec | StepSpec:
    """Return the specification of a row, with which it can be measured again.

    Raises:
        UnsupportedError: the row is that of an estimate or a breakdown, or does not determine
            a specification.
    """
    try:
        if row.kind == "step":
            return StepSpec.from_dict(
                {
                    **row.settings,
                    "model": row.layer,
                    "batch": row.batch,
                    "phase": row.pass_,
                    "framework": row.backend,
                    "mode": row.mode,
                    "precision": row.precision,
                    "layout": row.layout_request,
                    "device": row.device,
                }
            )
        return KernelSpec(
            layer=_layer(row),
            pass_=row.pass_,
            precision=row.precision,
            # Backward passes have one propagation only.
            propagation=(row.propagation if row.pass_ == "forward" else None) or "inference",
            cache=row.cache or "hot",
            layout=row.layout_request or "best",
            backend=row.backend,
            device=row.device,
            # There is no choice on a CPU, nor for frameworks on a GPU with the host's clock.
            timing=row.timing if row.device != "cpu" and row.timing in TIMINGS else "auto",
            fuse=row.fuse or "none",
            mode=row.mode,
        )
    except ValueError as error:  # a foreign document
        raise UnsupportedError(f"{row.layer}: cannot be measured again ({error})") from error


def _layer(row: SideRow) -> Layer:
    if row.kind not in LAYER_KINDS:
        raise UnsupportedError(f"{row.layer} {row.kind}: only layers and steps are measured again")
    known = _catalog_layer(row)
    if known is not None:
        return known
    if row.kind.startswith("pool"):
        raise UnsupportedError(
            f"{row.layer}: its descriptor does not say whether it is the maximum or the mean; "
            "measure a pooling of the catalog, such as alexnet/pool1"
        )
    layer = parse_problem(row.problem)
    return layer if row.layer == row.problem else layer.replace(name=row.layer)


def _catalog_layer(row: SideRow) -> Layer | None:
    """Return the catalog's layer of that name, if it is the same problem."""
    if row.layer == row.problem:
        return None
    try:
        layers = find_layers([row.layer], row.batch)
    except UsageError:  # a name that the user gave
        return None
    same = [layer for layer in layers if (layer.kind, layer.problem) == (row.kind, row.problem)]
    return same[0] if len(same) == 1 else None


# -----------------------------------------------------------------------------
# A pass: every pair of kernels or steps is prepared anew, in new processes, and interleaved.
#
# Each pass renews everything in which two runs of the same code differ (memory, processes, the
# choice among candidates); interference affects both kernels of a round.

# Number of rounds of a pass, which counts as one value.
_ROUNDS = 5
# Duration of a round in seconds, long compared with a scheduler's time slices.
_CHUNK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunSide:
    """One side of a pair.

    Attributes:
        spec: the kernel or step.
        threads: threads of its kernel or step; None for one per physical core, or on a GPU.
    """

    spec: KernelSpec | StepSpec
    threads: int | None = None

    @property
    def nameless(self) -> tuple[KernelSpec | StepSpec, int | None]:
        """Spec and threads without a layer's name: equal for two names of a kernel."""
        spec = self.spec.nameless if isinstance(self.spec, KernelSpec) else self.spec
        return spec, self.threads


@dataclass(slots=True, kw_only=True)
class RerunPair:
    """A pair of kernels or steps with its results so far.

    Attributes:
        sides: Side A and side B; empty if something else than :func:`take_pass` measures them.
        logs: logarithm of B's time over A's time for each finished pass, by its number: from the
            median of the rounds' ratios.
        rounds: for each pass the logarithms of its rounds' ratios, whose scatter determines its
            weight; empty if all passes have the same weight.
        cycles: the same ratio in cycles, for passes in which both clocks were read.
        seconds: median times of A and of B.
        clocks: clocks of A and of B, in Hz.
        algorithms: algorithms of the two kernels that ran last; None before the first pass, and for
            steps.
        libraries: libraries of the two kernels that ran last, with their versions; None before the
            first pass.
        reason: why the last failed pass failed; None if none did.
    """

    sides: tuple[RerunSide, ...] = ()
    logs: dict[int, float] = field(default_factory=dict)
    rounds: Sequence[NDArray[Any]] = ()
    cycles: list[float] = field(default_factory=list)
    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    clocks: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    algorithms: tuple[str | None, str | None] = (None, None)
    libraries: tuple[str | None, str | None] = (None, None)
    reason: str | None = None

    @classmethod
    def from_rows(cls, pair: Pair) -> RerunPair:
        """Return the pair that measures two rows again.

        Both sides run with the code and libraries that are installed now, so their settings must
        differ: the same kernel twice would be SAME, even if the code became slower in between.

        Raises:
            UnsupportedError: a row cannot be measured again, or both rows have the same settings.
        """
        a, b = (
            RerunSide(spec=spec_of(row), threads=row.threads if row.device == "cpu" else None)
            for row in pair
        )
        if a.nameless == b.nameless:
            raise UnsupportedError(
                "both sides would be the same, on the code and libraries of now; what else "
                "differs between the runs (code, libraries, variables) cannot be measured again"
            )
        return cls(sides=(a, b))


def policy(budget_s: float, spec: KernelSpec | StepSpec, timing: str) -> Policy:
    """Return the sampling constants for a kernel or a step in a pass.

    Args:
        budget_s: seconds of sampling.
        spec: the kernel or step.
        timing: the kernel's way of timing, from its facts.
    """
    short = Policy(budget_s=budget_s, visits=_ROUNDS, chunk_s=min(_CHUNK_S, budget_s / _ROUNDS))
    if isinstance(spec, StepSpec):
        short = step_policy(short)
    if not spec.on_gpu:
        return short
    return gpu_policy(short, timing, spec.cache if isinstance(spec, KernelSpec) else "hot")


def take_pass(
    pairs: Sequence[RerunPair],
    number: int,
    session_of: Callable[[int, int | None], Session],
    budget_s: float,
    rng: random.Random,
    progress: Callable[[str], None] = lambda _label: None,
) -> None:
    """Take one pass over all pairs, in a new order, and add the results to the pairs.

    If a kernel cannot be prepared, dies or hangs, its pair lacks this pass; the others go on.

    Args:
        pairs: the pairs.
        number: number of the pass.
        session_of: opens a session for a side (0 is A, 1 is B) with a number of threads.
        budget_s: seconds of sampling of each kernel.
        rng: seeded source of all orders.
        progress: called with the name of the next pair.
    """
    sessions: dict[tuple[int, int | None], Session] = {}
    order = list(pairs)
    rng.shuffle(order)
    try:
        for pair in order:
            progress(pair.sides[1].spec.label)
            try:
                _measure_pair(pair, number, sessions, session_of, budget_s, rng)
            except PydlbenchError as error:
                pair.reason = str(error)
    finally:
        for session in sessions.values():
            session.close()


def _measure_pair(
    pair: RerunPair,
    number: int,
    sessions: dict[tuple[int, int | None], Session],
    session_of: Callable[[int, int | None], Session],
    budget_s: float,
    rng: random.Random,
) -> None:
    sides = [0, 1]
    rng.shuffle(sides)  # the order of preparation decides which memory pages a kernel gets
    kernels: dict[int, Prepared] = {}
    with releasing(kernels.values()):
        for side in sides:
            spec, threads = pair.sides[side].spec, pair.sides[side].threads
            if (side, threads) not in sessions:
                sessions[side, threads] = session_of(side, threads)
            session = sessions[side, threads]
            if isinstance(spec, StepSpec):
                kernels[side] = _step(spec, session, checks=not pair.logs)
            else:
                kernels[side] = session.prepare(spec)
        _sample(pair, number, kernels, budget_s, rng)


def _step(spec: StepSpec, session: Session, *, checks: bool) -> RemoteKernel[StepFacts]:
    """Prepare a step, with checks of a catalogue model if requested.

    Raises:
        PrimitiveError: a check failed.
    """
    kernel = prepare_step(spec, session, preparation=StepPreparation(checks=checks))
    if wrong := kernel.facts.wrong:
        kernel.release()
        raise PrimitiveError(wrong)
    return kernel


def _sample(
    pair: RerunPair, number: int, kernels: dict[int, Prepared], budget_s: float, rng: random.Random
) -> None:
    both = [kernels[side] for side in (0, 1)]
    policies = [
        policy(budget_s, side.spec, kernel.facts.timing)
        for side, kernel in zip(pair.sides, both, strict=True)
    ]
    a, b = sample_pair([kernel.sample for kernel in both], policies, rng, _ROUNDS)
    ratio = contrast(b, a)
    assert ratio is not None, "they shared all rounds"
    pair.logs[number] = math.log(ratio.median)
    first, second = a.cycles_by_round(), b.cycles_by_round()
    if shared := first.keys() & second.keys():
        change = median(second[number] / first[number] for number in shared)
        pair.cycles.append(math.log(change))
    for side, series in enumerate((a, b)):
        pair.seconds[side].append(series.median)
        if series.clock_hz is not None:
            pair.clocks[side].append(series.clock_hz)
    a_facts, b_facts = (kernel.facts for kernel in both)
    pair.algorithms = getattr(a_facts, "algorithm", None), getattr(b_facts, "algorithm", None)
    pair.libraries = a_facts.library, b_facts.library


#: A and B.
Installations = tuple["Installation", "Installation"]


def pairs_of(
    specs: Sequence[KernelSpec | StepSpec], threads: int | None = None
) -> tuple[RerunPair, ...]:
    """Return the pairs that both installations measure.

    Args:
        specs: layers and steps.
        threads: threads of each; None for one per physical core.
    """
    sides = (RerunSide(spec=spec, threads=threads) for spec in specs)
    return tuple(RerunPair(sides=(side, side)) for side in sides)


def open_session(installation: Installation, threads: int | None, seed: int) -> Session:
    """Open a session whose workers are those of an installation.

    Stored kernels of this installation are not used.
    """
    return Session(
        RunnerOptions(threads=threads, seed=seed, keep_probes=False, python=installation.python)
    )


def compare_installations(
    installations: Installations,
    pairs: Sequence[RerunPair],
    device: Mapping[str, Any],
    margin: float = MARGIN,
) -> Comparison:
    """Compare two installations; the comparison has no rows if nothing was measured in both.

    Args:
        installations: A and B.
        pairs: pairs that :func:`pydlbench.compare.interleaved.take_pass` has measured.
        device: device of a run's record.
        margin: ratios within 1 +- this count as the same.
    """
    rows = [_untimed_row(pair.sides[0]) for pair in pairs]
    a, b = (
        Side(
            name=installation.name,
            rows=rows,
            device=device,
            environment=installation.environment,
        )
        for installation in installations
    )
    matching = Matching(pairs=[Pair(row, row) for row in rows], only_a=[], only_b=[], untimed=[])
    compared = compare_interleaved(a, b, matching, pairs, margin)
    return dataclasses.replace(compared, installations=True)


def _untimed_row(side: RerunSide) -> SideRow:
    """Return the row of a side, without a time."""
    spec = side.spec
    threads = side.threads if spec.device == "cpu" else None
    if not isinstance(spec, KernelSpec):
        return row_of_step(spec.to_dict())._replace(threads=threads, status="ok")
    layer = spec.layer
    shared = ("pass_", "precision", "device", "backend", "mode", "cache", "timing", "fuse")
    return SideRow(
        layer=layer.name or layer.problem,
        kind=layer.kind,
        problem=layer.problem,
        batch=layer.batch,
        threads=threads,
        layout_request=spec.layout,
        **{name: getattr(spec, name) for name in (*shared, "propagation")},
    )

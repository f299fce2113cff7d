"""``compare --interleave``: both sides measured again, interleaved."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

from pydlbench.errors import PydlbenchError, UnsupportedError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from pydlbench.compare.comparison import Comparison, Settings
    from pydlbench.compare.match import Matching
    from pydlbench.compare.rerun import RerunPair
    from pydlbench.compare.rows import Row, Side

_PASSES = 10
_BUDGET_S = 0.3


def interleaved(
    args: argparse.Namespace, settings: Settings, open_host: Callable[..., Any] | None
) -> tuple[Comparison, bool]:
    """Measure both sides in turn and compare them.

    Args:
        args: the command's options.
        settings: what a verdict takes.
        open_host: opens a session for a ``side`` (0 is A) with ``threads`` and ``seed``.

    Returns:
        The comparison of all passes that were finished, and whether Ctrl-C ended it.

    Raises:
        UsageError: bad input, or nothing that can be measured here.
        PydlbenchError: not one pass was finished.
    """
    from pydlbench.cli.options import reading_store
    from pydlbench.compare.interleaved import compare_interleaved
    from pydlbench.compare.match import match
    from pydlbench.compare.rerun import measured_sides
    from pydlbench.compare.rows import read_side

    passes = args.passes or _PASSES
    budget_s = args.budget or _BUDGET_S
    seed = args.seed or 0
    with reading_store(args) or contextlib.nullcontext() as store:
        a, b = (read_side(name, store) for name in args.runs)
    matching, rerun, notes = _pairs(match(a, b))
    opened = open_host or _open_session
    if open_host is None:
        _check_memory(rerun)
    done, interrupted = _measure(args, rerun, opened, passes, budget_s, seed)
    if not done:
        raise PydlbenchError("interrupted before both sides were measured once; nothing to compare")
    with opened(side=0, threads=None, seed=seed) as session:
        here = session.run
    notes += _elsewhere(a, b, here.device.get("name"))
    notes = (*_lost(rerun), *notes)
    first, second, measured = measured_sides(a, b, matching, rerun, here)
    passed = [one.found for one in rerun if one.found.logs]
    found = compare_interleaved(first, second, measured, passed, settings, done, notes)
    return found, interrupted


def _pairs(matching: Matching) -> tuple[Matching, list[RerunPair], tuple[str, ...]]:
    """Return the pairs that can be measured, what they measure, and notes on the others."""
    import dataclasses

    from pydlbench.compare.match import Pair
    from pydlbench.compare.rerun import RerunPair, RerunSide, spec_of

    pairs: list[Pair] = []
    untimed = list(matching.untimed)
    rerun = []
    notes: dict[str, None] = {}
    for pair in matching.pairs:
        try:
            first, second = (
                RerunSide(spec=spec_of(row), threads=_threads(row)) for row in (pair.a, pair.b)
            )
        except UnsupportedError as error:
            notes[f"not measured again: {error}"] = None
            untimed.append(Pair(*(row._replace(status="failed") for row in pair)))
            continue
        pairs.append(pair)
        rerun.append(RerunPair(sides=(first, second)))
    if not rerun:
        reason = next(iter(notes), "no row was timed in both runs")
        raise UsageError(f"--interleave: {reason}; nearest: leave it out")
    found = dataclasses.replace(matching, pairs=pairs, untimed=untimed)
    return found, rerun, tuple(notes)


def _check_memory(rerun: Sequence[RerunPair]) -> None:
    """Make sure that both kernels of each pair have room beside each other.

    Raises:
        UsageError: they have not.
    """
    from pydlbench.runner.kernels import check_memory

    with _open_session(side=0, threads=None, seed=0) as session:
        available = session.facts.memory_available_bytes
        # As much as a session takes for the rotating copies of a cold cache state.
        cold = 3 * session.cache_bytes()
    for one in rerun if available is not None else ():
        try:
            check_memory([side.spec for side in one.sides], available, cold)
        except UsageError as error:
            raise UsageError(f"--interleave: {error}") from None


def _threads(row: Row) -> int | None:
    return row.threads if row.device == "cpu" else None


def _measure(
    args: argparse.Namespace,
    rerun: Sequence[RerunPair],
    open_host: Callable[..., Any],
    passes: int,
    budget_s: float,
    seed: int,
) -> tuple[int, bool]:
    """Take the passes; return how many are finished, and whether Ctrl-C ended them."""
    from pydlbench.cli.terminal import Progress
    from pydlbench.compare.rerun import take_pass
    from pydlbench.runner.recorder import OneInterrupt

    progress = Progress.of(args)
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    total = passes * len(rerun)
    started = 0

    def advance(label: str) -> None:
        nonlocal started
        progress(started, total, label)
        started += 1

    done = 0
    with OneInterrupt() as interrupts:
        try:
            try:
                for _ in range(passes):
                    take_pass(
                        rerun,
                        lambda side, threads: open_host(side=side, threads=threads, seed=seed),
                        budget_s,
                        rng,
                        advance,
                    )
                    done += 1
            finally:
                interrupts.ignore()
        except KeyboardInterrupt:
            return done, True
        finally:
            progress.close()
    return done, False


def _elsewhere(a: Side, b: Side, here: Any) -> tuple[str, ...]:
    """Say whose stored run came from another machine: what it measured there is not compared."""
    return tuple(
        f"{side.name} was stored on {side.machine}; it was measured here again, on {here}"
        for side in (a, b)
        if side.machine and here and side.machine != here
    )


def _lost(rerun: Sequence[RerunPair]) -> tuple[str, ...]:
    """Say what could not be measured here, and why."""
    reasons: dict[str, int] = {}
    for one in rerun:
        if not one.found.logs and one.found.reason is not None:
            reasons[one.found.reason] = reasons.get(one.found.reason, 0) + 1
    return tuple(
        f"{count} {'row' if count == 1 else 'rows'} could not be measured: {reason}"
        for reason, count in reasons.items()
    )


def _open_session(*, side: int, threads: int | None, seed: int) -> Any:  # noqa: ARG001 - alike
    from pydlbench.runner.session import Options, Session

    return Session(Options(threads=threads, seed=seed))

"""From a step to what is known of it: the step itself, its native rows, and a cross-check."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from pydlbench.compose import estimate, plan
from pydlbench.crosscheck import check
from pydlbench.crosscheck.asking import ask_log
from pydlbench.crosscheck.native import native_sum
from pydlbench.diagnose.observations import Observations
from pydlbench.endtoend import run
from pydlbench.errors import PrimitiveError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.models import build_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.crosscheck import CheckRecord
    from pydlbench.diagnose.bench import Bench
    from pydlbench.endtoend import StepCase

__all__ = ["observe"]

# Rounds of the cross-check: so many have an interval that leaves out the extremes.
_ROUNDS = 9
# Of the time limit: a cross-check gets so much, and none is begun after so much.
_SHARE, _LATEST = 0.25, 0.4


def observe(
    case: StepCase,
    session: Bench,
    time_limit_s: float,
    tell: Callable[[str], None],
    checker: Callable[..., CheckRecord] = check,
) -> tuple[Observations, tuple[str, ...]]:
    """Measure what the rules read; return it with notes for the reader.

    Args:
        case: the step.
        session: whose workers and settings are used.
        time_limit_s: of the whole diagnosis.
        tell: called with what is done next.
        checker: the cross-check.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the framework cannot run this step.
        PrimitiveError: the step is wrong, or died.
    """
    start = time.monotonic()
    model = build_model(case.model, case.batch, **case.options)
    case = dataclasses.replace(case, batch=model.batch)
    tell("the step")
    step = run(case, session)
    if not step.ok:
        kind = UnsupportedError if step.status == "skipped" else PrimitiveError
        raise kind(f"{case.label}: {step.reason}")
    tell("native layers")
    wanted = plan(model, case.phase, case.precision, case.device, session.cache_bytes(case.device))
    rows = dict(zip(wanted.cases, session.measure(wanted.cases), strict=True))
    native = native_sum(wanted, rows)
    seen = Observations(
        case=case,
        model=model,
        step=step,
        plan=wanted,
        rows=rows,
        estimate=estimate(wanted, rows),
        native=native,
    )
    notes = [f"no native row: {one}" for one in native.missing]
    if step.contended:
        notes.append(f"other work disturbed the step: {step.contention_reason}")
    reason = _unchecked(time.monotonic() - start, time_limit_s)
    if reason is None:
        tell("cross-check")
        try:
            found = checker(
                case.model,
                case.options,
                case.batch,
                case.phase,
                case.precision,
                case.framework,
                case.mode,
                session,
                rounds=_ROUNDS,
                time_limit_s=_SHARE * time_limit_s,
                native=native,
                layout=case.layout,
                tell=tell,
            )
        except UsageError:
            raise
        except PydlbenchError as error:
            reason = str(error)
        else:
            return _with_check(seen, found), tuple(dict.fromkeys((*notes, *found.notes)))
    notes.append(f"no cross-check: {reason}")
    return _without_check(seen, session), tuple(notes)


def _unchecked(spent_s: float, limit_s: float) -> str | None:
    """Return why there is no cross-check; None if there is to be one."""
    if spent_s > _LATEST * limit_s:
        return "step and native layers took too much of the time limit"
    return None


def _with_check(seen: Observations, found: CheckRecord) -> Observations:
    term = next((one for one in found.ledger if one.term == "layout reorders"), None)
    return dataclasses.replace(
        seen,
        check=found,
        reorder_s=None if term is None else term.seconds,
        reorder_how="" if term is None else term.how,
        dispatch_s=found.calibration.get("dispatch_s"),
    )


def _without_check(seen: Observations, session: Bench) -> Observations:
    """Ask for the log of the step and the cost of a call: what the rules need besides."""
    case = seen.case
    log: dict[str, Any] = {}
    if case.mode in ("eager", "graph"):
        try:
            log = ask_log(case, session)
        except PydlbenchError:
            log = {}  # one symptom less
    try:
        worker = session.worker(case.framework, case.device)
        empty = worker.probe("empty_call", mode=case.mode)["seconds"]
    except PydlbenchError:
        empty = None
    logged = log.get("seconds")
    return dataclasses.replace(
        seen,
        reorder_s=float(logged.get("reorder", 0.0)) if logged else None,
        reorder_how=f"oneDNN's log of {log.get('calls', 0)} steps, the middle one",
        dispatch_s=empty,
    )

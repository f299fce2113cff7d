"""``pydlbench runs show``: a run as its command had printed it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pydlbench.cli.streams import tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.results import Measurement
    from pydlbench.results.store import Loaded

__all__ = ["show"]


def show(run: Loaded, *, quiet: bool = False) -> None:
    """Print a run, with a line above that says which it is and how it ended.

    Of a sweep, everything that it holds is printed, kind by kind.

    Args:
        run: of a store or a file.
        quiet: no warnings.
    """
    from pydlbench.report.runs_table import command_text

    info = run.info
    tags = f"  tags {', '.join(info.tags)}" if info.tags else ""
    print(f"run {info.id}  {info.created_utc}  {info.status}{tags}")
    print(f"pydlbench {command_text(info.command) or info.kind}\n", flush=True)
    tables = {entry.table for entry in run.table(None)}
    if not tables:
        tell("nothing was finished")
    if "estimate" in tables:
        for entry in run.table("estimate"):
            _model(run, entry.document)
    elif "layer" in tables and info.kind in ("layers", "sweep"):
        _layers(run, quiet)
    if "step" in tables:
        _steps(run, quiet)
    if "protocol" in tables:
        _protocols(run)
    if "check" in tables:
        _checks(run)
    elif info.kind == "check" and "layer" in tables:
        _layers(run, quiet)  # it ended before the first check
    if "findings" in tables:
        _findings(run)


def _rows(run: Loaded) -> list[Measurement]:
    from pydlbench.results import Measurement

    return [Measurement.from_dict(entry.document) for entry in run.table("layer")]


def _layers(run: Loaded, quiet: bool) -> None:
    from pydlbench.cli.output import Outputs

    rows = _rows(run)
    lists = any(row.candidates for row in rows)
    shown = Outputs(files={}, algorithms=lists, quiet=quiet)
    shown.show(run.record, rows, interrupted=run.info.status != "done")


def _model(run: Loaded, document: Mapping[str, Any]) -> None:
    """Sum the kernels' rows again, as the command did."""
    from pydlbench.compose import estimate, plan
    from pydlbench.models import build_model
    from pydlbench.models.counts import memory
    from pydlbench.report.model_table import render_model
    from pydlbench.report.style import Style

    model = build_model(document["model"], document["batch"], **document.get("options", {}))
    wanted = plan(
        model,
        document["phase"],
        document["precision"],
        document.get("device", "cpu"),
        document.get("cache_bytes", 0),
    )
    rows = _rows(run)
    if len(rows) != len(wanted.cases) or "cache_bytes" not in document:
        # Another version's plan, or a sweep's rows of several models: what was kept must do.
        _summary(document)
        return
    libraries = sorted({row.library for row in rows if row.library})
    print(
        render_model(
            run.record,
            wanted,
            estimate(wanted, dict(zip(wanted.cases, rows, strict=True))),
            memory(model, document["phase"], document["precision"]),
            libraries=libraries,
            style=Style.of(sys.stdout),
        )
    )


def _summary(document: Mapping[str, Any]) -> None:
    from pydlbench.results.columns import time_in, time_unit

    found = document["estimate"]
    words = f"{document['model']}  batch {document['batch']}  {document['phase']}"
    bounds = [found.get(name) for name in ("low", "high")]
    known = [value for value in bounds if isinstance(value, (int, float))]
    unit = time_unit(known or [1.0])
    between = " to ".join(time_in(unit, value) for value in known) or "unknown"
    print(f"{words}  {document['precision']}  estimate {between}")


def _steps(run: Loaded, quiet: bool) -> None:
    from pydlbench.cli.e2e_output import Outputs
    from pydlbench.endtoend import StepRecord
    from pydlbench.models import build_model

    records = [StepRecord.from_dict(entry.document) for entry in run.table("step")]
    agreements = [entry.document for entry in run.table("agreement")]
    by_model: dict[str, list[StepRecord]] = {}
    for record in records:
        by_model.setdefault(record.case.model, []).append(record)
    for some in by_model.values():
        models = [
            build_model(one.case.model, one.case.batch, **dict(one.case.options)) for one in some
        ]
        early = run.info.status != "done"
        Outputs(files={}, quiet=quiet).show(run.record, models, some, agreements, early=early)


def _protocols(run: Loaded) -> None:
    for entry in run.table("protocol"):
        document = entry.document
        print(f"{document['protocol']}  {document.get('library') or ''}".rstrip())
        for number in document.get("numbers", ()):
            print("  " + "  ".join(f"{name} {value}" for name, value in number.items()))


def _checks(run: Loaded) -> None:
    """Print checks of the same step together, as the command does."""
    from pydlbench.crosscheck import CheckRecord
    from pydlbench.report.check_ladder import Limits
    from pydlbench.report.check_result import CheckResult
    from pydlbench.report.check_table import render_checks
    from pydlbench.report.style import Style

    steps: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for entry in run.table("check"):
        of = tuple(entry.document.get(name) for name in ("model", "batch", "phase", "precision"))
        steps.setdefault(of, []).append(entry.document)
    names = ("model", "batch", "phase", "precision", "framework", "mode", "status", "reason")
    for documents in steps.values():
        results = [
            CheckResult(
                **{name: one[name] for name in names if name in one},
                record=CheckRecord.from_dict(one) if "measured_s" in one else None,
            )
            for one in documents
        ]
        ladder: dict[str, Any] = next((one["ladder"] for one in documents if "ladder" in one), {})
        found = Limits(theoretical_s=ladder.get("theoretical_s"), roof_s=ladder.get("roof_s"))
        style = Style.of(sys.stdout)
        print(render_checks(run.record, results, found, diagnose=True, style=style), flush=True)


def _findings(run: Loaded) -> None:
    from pydlbench.results.columns import percent

    for entry in run.table("findings"):
        document = entry.document
        names = ("model", "batch", "phase", "precision", "framework", "mode")
        print("  ".join(str(document[name]) for name in names if document.get(name) is not None))
        for one in document.get("findings", ()):
            share = percent((one.get("saving") or {}).get("share"))
            where = ", ".join(one.get("where") or ()) or "the step as a whole"
            print(f"\n{one['problem']}: would save {share} of the step\n  where: {where}")
            print(f"  cause: {one.get('cause')}")
            if one.get("next"):
                print(f"  next: {one['next']}")
        if not document.get("findings"):
            print("no findings")

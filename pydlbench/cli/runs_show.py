"""``pydlbench runs show``: a run as its command had printed it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pydlbench.cli.runs_show_model import show_estimates
from pydlbench.cli.streams import tell

if TYPE_CHECKING:
    from pydlbench.results.store import Entry, Loaded

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
    # Of the other commands they are kernels behind a sum, which is shown if it came to that.
    summed = {"model": "estimate", "check": "check"}.get(info.kind)
    sections = {
        "layer": lambda: _layers(run, quiet),
        "estimate": lambda: show_estimates(run),
        "step": lambda: _steps(run, quiet),
        "protocol": lambda: _protocols(run),
        "check": lambda: _checks(run),
        "findings": lambda: _findings(run),
    }
    if info.kind == "diagnose" or summed in tables or not _asked_for(run):
        del sections["layer"]
    shown = [name for name in sections if name in tables]
    if not tables:
        tell("nothing was finished")
    elif not shown:
        tell(f"no result yet, only what goes into one: pydlbench export {info.id} --format json")
    for number, name in enumerate(shown):
        if number:
            print()
        sections[name]()


def _asked_for(run: Loaded) -> list[Entry]:
    """Return the layers that are rows of their own."""
    from pydlbench.cli.sweep_keys import asked_for

    entries = run.table("layer")
    return [one for one in entries if run.info.kind != "sweep" or asked_for(one.key)]


def _layers(run: Loaded, quiet: bool) -> None:
    from pydlbench.cli.output import Outputs
    from pydlbench.results import Measurement

    rows = [Measurement.from_dict(entry.document) for entry in _asked_for(run)]
    shown = Outputs(files={}, algorithms=any(row.candidates for row in rows), quiet=quiet)
    shown.show(run.record, rows, interrupted=run.info.status != "done")


def _steps(run: Loaded, quiet: bool) -> None:
    from pydlbench.cli.e2e_output import Outputs
    from pydlbench.endtoend import StepRecord
    from pydlbench.models import build_model

    records = [StepRecord.from_dict(entry.document) for entry in run.table("step")]
    agreements = [entry.document for entry in run.table("agreement")]
    by_model: dict[str, list[StepRecord]] = {}
    for record in records:
        by_model.setdefault(record.case.model, []).append(record)
    for number, some in enumerate(by_model.values()):
        if number:
            print()
        models = [
            build_model(one.case.model, one.case.batch, **dict(one.case.options)) for one in some
        ]
        early = run.info.status != "done"
        Outputs(files={}, quiet=quiet).show(run.record, models, some, agreements, early=early)


def _protocols(run: Loaded) -> None:
    """Print the numbers: what the script writes around them is not kept."""
    from pydlbench.results.columns import number

    for place, entry in enumerate(run.table("protocol")):
        document = entry.document
        if place:
            print()
        words = [document["protocol"], document.get("model"), document.get("precision")]
        print("  ".join(filter(None, [*words, document.get("library")])))
        for one in document["numbers"]:
            spread = f" +/- {number(one['spread'])}" if one.get("spread") is not None else ""
            count = f"  (n {len(one['times'])})" if one.get("times") else ""
            print(f"  {one['name']}  {number(one['value'])}{spread} {one['unit']}{count}")


def _checks(run: Loaded) -> None:
    """Print checks of the same step together, as the command does."""
    import json

    from pydlbench.crosscheck import CheckRecord
    from pydlbench.report.check_ladder import Limits
    from pydlbench.report.check_result import CheckResult
    from pydlbench.report.check_table import render_checks
    from pydlbench.report.style import Style

    # One command checks one step; a sweep any number of them.
    several = run.info.kind == "sweep"
    step_names = ("model", "options", "batch", "phase", "precision", "layout", "feed")
    of = step_names if several else ()
    steps: dict[str, list[dict[str, Any]]] = {}
    for entry in run.table("check"):
        step = json.dumps([entry.document.get(name) for name in of])
        steps.setdefault(step, []).append(entry.document)
    names = (*step_names, "framework", "mode", "status", "reason")
    for number, documents in enumerate(steps.values()):
        if number:
            print()
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
    from pydlbench.diagnose.reading import read_diagnosis
    from pydlbench.report.diagnose_report import render_diagnosis
    from pydlbench.report.style import Style

    for entry in run.table("findings"):
        found = read_diagnosis(entry.document)
        print(render_diagnosis(run.record, found, Style.of(sys.stdout)), flush=True)

"""Where ``check`` puts its results: files first, then standard output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pydlbench.cli.streams import tell
from pydlbench.errors import PydlbenchError
from pydlbench.results.destination import STDOUT, write_text

if TYPE_CHECKING:
    from pydlbench.cli.check_running import Checks
    from pydlbench.cli.output import Outputs

__all__ = ["show", "to_json"]


def show(checks: Checks, outputs: Outputs) -> None:
    """Write the files, warn, and print.

    Args:
        checks: with at least one result.
        outputs: where to.

    Raises:
        PydlbenchError: a file could not be written after all; the report is printed before.
    """
    troubles = []
    for kind, target in outputs.files.items():
        if target != STDOUT:
            try:
                write_text(target, _export(kind, checks))
            except OSError as error:
                troubles.append(f"--{kind} {target}: not written: {error.strerror or error}")
    if not outputs.quiet:
        _warn(checks)
    on_stdout = next((kind for kind, to in outputs.files.items() if to == STDOUT), None)
    if on_stdout is not None:
        write_text(STDOUT, _export(on_stdout, checks))
    else:
        _print(checks, outputs.explain)
    if troubles:
        raise PydlbenchError("; ".join(troubles))


def to_json(checks: Checks) -> str:
    """Return the document: the object of a single check, or all under ``checks``."""
    from pydlbench.results.export_json import dump

    objects = [one.to_dict(checks.limits) for one in checks.results]
    found = objects[0] if len(checks.request.subjects) == 1 else {"checks": objects}
    return dump(
        {
            "interrupted": checks.interrupted,
            "run": None if checks.run is None else checks.run.to_dict(),
            **found,
            "measurements": [row.to_dict() for row in checks.rows.values()],
        }
    )


def _export(kind: str, checks: Checks) -> str:
    if kind == "json":
        return to_json(checks)
    from pydlbench.report.check_markdown import checks_markdown

    assert checks.run is not None  # it is read before anything is shown
    return checks_markdown(checks.run, checks.results, checks.limits, diagnose=_diagnose())


def _print(checks: Checks, explain: bool) -> None:
    from pydlbench.report.check_table import render_checks
    from pydlbench.report.style import Style

    assert checks.run is not None  # it is read before anything is shown
    text = render_checks(
        checks.run,
        checks.results,
        checks.limits,
        explain=explain,
        diagnose=_diagnose(),
        style=Style.of(sys.stdout),
    )
    print(text, flush=True)


def _warn(checks: Checks) -> None:
    contended = sum(row.contended for row in checks.rows.values())
    if contended:
        tell(
            f"warning: other work disturbed {contended} of {len(checks.rows)} native kernels; "
            "repeat when quiet"
        )


def _diagnose() -> bool:
    """Whether there is a command that says what to do about it."""
    from pydlbench.cli.parser import COMMANDS

    return "diagnose" in COMMANDS

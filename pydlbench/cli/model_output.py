"""Where ``model`` puts its estimate, or its counts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydlbench.cli.model_running import Summed
    from pydlbench.models.graph import Model
    from pydlbench.results import RunRecord

__all__ = ["show_estimate", "show_summary"]


def show_estimate(
    run: RunRecord, found: Summed, target: str | None, *, top: int | None, quiet: bool
) -> int:
    """Warn, write the file, and print.

    Args:
        run: the run.
        found: what came of it.
        target: of JSON: a path, ``-`` or None.
        top: how many layers are listed; None is all.
        quiet: no warnings.

    Returns:
        The exit code: 1 if something is missing in the sum.

    Raises:
        PydlbenchError: the file could not be written after all; the table is printed before.
    """
    from pydlbench.cli.streams import tell
    from pydlbench.errors import PydlbenchError
    from pydlbench.report.model_table import render_model
    from pydlbench.report.style import Style
    from pydlbench.results.destination import STDOUT, write_text
    from pydlbench.results.export_json import dump

    wanted, rows, estimate = found.wanted, found.rows, found.estimate
    trouble = ""
    contended = sum(row.contended for row in rows.values())
    if contended and not quiet:
        tell(f"warning: other work disturbed {contended} of {len(rows)} kernels; repeat when quiet")
    if target is not None:
        measurements = [row.to_dict() for row in rows.values()]
        document = {"run": run.to_dict(), **found.document, "measurements": measurements}
        try:
            write_text(target, dump(document))
        except OSError as error:
            if target == STDOUT:
                raise
            trouble = f"--json {target}: not written: {error.strerror or error}"
    if target != STDOUT:
        libraries = sorted({row.library for row in rows.values() if row.library})
        print(
            render_model(
                run,
                wanted,
                estimate,
                found.memory,
                top=top,
                libraries=libraries,
                style=Style.of(sys.stdout),
            ),
            flush=True,
        )
    if trouble:
        raise PydlbenchError(trouble)
    return 1 if estimate.missing or not estimate.layers else 0


def show_summary(model: Model, target: str | None) -> int:
    """Count, without timing anything; returns the exit code."""
    from pydlbench.models.counts import summary
    from pydlbench.report.model_summary import render_summary
    from pydlbench.results.destination import STDOUT, write_text
    from pydlbench.results.export_json import dump

    found = summary(model)
    if target is not None:
        write_text(target, dump(found))
    if target != STDOUT:
        print(render_summary(found))
    return 0

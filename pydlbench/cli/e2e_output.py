"""Where ``e2e`` puts its rows: files, and on standard output a table or one of the formats."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.cli.streams import tell
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.results.destination import STDOUT, check_writable, write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from pydlbench.endtoend import StepRecord
    from pydlbench.models.graph import Model
    from pydlbench.report.e2e_rows import StepRow
    from pydlbench.results import RunRecord

__all__ = ["Outputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The destinations of one run.

    Attributes:
        files: format (``json``, ``csv``, ``md``) to path or ``-``.
        quiet: no warnings.
    """

    files: Mapping[str, str]
    quiet: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Outputs:
        """Read the options and make sure that every file can be written.

        Raises:
            UsageError: it cannot, or two formats collide.
        """
        given = {kind: getattr(args, kind) for kind in ("json", "csv", "md")}
        files = {kind: target for kind, target in given.items() if target is not None}
        taken: dict[str, str] = {}
        for kind, target in files.items():
            place = target if target == STDOUT else os.path.realpath(target)
            if place in taken:
                raise UsageError(
                    f"--{kind} {target}: --{taken[place]} goes there already; "
                    f"nearest: --{kind} results.{kind}"
                )
            taken[place] = kind
            check_writable(f"--{kind}", target)
        return cls(files=files, quiet=args.quiet)

    def show(
        self,
        run: RunRecord,
        models: Sequence[Model],
        rows: Sequence[StepRecord],
        agreements: Sequence[Mapping[str, Any]],
        *,
        early: bool,
    ) -> None:
        """Write the files, then print.

        Args:
            run: the run.
            models: one for each batch and phase.
            rows: what is finished; with none, nothing is written.
            agreements: what came of ``--agree``.
            early: more was asked for.

        Raises:
            PydlbenchError: a file could not be written after all; the table is printed before.
        """
        if not rows:
            return
        from pydlbench.report.e2e_conclusion import conclude
        from pydlbench.report.e2e_rows import StepRow

        shown = [StepRow.of(row, models) for row in rows]
        lines = [*conclude(shown), *map(_agreement, agreements)]

        texts = _Texts(run, shown, agreements, lines, early)
        troubles = self._write_files(texts)
        for line in () if self.quiet else _warnings(rows):
            tell(f"warning: {line}")
        on_stdout = next((kind for kind, to in self.files.items() if to == STDOUT), None)
        if on_stdout is not None:
            write_text(STDOUT, texts.text(on_stdout))
        else:
            from pydlbench.report.e2e_table import render_steps
            from pydlbench.report.style import Style

            print(render_steps(run, shown, lines, Style.of(sys.stdout)), flush=True)
        if troubles:
            raise PydlbenchError("; ".join(troubles))

    def _write_files(self, texts: _Texts) -> list[str]:
        """Write as many files as possible; return what the system refused."""
        troubles = []
        for kind, target in self.files.items():
            if target != STDOUT:
                try:
                    write_text(target, texts.text(kind))
                except OSError as error:
                    reason = error.strerror or error
                    troubles.append(f"--{kind} {target}: not written: {reason}")
        return troubles


@dataclass(frozen=True, slots=True)
class _Texts:
    """What a run is in each of the formats."""

    run: RunRecord
    rows: Sequence[StepRow]
    agreements: Sequence[Mapping[str, Any]]
    conclusion: Sequence[str]
    early: bool

    def text(self, kind: str) -> str:
        from pydlbench.report import e2e_export as export

        if kind == "csv":
            return export.to_csv(self.run, self.rows)
        if kind == "md":
            return export.to_markdown(self.run, self.rows, self.conclusion)
        return export.to_json(
            self.run, self.rows, self.agreements, self.conclusion, interrupted=self.early
        )


def _agreement(found: Mapping[str, Any]) -> str:
    """One line for a comparison of the frameworks."""
    return (
        f"agreement of the frameworks, batch {found['batch']}, {found['phase']}: "
        f"{found['status']}: {found['detail']}"
    )


def _warnings(rows: Sequence[StepRecord]) -> list[str]:
    found: dict[str, int] = {}
    for row in rows:
        for text in row.warnings:
            found[text] = found.get(text, 0) + 1
    several = len(rows) > 1
    return [f"{text} ({n} of {len(rows)} rows)" if several else text for text, n in found.items()]

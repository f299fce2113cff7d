"""Where ``compare`` puts its results: files first, then standard output."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.cli.streams import tell
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.results.destination import STDOUT, check_writable, write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from pydlbench.compare import Comparison

__all__ = ["Outputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The destinations of one comparison.

    Attributes:
        files: format (``json``, ``md``) to path or ``-``.
        everything: print all rows.
        quiet: no notes.
    """

    files: Mapping[str, str]
    everything: bool = False
    quiet: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Outputs:
        """Read the options and make sure that every file can be written.

        Raises:
            UsageError: it cannot, or two formats collide.
        """
        given = {kind: getattr(args, kind) for kind in ("json", "md")}
        files = {kind: target for kind, target in given.items() if target is not None}
        places = [to if to == STDOUT else os.path.realpath(to) for to in files.values()]
        if len(set(places)) < len(places):
            raise UsageError(
                f"--md {files['md']}: --json goes there already; nearest: --md comparison.md"
            )
        for kind, target in files.items():
            check_writable(f"--{kind}", target)
        return cls(files=files, everything=args.all, quiet=args.quiet)

    def show(self, found: Comparison) -> None:
        """Write the files, then print the table, or the format that goes to standard output.

        Raises:
            PydlbenchError: a file could not be written after all; the table is printed before.
        """
        from pydlbench.report.compare_table import render_comparison
        from pydlbench.report.style import Style
        from pydlbench.results.export_json import dump

        def markdown() -> str:
            from pydlbench.report.compare_markdown import comparison_markdown

            return comparison_markdown(found)

        self.write(
            {"json": lambda: dump(found.to_dict()), "md": markdown},
            lambda: render_comparison(found, Style.of(sys.stdout), everything=self.everything),
        )

    def write(self, texts: Mapping[str, Callable[[], str]], table: Callable[[], str]) -> None:
        """Write texts where they were asked for.

        Args:
            texts: by format; each is made when it is needed.
            table: what standard output gets if no format goes there.

        Raises:
            PydlbenchError: a file could not be written after all.
        """
        troubles = []
        for kind, target in self.files.items():
            if target != STDOUT:
                try:
                    write_text(target, texts[kind]())
                except OSError as error:
                    troubles.append(f"--{kind} {target}: not written: {error.strerror or error}")
        printed = next((kind for kind, to in self.files.items() if to == STDOUT), None)
        if printed is not None:
            write_text(STDOUT, texts[printed]())
        else:
            print(table(), flush=True)
        if troubles:
            raise PydlbenchError("; ".join(troubles))

    def note(self, text: str) -> None:
        """Say something on standard error, unless nobody wants to hear it."""
        if not self.quiet:
            tell(f"note: {text}")

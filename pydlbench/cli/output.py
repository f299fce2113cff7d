"""Where a command puts its results: files, and on standard output a table or one of the formats.

Standard output carries the results and nothing else: with ``--json -`` it is pure JSON.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.terminal import tell
from pydlbench.cli.values import FINDING, UNDECIDED
from pydlbench.errors import PydlbenchError, StoreError, UsageError
from pydlbench.report.text import STDOUT, Style, as_markdown, as_text, check_writable, write_text
from pydlbench.store.place import user_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pydlbench.cli.options import Quiet
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.step import StepRecord
    from pydlbench.report.blocks import Block
    from pydlbench.store.reader import Reader

_FORMATS: Final = ("json", "csv", "md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The destinations of one command.

    Attributes:
        files: format (``json``, ``csv``, ``md``) to path or ``-``.
        quiet: no warnings and no notes.
    """

    files: Mapping[str, str]
    quiet: bool = False

    @classmethod
    def from_options(cls, args: Quiet) -> Outputs:
        """Read the options and make sure that every file can be written.

        Raises:
            UsageError: it cannot, or two formats go to the same place.
        """
        given = {kind: getattr(args, kind, None) for kind in _FORMATS}
        files = {kind: target for kind, target in given.items() if target is not None}
        printed: str | None = getattr(args, "format", None)
        if printed is not None and printed in files:
            raise UsageError(
                f"--format {printed}: --{printed} {files[printed]} is given; nearest: leave one out"
            )
        files |= {} if printed is None else {printed: STDOUT}
        taken: dict[str, str] = {}
        for kind, target in files.items():
            check_writable(f"--{kind}", target)
            place = target if target == STDOUT else os.path.realpath(target)
            if place in taken:
                where = "standard output" if target == STDOUT else "the same file"
                raise UsageError(
                    f"--{kind} {target}: --{taken[place]} goes to {where} already; "
                    f"nearest: --{kind} results.{kind}"
                )
            taken[place] = kind
        return cls(files=files, quiet=args.quiet)

    def write(
        self,
        document: Callable[[], Mapping[str, Any]],
        report: Callable[[], Sequence[Block]],
        *,
        markdown: Callable[[], Sequence[Block]] | None = None,
        csv: Callable[[], str] | None = None,
        warnings: Iterable[str] = (),
        keep_files: bool = False,
    ) -> None:
        """Write the files, then warn, then print; a reader that closes the pipe costs no file.

        Args:
            document: the JSON object without its schema version; made only if it is needed, as all
                below are.
            report: what standard output gets if no format goes there; nothing without a block.
            markdown: what Markdown has where it is not the report alone.
            csv: the table of values, of a command that has one.
            warnings: for standard error.
            keep_files: write no file: what an earlier run has written there is worth more.

        Raises:
            PydlbenchError: a file could not be written after all; the rest is printed before.
        """
        from pydlbench.report.json import dump

        texts: dict[str, Callable[[], str]] = {
            "json": lambda: dump(document()),
            "csv": csv or str,
            "md": lambda: as_markdown((markdown or report)()),
        }
        troubles: list[str] = []
        bugs: list[Exception] = []
        for kind, target in self.files.items():
            if target == STDOUT or keep_files:
                continue
            try:
                write_text(target, texts[kind]())
            except OSError as error:
                troubles.append(f"--{kind} {target}: not written: {error.strerror or error}")
            except Exception as error:  # noqa: BLE001 - one format must not cost the others
                bugs.append(error)
        for line in () if self.quiet else warnings:
            tell(f"warning: {line}")
        printed = next((kind for kind, to in self.files.items() if to == STDOUT), None)
        if printed is not None:
            write_text(STDOUT, texts[printed]())
        else:
            print_report(report())
        if bugs:
            raise bugs[0]
        if troubles:
            raise PydlbenchError("; ".join(troubles))

    def note(self, *texts: str) -> None:
        """Say something on standard error, unless nobody wants to hear it."""
        for text in () if self.quiet else texts:
            tell(f"note: {text}")


def print_report(report: Sequence[Block]) -> None:
    """Print a report on standard output, as it suits whatever that is."""
    if text := as_text(report, Style.for_stream(sys.stdout)):
        print(text, flush=True)


def expecting(
    run: RunRecord, rows: Sequence[Measurement], store: Reader | None
) -> Sequence[Measurement]:
    """Return rows with what is expected of them in a later run, if the store has enough runs.

    Args:
        run: whose rows they are.
        rows: as measured.
        store: None where there is none.
    """
    from pydlbench.records.measurement import OCCASIONS

    if store is None or len(store.runs(limit=OCCASIONS)) < OCCASIONS:
        return rows
    from pydlbench.compare.expected import add_predictions

    return add_predictions(run, rows, store)


def row_warnings(rows: Sequence[Measurement | StepRecord]) -> list[str]:
    """Return the warnings of rows, each once and with the number of its rows."""
    counts = Counter(text for row in rows for text in row.warnings)
    several = len(rows) > 1
    return [f"{text} ({n} of {len(rows)} rows)" if several else text for text, n in counts.items()]


def gate(finding: str, undecided: Sequence[str]) -> int:
    """Say on standard error what ``--fail-on`` comes to, and return the exit code.

    Args:
        finding: what was looked for and is there; empty where it is not.
        undecided: a line for each cause why that cannot be told; of no matter with a finding.
    """
    for line in [finding] if finding else undecided:
        tell(f"--fail-on: {line}")
    sys.stdout.flush()
    return FINDING if finding else UNDECIDED if undecided else 0


# -----------------------------------------------------------------------------
# Commands that make very many objects which all live to the end.


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Let Python not search for cycles of objects: with 100,000 rows that takes half of the time.

    There are hardly any; and the process ends with the command.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# -----------------------------------------------------------------------------
# Runs of another version, files that were written by hand or damaged: one line, no traceback.


@contextlib.contextmanager
def reading_runs(names: Sequence[str]) -> Iterator[None]:
    """Take it that values which nothing can be done with are those of the runs that were named.

    Args:
        names: runs and files; where no file is among them, only what a record refuses is theirs,
            and other errors pass unchanged.

    Raises:
        UsageError: a file holds something else than a command had written.
        StoreError: a run of the store holds a value that this version does not know.
    """
    try:
        yield
    except PydlbenchError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        files = [name for name in dict.fromkeys(names) if user_path(name).is_file()]
        if not files:
            import msgspec

            if not names or not isinstance(error, msgspec.ValidationError):
                raise
            raise StoreError(
                f"run {', '.join(dict.fromkeys(names))}: holds a value that this pydlbench does "
                f"not know ({error}); use the one that wrote it, or read it as it is: pydlbench "
                f"export {names[0]} --format json"
            ) from error
        raise UsageError(
            f"{', '.join(files)}: not as a command writes it with --json "
            f"({type(error).__name__}); nearest: the run itself, or the file written again by "
            "pydlbench export RUN --format json"
        ) from error

"""The outputs of a command: files, and on standard output a table or one of the formats.

Standard output has the results only: with ``--json -`` it is pure JSON.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.options import Quiet
from pydlbench.cli.terminal import tell
from pydlbench.cli.values import FINDING, UNDECIDED
from pydlbench.errors import PydlbenchError, StoreError, UsageError
from pydlbench.grouping import group_by
from pydlbench.report.blocks import Block
from pydlbench.report.text import STDOUT, Style, as_markdown, as_text, check_writable, write_text
from pydlbench.store.place import user_path
from pydlbench.units import merge_texts, without_numbers

if TYPE_CHECKING:
    import datetime as dt

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.step import StepRecord
    from pydlbench.store.store import Reader

_FORMATS: Final = ("json", "csv", "md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The destinations of one command.

    Attributes:
        files: output format (``json``, ``csv``, ``md``) -> path, or ``-`` for standard output.
        quiet: whether warnings and notes are left out.
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
    ) -> None:
        """Write the files, then print, then warn: a closed pipe costs no file.

        Args:
            document: returns the JSON object without its schema version. This and the following
                functions are called only if needed.
            report: returns the blocks for standard output if no format goes there.
            markdown: returns the blocks of Markdown; by default those of the report.
            csv: returns the CSV text, if the command has one.
            warnings: lines for standard error.

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
            if target == STDOUT:
                continue
            try:
                write_text(target, texts[kind]())
            except OSError as error:
                troubles.append(f"--{kind} {target}: not written: {error.strerror or error}")
            except Exception as error:  # noqa: BLE001 - one format must not cost the others
                bugs.append(error)
        printed = next((kind for kind, to in self.files.items() if to == STDOUT), None)
        if printed is not None:
            write_text(STDOUT, texts[printed]())
        else:
            print_report(report())
        for line in () if self.quiet else warnings:
            tell(f"warning: {line}")
        if bugs:
            raise bugs[0]
        if troubles:
            raise PydlbenchError("; ".join(troubles))

    def note(self, *texts: str) -> None:
        """Print notes on standard error, unless ``quiet``."""
        for text in () if self.quiet else texts:
            tell(f"note: {text}")


def print_report(report: Sequence[Block]) -> None:
    """Print a report on standard output, in the style of a terminal or a file."""
    if text := as_text(report, Style.for_stream(sys.stdout)):
        print(text, flush=True)


def expecting(
    run: RunRecord, rows: Sequence[Measurement], store: Reader | None
) -> Sequence[Measurement]:
    """Return rows with their prediction intervals, if the store has enough runs.

    Args:
        run: run of the rows.
        rows: measured rows.
        store: store with earlier runs; None if there is no store.
    """
    from pydlbench.records.measurement import OCCASIONS
    from pydlbench.records.run import MAX_SEARCHED_RUNS, OCCASION_DISTANCE, start_time

    occasions: list[dt.datetime] = []
    for info in () if store is None else store.runs(limit=MAX_SEARCHED_RUNS):
        begun = start_time(info.created_utc)
        if begun and all(abs(begun - other) >= OCCASION_DISTANCE for other in occasions):
            occasions.append(begun)
    if store is None or len(occasions) < OCCASIONS:
        return rows
    from pydlbench.compare.stored import add_predictions  # loads NumPy

    return add_predictions(run, rows, store)


def row_warnings(rows: Sequence[Measurement | StepRecord]) -> list[str]:
    """Return the warnings of rows, those that differ in numbers as one, with their rows' number."""
    groups = group_by((text for row in rows for text in row.warnings), without_numbers).values()
    return [
        f"{merge_texts(some)} ({len(some)} of {len(rows)} rows)" if len(rows) > 1 else some[0]
        for some in groups
    ]


def gate(finding: str, undecided: Sequence[str]) -> int:
    """Print the result of ``--fail-on`` on standard error, and return the exit code.

    Args:
        finding: text of the finding; empty if there is no finding.
        undecided: reasons why the measurements do not tell; ignored with a finding.
    """
    for line in [finding] if finding else undecided:
        tell(f"--fail-on: {line}")
    sys.stdout.flush()
    return FINDING if finding else UNDECIDED if undecided else 0


# -----------------------------------------------------------------------------
# Commands that create very many objects, which live until the end.


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Switch off the garbage collector, which takes half of the time with 100,000 rows.

    There are hardly any cycles, and the process ends with the command.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# -----------------------------------------------------------------------------
# Runs of another version, and damaged or edited files: one line, no traceback.


@contextlib.contextmanager
def reading_runs(names: Sequence[str]) -> Iterator[None]:
    """Attribute errors in values to the named runs.

    Args:
        names: runs and files. If there is no file among them, only validation errors of records
            are attributed to the runs, and other errors pass unchanged.

    Raises:
        UsageError: a file has other contents than a command writes.
        StoreError: a run of the store has a value that this version does not know.
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
            f"{', '.join(files)}: not as a command writes it with --json ({type(error).__name__}: "
            f"{error}); nearest: the run itself, or the file written again by pydlbench export RUN "
            "--format json"
        ) from error

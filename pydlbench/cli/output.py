"""Where ``layers`` puts its results: files, and on standard output a table or one of the formats.

Standard output carries the results and nothing else: with ``--json -`` it is pure JSON.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.cli.terminal import tell
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.report.text import STDOUT, check_writable, write_text
from pydlbench.store.place import user_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord

__all__ = ["Outputs", "reading_files", "without_collection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The destinations of one run.

    Attributes:
        files: Format (``json``, ``csv``, ``md``) to path or ``-``.
        algorithms: Show the candidates of every row.
        explain: Show the measurements behind what is said of slower backends.
        quiet: No warnings.
    """

    files: Mapping[str, str]
    algorithms: bool = False
    explain: bool = False
    quiet: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Outputs:
        """Read the options and make sure that every file can be written.

        Raises:
            UsageError: It cannot, two outputs collide, or ``--samples`` has nowhere to go.
        """
        given = {kind: getattr(args, kind) for kind in ("json", "csv", "md")}
        files = {kind: target for kind, target in given.items() if target is not None}
        taken: dict[str, str] = {}
        for kind, target in files.items():
            place = target if target == STDOUT else os.path.realpath(target)
            if place in taken:
                where = "standard output" if target == STDOUT else "the same file"
                raise UsageError(
                    f"--{kind} {target}: --{taken[place]} goes to {where} already; "
                    f"nearest: --{kind} results.{kind}"
                )
            taken[place] = kind
        if args.samples and "json" not in files:
            raise UsageError("--samples: raw samples are in JSON only; nearest: --samples --json -")
        for kind, target in files.items():
            check_writable(f"--{kind}", target)
        return cls(files=files, algorithms=args.algorithms, explain=args.explain, quiet=args.quiet)

    def show(self, run: RunRecord, rows: Sequence[Measurement], *, interrupted: bool) -> None:
        """Write the files, then print; a reader that closes the pipe costs no file.

        Args:
            run: The run.
            rows: What is finished. With none, an interrupted run writes no file.
            interrupted: More was asked for.

        Raises:
            PydlbenchError: A file could not be written after all; the table is printed before.
        """
        bugs: list[Exception] = []
        conclusion: list[str] = []
        try:
            conclusion = _conclusion(run, rows)
        except Exception as error:  # noqa: BLE001 - a sentence must not cost the measurements
            bugs.append(error)
        troubles = self._write_files(run, rows, conclusion, interrupted, bugs)
        for line in () if self.quiet else _warnings(run, rows):
            tell(f"warning: {line}")
        kind_on_stdout = next((kind for kind, to in self.files.items() if to == STDOUT), None)
        if kind_on_stdout is not None:
            write_text(STDOUT, _export(kind_on_stdout, run, rows, conclusion, interrupted))
        elif rows:
            self._print_table(run, rows, conclusion)
        if bugs:
            raise bugs[0]
        if troubles:
            raise PydlbenchError("; ".join(troubles))

    def _write_files(
        self,
        run: RunRecord,
        rows: Sequence[Measurement],
        conclusion: Sequence[str],
        interrupted: bool,
        bugs: list[Exception],
    ) -> list[str]:
        """Write as many files as possible; return what the system refused, add bugs to ``bugs``."""
        troubles = []
        for kind, target in self.files.items():
            if target == STDOUT or (interrupted and not rows):
                continue
            try:
                write_text(target, _export(kind, run, rows, conclusion, interrupted))
            except OSError as error:
                troubles.append(f"--{kind} {target}: not written: {error.strerror or error}")
            except Exception as error:  # noqa: BLE001 - one format must not cost the others
                bugs.append(error)
        return troubles

    def _print_table(
        self, run: RunRecord, rows: Sequence[Measurement], conclusion: Sequence[str]
    ) -> None:
        from pydlbench.report.columns import label, varying
        from pydlbench.report.layers import evidence, render_algorithms, render_layers
        from pydlbench.report.text import Style

        blocks = [render_layers(run, rows, Style.of(sys.stdout))]
        if self.algorithms:
            axes = varying(rows)
            blocks += [render_algorithms(row, label(row, axes)) for row in rows if row.candidates]
        if self.explain:
            # Sums follow from the backend that a row is named after.
            axes = [axis for axis in varying(rows) if axis != "accumulate"]
            found = list(evidence([row for row in rows if row.ok], lambda row: label(row, axes)))
            blocks += ["\n".join(found)] if found else []
        blocks.append("\n".join(conclusion))
        print("\n\n".join(blocks), flush=True)


def _export(
    kind: str,
    run: RunRecord,
    rows: Sequence[Measurement],
    conclusion: Sequence[str],
    interrupted: bool,
) -> str:
    if kind == "json":
        from pydlbench.report.json import to_json

        return to_json(run, rows, interrupted=interrupted)
    if kind == "csv":
        from pydlbench.report.csv import to_csv

        return to_csv(run, rows)
    from pydlbench.report.markdown import to_markdown

    return to_markdown(run, rows, conclusion)


def _warnings(run: RunRecord, rows: Sequence[Measurement]) -> list[str]:
    """The device's warnings, then those of rows, each once and with the number of its rows."""
    lines = _device_warnings(run)
    counts: dict[str, int] = {}
    for row in rows:
        for text in row.warnings:
            counts[text] = counts.get(text, 0) + 1
    for text, count in counts.items():
        few = f" ({count} of {len(rows)} rows)" if len(rows) > 1 else ""
        lines.append(f"{text}{few}")
    return list(dict.fromkeys(lines))


def _device_warnings(run: RunRecord) -> list[str]:
    devices = run.devices()
    found: dict[str, list[str]] = {}
    for threads, device in (devices or {"": run.device}).items():
        for item in device.get("warnings") or ():
            found.setdefault(_warning(item), []).append(threads)
    return [
        text if len(which) >= len(devices) else f"{text} (with --threads {','.join(which)})"
        for text, which in found.items()
    ]


def _conclusion(run: RunRecord, rows: Sequence[Measurement]) -> list[str]:
    from pydlbench.report.verdicts import conclude, measured_peaks

    if not rows:
        return []
    # Only of a single row does the conclusion speak of other peaks.
    timed = [row for row in rows if row.ok]
    return conclude(rows, measured_peaks(run.device_for(timed[0].threads if timed else None)))


def _warning(item: Any) -> str:
    if isinstance(item, Mapping):
        symptom, remedy = item.get("symptom", ""), item.get("remedy")
        return f"{symptom}; {remedy}" if remedy else str(symptom)
    return str(item)


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
# Files that were written by hand, or damaged: one line instead of a traceback.


@contextlib.contextmanager
def reading_files(names: Sequence[str]) -> Iterator[None]:
    """Take it that values which nothing can be done with are those of files that were named.

    Args:
        names: runs and files; where no file is among them, errors pass unchanged.

    Raises:
        UsageError: a file holds something else than a command had written.
    """
    try:
        yield
    except PydlbenchError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        files = [name for name in dict.fromkeys(names) if user_path(name).is_file()]
        if not files:
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"{', '.join(files)}: not as a command writes it with --json ({what}); nearest: the "
            "run itself, or the file written again by pydlbench export RUN --format json"
        ) from error

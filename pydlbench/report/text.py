"""The printers: tables as plain text, Markdown and CSV, colour, and where results are written."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import secrets
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from pydlbench.errors import UsageError, nearest
from pydlbench.store.place import user_path
from pydlbench.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydlbench.records.run import RunRecord

__all__ = [
    "PLAIN",
    "STDOUT",
    "Style",
    "check_writable",
    "csv_text",
    "markdown_run",
    "markdown_table",
    "markdown_text",
    "plain_table",
    "write_bytes",
    "write_text",
]


# What spreadsheets take for the beginning of a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def plain_table(
    titles: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> str:
    """Return an aligned table without rules: readable in a terminal, in a pipe and in a mail."""
    from tabulate import tabulate  # imported here: not every command prints a table

    # The titles go in as a row: tabulate pads headers by two more blanks, which many columns of
    # few digits cannot afford.
    text = tabulate(
        [titles, *([printable(cell) for cell in row] for row in cells)],
        tablefmt="plain",
        disable_numparse=True,
        colalign=["right" if flag else "left" for flag in right],
    )
    return "\n".join(line.rstrip() for line in text.splitlines())


def markdown_table(
    titles: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool] | None = None
) -> str:
    """Return a table; whatever is in a cell stays text.

    Args:
        titles: of the columns.
        cells: by row.
        right: whether each column is aligned to the right; None is all but the first.
    """
    right = [number > 0 for number in range(len(titles))] if right is None else right
    ruler = ["---:" if flag else ":---" for flag in right]
    lines = [titles, ruler]
    lines += [[markdown_text(cell) for cell in row] for row in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_text(text: str) -> str:
    """Return a text as Markdown that shows it, on one line.

    A descriptor may hold ``n"*_x*"``, and the reason of a foreign document anything.
    """
    for character in "\\|*_<>`":
        text = text.replace(character, f"\\{character}")
    return " ".join(printable(text).split())


def markdown_run(run: RunRecord) -> list[str]:
    """Return the line that names a run below its results; nothing where it has no name."""
    if not run.id:
        return []
    return [f"Run {markdown_text(run.id)}, {markdown_text(run.created_utc)}."]


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return CSV: a line of column names, and a line for each row of values.

    What is unknown or no number is an empty cell. A text that a spreadsheet would take for a
    formula has an apostrophe before it, which those programs do not show.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row])
    return buffer.getvalue()


def _csv_cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


# -----------------------------------------------------------------------------
# Colour for terminals only: pipes, ``NO_COLOR`` and dumb terminals get plain text.


@dataclass(frozen=True, slots=True)
class Style:
    """Marks text, or leaves it alone where ``enabled`` is false."""

    enabled: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        """Return the style that suits ``stream`` (https://no-color.org)."""
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(not plain and stream.isatty())

    def bold(self, text: str) -> str:
        """Mark what is to be read first."""
        return f"\033[1m{text}\033[0m" if self.enabled else text

    def alarm(self, text: str) -> str:
        """Mark what went wrong."""
        return f"\033[31m{text}\033[0m" if self.enabled else text


PLAIN = Style()


# -----------------------------------------------------------------------------
# Where results are written: checked before anything is measured, replaced in one step.
#
# A run can take an hour; a typing error in the path must not cost it, and a crash while writing
# must not leave half a file in the place of a good one.

STDOUT = "-"
# Names from the command line may hold bytes that are no text; JSON knows this notation too.
_ERRORS = "backslashreplace"


def check_writable(option: str, target: str) -> None:
    """Make sure that ``target`` can be written later, without leaving a trace.

    Args:
        option: Option that named it, for the message: ``--json``.
        target: Path, or ``-`` for standard output.

    Raises:
        UsageError: It is a directory, its folder is missing, or permission is lacking.
    """
    if target == STDOUT:
        return
    label = f"{option} {target}"
    if not target:
        raise UsageError(f"{option} '': empty file name; expected a path, or - for standard output")
    try:
        path = _resolve(target)
        if path.is_dir():
            raise UsageError(f"{label}: is a directory; nearest: {Path(target) / 'results'}")
        if not path.parent.is_dir():
            raise UsageError(f"{label}: no such directory: {path.parent}; {_near_folder(path)}")
        if path.exists():
            if not os.access(path, os.W_OK):
                raise UsageError(f"{label}: no permission to write it; choose another file")
            if not path.is_file():
                return  # a device or a pipe is opened as it is
        # The only sure test: access() knows nothing of read-only or full file systems.
        probe = _open_beside(path)
        os.close(probe[0])
        probe[1].unlink()
    except (OSError, RuntimeError, ValueError) as error:  # pathlib's word for a loop of links
        if isinstance(error, UsageError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{label}: cannot be written ({reason}); choose another file") from error


def write_text(target: str, text: str, stdout: TextIO | None = None) -> None:
    """Write ``text`` to ``target``: a whole new file in one step, or standard output.

    Args:
        target: Path, or ``-``.
        text: What to write.
        stdout: Stream for ``-``; standard output by default.

    Raises:
        OSError: The disk is full, for example; an old file is then left as it was.
    """
    if target != STDOUT:
        write_bytes(target, text.encode("utf-8", _ERRORS))
        return
    stream = sys.stdout if stdout is None else stdout
    stream.flush()
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(text)
    else:
        # The documents are UTF-8 wherever they go; a terminal's ASCII would spoil JSON.
        buffer.write(text.encode("utf-8", _ERRORS))
    stream.flush()


def write_bytes(target: str, data: bytes) -> None:
    """Write ``data`` to ``target``, as :func:`write_text` does.

    Raises:
        OSError: The disk is full, for example; an old file is then left as it was.
    """
    if target == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = _resolve(target)
    mode: int | None = None
    if path.exists():
        if not path.is_file():
            # Replacing /dev/null or a named pipe by a file would be a disaster.
            path.write_bytes(data)
            return
        mode = stat.S_IMODE(path.stat().st_mode)
    handle, temporary = _open_beside(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _resolve(target: str) -> Path:
    # Follow links, so that a link stays a link and the file behind it is replaced.
    return user_path(target).resolve()


def _open_beside(path: Path) -> tuple[int, Path]:
    """Create a file in the same folder: only within a file system is a replacement atomic."""
    temporary = path.with_name(f".pydlbench-{secrets.token_hex(6)}.tmp")
    # 0o666 less the umask: what any program's new file gets (mkstemp's 0o600 is not).
    return os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), temporary


def _near_folder(path: Path) -> str:
    folder = path.parent
    existing = next((parent for parent in folder.parents if parent.is_dir()), Path())
    missing = folder.relative_to(existing).parts[0]
    try:
        names = nearest(missing, [item.name for item in existing.iterdir() if item.is_dir()], 1)
    except OSError:
        names = []
    return f"nearest: {existing / names[0] if names else existing}"

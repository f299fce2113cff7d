"""The printers of a report as plain text and Markdown; CSV; and writing results to files."""

import contextlib
import csv
import io
import math
import os
import secrets
import shutil
import stat
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self, TextIO

from pydlbench.errors import UsageError, nearest
from pydlbench.report.blocks import Block, Details, Facts, Figure, Heading, Lines, TableBlock
from pydlbench.store.place import user_path
from pydlbench.units import cut, printable

#: Width of a report in a pipe or a file, and the largest width on a terminal.
MAX_WIDTH: Final = 150
# First characters of a cell that spreadsheets read as a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
# Lines with a command are not wrapped, so that it can be copied.
_COMMANDS: Final = ("next: ", "try: ")
# Minimum width of a column of words that is cut.
_MIN_WIDTH: Final = 20
_GAP: Final = "  "
# The label of a command among facts.
_NEXT: Final = "next"


# -----------------------------------------------------------------------------
# Colours and width of a terminal; pipes, ``NO_COLOR`` and dumb terminals get plain text.


@dataclass(frozen=True, slots=True)
class Style:
    """Colours and width of a report.

    Attributes:
        enabled: whether there are colours.
        width: width to which lines are wrapped, and into which tables should fit.
        terminal: whether wider tables are continued below; otherwise a row is one long line.
    """

    enabled: bool = False
    width: int = MAX_WIDTH
    terminal: bool = False

    @classmethod
    def for_stream(cls, stream: TextIO) -> Self:
        """Return the style that suits ``stream`` (https://no-color.org, https://force-color.org)."""
        forced = bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")
        if not stream.isatty():
            return cls(forced)
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        columns = shutil.get_terminal_size((MAX_WIDTH, 24)).columns
        return cls(forced or not plain, min(MAX_WIDTH, columns), terminal=True)

    def bold(self, text: str) -> str:
        """Return emphasised text."""
        return f"\033[1m{text}\033[0m" if self.enabled else text

    def alarm(self, text: str) -> str:
        """Return text in the colour of errors."""
        return f"\033[31m{text}\033[0m" if self.enabled else text


PLAIN_STYLE = Style()


def as_text(blocks: Iterable[Block], style: Style = PLAIN_STYLE) -> str:
    """Return a report for terminals, pipes and mails; no newline at the end."""
    return "\n\n".join(filter(None, (_block_text(block, style) for block in blocks)))


def as_markdown(blocks: Iterable[Block]) -> str:
    """Return a report as Markdown, ending in a newline."""
    return "\n\n".join(filter(None, map(_block_markdown, blocks))) + "\n"


def wrapped(line: str, width: int = MAX_WIDTH) -> list[str]:
    """Return a line wrapped between words, further lines indented.

    Commands and long words are not broken.
    """
    if len(line) <= width or line.startswith(_COMMANDS):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def markdown_table(
    titles: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool] | None = None
) -> str:
    """Return a Markdown table with escaped cells.

    Args:
        titles: titles of the columns.
        cells: texts by row.
        right: whether each column is aligned to the right; None is all but the first.
    """
    right = [number > 0 for number in range(len(titles))] if right is None else right
    ruler = ["---:" if flag else ":---" for flag in right]
    lines = [titles, ruler]
    lines += [[markdown_text(cell) for cell in row] for row in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_text(text: str) -> str:
    """Return an escaped text on one line.

    A descriptor may contain ``n"*_x*"``, and a foreign document any text.
    """
    for character in "\\|*_<>`":
        text = text.replace(character, f"\\{character}")
    return " ".join(printable(text).split())


def _block_text(block: Block, style: Style) -> str:
    if isinstance(block, TableBlock):
        return _table_text(block, style) if block.cells else ""
    if isinstance(block, Facts):
        return _facts_text(block, style)
    if isinstance(block, (Figure, Details)):
        return ""
    lines, printed = list(block.lines), []
    if isinstance(block, Lines) and block.title and lines:
        lines = [block.title, *(f"  {line}" for line in lines)]
    for number, line in enumerate(lines):
        parts = wrapped(printable(line), style.width)
        if number < block.bold:
            parts = [style.bold(part) for part in parts]
        elif isinstance(block, Lines) and block.alarm:
            parts = [style.alarm(part) for part in parts]
        printed += parts
    return "\n".join(printed)


def _block_markdown(block: Block) -> str:
    if isinstance(block, TableBlock):
        kept = [at for at, title in enumerate(block.titles) if title]
        cells = [[row[at] for at in kept] for row in block.cells]
        titles, right = [block.titles[at] for at in kept], [block.right[at] for at in kept]
        # Markdown has no rows across all columns, so there is a table below each line.
        begins = sorted({0, *block.above})
        parts = []
        for begin, end in pairwise([*begins, len(cells)]):
            parts += [f"**{markdown_text(block.above[begin])}**"] if begin in block.above else []
            parts.append(markdown_table(titles, cells[begin:end], right))
        return "\n\n".join(parts) if cells else ""
    if isinstance(block, (Figure, Details)):
        return ""
    if isinstance(block, Facts):
        title = [f"**{markdown_text(block.title)}**"] if block.title else []
        return "\n\n".join([*title, "\n".join(map(_fact_markdown, block.facts))])
    lines = [markdown_text(line) for line in block.lines]
    if isinstance(block, Heading):
        return "  \n".join(lines)
    if block.listed:
        listed = "\n".join(f"- {line}" for line in lines)
        return f"{markdown_text(block.title)}\n\n{listed}" if block.title and lines else listed
    bold = [f"**{line}**" for line in lines[: block.bold]]
    return "\n\n".join([*bold, *lines[block.bold :]])


def _fact_markdown(fact: tuple[str, str]) -> str:
    label, text = fact
    return f"- {label}: `{text}`" if label == _NEXT else f"- {label}: {markdown_text(text)}"


def _facts_text(block: Facts, style: Style) -> str:
    lines = [style.bold(line) for line in wrapped(block.title, style.width)] if block.title else []
    indent = "    " if block.title else ""
    wide = max(10, *(len(label) + 2 for label, _ in block.facts))
    before = ""
    for label, text in block.facts:
        start = f"{indent}{'' if label == before else label:{wide}}"
        before = label
        if label == _NEXT:
            lines.append(f"{start}{text}")
            continue
        lines += textwrap.wrap(
            printable(text),
            style.width,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(lines)


def _table_text(table: TableBlock, style: Style) -> str:
    rows = [list(table.titles)]
    rows += [[" ".join(printable(cell).splitlines()) for cell in row] for row in table.cells]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    parts = _fitted(wide, table.right, style)
    texts = []
    for part in parts:
        title, *lines = (
            _GAP.join(
                cut(row[at], wide[at]).rjust(wide[at])
                if table.right[at]
                else cut(row[at], wide[at]).ljust(wide[at])
                for at in part
            ).rstrip()
            for row in rows
        )
        printed = [title]
        for number, line in enumerate(lines):
            if number in table.above:
                printed += ["", *wrapped(table.above[number], style.width)]
            printed.append(style.alarm(line) if number in table.alarms else line)
        texts.append("\n".join(printed))
    return "\n\n".join(texts)


def _fitted(wide: list[int], right: Sequence[bool], style: Style) -> list[list[int]]:
    """Return the parts of a table that fit into a width, as lists of columns.

    Columns of words are cut, the widest first, if that is enough. If not, nothing is cut, and on a
    terminal further columns are in parts below, each with the first column.

    Args:
        wide: widths of the columns in characters; changed for columns that are cut.
        right: whether each is aligned to the right: a number, which is never cut.
        style: style that has the width.
    """
    width = style.width

    def taken(columns: Sequence[int]) -> int:
        return sum(columns) + len(_GAP) * (len(columns) - 1)

    cut_to = list(wide)
    for at in sorted((at for at, flag in enumerate(right) if not flag), key=lambda at: -wide[at]):
        excess = max(0, taken(cut_to) - width)
        cut_to[at] = min(wide[at], max(_MIN_WIDTH, wide[at] - excess))
    if taken(cut_to) <= width:
        wide[:] = cut_to
    if taken(wide) <= width or not style.terminal:
        return [list(range(len(wide)))]
    if not right[0]:
        wide[0] = min(wide[0], width // 2)
    parts = [[0]]
    for at in range(1, len(wide)):
        if not right[at]:
            wide[at] = min(wide[at], width - taken([wide[0], 0]))
        if len(parts[-1]) > 1 and taken([wide[each] for each in (*parts[-1], at)]) > width:
            parts.append([0])
        parts[-1].append(at)
    return parts


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return CSV: a line of column names, and a line for each row of values.

    Unknown values and NaN are empty cells. A text that a spreadsheet would read as a formula is
    preceded by an apostrophe, which spreadsheets do not show.
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
# Writing results to files: paths are checked before measuring, files are replaced in one step.
#
# A run can take an hour, which a typing error in the path must not waste; and a crash while writing
# must not leave half a file in the place of a good one.

STDOUT = "-"
# Names from the command line may contain bytes that are no text; JSON has this notation, too.
_ERRORS = "backslashreplace"


def check_writable(option: str, target: str) -> None:
    """Check that ``target`` can be written later, and leave no file behind.

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
        # access() does not detect read-only or full file systems.
        probe = _open_beside(path)
        os.close(probe[0])
        probe[1].unlink()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a symbolic-link loop
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
        # Documents are UTF-8, whatever the terminal's encoding is.
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
            # A device such as /dev/null or a named pipe must not be replaced by a file.
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
    # A link stays a link, and the file that it points to is replaced.
    return user_path(target).resolve()


def _open_beside(path: Path) -> tuple[int, Path]:
    """Create a file in the same folder: replacement is only atomic within a file system."""
    temporary = path.with_name(f".pydlbench-{secrets.token_hex(6)}.tmp")
    # 0o666 less the umask is the usual mode of a new file; mkstemp would use 0o600.
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

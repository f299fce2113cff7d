"""The printers of a report: plain text and Markdown of the same blocks; CSV; where results go."""

from __future__ import annotations

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
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from pydlbench.errors import UsageError, nearest
from pydlbench.report.blocks import Details, Facts, Figure, Heading, Lines, TableBlock, Title
from pydlbench.store.place import user_path
from pydlbench.units import cut, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydlbench.report.blocks import Block

#: Columns of a report that goes into a pipe or a file, and the most that it takes of a terminal.
WIDEST: Final = 150
# What spreadsheets take for the beginning of a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
# A command stands on one line, however long: it is there to be copied.
_COMMANDS: Final = ("next: ", "try: ")
# Columns of words that are cut for want of place keep so many characters at least.
_LEAST: Final = 20
_GAP: Final = "  "
# The label of a command among facts.
_NEXT: Final = "next"


# -----------------------------------------------------------------------------
# Colour and width for terminals only: pipes, ``NO_COLOR`` and dumb terminals get plain text.


@dataclass(frozen=True, slots=True)
class Style:
    """Marks text, or leaves it alone where ``enabled`` is false; and how wide a report may be.

    Attributes:
        enabled: whether there are colours.
        width: columns that lines of text are broken to, and that tables should fit into.
        terminal: whether wider tables go on below; elsewhere a row is a line, however long.
    """

    enabled: bool = False
    width: int = WIDEST
    terminal: bool = False

    @classmethod
    def for_stream(cls, stream: TextIO) -> Self:
        """Return the style that suits ``stream`` (https://no-color.org, https://force-color.org)."""
        forced = bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")
        if not stream.isatty():
            return cls(forced)
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        columns = shutil.get_terminal_size((WIDEST, 24)).columns
        return cls(forced or not plain, min(WIDEST, columns), terminal=True)

    def bold(self, text: str) -> str:
        """Mark what is to be read first."""
        return f"\033[1m{text}\033[0m" if self.enabled else text

    def alarm(self, text: str) -> str:
        """Mark what went wrong."""
        return f"\033[31m{text}\033[0m" if self.enabled else text


PLAIN_STYLE = Style()


def as_text(blocks: Iterable[Block], style: Style = PLAIN_STYLE) -> str:
    """Return a report for terminals, pipes and mails; no newline at the end."""
    return "\n\n".join(filter(None, (_block_text(block, style) for block in blocks)))


def as_markdown(blocks: Iterable[Block]) -> str:
    """Return a report as a section that can be pasted into a page; ends in a newline."""
    return "\n\n".join(filter(None, map(_block_markdown, blocks))) + "\n"


def wrapped(line: str, width: int = WIDEST) -> list[str]:
    """Return a line broken between words; what follows is indented under it.

    A command is not broken, and neither is what has no blank.
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


def _block_text(block: Block, style: Style) -> str:
    if isinstance(block, TableBlock):
        return _table_text(block, style) if block.cells else ""
    if isinstance(block, Facts):
        return _facts_text(block, style)
    if isinstance(block, Title):
        return style.bold(block.text)
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
        # Markdown's tables have no rows across all columns: there is a table below each line.
        begins = sorted({0, *block.above})
        parts = []
        for begin, end in pairwise([*begins, len(cells)]):
            parts += [f"**{markdown_text(block.above[begin])}**"] if begin in block.above else []
            parts.append(markdown_table(titles, cells[begin:end], right))
        return "\n\n".join(parts) if cells else ""
    if isinstance(block, Title):
        return f"### {markdown_text(block.text)}" if block.text else ""
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
    """Return which columns stand beside each other so that they fit into a width.

    Where it is enough, columns of words are cut, the widest first. Where it is not, nothing is cut,
    and columns go on below the others, behind the first one, on a terminal.

    Args:
        wide: characters of each column; changed where columns are cut.
        right: whether each is aligned to the right: a number, which is never cut.
        style: has the width.
    """
    width = style.width

    def taken(columns: Sequence[int]) -> int:
        return sum(columns) + len(_GAP) * (len(columns) - 1)

    cut_to = list(wide)
    for at in sorted((at for at, flag in enumerate(right) if not flag), key=lambda at: -wide[at]):
        excess = max(0, taken(cut_to) - width)
        cut_to[at] = min(wide[at], max(_LEAST, wide[at] - excess))
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

"""From what a user types (names, globs, descriptors, ``@file``) to layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError
from pydlbench.layers.descriptor import check_pool, looks_like_problem, parse_problem
from pydlbench.layers.names import find_named, with_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.layers.layer import Layer

__all__ = ["find_layers"]

# A line up to its comment: a "#" behind a blank, unless in a quoted name.
_CONTENT: Final = re.compile(r'(?:"[^"]*"|(?<!\s)#|[^#])*')
_LARGEST_FILE: Final = 1 << 20  # characters; more is not a list of layers but the wrong file


def find_layers(
    patterns: Sequence[str],
    batch: int | None = None,
    pool: str | None = None,
    *,
    option: str = "--shape",
) -> list[Layer]:
    """Return the layers that ``patterns`` stand for, in their order, each only once.

    Args:
        patterns: Names (``conv3``, ``vgg16/conv3_2``, ``vgg16``), globs (``vgg16/*``), descriptors,
            or ``@file`` with one of these per line (``#`` starts a comment).
        batch: The batch of all layers, whatever the catalog or a descriptor says; None leaves it.
        pool: What pooling does in descriptors without ``oc``; see :func:`parse_problem`.
        option: What an error message shows before the offending pattern; empty for nothing.

    Raises:
        UsageError: One line naming the pattern (and the line of the file), the reason and the
            nearest valid choice.
    """
    check_pool(pool)
    if batch is not None and batch < 1:
        raise UsageError(f"--batch {batch}: too small; at least 1")
    found: dict[Layer, None] = {}
    for pattern, where in _expand(patterns, option):
        try:
            found.update(dict.fromkeys(_resolve(pattern, batch, pool)))
        except UsageError as error:
            raise UsageError(f"{where}{error}") from None
    return list(found)


def _resolve(pattern: str, batch: int | None, pool: str | None) -> list[Layer]:
    if not looks_like_problem(pattern):
        return find_named(pattern, batch)
    return [with_batch(parse_problem(pattern, pool=pool), batch)]


def _expand(patterns: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    """Yield each pattern, files expanded, with what an error says before it."""
    prefix = f"{option} " if option else ""
    for given in patterns:
        pattern = given.strip()
        if not pattern:
            raise UsageError(f"{prefix}{given!r}: no layer; expected a name, such as conv3")
        if not pattern.startswith("@"):
            yield pattern, prefix
            continue
        name = pattern[1:]
        lines = list(_read_lines(name, f"{prefix}{pattern}"))
        if not lines:
            raise UsageError(f"{prefix}{pattern}: no layers in it; expected one per line")
        for number, line in lines:
            if line.startswith("@"):
                raise UsageError(
                    f"{name}:{number}: {line}: a file inside a file; expected a name or descriptor"
                )
            yield line, f"{name}:{number}: "


def _read_lines(name: str, shown: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither empty nor comments, with their numbers."""
    try:
        with Path(name).open(encoding="utf-8-sig") as file:
            text = file.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{shown}: {reason}; expected a text file, one layer per line") from None
    if len(text) > _LARGEST_FILE:
        raise UsageError(f"{shown}: too long for a list of layers; at most {_LARGEST_FILE} bytes")
    for number, line in enumerate(text.splitlines(), start=1):
        content = _CONTENT.match(f" {line}")
        if content and (stripped := content.group().strip()):
            yield number, stripped

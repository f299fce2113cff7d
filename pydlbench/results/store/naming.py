"""How people name runs: ``last``, beginnings of ids, tags."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

__all__ = ["check_tag", "chosen", "short_id"]

_LAST: Final = re.compile(r"last(?:~([0-9]{1,9}))?")
_TAG: Final = re.compile(r"[\w.+@][\w.+@:-]{0,63}")
_SHORTEST: Final = 4


def chosen(text: str, ids: Sequence[str], tags: Collection[str], path: Path) -> str:
    """Return the id that is meant by an id, its beginning, or ``last``.

    Args:
        text: what was given.
        ids: newest first.
        tags: for the message.
        path: of the store, for the message.

    Raises:
        UsageError: none is meant, or several are.
    """
    if text in ids:
        return text
    if not ids:
        raise UsageError(f"run {text}: no runs in {path} yet; begin with: pydlbench layers")
    if found := _LAST.fullmatch(text):
        back = int(found[1] or 0)
        if back >= len(ids):
            count = "is 1 run" if len(ids) == 1 else f"are {len(ids)} runs"
            raise UsageError(f"run {text}: there {count} only; nearest: last~{len(ids) - 1}")
        return ids[back]
    meant = _beginning(text, ids)
    if len(meant) == 1:
        return meant[0]
    if meant:
        few = ", ".join(meant[:4]) + ("..." if len(meant) > 4 else "")
        raise UsageError(f"run {text}: {len(meant)} runs begin so: {few}; give more of it")
    near = nearest(text, [*tags, *ids, *map(_tail, ids)]) or ["last"]
    text = text or "''"
    raise UsageError(f"run {text}: no such run; nearest: {', '.join(near)}; see: pydlbench runs")


def short_id(name: str, ids: Sequence[str]) -> str:
    """Return the shortest end of an id, from behind its dash, that means this run only."""
    tail = _tail(name)
    for length in range(_SHORTEST, len(tail)):
        if _beginning(tail[:length], ids) == [name]:
            return tail[:length]
    return tail if _beginning(tail, ids) == [name] else name


def check_tag(tag: str) -> None:
    """Refuse a tag that would be taken for something else.

    Raises:
        UsageError: it has blanks, is too long, or is what ``find`` means otherwise.
    """
    if not _TAG.fullmatch(tag):
        plain = re.sub(r"[^\w.+@:-]+", "-", tag).strip("-:")[:64] or "baseline"
        raise UsageError(
            f"tag {tag!r}: up to 64 letters, digits and . _ + @ : - only; nearest: {plain}"
        )
    if _LAST.fullmatch(tag):
        raise UsageError(f"tag {tag}: means the newest run; nearest: {tag}-one")
    if tag.endswith(".json") and tag != ".json":
        raise UsageError(f"tag {tag}: means a file; nearest: {tag[:-5]}-json")


def _beginning(text: str, ids: Sequence[str]) -> list[str]:
    if not text:
        return []
    return [name for name in ids if name.startswith(text) or _tail(name).startswith(text)]


def _tail(name: str) -> str:
    return name.rpartition("-")[2]

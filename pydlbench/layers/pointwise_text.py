"""Reading memory-bound layers: ``relu:mb128ic96ih55``, ``concat:mb32ic64+128+32ih28``.

The operation and a colon, then fields in benchdnn's manner, in any order, ``_`` ignored: ``mb``
batch, ``ic`` channels (of each source, joined by ``+``, where images are), ``ih`` ``iw`` sides, the
operation's parameters (``ls11``, ``alpha0.0011``, ``eps0.001``, ``lr0.01`` and so on), and a name
``n"..."`` at the end. A missing width takes the height's value, and without both they are one.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pydlbench.errors import nearest
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pointwise_ops import OPERATIONS, SPELLINGS
from pydlbench.layers.real_numbers import read_real
from pydlbench.layers.scan import malformed, read_name, read_number

__all__ = ["looks_like_pointwise", "parse_pointwise"]

# A colon between digits belongs to a matrix product, and one behind n" to a name.
_START: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*:")
_SIZES: Final = {"mb": "batch", "ic": "channels", "ih": "height", "iw": "width", "ls": "local_size"}


def looks_like_pointwise(text: str) -> bool:
    """Whether ``text`` starts with an operation (perhaps a misspelt one) and a colon."""
    return _START.match(text) is not None


def parse_pointwise(text: str, *, batch: int = 1) -> Pointwise:
    """Read a memory-bound layer.

    Args:
        text: ``op:fields``.
        batch: The batch where there is no ``mb``, and where the operation has one.

    Raises:
        UsageError: Malformed (with the position), or a layer that cannot be.
    """
    op, _, _ = text.partition(":")
    if op not in OPERATIONS:
        choices = ", ".join(nearest(op, OPERATIONS) or OPERATIONS)
        raise malformed(0, f"expected an operation; nearest: {choices}", op)
    values, name = _scan(text, op)
    if "channels" not in values:
        raise malformed(len(text), "expected ic (channels), which is missing", "")
    if not OPERATIONS[op].of_weights:
        values.setdefault("batch", batch)
    values.setdefault("width", values.get("height", 1))
    return Pointwise(op=op, name=name, **values)


def _scan(text: str, op: str) -> tuple[dict[str, Any], str | None]:
    """Return the layer's fields behind the operation, and its name."""
    own = {SPELLINGS[field]: field for field in OPERATIONS[op].parameters if field in SPELLINGS}
    known = {**_SIZES, **own}
    if "ls" not in own:
        del known["ls"]
    values: dict[str, Any] = {}
    position = len(op) + 1
    while position < len(text):
        if text[position] == "_":
            position += 1
            continue
        if text[position] == "n":
            return values, read_name(text, position)
        spelling = next((one for one in known if text.startswith(one, position)), None)
        if spelling is None:
            raise malformed(position, f"expected a field ({' '.join(known)} n)", text[position:])
        field = known[spelling]
        if field in values:
            raise malformed(position, f"expected {spelling} only once", text[position:])
        start = position + len(spelling)
        if op == "concat" and spelling == "ic":
            values["sources"], position = _sources(text, start)
            values["channels"] = sum(values["sources"])
        elif spelling in _SIZES:
            values[field], position = read_number(text, start, spelling, 1)
        else:
            values[field], position = read_real(text, start, spelling)
    return values, None


def _sources(text: str, position: int) -> tuple[tuple[int, ...], int]:
    """Read ``64+128+32``."""
    found = []
    while True:
        channels, position = read_number(text, position, "ic", 1)
        found.append(channels)
        if not text.startswith("+", position):
            break
        position += 1
    if len(found) < 2:
        raise malformed(position, "expected + and the channels of another source", text[position:])
    return tuple(found), position

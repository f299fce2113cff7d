"""The grammar of descriptors, the same as in benchdnn.

A descriptor consists of the op's prefix (none for convolutions, poolings and products), the shapes
of operands for ops that are defined by them (``12x128x64:12x64x128``), fields in any order, each a
spelling and a value, with optional ``_`` between them, and a name ``n"..."`` at the end, which may
be empty. If a field is given twice, the last value counts.

A field of windows has a value for each side: ``id`` ``ih`` ``iw``. Fewer letters mean fewer sides.
A side without a kernel takes missing values from the side before (``kw`` from ``kh``, ``kh`` from
``kd``). A side with a kernel has defaults: stride 1, no dilation, and the padding that follows from
the output's size, or none. The kernel of the first side is 1 by default.
"""

import math
import re
from typing import Any, Final

from pydlbench.errors import UsageError
from pydlbench.ops.op import REQUIRED, SIDES, Field, Op, Sizes

_NUMBER: Final = re.compile(r"[0-9]+")
_SIGNED: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?")
_DIGITS: Final = 19  # maximum number of digits; 2**63 has nineteen


def malformed(position: int, expected: str, text: str) -> UsageError:
    """Return the error for the character at ``position`` (from 0; printed from 1)."""
    if len(text) > 12:
        text = text[:12] + "..."
    got = f"got {text!r}" if text else "got the end"
    return UsageError(f"column {position + 1}: {expected}; {got}")


def read(op: Op, text: str, position: int) -> tuple[dict[str, Any], str | None]:
    """Parse the part of a descriptor after the op's prefix.

    Returns:
        Values by field, and the name.

    Raises:
        UsageError: The text is malformed; names the position.
    """
    values: dict[str, Any] = {}
    has_shape = text[position : position + 1].isdecimal()
    if op.operands is not None and (op.operands.minimum or has_shape):
        tensors, position = _read_shapes(op, text, position)
        values = op.operands.read(op, tensors)
    fields, name = _read_fields(op, text, position)
    values |= fields
    if op.sided:
        values |= _fill_sides(op, values, len(text))
    op.merge(values)
    for field in op.fields:
        if field.default is REQUIRED and field.spelling and field.name not in values:
            raise _missing(field, field.spelling, len(text))
    return values, name


def _read_fields(op: Op, text: str, position: int) -> tuple[dict[str, Any], str | None]:
    """Return values by field, for fields with sides by side, and the name."""
    values: dict[str, Any] = {}
    fields = _spellings(op)
    while position < len(text):
        if text[position] == "_":
            position += 1
            continue
        if text[position] == "n":
            return values, _read_name(text, position)
        spelling = next(
            (spelling for spelling in fields if text.startswith(spelling, position)), None
        )
        if spelling is None:
            known = " ".join((*op.spellings, "n"))
            expected = f"x, : or a field ({known})" if op.operands else f"a field ({known})"
            raise malformed(position, f"expected {expected}", text[position:])
        field, side = fields[spelling]
        value, position = _read_value(field, spelling, text, position + len(spelling))
        if side:
            values.setdefault(field.name, {})[side] = value
        else:
            values[field.name] = value
    return values, None


def _spellings(op: Op) -> dict[str, tuple[Field, str]]:
    """Return fields and sides by spelling, longer ones first."""
    fields = {
        field.spelling + side: (field, side)
        for field in (*op.fields, *op.other_fields)
        if field.spelling
        for side in (SIDES if field.type == "sides" else ("",))
    }
    return dict(sorted(fields.items(), key=lambda item: -len(item[0])))


def _missing(field: Field, spelling: str, position: int) -> UsageError:
    meaning = field.name.replace("_", " ")
    return malformed(position, f"expected {spelling} ({meaning}), which is missing", "")


def _read_value(field: Field, spelling: str, text: str, position: int) -> tuple[Any, int]:
    if field.type in ("real", "signed"):
        return _read_real(text, position, spelling, signed=field.type == "signed")
    if field.type == "word":
        choice = next(
            (choice for choice in field.choices if text.startswith(choice, position)), None
        )
        if choice is None:
            expected = f"expected one of {', '.join(field.choices)}"
            raise malformed(position, expected, text[position:])
        return choice, position + len(choice)
    if field.type == "order":
        match = _NUMBER.match(text, position)
        if match is None:
            raise malformed(
                position, "expected an order of dimensions, such as 10", text[position:]
            )
        return tuple(map(int, match.group())), match.end()
    number, position = read_number(text, position, spelling, field.minimum - field.offset)
    if field.type != "sum":
        return number + field.offset, position
    numbers = [number]
    while text.startswith("+", position):
        number, position = read_number(text, position + 1, spelling, field.minimum)
        numbers.append(number)
    if len(numbers) < 2:
        raise malformed(position, f"expected + and the {spelling} of another", text[position:])
    return tuple(numbers), position


def read_number(text: str, position: int, field: str, least: int) -> tuple[int, int]:
    """Parse the number at ``position``.

    Returns:
        The number and the position after it.

    Raises:
        UsageError: There is no number, or it is below ``least`` or above 63 bits.
    """
    match = _NUMBER.match(text, position)
    if match is None:
        signed = _SIGNED.match(text, position)
        written = signed.group() if signed else text[position:]
        raise malformed(position, f"expected a whole number for {field}, at least {least}", written)
    digits = match.group().lstrip("0") or "0"
    if len(digits) > _DIGITS:
        raise malformed(position, f"expected {field} below 2**63", match.group())
    number = int(digits)
    if number < least:
        raise malformed(position, f"expected {field} of at least {least}", match.group())
    return number, match.end()


def _read_real(text: str, position: int, field: str, *, signed: bool) -> tuple[float, int]:
    match = _SIGNED.match(text, position)
    if match is None or (not signed and match.group()[0] in "+-"):
        least = "" if signed else ", at least 0"
        raise malformed(position, f"expected a number for {field}{least}", text[position:])
    number = float(match.group())
    if not math.isfinite(number):
        raise malformed(position, f"expected a finite number for {field}", match.group())
    return number, match.end()


def _read_name(text: str, position: int) -> str | None:
    """Read ``n"..."`` or ``n...`` (a shell removes the quotes), which ends a descriptor."""
    start = position + 1
    if not text.startswith('"', start):
        return text[start:] or None
    end = text.find('"', start + 1)
    if end < 0:
        raise malformed(len(text), "expected the closing quote of the name", "")
    if end + 1 < len(text):
        raise malformed(end + 1, "expected nothing after the name", text[end + 1 :])
    return text[start + 1 : end] or None


def _read_shapes(op: Op, text: str, position: int) -> tuple[list[Sizes], int]:
    """Parse ``8x128:1x128``: return the sizes of each operand, and the position after them."""
    assert op.operands is not None
    tensors: list[Sizes] = []
    separator = ":"
    while separator == ":" and len(tensors) < op.operands.maximum:
        sizes: Sizes = []
        separator = "x"
        while separator == "x":
            size, end = read_number(text, position, "a size", 1)
            sizes.append((size, position))
            separator, position = text[end : end + 1], end + 1
        if len(sizes) < op.operands.dimensions:
            raise malformed(position - 1, "expected x and another size", text[position - 1 :])
        tensors.append(sizes)
    position -= 1
    if len(tensors) < op.operands.minimum:
        raise malformed(position, f"expected : and shape {len(tensors) + 1}", text[position:])
    return tensors, position


def _fill_sides(op: Op, values: dict[str, Any], end: int) -> dict[str, Any]:
    """Return fields with sides as tuples, with missing values filled in."""
    given = {field.name: values.get(field.name, {}) for field in op.sided}
    first = min((SIDES.index(side) for sides in given.values() for side in sides), default=1)
    sides = SIDES[first:]
    filled: dict[str, list[int | None]] = {}
    windows = given.get("kernel", {})
    # The output size of the side before is used only if the sides agree in all other fields.
    for field in sorted(op.sided, key=lambda field: field.name == op.output):
        own = given[field.name]
        if field.default is REQUIRED and not own:
            raise _missing(field, field.spelling + sides[0], end)
        by_side: list[int | None] = []
        for number, side in enumerate(sides):
            before = by_side[-1] if by_side else None
            if field.name == op.output and number:
                alike = all(entries[number] == entries[number - 1] for entries in filled.values())
                before = before if alike and side not in windows else None
            elif not by_side or (side in windows and field.default is not REQUIRED):
                before = 1 if field.default is REQUIRED else field.default
            by_side.append(own.get(side, before))
            if by_side[-1] is None and field.default is REQUIRED:
                raise _missing(field, field.spelling + side, end)
        filled[field.name] = by_side
    return {name: tuple(by_side) for name, by_side in filled.items()}

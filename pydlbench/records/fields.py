"""Header, unit and format of a record's fields: declared at the field, read by every printer.

A field carries its unit, its header and its format as metadata::

    tflops: Annotated[float | None, shown("TFLOP/s", number, unit="TFLOP/s")] = None

A property has them at its return type. A table is a list of records and the names of fields; the
columns of CSV and Parquet files are the record's fields, and the JSON Schema has the units.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from pydlbench.records.record import Record

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a field is printed.

    Attributes:
        header: title of its column; a function of the table's rows if it depends on them.
        text: formats a value; an unknown value is printed as a dash.
        unit: ``s``, ``Hz``, ``FLOP``, ``B``...; empty for words and pure numbers.
        right: whether the column is aligned to the right.
        when: tells whether a table of these rows needs the column; None: if some row has a value.
        varies: whether a table needs the column only if its rows differ in this field: a shared
            value stands above the table.
        keys: keys of a mapping that have columns in CSV and Parquet files.
    """

    header: str | Callable[[Sequence[Any]], str] = ""
    text: Callable[[Any], str] = str
    unit: str = ""
    right: bool = True
    when: Callable[[Sequence[Any]], bool] | None = None
    varies: bool = False
    keys: tuple[str, ...] = ()


def shown(
    header: str | Callable[[Sequence[Any]], str] = "",
    text: Callable[[Any], str] = str,
    *,
    unit: str = "",
    right: bool = True,
    when: Callable[[Sequence[Any]], bool] | None = None,
    varies: bool = False,
    keys: str = "",
) -> Any:
    """Return a field's metadata; see :class:`Shown`. The keys are separated by blanks."""
    declaration = Shown(
        header=header,
        text=text,
        unit=unit,
        right=right,
        when=when,
        varies=varies,
        keys=tuple(keys.split()),
    )
    return msgspec.Meta(
        extra={"shown": declaration}, extra_json_schema={"unit": unit} if unit else None
    )


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a table.

    Attributes:
        title: header of the column.
        cell: the text of a row's cell.
        right: whether the column is aligned to the right.
        value: sort key of a row in a page; None sorts by the text.
    """

    title: str
    cell: Callable[[Row], str]
    right: bool = True
    value: Callable[[Row], float | None] | None = None


def columns_of(
    rows: Sequence[Row], names: str, *, seconds: Callable[[float], str] | None = None
) -> list[Column[Row]]:
    """Return the columns of some fields, without those that the rows do not need.

    Args:
        rows: records of one type.
        names: names of fields, properties and keys of mappings, separated by blanks:
            ``layer time.median passes.forward``. ``=`` adds another header, in which ``_`` is a
            blank: ``of_theoretical=theory``. ``ci_low..ci_high`` is one column of both, under
            the first one's header.
        seconds: formats fields whose unit is ``s``, so that a table has one unit of time; None
            keeps each field's format.
    """
    record: Any = type(rows[0]) if rows else None
    columns = []
    for word in names.split() if rows else ():
        name, _, header = word.partition("=")
        field = declared(record, name.partition("..")[0])
        if header:
            field = replace(field, header=header.replace("_", " "))
        if field.when(rows) if field.when is not None else _needed(name, rows, field.varies):
            columns.append(_column(name, field, rows, seconds))
    return columns


def _needed(path: str, rows: Sequence[Any], varies: bool) -> bool:
    first = path.partition("..")[0]
    known = {str(value) for row in rows if (value := value_of(row, first)) not in (None, "")}
    return len(known) > varies


def value_of(row: Any, path: str) -> Any:
    """Return the value at a dotted path of fields and keys, ``time.median``; None if missing."""
    for name in path.split("."):
        if row is not None:
            row = row.get(name) if isinstance(row, Mapping) else getattr(row, name)
    return row


def _column(
    path: str, field: Shown, rows: Sequence[Any], seconds: Callable[[float], str] | None
) -> Column[Any]:
    text = seconds if seconds is not None and field.unit == "s" else field.text

    first, *last = path.split("..")

    def cell(row: Any) -> str:
        values = [value_of(row, end) for end in (first, *last)]
        return "-" if None in values else " .. ".join(map(text, values))

    def number(row: Any) -> float | None:
        value = value_of(row, first)
        return value if isinstance(value, (int, float)) else None

    header = field.header if isinstance(field.header, str) else field.header(rows)
    return Column(header, cell, field.right, number)


@functools.cache
def declared(record: type, path: str) -> Shown:
    """Return the declaration of a field or property, given as a dotted path.

    The values of a mapping have the mapping's declaration.

    Raises:
        LookupError: the field has no declaration.
    """
    name, _, rest = path.partition(".")
    kind = _types(record)[name]
    if rest and get_origin(_inner(kind)) is not Mapping:
        return declared(_inner(kind), rest)
    return next(_shown(kind))


@functools.cache
def _types(record: type) -> dict[str, Any]:
    """Return the types of a record's fields and properties, with their metadata."""
    types = get_type_hints(record, include_extras=True)
    for base in reversed(record.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, property) and value.fget is not None:
                types[name] = get_type_hints(value.fget, include_extras=True).get("return")
    return types


def _shown(kind: Any) -> Iterator[Shown]:
    if get_origin(kind) is Annotated:
        for meta in kind.__metadata__:
            extra = meta.extra if isinstance(meta, msgspec.Meta) else None
            if extra and isinstance(declaration := extra.get("shown"), Shown):
                yield declaration


def _inner(kind: Any) -> Any:
    """Return a field's type without its metadata and without None."""
    if get_origin(kind) is Annotated:
        return _inner(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return next(_inner(choice) for choice in get_args(kind) if choice is not NoneType)
    return kind


def flat_names(record: type[Record], before: str = "") -> Iterator[str]:
    """Yield the columns of CSV and Parquet files: a record's fields, and those of nested records.

    A field that may be omitted has a column only if it is declared with a unit.
    """
    fields = dict(zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True))
    for field, name in (fields | {name: name for name in record.derived}).items():
        kind = _types(record)[field]
        declarations = list(_shown(kind))
        inner, keys = _inner(kind), [key for known in declarations for key in known.keys]
        hidden = field in record.unlisted or (
            field in record.omitted and not any(known.unit for known in declarations)
        )
        if field in record.embedded:
            yield from flat_names(inner, before)
        elif hidden or (inner in _NO_CELL and not keys):
            continue
        elif isinstance(inner, type) and issubclass(inner, Record):
            yield from flat_names(inner, f"{before}{name}_")
        else:
            yield from (f"{before}{name}_{key}" for key in keys)
            yield from () if keys else (f"{before}{name}",)


# Types of fields without a column in CSV: samples, rounds, and mappings of arbitrary values.
_NO_CELL = (tuple[float, ...], Mapping[int, float], Mapping[str, Any])

"""The base class of all records, and how their fields are shown.

A record's JSON object has its fields under their names, or under those that ``rename`` gives them
(``pass_`` is ``pass``), and values that are computed from them. Fields are added, never renamed;
a change of meaning raises the document's version (:data:`SCHEMA_VERSIONS`). The schemas that
``export --schema`` prints are made from the same classes and their docstrings, see
:mod:`pydlbench.records.schema`.

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
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

#: Version of the documents that commands write.
SCHEMA_VERSION: Final = 1
#: Versions of documents of which a field has changed its meaning, by command.
SCHEMA_VERSIONS: Final[Mapping[str, int]] = {"sweep": 2}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen struct with its JSON object.

    :func:`msgspec.structs.replace` returns a record with some fields changed.

    Attributes:
        derived: properties that follow the fields in the JSON object; not read back.
        omitted: fields that are left out of the object if they are None.
        unlisted: fields that are never in the object.
        promised: names that every version has, although they have a default or are derived.
        embedded: fields whose own fields are merged into the object, before the record's.
        rules: additional keywords of the object's JSON Schema.
        notebook: renders a record as ``markdown`` or ``html``; None if there is no renderer. Set
            by the package, because reports are a layer that records may not import.
    """

    derived: ClassVar[tuple[str, ...]] = ()
    omitted: ClassVar[tuple[str, ...]] = ()
    unlisted: ClassVar[tuple[str, ...]] = ()
    promised: ClassVar[tuple[str, ...]] = ()
    embedded: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[Mapping[str, Any]] = {}
    notebook: ClassVar[Callable[[Record, str], str | None]] = lambda *_: None

    def _repr_markdown_(self) -> str | None:
        return type(self).notebook(self, "markdown")

    def _repr_html_(self) -> str | None:
        return type(self).notebook(self, "html")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        document: dict[str, Any] = {}
        for name in self.embedded:
            document |= plain(getattr(self, name))
        for name, key in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            absent = name in self.omitted and value is None
            if not (absent or name in self.embedded or name in self.unlisted):
                document[key] = plain(value)
        return document | {name: plain(getattr(self, name)) for name in self.derived}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read :meth:`to_dict`'s object back; unknown names are ignored.

        A null counts as absent if the field has a default: documents have null for NaN, and other
        writers for what they do not know.

        Raises:
            ValueError: a required name is missing, or a value is not of its type.
        """
        # Not strict: writers of JSON may give a whole number as 1.0.
        return msgspec.convert(_known(cls, data), cls, strict=False, str_keys=True)


def _known(record: type[Record], data: Any) -> Any:
    """Return a record's JSON object as msgspec reads it: embedded objects as fields, no nulls."""
    if not isinstance(data, Mapping):  # already a record, or an error that msgspec reports
        return data
    optional, inner = _fields(record)
    values = {
        name: value for name, value in data.items() if value is not None or name not in optional
    }
    values |= {name: data for name in record.embedded if name not in values}
    for name, kind in inner.items():
        value = values.get(name)
        if isinstance(value, (list, tuple)):
            values[name] = [_known(kind, item) for item in value]
        elif value is not None:
            values[name] = _known(kind, value)
    return values


@functools.cache
def _fields(record: type[Record]) -> tuple[frozenset[str], dict[str, type[Record]]]:
    """Return the JSON names of a record's fields with defaults, and of those that hold records."""
    fields = msgspec.structs.fields(record)
    inner = {
        field.encode_name: kind for field in fields if (kind := _record_in(field.type)) is not None
    }
    return frozenset(field.encode_name for field in fields if not field.required), inner


def _record_in(kind: Any) -> type[Record] | None:
    """Return the record class in a field's type: itself, or in a union or a list."""
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind
    if get_origin(kind) in (Mapping, dict):
        return None
    return next(filter(None, map(_record_in, get_args(kind))), None)


def plain(value: Any) -> Any:
    """Turn records, tuples, sets and mappings into the types that JSON has."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return sorted(value) if isinstance(value, frozenset) else value


def one_of(*words: str) -> Any:
    """Return schema metadata: the text is one of some words.

    Reading accepts other words: a later version may have more of them.
    """
    return msgspec.Meta(extra_json_schema={"enum": list(words)})


def version(kind: str) -> msgspec.Meta:
    """Return schema metadata: the version of a command's documents."""
    return msgspec.Meta(extra_json_schema={"const": SCHEMA_VERSIONS.get(kind, SCHEMA_VERSION)})


class Document(Record, frozen=True, kw_only=True):
    """A document that a command writes with ``--json``.

    Attributes:
        schema_version: raised when the meaning of a field changes; fields are added without.
    """

    schema_version: Annotated[int, version("")]


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

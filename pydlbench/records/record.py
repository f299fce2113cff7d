"""The base class of all records: frozen structs, converted to and from JSON objects.

A record's JSON object has its fields under their names, or under those that ``rename`` gives them
(``pass_`` is ``pass``), and values that are computed from them. Fields are added, never renamed;
a change of meaning raises the document's version (:data:`SCHEMA_VERSIONS`). The schemas that
``export --schema`` prints are made from the same classes and their docstrings, see
:mod:`pydlbench.records.schema`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Self, get_args, get_origin

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

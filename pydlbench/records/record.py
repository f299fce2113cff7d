"""What all records have in common: frozen structs, and their way to and from JSON.

A record's JSON object has its fields under their names, or under those that ``rename`` gives them
(``pass_`` is ``pass``), and values that are computed from them. Fields are added and never renamed;
a change of meaning raises the
document's version (:data:`SCHEMA_VERSIONS`). The schemas that ``export --schema`` prints are
made of the same classes and their docstrings, see :mod:`pydlbench.records.schema`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Self, get_args, get_origin

import msgspec

#: Of a document that a command writes.
SCHEMA_VERSION: Final = 1
#: Of those whose fields mean something else than they once did, by the command.
SCHEMA_VERSIONS: Final[Mapping[str, int]] = {"sweep": 2}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen struct with its JSON object.

    :func:`msgspec.structs.replace` returns a record with some fields changed.

    Attributes:
        derived: properties that stand in the JSON object behind the fields; not read back.
        omitted: fields that are left out of it where they are None.
        unlisted: fields that it never has.
        promised: what it has in every version, although it has a default or is derived.
        embedded: fields whose objects' fields stand in the object itself, before its own.
        rules: keywords that the object's JSON Schema has besides.
        notebook: shows a record as ``markdown`` or ``html``; None where nobody can. Reports are
            made below, in the flow of data: the package sets it when it gives a function out.
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

        A null where a field has a default is as good as no such name: documents have null for a
        number that was none, and other writers for all that they do not know.

        Raises:
            ValueError: a required name is missing, or a value is not of its type.
        """
        # Not strict: writers of JSON may give a whole number as 1.0.
        return msgspec.convert(_known(cls, data), cls, strict=False, str_keys=True)


def _known(record: type[Record], data: Any) -> Any:
    """Return a record's JSON object as msgspec reads it: embedded objects as fields, no nulls."""
    if not isinstance(data, Mapping):  # a record already; or wrong, which msgspec says
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
    """Return the names in JSON of a record's fields with defaults, and of those with records."""
    fields = msgspec.structs.fields(record)
    inner = {
        field.encode_name: kind for field in fields if (kind := _record_in(field.type)) is not None
    }
    return frozenset(field.encode_name for field in fields if not field.required), inner


def _record_in(kind: Any) -> type[Record] | None:
    """Return the record that a field's type is, or is a choice or a list of."""
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
    """Return what says in a schema that a text is one of some words.

    Reading does not insist: a later version may know more of them.
    """
    return msgspec.Meta(extra_json_schema={"enum": list(words)})


def version(kind: str) -> msgspec.Meta:
    """Return what says in a schema which version the documents of a command have."""
    return msgspec.Meta(extra_json_schema={"const": SCHEMA_VERSIONS.get(kind, SCHEMA_VERSION)})


class Document(Record, frozen=True, kw_only=True):
    """A document that a command writes with ``--json``.

    Attributes:
        schema_version: raised when the meaning of a field changes; fields are added without.
    """

    schema_version: Annotated[int, version("")]

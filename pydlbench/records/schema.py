"""JSON Schemas (draft 2020-12) of the documents that the commands write with ``--json``.

They are made from the structs: types and names from the fields, descriptions from the docstrings.
Fields may be added without notice, so the schemas accept unknown ones; ``schema_version`` rises
when the meaning of a field changes.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_type_hints

import msgspec

from pydlbench.errors import UsageError, nearest
from pydlbench.records.documents import DOCUMENTS
from pydlbench.records.record import Record

_PLACE: Final = "#/$defs/{name}"
_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
_MARKUP: Final = re.compile(r":\w+:`[~.]*([^`]*)`|``([^`]*)``")


def load_schema(name: str) -> dict[str, Any]:
    """Return a document's schema together with all definitions that it refers to.

    Raises:
        UsageError: no document has this name.
    """
    if name not in DOCUMENTS:
        near = nearest(name, DOCUMENTS, 1)
        hint = f"nearest: {near[0]}; choices" if near else "choices"
        raise UsageError(f"--schema {name}: no such document; {hint}: {', '.join(DOCUMENTS)}")
    document = DOCUMENTS[name]
    _, every = msgspec.json.schema_components((document,), ref_template=_PLACE)
    records = {subclass.__name__: subclass for subclass in _subclasses(Record)}
    for item in set(every) & set(records):
        _complete(item, every, records)
    whole = every.pop(document.__name__)
    used = set(_references(whole))
    for entry in [*every] * len(every):  # as often as the longest chain of references
        if entry in used:
            used |= set(_references(every[entry]))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"pydlbench/{name}.json",
        "title": f"pydlbench {name.replace('-', ' --')} --json",
        **whole,
        "$defs": {backend: every[backend] for backend in every if backend in used},
    }


def schema_text(name: str) -> str:
    """Return :func:`load_schema`'s schema as text, ending in a newline."""
    return json.dumps(load_schema(name), indent=1, ensure_ascii=False) + "\n"


def _complete(
    name: str, every: dict[str, dict[str, Any]], records: Mapping[str, type[Record]]
) -> None:
    """Add the parts of a record that msgspec does not know to its schema, once."""
    schema, record = every[name], records[name]
    if schema.pop("title", None) is None:  # msgspec's title, removed on the first visit
        return
    texts = _attributes(record)
    fields = dict(zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True))
    properties = {key: _short(value) for key, value in schema["properties"].items()}
    for field, key in fields.items():
        if field in texts:
            properties[key]["description"] = texts[field]
    for field in record.derived:
        getter = getattr(record, field).fget
        kind = msgspec.json.schema(get_type_hints(getter)["return"])
        properties[field] = {**_short(kind), "description": _sentence(inspect.getdoc(getter) or "")}
    required = [*schema.get("required", ()), *(fields.get(key, key) for key in record.promised)]
    for field in record.embedded:
        inner = properties.pop(fields[field])["$ref"].rpartition("/")[2]
        _complete(inner, every, records)
        properties = every[inner]["properties"] | properties
        required = [*every[inner]["required"], *required]
    for field in record.unlisted:
        del properties[fields[field]]
    schema["description"] = _sentence(inspect.getdoc(record) or "")
    schema["properties"] = properties
    schema["required"] = [key for key in properties if key in required]
    if record.embedded and "unfinished" in properties:  # a run may end before there is an answer
        always = [key for key in schema["required"] if key in ("schema_version", "run")]
        schema["anyOf"] = [{"required": ["unfinished"]}, {"required": schema["required"]}]
        schema["required"] = always
    schema |= record.rules


def _short(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a property's schema, a union of plain types as a list of them.

    Defaults are left out: an absent field is unknown, whatever value reading gives it.
    """
    short = {name: value for name, value in schema.items() if name != "default"}
    choices = short.get("anyOf", ())
    if choices and all(list(choice) == ["type"] for choice in choices):
        del short["anyOf"]
        short["type"] = [choice["type"] for choice in choices]
    return short


def _attributes(record: type[Record]) -> dict[str, str]:
    """Return the descriptions of a class's fields, from its docstring and those of its bases."""
    texts: dict[str, str] = {}
    for base in reversed(record.__mro__):
        section = (inspect.cleandoc(base.__doc__ or "")).partition("\nAttributes:\n")[2]
        texts |= {name: _plain(text) for name, text in _ATTRIBUTE.findall(section)}
    return texts


def _sentence(text: str) -> str:
    """Return the first paragraph of a docstring."""
    return _plain(text.partition("\n\n")[0])


def _plain(text: str) -> str:
    """Return text of a docstring without markup, on one line."""
    return " ".join(_MARKUP.sub(lambda match: match[1] or match[2], text).split())


def _subclasses(record: type[Record]) -> Iterator[type[Record]]:
    for subclass in record.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _references(value: Any) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        if str(value.get("$ref", "")).startswith("#/$defs/"):
            yield value["$ref"].rpartition("/")[2]
        yield from _references(list(value.values()))

"""JSON Schemas (draft 2020-12) of the documents that the commands write with ``--json``.

Each file beside this one describes a document; ``definitions.json`` holds what several of them
share. Fields may be added without notice, so nothing refuses unknown ones; ``schema_version`` rises
when the meaning of a field changes.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

from pydlbench.errors import UsageError, nearest

__all__ = ["load_schema", "schema_names", "schema_text"]

_SHARED: Final = "definitions"


def schema_names() -> tuple[str, ...]:
    """Return the names of the documents that have a schema."""
    files = resources.files(__name__).iterdir()
    found = (one.name.removesuffix(".json") for one in files if one.name.endswith(".json"))
    return tuple(sorted(name for name in found if name != _SHARED))


def load_schema(name: str) -> dict[str, Any]:
    """Return a document's schema with all that it refers to, so that it stands alone.

    Raises:
        UsageError: there is none of this name.
    """
    names = schema_names()
    if name not in names:
        near = nearest(name, names, 1)
        hint = f"nearest: {near[0]}; choices" if near else "choices"
        raise UsageError(f"--schema {name}: no such document; {hint}: {', '.join(names)}")
    schema = _read(name)
    every = _read(_SHARED)["$defs"]
    used: dict[str, Any] = {}
    waiting = _references(schema)
    while waiting:
        one = waiting.pop()
        if one not in used:
            used[one] = every[one]
            waiting |= _references(every[one])
    if used:
        schema["$defs"] = {one: used[one] for one in every if one in used}
    return schema


def schema_text(name: str) -> str:
    """Return :func:`load_schema`'s schema as text, ending in a newline."""
    return json.dumps(load_schema(name), indent=1, ensure_ascii=False) + "\n"


def _read(name: str) -> dict[str, Any]:
    text = resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _references(value: Any) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
    if isinstance(value, list):
        return set().union(*map(_references, value))
    if not isinstance(value, dict):
        return set()
    target = value.get("$ref", "")
    own = {target.rpartition("/")[2]} if target.startswith("#/$defs/") else set()
    return own.union(*(_references(item) for item in value.values()))

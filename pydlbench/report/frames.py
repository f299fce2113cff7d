"""Records as tables of pandas, Polars and Arrow."""

import importlib
import json
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from pydlbench.errors import BackendMissingError
from pydlbench.records.record import Record, plain

Records = Iterable[Record | Mapping[str, Any]]


def to_pandas(records: Records) -> Any:
    """Return records as a ``pandas.DataFrame``.

    Args:
        records: measurements, steps, breakdowns, or the documents of a store's entries.

    Returns:
        A row for each record, in its units (seconds, FLOP/s, bytes), with fields of nested objects
        as ``time_s.median``. Lists of objects are JSON.

    Raises:
        BackendMissingError: pandas is not installed.
    """
    return _library("to_pandas", "pandas").DataFrame(_rows(records))


def to_polars(records: Records) -> Any:
    """Return records as a ``polars.DataFrame``; see :func:`to_pandas`.

    Raises:
        BackendMissingError: Polars is not installed.
    """
    return _library("to_polars", "polars").DataFrame(_rows(records), infer_schema_length=None)


def to_arrow(records: Records) -> Any:
    """Return records as a ``pyarrow.Table``; see :func:`to_pandas`.

    Raises:
        BackendMissingError: pyarrow is not installed.
    """
    return _library("to_arrow", "pyarrow").Table.from_pylist(_rows(records))


def _library(function: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendMissingError(
            f"{function}: {name} cannot be imported ({error}); get it with: pip install {name}"
        ) from error


def _rows(records: Records) -> list[dict[str, Any]]:
    """Return a flat object for each record, all with the same columns in the same order."""
    flat = [dict(_flat(plain(record))) for record in records]
    columns = dict.fromkeys(name for row in flat for name in row)
    # A column has one type: if one row's list has objects, the empty lists of others are JSON, too.
    nested = {name for name in columns if any(_is_nested(row.get(name)) for row in flat)}

    def value(row: Mapping[str, Any], name: str) -> Any:
        given = row.get(name)
        return json.dumps(given) if name in nested and isinstance(given, list) else given

    return [{name: value(row, name) for name in columns} for row in flat]


def _is_nested(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)


def _flat(document: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value

"""Parquet: the long form as a typed table, where pyarrow is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import BackendMissingError
from pydlbench.results.export_long import LONG_COLUMNS, long_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydlbench.results.records import RunRecord
    from pydlbench.results.store import Entry

__all__ = ["INSTALL", "check_pyarrow", "to_parquet"]

#: The command that gets what is missing.
INSTALL: Final = "pip install pyarrow"


def check_pyarrow() -> None:
    """Make sure that Parquet can be written, before anything is read.

    Raises:
        BackendMissingError: it cannot; with the command that changes it.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - asked whether it is there
    except ImportError as error:
        raise BackendMissingError(
            f"--format parquet: pyarrow cannot be imported ({error}); get it with: {INSTALL}; "
            "nearest: --format long"
        ) from error


def to_parquet(runs: Iterable[tuple[RunRecord, Iterable[Entry]]]) -> bytes:
    """Return the file's bytes; columns are float64, int64, bool or text, and null where unknown.

    Raises:
        BackendMissingError: pyarrow is not installed.
    """
    check_pyarrow()
    import pyarrow as pa
    from pyarrow import parquet

    rows = list(long_rows(runs))
    columns = {name: _column([row.get(name) for row in rows]) for name in LONG_COLUMNS}
    types = {"text": pa.string(), "float": pa.float64()}
    types |= {"int": pa.int64(), "bool": pa.bool_()}
    table = pa.table(
        {name: pa.array(values, type=types[kind]) for name, (kind, values) in columns.items()}
    )
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _column(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the narrowest kind that holds all values, and the values in it."""
    kinds = {type(one) for one in values if one is not None}
    if not kinds or str in kinds:
        return "text", [None if one is None else str(one) for one in values]
    if kinds == {bool}:
        return "bool", list(values)
    if kinds == {int} and all(abs(one) < 1 << 63 for one in values if one is not None):
        return "int", list(values)
    return "float", [None if one is None else float(one) for one in values]

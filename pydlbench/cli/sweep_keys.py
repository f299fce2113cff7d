"""What tells the entries of a sweep apart in the store, so that a later run knows what is there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.backends.case import Case
    from pydlbench.sweep import Job, Row

__all__ = ["asked_for", "kept_kernels", "kernel_key", "kernel_of", "row_key", "same_kernel"]


def row_key(job: Job, row: Row) -> str:
    """Return the key of a row: its table and everything that was asked for.

    The case is in it: two layers of one name may differ in what pooling does.
    """
    case = row.case.to_dict() if hasattr(row.case, "to_dict") else row.case
    return f"{job.kind}/{job.table}/{_digest([dict(row.fields), case])}"


def asked_for(key: str | None) -> bool:
    """Whether a layer's entry is the row of a table; else it is a kernel behind a sum.

    Where keys are not known, as in a file, every row counts.
    """
    return key is None or key.startswith("layers/")


def kernel_key(job: Job, row: Row, case: Case) -> str:
    """Return the key of a kernel that was measured for the sum of a row."""
    return f"{row_key(job, row)}/{same_kernel(job, case)}"


def kernel_of(key: str) -> str | None:
    """Return the key of the estimate that a kernel was measured for; None if it was for none."""
    row = key.rpartition("/")[0]
    return row if key.startswith("model/") and row.count("/") > 1 else None


def same_kernel(job: Job, case: Case) -> str:
    """Return what two measurements of the same kernel have in common, whatever asked for it."""
    nameless = dataclasses.replace(case, layer=dataclasses.replace(case.layer, name=None))
    return _digest([nameless.to_dict(), job.options.get("threads")])


def kept_kernels(done: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the kernels behind sums that an earlier attempt has measured, by ``same_kernel``.

    Args:
        done: table and document of what it has finished, by key.
    """
    return {
        key.rpartition("/")[2]: document
        for key, (table, document) in done.items()
        if table == "layer" and not asked_for(key) and document.get("status") == "ok"
    }


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]

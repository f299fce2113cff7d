"""JSON: one object with the run and its measurements, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydlbench.errors import PydlbenchError
from pydlbench.results.records import SCHEMA_VERSION, Measurement, RunRecord

__all__ = ["dump", "from_json", "to_json"]


def to_json(
    run: RunRecord, measurements: Sequence[Measurement], *, interrupted: bool = False
) -> str:
    """Return the document as text, ending in a newline.

    Infinities and NaN, which JSON lacks, become ``null``.

    Args:
        run: The run.
        measurements: Its rows.
        interrupted: Only a part of what was asked for is there.
    """
    return dump(
        {
            "interrupted": interrupted,
            "run": run.to_dict(),
            "measurements": [measurement.to_dict() for measurement in measurements],
        }
    )


def dump(document: Mapping[str, Any]) -> str:
    """Return an object as text behind its schema version; NaN and infinities become ``null``."""
    full = _finite({"schema_version": SCHEMA_VERSION, **document})
    return json.dumps(full, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> tuple[RunRecord, list[Measurement]]:
    """Read a document back.

    Raises:
        PydlbenchError: It is no such document, or of a newer version whose meaning is unknown.
    """
    try:
        document = json.loads(text)
        version = document["schema_version"]
        if version > SCHEMA_VERSION:
            raise PydlbenchError(
                f"results: schema version {version} is newer than this pydlbench's "
                f"{SCHEMA_VERSION}; update pydlbench"
            )
        rows = [Measurement.from_dict(item) for item in document["measurements"]]
        return RunRecord.from_dict(document["run"]), rows
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PydlbenchError(f"results: not a document of pydlbench ({error!r})") from error


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value

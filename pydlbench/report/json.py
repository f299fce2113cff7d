"""JSON: one object with a run and its results."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydlbench.records.ledger import StepLedger
from pydlbench.records.measurement import Measurement
from pydlbench.records.record import SCHEMA_VERSION, SCHEMA_VERSIONS
from pydlbench.records.run import RunRecord
from pydlbench.store.entry import Entry


def layers_document(
    run: RunRecord,
    measurements: Sequence[Measurement],
    *,
    recorded: StepLedger | None = None,
) -> dict[str, Any]:
    """Return the JSON object of ``layers``.

    Args:
        run: The run.
        measurements: Its rows.
        recorded: The log from which the problems were taken.
    """
    return {
        "kind": "layers",
        "interrupted": False,
        "run": run.to_dict(),
        "measurements": [measurement.to_dict() for measurement in measurements],
        **({} if recorded is None else {"recorded": recorded.to_dict()}),
    }


def dump(document: Mapping[str, Any]) -> str:
    """Return an object with its schema version as text, ending in a newline.

    NaN and infinities, which JSON lacks, become ``null``.
    """
    version = SCHEMA_VERSIONS.get(str(document.get("kind")), SCHEMA_VERSION)
    full = _finite({"schema_version": version, **document})
    return json.dumps(full, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


# -----------------------------------------------------------------------------
# A stored run as one JSON document: as its command wrote it, or by kind of entry for a sweep.

#: Table of the store -> name of its list in the document.
LISTS: Final = {
    "layer": "measurements",
    "estimate": "estimates",
    "step": "steps",
    "agreement": "agreements",
    "protocol": "protocols",
    "breakdown": "breakdowns",
    "findings": "findings",
}
# Commands whose document has only the list of their table.
_ONLY_LIST: Final = ("forecast",)
# Commands that write a single object beside the run, and the table that it is in.
_SINGLE: Final = {"estimate": "estimate", "breakdown": "breakdown", "diagnose": "findings"}


def run_document(
    kind: str,
    run: RunRecord,
    entries: Sequence[Entry],
    *,
    interrupted: bool = False,
    samples: bool = False,
) -> dict[str, Any]:
    """Return a run as a JSON object without its schema version.

    Args:
        kind: the command of the run. The document is the one that the command wrote with
            ``--json``; a sweep, and a run with more entries than its command writes, has all lists
            of :data:`LISTS`.
        run: the run's record.
        entries: entries in the order in which they were finished.
        interrupted: whether the run ended before everything requested was measured.
        samples: whether to include the raw samples of layers.
    """
    lists: dict[str, list[dict[str, Any]]] = {name: [] for name in LISTS.values()}
    for entry in entries:
        name = LISTS.get(entry.table, entry.table)
        lists.setdefault(name, []).append(_plain(entry, samples=samples))
    head: dict[str, Any] = {"kind": kind, "interrupted": interrupted, "run": run.to_dict()}
    if kind == "trace" and len(lists.get(kind, ())) == 1:
        return {**head, "recorded": lists[kind][0]}
    if kind == "layers":
        return {**head, "measurements": lists["measurements"]}
    if kind in _ONLY_LIST:  # other tables' entries are from the store, not results
        return {**head, f"{kind}s": lists.get(kind, [])}
    if kind == "step" and lists["steps"]:
        steps = lists["steps"]
        agreements = lists["agreements"]
        return {**head, "model": steps[0].get("model"), "steps": steps, "agreements": agreements}
    if kind == "step" and len(lists["protocols"]) == 1:
        return {"kind": kind, "run": head["run"], **lists["protocols"][0]}
    single = lists[LISTS[_SINGLE[kind]]] if kind in _SINGLE else []
    if kind == "breakdown":
        return {**head, **(single[0] if len(single) == 1 else {"breakdowns": single})}
    if kind in _SINGLE and not entries:  # the run ended before there was an answer
        return head
    if len(single) == 1:
        rows = {"measurements": lists["measurements"]} if kind == "estimate" else {}
        return {**head, **single[0], **rows}
    return {**head, **lists}


def _plain(entry: Entry, *, samples: bool) -> dict[str, Any]:
    document: Mapping[str, Any] = entry.document
    if samples and entry.samples is not None:
        return {**document, "samples_s": list(entry.samples)}
    if not samples and entry.table == "layer":
        return {name: value for name, value in document.items() if name != "samples_s"}
    return dict(document)

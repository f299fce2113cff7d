"""A stored run as one JSON document: as its command wrote it, or by kind of entry for a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.results.records import RunRecord
    from pydlbench.results.store import Entry

__all__ = ["LISTS", "run_document"]

#: Table of the store -> name of its list in the document.
LISTS: Final = {
    "layer": "measurements",
    "estimate": "estimates",
    "step": "steps",
    "agreement": "agreements",
    "protocol": "protocols",
    "check": "checks",
    "findings": "findings",
}
# Commands that write a single object beside the run, and the table that it is in.
_SINGLE: Final = {"model": "estimate", "check": "check", "diagnose": "findings"}


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
        kind: the command that made it. What that wrote with ``--json`` is what comes out again;
            a sweep, and a run of anything that has more than its command writes, has all of the
            lists of :data:`LISTS`.
        run: when, where, with what.
        entries: in the order in which they were finished.
        interrupted: more was asked for.
        samples: with the raw samples of layers.
    """
    lists: dict[str, list[dict[str, Any]]] = {name: [] for name in LISTS.values()}
    for entry in entries:
        lists[LISTS[entry.table]].append(_plain(entry, samples=samples))
    head: dict[str, Any] = {"interrupted": interrupted, "run": run.to_dict()}
    if kind == "layers":
        return {**head, "measurements": lists["measurements"]}
    if kind == "e2e" and lists["steps"]:
        steps = lists["steps"]
        agreements = lists["agreements"]
        return {**head, "model": steps[0].get("model"), "steps": steps, "agreements": agreements}
    if kind == "e2e" and len(lists["protocols"]) == 1:
        return {"run": head["run"], **lists["protocols"][0]}
    single = lists[LISTS[_SINGLE[kind]]] if kind in _SINGLE else []
    if len(single) == 1:
        return {**head, **single[0], "measurements": lists["measurements"]}
    if kind == "check" and single:
        return {**head, "checks": single, "measurements": lists["measurements"]}
    return {**head, "kind": kind, **lists}


def _plain(entry: Entry, *, samples: bool) -> dict[str, Any]:
    document: Mapping[str, Any] = entry.document
    if samples and entry.samples is not None:
        return {**document, "samples_s": list(entry.samples)}
    if not samples and entry.table == "layer":
        return {name: value for name, value in document.items() if name != "samples_s"}
    return dict(document)

"""What a verdict needs of a store that a node has brought back."""

from __future__ import annotations

import hashlib
import json
import shlex
from typing import TYPE_CHECKING, Any, Final

from pydlbench.compare.match import LAYER_KINDS, describe, key
from pydlbench.compare.rows import Row, side_of
from pydlbench.errors import PydlbenchError, StoreError, UsageError
from pydlbench.records.fleet import FleetVisit
from pydlbench.runner.execute import kernel_of
from pydlbench.store.documents import Loaded
from pydlbench.store.place import cpu_identity, gpu_name, machine_name
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydlbench.records.run import RunRecord

__all__ = ["STEPS", "TABLE", "collected", "gathered", "visit_key"]

#: Of the store: visits of a fleet.
TABLE: Final = "fleet-visit"
#: Kinds of rows that are whole steps of a model.
STEPS: Final = ("step", "estimate", "check measured")
_COMMANDS: Final = {"step": "e2e", "estimate": "model"}


def visit_key(node: str, number: int) -> str:
    """Return what a visit's entry is found by."""
    return f"visit/{number}/{node}"


def gathered(path: Path) -> dict[str, Any]:
    """Return fields of :class:`~pydlbench.records.fleet.FleetVisit` from a store.

    Args:
        path: of the store, with one sweep in it.

    Raises:
        StoreError: it cannot be read, or has no sweep.
    """
    with Store.open(path, readonly=True) as store:
        sweeps = [one for one in store.runs() if one.kind == "sweep"]
        if not sweeps:
            raise StoreError(f"store {path}: there is no sweep in it")
        info, record = sweeps[0], store.record(sweeps[0].id)
        # What goes into a sum is behind the sum.
        entries = [one for one in store.entries(info.id) if kernel_of(one.key) is None]
    documents = [one.document for one in entries if one.table == "layer"]
    rows = side_of(info.id, Loaded(info, record, entries)).rows
    values: dict[str, dict[str, Any]] = {}
    # Layers come first, in the order of their documents.
    beside = [*documents, *({} for _ in range(len(rows) - len(documents)))]
    for row, document in sorted(zip(rows, beside, strict=True), key=lambda one: str(key(one[0]))):
        if not row.ok:
            continue
        name, number = _name(row), 2
        while name in values:  # such as another number of threads
            name, number = f"{_name(row)} #{number}", number + 1
        values[name] = _value(row, document)
    return {
        "started_utc": record.created_utc,
        "machine": machine_name(record.device),
        "host": machine_name(record.device.get("host")),
        "kind": _kind(record),
        "versions": _versions(record),
        "values": values,
    }


def collected(folder: Path) -> list[FleetVisit]:
    """Return the visits whose stores lie in a folder, named by node and round: ``n07.0.sqlite``.

    Args:
        folder: such as the volume that a Job of Kubernetes has left them on.

    Raises:
        UsageError: there is none.
    """
    found = []
    for path in sorted(folder.glob("*.*.sqlite")):
        node, _, number = path.name.removesuffix(".sqlite").rpartition(".")
        if not number.isdecimal():
            continue
        try:
            facts, reason = gathered(path), None
        except PydlbenchError as error:
            facts, reason = {}, f"its store cannot be read: {error}"
        status = "ok" if facts.get("values") else "failed"
        reason = reason or (None if status == "ok" else "no row of its sweep has a time")
        found.append(
            FleetVisit(
                node=node,
                round=int(number),
                status=status,
                reason=reason,
                store=str(path.absolute()),
                **facts,
            )
        )
    if not found:
        raise UsageError(
            f"{folder}: has no stores named NODE.ROUND.sqlite; nearest: the folder that the nodes' "
            "sweeps were kept in"
        )
    return found


def _name(row: Row) -> str:
    return " ".join(filter(None, (describe(row), f"batch {row.batch}" if row.batch else "")))


def _value(row: Row, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's time and what was read beside it, without what is not known."""
    gpu = document.get("gpu") or {}
    roof = document.get("roofline") or {}
    found = {
        "time_s": row.median,
        "clock_hz": row.clock_hz or gpu.get("sm_clock_hz"),
        "contended": True if row.contended else None,
        "bandwidth_gbps": roof.get("bandwidth_gbps") if roof.get("bound") == "memory" else None,
        "temperature_c": gpu.get("temperature_c"),
        "power_w": gpu.get("power_w"),
        "throttle": list(gpu.get("reasons") or ()) or None,
        "step": True if row.kind in STEPS else None,
        "command": _command(row),
    }
    return {name: value for name, value in found.items() if value is not None}


def _command(row: Row) -> str:
    """Return the command line that measures a row again."""
    if row.kind in LAYER_KINDS:
        shape = row.layer if "/" in row.layer else row.problem
        words = ["layers", "--shape", shape, "--pass", row.pass_]
        usual = {"cache": "hot", "layout_request": "best", "fuse": "none", "propagation": None}
        for name, value in usual.items():
            given = getattr(row, name)
            if given not in (value, None) and (name != "propagation" or given != "inference"):
                words += [f"--{name.partition('_')[0]}", str(given)]
        words += ["--batch", str(row.batch)] if shape == row.layer else []
        words += ["--backend", row.backend] if row.backend != "native" else []
    else:
        words = [_COMMANDS.get(row.kind, "check"), row.layer, "--phase", row.pass_]
        words += ["--batch", str(row.batch)]
        words += ["--framework", row.backend] if row.backend != "native" else []
    words += ["--precision", row.precision]
    words += ["--mode", row.mode] if row.mode else []
    return f"pydlbench {shlex.join(map(str, words))}"


def _versions(record: RunRecord) -> dict[str, str]:
    """Return what a time depends on besides the hardware: libraries and the code that times."""
    known = dict(record.environment.get("packages") or {})
    return {**known, "code": str(record.environment.get("code") or "")}


def _kind(record: RunRecord) -> str:
    """Return a digest of what two nodes have to have in common to be compared."""
    host = cpu_identity(record.device)
    # A host's name with a GPU in it is its CPU's, which does not change the card's times much.
    hardware: Any = gpu_name(record.device) or host
    text = json.dumps([hardware, _versions(record)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]

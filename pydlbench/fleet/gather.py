"""Reads the times of a node's store, for a verdict."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydlbench.compare.rows import FIELDS, LAYER_KINDS, SideRow, describe, key, side_of
from pydlbench.errors import PydlbenchError, StoreError, UsageError
from pydlbench.models.user_model import is_onnx
from pydlbench.records.fleet import FleetVisit
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepSpec, step_words
from pydlbench.runner.execute import kernel_of
from pydlbench.store.documents import Loaded
from pydlbench.store.place import cpu_identity, gpu_name, machine_name
from pydlbench.store.store import Store
from pydlbench.words import CASTS, FRAMEWORKS, ONNX_FRAMEWORK, TIMINGS, option_words

#: Table of the store with the visits of a fleet.
TABLE: Final = "fleet-visit"
#: Kinds of rows that are whole steps of a model.
STEPS: Final = ("step", "estimate", "breakdown step")


def visit_key(node: str, number: int) -> str:
    """Return the key of a visit's entry."""
    return f"visit/{number}/{node}"


def gathered(path: Path) -> dict[str, Any]:
    """Return fields of :class:`~pydlbench.records.fleet.FleetVisit` from a store.

    Args:
        path: store with one sweep.

    Raises:
        StoreError: it cannot be read, or has no sweep.
    """
    with Store.open(path, readonly=True) as store:
        sweeps = [run for run in store.runs() if run.kind == "sweep"]
        if not sweeps:
            raise StoreError(f"store {path}: there is no sweep in it")
        info, record = sweeps[0], store.record(sweeps[0].id)
        # Kernels of an estimate are part of its row.
        entries = [entry for entry in store.entries(info.id) if kernel_of(entry.key) is None]
    rows = [
        (row, entry)
        for entry in entries
        for row in side_of(info.id, Loaded(info, record, [entry])).rows
    ]
    # The order in which rows end differs between nodes.
    rows.sort(key=lambda pair: (str(key(pair[0])), pair[1].key or ""))
    named = zip(_names([row for row, _ in rows]), rows, strict=True)
    return {
        "started_utc": record.created_utc,
        "machine": machine_name(record.device),
        "host": machine_name(record.device.get("host")),
        "kind": _kind(record),
        "versions": _versions(record),
        "values": {name: _value(row, entry.document) for name, (row, entry) in named if row.ok},
    }


def collected(folder: Path) -> list[FleetVisit]:
    """Return the visits of the stores in a folder, named by node and round: ``n07.0.sqlite``.

    Args:
        folder: folder with the stores of all nodes.

    Raises:
        UsageError: there is none.
    """
    visits = []
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
        visits.append(
            FleetVisit(
                node=node,
                round=int(number),
                status=status,
                reason=reason,
                store=str(path.absolute()),
                **facts,
            )
        )
    if not visits:
        raise UsageError(
            f"{folder}: has no stores named NODE.ROUND.sqlite; nearest: the folder that the nodes' "
            "sweeps were kept in"
        )
    return visits


def _names(rows: Sequence[SideRow]) -> list[str]:
    """Return a name for each row, whether or not rows have failed.

    Rows with the same name get what distinguishes them appended: ``threads 2``.
    """
    plain = [
        " ".join(filter(None, (describe(row), f"batch {row.batch}" if row.batch else "")))
        for row in rows
    ]
    details = [_details(row) for row in rows]
    alike: dict[str, list[int]] = {}
    for at, name in enumerate(plain):
        alike.setdefault(name, []).append(at)
    times: dict[str, int] = {}
    names = []
    for at, name in enumerate(plain):
        others = [details[other] for other in alike[name]]
        words = [
            f"{what} {value}"
            for what, value in details[at].items()
            if any(other.get(what) != value for other in others)
        ]
        whole = " ".join([name, *words])
        times[whole] = times.get(whole, 0) + 1  # such as another budget
        names.append(f"{whole} #{times[whole]}" if times[whole] > 1 else whole)
    return names


def _details(row: SideRow) -> dict[str, str]:
    """Return the fields that a row's name leaves out."""
    # A failed row of a framework has no timing.
    left_out = {"problem", *(["timing"] if row.backend != "native" else [])}
    fields = {name.strip("_"): getattr(row, name) for name in FIELDS if name not in left_out}
    options = row.problem.startswith("{")  # of a step
    more = json.loads(row.problem) if options else {"problem": row.problem}
    return {name: str(value) for name, value in {**fields, **more}.items() if value is not None}


def _value(row: SideRow, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's time and the readings taken with it, as far as they are known."""
    gpu = document.get("gpu") or {}
    roof = document.get("roofline") or {}
    fields = {
        "time_s": row.median,
        "clock_hz": row.clock_hz or gpu.get("sm_clock_hz"),
        "contended": True if row.contended else None,
        "bandwidth_gbps": roof.get("bandwidth_gbps") if roof.get("bound") == "memory" else None,
        "temperature_c": gpu.get("temperature_c"),
        "power_w": gpu.get("power_w"),
        "throttle": list(gpu.get("reasons") or ()) or None,
        "step": True if row.kind in STEPS else None,
        "command": _command(row, document),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _command(row: SideRow, document: Mapping[str, Any]) -> str:
    """Return the command line that measures a row again."""
    on_cpu = row.device == "cpu"
    if row.kind in LAYER_KINDS:
        shape = row.layer if "/" in row.layer else row.problem
        words = [
            *("layers", "--shape", shape, "--pass", row.pass_),
            *option_words(
                ("--cache", row.cache or "hot", "hot"),
                ("--layout", row.layout_request or "best", "best"),
                ("--fuse", row.fuse or "none", "none"),
                ("--propagation", row.propagation or "inference", "inference"),
                ("--batch", row.batch if shape == row.layer else None, None),
                ("--backend", row.backend, "native"),
                ("--precision", row.precision, ""),
                ("--mode", row.mode or "", ""),
                ("--timing", row.timing if row.timing in TIMINGS else None, None),
                ("--device", row.device, "cpu"),
            ),
        ]
    else:
        words = _step_words(row.kind, document)
    # There may be a GPU, which would be the default.
    words += (
        option_words(("--device", row.device, None), ("--threads", row.threads or None, None))
        * on_cpu
    )
    return f"pydlbench {shlex.join(words)}"


def _step_words(kind: str, document: Mapping[str, Any]) -> list[str]:
    """Return the words that measure a step, an estimate or a breakdown again.

    Raises:
        StoreError: the document was not written by its command.
    """
    usual = ONNX_FRAMEWORK if is_onnx(str(document.get("model"))) else FRAMEWORKS[0]
    try:
        spec = StepSpec.from_dict({"framework": usual, **document})
    except ValueError as error:
        raise StoreError(f"a row of {document.get('model')}: {error}") from error
    words = step_words(spec)
    if kind == "estimate":  # of no framework
        at = words.index("--framework")
        return ["estimate", *words[:at], *words[at + 2 :]]
    if kind != "step":
        return ["breakdown", *words]
    return ["step", *words, *option_words(("--cast", spec.cast, CASTS[0]))]


def _versions(record: RunRecord) -> dict[str, str]:
    """Return versions that affect times: libraries, and the code that measures."""
    known = dict(record.environment.get("packages") or {})
    return {**known, "code": str(record.environment.get("code") or "")}


def _kind(record: RunRecord) -> str:
    """Return a digest of the hardware and versions that comparable nodes share."""
    host = cpu_identity(record.device)
    # The CPU of the host hardly affects the times of a GPU.
    hardware: Any = gpu_name(record.device) or host
    text = json.dumps([hardware, _versions(record)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]

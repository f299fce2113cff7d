"""Files that come from anywhere: bounded in bytes, depth and number, refused in one line."""

import dataclasses
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from pydlbench.backends.frameworks.verbose import MARK
from pydlbench.errors import UsageError, nearest_file
from pydlbench.models.flashinfer import is_flashinfer
from pydlbench.traces import chrome, execution, logs, pytorch, xplane
from pydlbench.traces.events import ChromeEvent
from pydlbench.traces.timeline import RecordedTrace

#: Bytes of a file, unpacked.
LARGEST: Final = 512 << 20
#: Events, nodes or executions in it.
MAX_ITEMS: Final = 6_000_000
#: The first mark of a log stands within so many bytes.
_HEAD: Final = 16 << 20
# The keys by which a definition of FlashInfer-Trace is known stand at its beginning.
_DEFINITION: Final = 1 << 14
_SQLITE: Final = b"SQLite format 3"
_NSIGHT: Final = (".nsys-rep", ".qdrep")
_GZIP: Final = b"\x1f\x8b"
_JSON: Final = (b"{", b"[")
#: Files of a folder that may be traces, and how many of them a message names.
_ENDINGS: Final = (".json", ".json.gz", ".log", ".log.gz")
_MAX_NAMED: Final = 3
#: Numbers that are no JSON, as values.
_NO_JSON: Final = re.compile(rb"(:\s*|[\[,]\s*)-?(?:inf|nan|Infinity|NaN)(?=\s*[,}\]])")
_EXPECTED: Final = (
    "expected a log of ONEDNN_VERBOSE=1, a trace of PyTorch's profiler, onnxruntime's or "
    "JAX's (xplane.pb, or the folder of its logs), or an execution trace of PyTorch's"
)


def is_recorded(name: str) -> bool:
    """Whether a file is a log or a trace, by how it begins; a list of layers is none.

    What cannot be read is none either: whoever reads it as a list says why.
    """
    try:
        with Path(name).open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, ValueError):
        return False
    if is_flashinfer(head[:_DEFINITION].decode(errors="replace")):
        return False
    return head.startswith(_GZIP) or _begins_json(head) or _is_log(head)


def read(name: str) -> RecordedTrace:
    """Read a log or a trace.

    Args:
        name: of the file; ``.gz`` or not.

    Raises:
        UsageError: it cannot be read, is too large or damaged, or is none; in one line.
    """
    if (profile := xplane.find(name)) is not None:
        return xplane.read(name, profile)
    data, notes = _content(name)
    if _begins_json(data):
        recorded = _read_json(name, data)
    elif _is_log(data):
        recorded = logs.read(name, data.decode("utf-8", "replace"), MAX_ITEMS)
    elif data.startswith(_SQLITE) or name.endswith(_NSIGHT):
        raise UsageError(
            f"{name}: files of Nsight Systems are not read, nor their exports; nearest: a trace of "
            "PyTorch's profiler"
        )
    else:
        raise UsageError(f"{name}: no log and no trace; {_EXPECTED}")
    return dataclasses.replace(recorded, notes=(*recorded.notes, *notes))


def read_captures(name: str) -> tuple[tuple[pytorch.CapturedLaunch, ...], ...]:
    """Return the launches in each graph that was captured in a profile.

    Args:
        name: of the file; ``.gz`` or not.

    Raises:
        UsageError: the file cannot be read, or no graph was captured in it.
    """
    data, _ = _content(name)
    try:
        events, _ = _decode_items(
            msgspec.json.decode(data, type=_Head).traceEvents, ChromeEvent, name, "event"
        )
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"--capture {name}: not JSON as a profile is: {error}; nearest: a profile of PyTorch"
        ) from error
    return pytorch.captured_launches(name, [event for event in events if event.ph == "X"])


def _begins_json(data: bytes) -> bool:
    return data[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_JSON)


def _is_log(data: bytes) -> bool:
    return re.search(MARK.pattern.encode(), data) is not None


def _content(name: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the bytes of a file, unpacked where it is packed, and notes on what was left out."""
    path = Path(name)
    if path.is_dir():
        inside = sorted(str(each) for each in path.iterdir() if each.name.endswith(_ENDINGS))
        near = (
            ", ".join(inside[:_MAX_NAMED]) if inside else f"none of its files is one; {_EXPECTED}"
        )
        raise UsageError(f"{name}: a folder, no trace; nearest: {near}")
    notes: tuple[str, ...] = ()
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"{name}: {reason}{nearest_file(Path(name)) or f'; {_EXPECTED}'}"
        ) from error
    if data.startswith(_GZIP):
        data, rest = _unpack(name, data)
        if rest:
            notes = (f"{rest:,} bytes behind the packed data are left out: they are not gzip's",)
    if len(data) > LARGEST:
        raise UsageError(
            f"{name}: more than {LARGEST >> 20} MiB unpacked; nearest: record fewer steps"
        )
    return data, notes


def _unpack(name: str, packed: bytes) -> tuple[bytes, int]:
    """Return the data of gzip's members, and the number of bytes behind the last one.

    Raises:
        UsageError: the first member is damaged.
    """
    parts: list[bytes] = []
    left = LARGEST + 1
    while packed.startswith(_GZIP) and left > 0:
        member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            part = member.decompress(packed, left)
            if not member.eof and len(part) < left:
                raise zlib.error("its end is missing")
        except zlib.error as error:
            if parts:
                break
            raise UsageError(f"{name}: damaged: {error}; nearest: record it again") from error
        parts.append(part)
        left -= len(part)
        packed = member.unused_data
    return b"".join(parts), len(packed.lstrip(b"\0"))


class _Head(msgspec.Struct):
    """The keys that tell the kinds of JSON apart, and the devices' names."""

    traceEvents: msgspec.Raw = msgspec.Raw()  # noqa: N815 - as the file has it
    nodes: msgspec.Raw = msgspec.Raw()
    deviceProperties: msgspec.Raw = msgspec.Raw()  # noqa: N815 - as the file has it
    distributedInfo: msgspec.Raw = msgspec.Raw()  # noqa: N815 - as the file has it


class _Job(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


class _Device(msgspec.Struct):
    id: int | str = 0
    name: str = ""


def _read_json(name: str, data: bytes) -> RecordedTrace:
    try:
        try:
            return _decode_json(name, data)
        except msgspec.DecodeError:
            # Profilers write inf and nan, which are no JSON.
            plain, count = _NO_JSON.subn(rb"\1null", data)
            if not count:
                raise
            return _decode_json(name, plain)
    except msgspec.DecodeError as error:
        raise UsageError(f"{name}: not JSON as a trace is: {error}; {_EXPECTED}") from error
    except RecursionError:
        raise UsageError(f"{name}: nested too deep for a trace; {_EXPECTED}") from None


def _decode_json(name: str, data: bytes) -> RecordedTrace:
    if data[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return _with_notes(chrome.read, name, data, ChromeEvent, "event")
    head = msgspec.json.decode(data, type=_Head)
    if bytes(head.traceEvents):
        device = _device_name(bytes(head.deviceProperties))
        recorded = _with_notes(
            lambda name, events: chrome.read(name, events, device),
            *(name, head.traceEvents, ChromeEvent, "event"),
        )
        try:
            job = msgspec.json.decode(bytes(head.distributedInfo) or b"{}", type=_Job)
        except msgspec.ValidationError:
            job = _Job()
        return dataclasses.replace(recorded, rank=job.rank, world_size=job.world_size)
    if bytes(head.nodes):
        return _with_notes(execution.read, name, head.nodes, execution.ExecutionNode, "node")
    raise UsageError(f"{name}: neither traceEvents nor nodes in it; {_EXPECTED}")


def _device_name(properties: bytes) -> str | None:
    """Return the name of the first device of a profile."""
    try:
        devices = msgspec.json.decode(properties, type=list[_Device])
    except msgspec.DecodeError:
        return None
    return next((device.name for device in devices if device.name), None)


def _with_notes(
    read_items: Callable[[str, Any], RecordedTrace],
    name: str,
    data: Any,
    kind: type[msgspec.Struct],
    what: str,
) -> RecordedTrace:
    """Return a recording made of the items that are as they should be; a note counts the others."""
    items, bad = _decode_items(data, kind, name, what)
    recorded = read_items(name, items)
    if not bad:
        return recorded
    number, reason, count = bad
    left_out = f"{count} of its {what}s are left out; the first is {what} {number}: {reason}"
    return dataclasses.replace(recorded, notes=(*recorded.notes, left_out))


def _decode_items(
    data: Any, kind: type[msgspec.Struct], name: str, what: str
) -> tuple[list[Any], tuple[int, str, int] | None]:
    """Return a list of events or nodes, and of those that are none the first and their number."""
    bad: tuple[int, str, int] | None = None
    try:
        items: list[Any] = msgspec.json.decode(data, type=list[kind])  # type: ignore[valid-type] # as msgspec takes it
    except msgspec.ValidationError:
        items = []
        for number, raw in enumerate(msgspec.json.decode(data, type=list[msgspec.Raw])):
            try:
                items.append(msgspec.json.decode(raw, type=kind))
            except msgspec.ValidationError as error:
                bad = (number, str(error), 1) if bad is None else (*bad[:2], bad[2] + 1)
        if not items and bad is not None:
            raise UsageError(
                f"{name}: {what} {bad[0]}: {bad[1]}; nearest: record it again"
            ) from None
    if len(items) > MAX_ITEMS:
        raise UsageError(f"{name}: more than {MAX_ITEMS:,} {what}s; nearest: record fewer steps")
    return items, bad

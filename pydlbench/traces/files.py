"""Files that come from anywhere: bounded in bytes, depth and number, refused in one line."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.backends.frameworks.verbose import MARKS
from pydlbench.errors import UsageError, nearest_file
from pydlbench.traces import chrome, execution, logs

if TYPE_CHECKING:
    from pydlbench.traces.recorded import Recorded

#: Bytes of a file, unpacked.
LARGEST: Final = 512 << 20
#: Events, nodes or executions in it.
MOST: Final = 2_000_000
#: The first mark of a log stands within so many bytes.
_HEAD: Final = 16 << 20
_GZIP: Final = b"\x1f\x8b"
_JSON: Final = (b"{", b"[")
_EXPECTED: Final = (
    "expected a log of ONEDNN_VERBOSE=1, a trace of PyTorch's profiler or of onnxruntime's, or an "
    "execution trace of PyTorch's"
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
    return head.startswith(_GZIP) or _begins_json(head) or _is_log(head)


def read(name: str) -> Recorded:
    """Read a log or a trace.

    Args:
        name: of the file; ``.gz`` or not.

    Raises:
        UsageError: it cannot be read, is too large or damaged, or is none; in one line.
    """
    data = _content(name)
    if _begins_json(data):
        return _of_json(name, data)
    if not _is_log(data):
        raise UsageError(f"{name}: no log and no trace; {_EXPECTED}")
    return logs.read(name, data.decode("utf-8", "replace"), MOST)


def _begins_json(data: bytes) -> bool:
    return data[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_JSON)


def _is_log(data: bytes) -> bool:
    marks = [mark.encode() for mark in MARKS]
    return any(data.startswith(mark) or b"\n" + mark in data for mark in marks)


def _content(name: str) -> bytes:
    """Return the bytes of a file, unpacked where it is packed."""
    try:
        with Path(name).open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        with gzip.open(name) if packed else Path(name).open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{name}: damaged: {error}; nearest: record it again") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"{name}: {reason}{nearest_file(Path(name)) or f'; {_EXPECTED}'}"
        ) from error
    if len(data) > LARGEST:
        raise UsageError(
            f"{name}: more than {LARGEST >> 20} MiB unpacked; nearest: record fewer steps"
        )
    return data


class _Head(msgspec.Struct):
    """What tells the kinds of JSON apart."""

    traceEvents: msgspec.Raw = msgspec.Raw()  # noqa: N815 - as the file has it
    nodes: msgspec.Raw = msgspec.Raw()


def _of_json(name: str, data: bytes) -> Recorded:
    try:
        if data[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            return chrome.read(name, _decoded(data, chrome.Event, name, "event"))
        head = msgspec.json.decode(data, type=_Head)
        if bytes(head.traceEvents):
            events = _decoded(head.traceEvents, chrome.Event, name, "event")
            return chrome.read(name, events)
        if bytes(head.nodes):
            nodes = _decoded(head.nodes, execution.Node, name, "node")
            return execution.read(name, nodes)
    except msgspec.DecodeError as error:
        raise UsageError(f"{name}: not JSON as a trace is: {error}; {_EXPECTED}") from error
    except RecursionError:
        raise UsageError(f"{name}: nested too deep for a trace; {_EXPECTED}") from None
    raise UsageError(f"{name}: neither traceEvents nor nodes in it; {_EXPECTED}")


def _decoded(data: Any, kind: type[msgspec.Struct], name: str, what: str) -> Any:
    """Return a list of events or nodes; the error names the first that is none."""
    try:
        listed = msgspec.json.decode(data, type=list[kind])  # type: ignore[valid-type] # as msgspec takes it
    except msgspec.ValidationError:
        for number, raw in enumerate(msgspec.json.decode(data, type=list[msgspec.Raw])):
            try:
                msgspec.json.decode(raw, type=kind)
            except msgspec.ValidationError as error:
                raise UsageError(
                    f"{name}: {what} {number}: {error}; nearest: record it again"
                ) from error
        raise
    if len(listed) > MOST:
        raise UsageError(f"{name}: more than {MOST:,} {what}s; nearest: record fewer steps")
    return listed

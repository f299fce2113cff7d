"""Entries of a store as bytes and columns, and the process that writes a run."""

import array
import json
import math
import os
import platform
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from pydlbench.devices.cpu.facts import read_text
from pydlbench.units import printable

#: Kinds of entries: a timed layer; the estimate of a step (computed, not measured); a timed
#: framework step, the comparison of two frameworks' results, the numbers of a published script;
#: findings of ``diagnose``; a forecast (computed), the operators timed for it, and counts of
#: page faults of a step; a breakdown. Other commands may add tables.
TABLES: Final = (
    *("layer", "estimate", "step", "agreement", "protocol", "findings"),
    *("forecast", "operator", "faults", "breakdown", "trace", "change"),
)
#: Tables of entries that were not timed.
UNTIMED: Final = ("estimate", "agreement", "forecast", "trace", "change")
#: Statuses of rows that a resumed run does not repeat.
ANSWERED: Final = ("ok", "skipped")


#: Error text for a run that is still being written, so that it can be neither resumed nor deleted;
#: ``{}`` is its id.
BEING_WRITTEN: Final = (
    "is still running; wait for its end, or, if its process ended on another host or in another "
    "container: pydlbench runs end {}"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished row or document of a run.

    Attributes:
        table: one of :data:`TABLES`.
        document: contents of the entry as a JSON object; NaN and infinities are allowed. It has no
            ``samples_s``: layers have thousands of samples, which are read on request only. The
            documents of steps contain them again when they are read.
        samples: raw samples in seconds.
        key: identifies the request, see :func:`pydlbench.runner.execute.row_key`; a later entry of
            the same run with the same key replaces this one.
    """

    table: str
    document: dict[str, Any]
    samples: tuple[float, ...] | None = None
    key: str | None = None

    @classmethod
    def from_document(cls, table: str, document: Mapping[str, Any], key: str | None = None) -> Self:
        """Return an entry for a JSON object; ``samples_s`` is moved out of it."""
        plain = dict(document)
        samples = plain.pop("samples_s", None)
        return cls(table, plain, None if samples is None else tuple(samples), key)


# -----------------------------------------------------------------------------
# Documents and samples as bytes: compressed JSON, and float64 in little-endian order.

# Takes 50 us for two kilobytes; the highest level would save another 15 %.
_LEVEL = 6
# A store may come from anywhere, and a few kilobytes can unpack to gigabytes. Samples, which are
# most of a run, are not in documents.
_MAX_BYTES: Final = 1 << 26
#: Exceptions of a damaged document that is read; it may also be nested too deeply.
DAMAGE: Final = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)


def pack(document: Mapping[str, Any]) -> bytes:
    """Return a JSON object as bytes; NaN and infinities are written as Python does."""
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode("ascii"), _LEVEL)


def unpack(data: bytes) -> dict[str, Any]:
    """Return the object of :func:`pack`, without control characters in its texts.

    Raises:
        ValueError: the data is damaged.
    """
    document: dict[str, Any]
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(data, _MAX_BYTES)
        if not stream.eof:
            raise ValueError(f"incomplete, or more than {_MAX_BYTES >> 20} MiB unpacked")
        try:
            document = msgspec.json.decode(text)  # much faster than the json module
        except msgspec.DecodeError:  # it has no NaN and no infinities
            document = json.loads(text)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not isinstance(document, dict):
        raise ValueError("not an object")
    if any(mark in text for mark in _MAY_STEER):
        document = without_controls(document)
    return document


# Every text with a control character contains one of these in JSON; the search is fast.
_MAY_STEER: Final = (b"\\u00", b"\\b", b"\\f", b"\x7f", b"\xc2")


def without_controls(value: Any) -> Any:
    """Remove control characters from all texts: files and stores may come from anywhere."""
    if isinstance(value, dict):
        return {printable(name): without_controls(item) for name, item in value.items()}
    if isinstance(value, list):
        # Samples are many, and not texts.
        plain = all(type(item) is float for item in value)
        return value if plain else [*map(without_controls, value)]
    return printable(value) if isinstance(value, str) else value


def pack_samples(samples: Iterable[float] | None) -> bytes | None:
    """Return seconds as float64 bytes; None stays None."""
    if samples is None:
        return None
    numbers = array.array("d", samples)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def samples_crc(data: bytes | None) -> int | None:
    """Return the CRC-32 of :func:`pack_samples`'s bytes."""
    return None if data is None else zlib.crc32(data)


def unpack_samples(data: bytes | None, crc: int | None = None) -> tuple[float, ...] | None:
    """Return the samples of :func:`pack_samples`.

    Raises:
        ValueError: the data is damaged: a partial float64, or another CRC-32.
    """
    if data is None:
        return None
    if crc is not None and zlib.crc32(data) != crc:
        raise ValueError("the CRC-32 of the samples differs")
    numbers = array.array("d")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)


# -----------------------------------------------------------------------------
# The columns of a layer's row that can be read without its document.

#: Column names in the order of the tuples of ``Store.columns``: fields of the JSON document, and
#: ``median``, ``ci_low``, ``ci_high`` and ``n`` of its ``time_s``. Units are seconds, Hz, FLOPs and
#: bytes. A field that the document lacks is None.
LAYER_COLUMNS: Final = (
    *("layer", "kind", "problem", "batch", "pass", "precision", "device", "backend", "mode"),
    *("cache", "timing", "threads", "fuse", "layout_request", "propagation", "status"),
    *("median", "ci_low", "ci_high", "n", "clock_hz", "contended", "algorithm"),
    *("flops", "flops_executed", "bytes"),
)
_OF_TIME: Final = frozenset(("median", "ci_low", "ci_high", "n"))
_LARGEST: Final = (1 << 63) - 1


def layer_values(document: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of :data:`LAYER_COLUMNS` of a layer's document, as SQLite can store them.

    NaN, which SQLite lacks, becomes None; the document keeps it.
    """
    summary = document.get("time_s")
    time = summary if isinstance(summary, dict) else {}
    return tuple(
        _cell(time.get(name) if name in _OF_TIME else document.get(name)) for name in LAYER_COLUMNS
    )


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -_LARGEST <= value <= _LARGEST else float(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value
    # Names may contain bytes of the command line that are not text.
    return value if value is None else str(value).encode("utf-8", "backslashreplace").decode()


# -----------------------------------------------------------------------------
# The process that writes a run, to distinguish a killed run from a running one.
#
# The host's name, the kernel's boot id, the process id and its start time are stored. Process ids
# are reused, so only the start time identifies a process. Processes on another host or in another
# container are not visible; their runs stay ``running``.

_START = 21 - 2  # field 22 of /proc/PID/stat, counted from the one after the name


def this_process() -> dict[str, Any]:
    """Return the identity of this process."""
    return {**_place(), "pid": os.getpid(), "start": _started(os.getpid())}


def is_gone(writer: Mapping[str, Any] | None) -> bool:
    """Whether the process that wrote a run has certainly ended.

    Args:
        writer: identity of the process, from :func:`this_process`; None if it was not stored.
    """
    if writer is None:
        return True
    here = _place()
    if writer.get("host") != here["host"]:
        return False
    if writer.get("boot") != here["boot"]:
        return True
    if writer.get("pids") != here["pids"]:
        return False
    return _started(int(writer["pid"])) != writer.get("start")


def _place() -> dict[str, Any]:
    """The host, its boot id, and the PID namespace (a container has its own)."""
    boot = read_text(Path("/proc/sys/kernel/random/boot_id"))
    try:
        pids = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        pids = None
    return {"host": platform.node(), "boot": boot, "pids": pids}


def _started(pid: int) -> str | None:
    """Start time of a process in kernel ticks; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self").exists() else _without_proc(pid)
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[_START]


def _without_proc(pid: int) -> str | None:
    """Without /proc only the existence of a process can be tested."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return "alive"
    return "alive"

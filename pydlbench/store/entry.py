"""What a store holds: entries as bytes and columns, and who writes a run."""

from __future__ import annotations

import array
import json
import math
import os
import platform
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from pydlbench.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Kinds of entries: a timed layer; the estimate of a step (computed, not measured); a timed
#: framework step, two frameworks' results held against each other, a published script's numbers;
#: what ``diagnose`` found; a forecast (computed), the operators timed for it, and counts
#: of page faults of a step; a breakdown. Another command may have a table of its own.
TABLES: Final = (
    *("layer", "estimate", "step", "agreement", "protocol", "findings"),
    *("forecast", "operator", "faults", "breakdown"),
)
#: Those that were not timed.
UNTIMED: Final = ("estimate", "agreement", "forecast")
#: Statuses of rows that need not be measured again.
ANSWERED: Final = ("ok", "skipped")


#: Why a run is left alone, with its id to be put in.
BEING_WRITTEN: Final = (
    "is being written; wait for its end, or, if its process has gone on another host or in another "
    "container: pydlbench runs end {}"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished thing.

    Attributes:
        table: one of :data:`TABLES`.
        document: its JSON object; NaN and infinities are allowed. Without ``samples_s``: of
            layers, which have thousands, they are only read when they are asked for; of steps
            they stand in the document all the same when it is read.
        samples: raw samples in seconds.
        key: what it answers, see :func:`pydlbench.runner.execute.row_key`; a later entry of the
            same run with the same key takes its place.
    """

    table: str
    document: dict[str, Any]
    samples: tuple[float, ...] | None = None
    key: str | None = None

    @classmethod
    def from_document(cls, table: str, document: Mapping[str, Any], key: str | None = None) -> Self:
        """Return an entry for a JSON object, its ``samples_s`` taken out."""
        plain = dict(document)
        samples = plain.pop("samples_s", None)
        return cls(table, plain, None if samples is None else tuple(samples), key)


# -----------------------------------------------------------------------------
# Documents and samples as bytes: compressed JSON, and float64 in little-endian order.

# A document of two kilobytes takes 50 us at this level, and 15 % less room at the highest.
_LEVEL = 6


def pack(document: Mapping[str, Any]) -> bytes:
    """Return a JSON object as bytes; NaN and infinities are kept as Python writes them."""
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode("ascii"), _LEVEL)


def unpack(data: bytes) -> dict[str, Any]:
    """Read :func:`pack`'s bytes back, without what could steer a terminal.

    Raises:
        ValueError: they are damaged.
    """
    document: dict[str, Any]
    try:
        text = zlib.decompress(data)
        try:
            document = msgspec.json.decode(text)  # a fraction of the other's time
        except msgspec.DecodeError:  # NaN and infinities are none of its numbers
            document = json.loads(text)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not isinstance(document, dict):
        raise ValueError("not an object")
    if any(mark in text for mark in _MAY_STEER):
        document = without_controls(document)
    return document


# What there is in the JSON of every text with a control character; looking takes a microsecond.
_MAY_STEER: Final = (b"\\u00", b"\\b", b"\\f", b"\x7f", b"\xc2")


def without_controls(value: Any) -> Any:
    """Return a document whose texts steer no terminal: files and stores come from anywhere."""
    if isinstance(value, dict):
        return {printable(name): without_controls(item) for name, item in value.items()}
    if isinstance(value, list):
        # Samples are many, and no texts.
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
    """Read :func:`pack_samples`'s bytes back.

    Raises:
        ValueError: they are damaged: not a whole number of float64, or not of that CRC-32.
    """
    if data is None:
        return None
    if crc is not None and zlib.crc32(data) != crc:
        raise ValueError("the samples are not those that were written")
    numbers = array.array("d")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)


# -----------------------------------------------------------------------------
# The columns of a layer's row that can be read without its document.

#: Names, in the order of ``Store.columns``'s tuples: the fields of the JSON document, but
#: ``median``, ``ci_low``, ``ci_high`` and ``n``, which are those of its ``time_s``. Seconds, Hz,
#: FLOPs, bytes. None is what the document has not.
LAYER_COLUMNS: Final = (
    *("layer", "kind", "problem", "batch", "pass", "precision", "device", "backend", "mode"),
    *("cache", "timing", "threads", "fuse", "layout_request", "propagation", "status"),
    *("median", "ci_low", "ci_high", "n", "clock_hz", "contended", "algorithm"),
    *("flops", "flops_executed", "bytes"),
)
_OF_TIME: Final = frozenset(("median", "ci_low", "ci_high", "n"))
_LARGEST: Final = (1 << 63) - 1


def layer_values(document: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a layer's document as the values of :data:`LAYER_COLUMNS`, as SQLite can hold them.

    NaN becomes None, as SQLite has none; the document keeps it.
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
    # Names may hold bytes of the command line that are no text.
    return value if value is None else str(value).encode("utf-8", "backslashreplace").decode()


# -----------------------------------------------------------------------------
# Which process writes a run, so that a run whose process is gone can be told from a running one.
#
# Kept are the host's name, the kernel's boot, the process's number and the time at which it
# started: numbers are given out again, and nothing but the start tells one process from the next.
# Of a process on another host, or in another container, nothing can be known: its run stays
# ``running``.

_START = 21 - 2  # field 22 of /proc/PID/stat, counted behind the name in brackets


def this_process() -> dict[str, Any]:
    """Return who writes."""
    return {**_place(), "pid": os.getpid(), "start": _started(os.getpid())}


def is_gone(writer: Mapping[str, Any] | None) -> bool:
    """Whether the process that wrote a run has certainly ended.

    Args:
        writer: of :func:`this_process`; None where it was not kept.
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
    """The host, its boot, and the name space of its processes (a container has its own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = None
    try:
        pids = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        pids = None
    return {"host": platform.node(), "boot": boot, "pids": pids}


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if Path("/proc/self").exists():
            return None
        return _without_proc(pid)
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[_START]


def _without_proc(pid: int) -> str | None:
    """A system that shows no processes: alive is all that can be asked."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return "alive"
    return "alive"

"""Parser of the verbose logs of oneDNN and MKL, which name the kernels behind an operator.

A line of oneDNN has the primitive, its implementation, its memory descriptors, the problem and the
time of one execution in milliseconds::

    onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core,forward_training,
    src:f32::blocked:acdb::f0 ...,attr-scratchpad:user,alg:convolution_direct,mb2_ic16...,0.032

(oneDNN 1 to 3.2 leave out ``v1`` and ``primitive``, and write ``src_f32`` for ``src:f32``; a time
stamp may precede them). A line of MKL has the routine with its arguments, the time and the
threads::

    MKL_VERBOSE SGEMM(T,N,48,64,32,...) 1.76ms CNR:OFF Dyn:0 FastMM:1 TID:0  NThr:2
"""

import contextlib
import ctypes
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_MKL = re.compile(r"MKL_VERBOSE (\w+)\(([^)]*)\) (\d+\.?\d*)(ns|us|ms|s)\b(?:.*\bNThr:(\d{1,9}))?")
_CREATED = re.compile(
    r"^(?:onednn|dnnl|mkldnn)_verbose,(?:\w+,)*create:.*,([\d.]+(?:e-?\d+)?)$", re.MULTILINE
)
_MAX_SECONDS = 1e9
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_DESCRIPTOR = re.compile(r"(\w+?)[_:](?:[a-z]+[0-9]+\w*|undef):[^:]*:[^:]*:(\w*)")
#: Beginnings of the lines that :func:`parse_line` reads.
MARK = re.compile("(?:onednn|dnnl|mkldnn)_verbose,|MKL_VERBOSE ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a library's kernel.

    Attributes:
        library: ``oneDNN`` or ``MKL``.
        primitive: ``convolution``, ``reorder``, ``SGEMM`` and so on.
        implementation: the kernel: ``brg_conv_fwd:avx512_core``, ``SGEMM(T,N)``.
        seconds: time of this execution.
        propagation: kind of a primitive: ``forward_training``, ``backward_data``.
        problem: sizes, in the library's notation.
        formats: formats of source and destination: ``abcd -> aBcd16b``.
        threads: number of threads; None if it is not logged.
        signature: fields that define the computation, see :mod:`pydlbench.calls.seen.onednn`.
    """

    library: str
    primitive: str
    implementation: str
    seconds: float
    propagation: str = ""
    problem: str = ""
    formats: str = ""
    threads: int | None = None
    signature: str = ""


def parse(text: str) -> list[Execution]:
    """Return the executions in a log, in their order; other lines are ignored."""
    executions = map(parse_line, text.splitlines())
    return [execution for execution in executions if execution is not None]


def parse_line(line: str) -> Execution | None:
    """Return the execution that a line logs; None for other lines."""
    return _onednn(line) or _mkl(line)


def is_too_old(line: str) -> bool:
    """Whether a line is of MKL-DNN before version 1, which has no engine and no types."""
    return line.startswith("mkldnn_verbose,exec,") and not line.startswith(
        ("mkldnn_verbose,exec,cpu,", "mkldnn_verbose,exec,gpu,")
    )


def creation_s(text: str) -> float:
    """Return the seconds of creating oneDNN's primitives, including hits of its cache.

    They are logged at the level that includes creation::

        onednn_verbose,v1,primitive,create:cache_miss,cpu,convolution,...,0.281

    Args:
        text: the log.
    """
    return sum(map(float, _CREATED.findall(text))) / 1e3


def _onednn(line: str) -> Execution | None:
    fields = line.strip().split(",")
    if not MARK.fullmatch(f"{fields[0]},") or "exec" not in fields[:5] or is_too_old(line):
        return None
    if "graph" in fields[:4]:  # a partition; its primitives have lines of their own
        return None
    # engine, primitive, implementation, propagation, descriptors, attributes, algorithm, problem,
    # milliseconds
    rest = fields[fields.index("exec") + 1 :]
    if len(rest) < 6:
        return None
    try:
        seconds = float(rest[-1]) / 1e3
    except ValueError:
        return None
    if not 0 <= seconds < _MAX_SECONDS:  # a torn line
        return None
    formats = dict(_DESCRIPTOR.findall(rest[4]))
    ends = [formats[role] for role in ("src", "dst") if formats.get(role)]
    return Execution(
        library="oneDNN",
        primitive=rest[1],
        implementation=rest[2],
        seconds=seconds,
        propagation=rest[3],
        problem=rest[-2],
        formats=" -> ".join(ends),
        signature=f"onednn:{','.join((rest[1], *rest[3:6], ' '.join(rest[6:-2]), rest[-2]))}",
    )


def _mkl(line: str) -> Execution | None:
    match = _MKL.search(line)
    if match is None:
        return None
    routine, arguments, time, unit, threads = match.groups()
    words = [word for word in arguments.split(",") if word.isalpha()]
    # Addresses, and the arguments after the first address, change from call to call.
    sizes = itertools.takewhile(
        lambda word: not word.startswith("0x"), map(str.strip, arguments.split(","))
    )
    return Execution(
        library="MKL",
        primitive=routine,
        implementation=f"{routine}({','.join(words)})" if words else routine,
        seconds=float(time) * _UNITS[unit],
        threads=None if threads is None else int(threads),
        signature=f"mkl:{routine}({','.join(sizes)})",
    )


def total_s(executions: list[Execution]) -> float:
    """Return the total seconds of executions."""
    return sum(execution.seconds for execution in executions)


def last_call(executions: list[Execution], calls: int) -> list[Execution]:
    """Return the executions of the last of several equal calls.

    Args:
        executions: executions in all calls, in their order.
        calls: number of calls.

    Returns:
        Nothing if the executions do not divide into this number of equal calls.
    """
    length, rest = divmod(len(executions), calls)
    if rest or not length:
        return []
    logs = [executions[length * i : length * (i + 1)] for i in range(calls)]
    same = len({tuple(item.implementation for item in log) for log in logs}) == 1
    return logs[-1] if same else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A logged call, and the same call without a log immediately before or after.

    Attributes:
        executions: executions in the logged call.
        logged_s: time of the logged call.
        plain_s: time of the call without a log; None if there was no such call.
    """

    executions: list[Execution]
    logged_s: float
    plain_s: float | None


def middle_turn(turns: Sequence[Turn]) -> tuple[list[Execution], float]:
    """Return the executions of the median call, and the seconds of that call without logging.

    The median is taken over the executions' share of the call, as clocks may change between turns.
    The logged call itself is the whole, since interference affects both, less the cost of logging:
    the difference of the shortest calls with and without a log, and at most the time of the call
    outside of its executions.

    Args:
        turns: turns of equal calls, at least one.
    """
    plain = [turn.plain_s for turn in turns if turn.plain_s]
    cost = max(0.0, min(turn.logged_s for turn in turns) - min(plain)) if plain else 0.0
    wholes = [
        (turn.executions, max(total_s(turn.executions), turn.logged_s - cost)) for turn in turns
    ]
    return sorted(wholes, key=lambda whole: total_s(whole[0]) / whole[1])[len(wholes) // 2]


def kernels(executions: list[Execution]) -> str | None:
    """Return the names of the kernels in their order, without reorders.

    Returns:
        ``brg_conv_fwd:avx512_core``, or several, joined by `` + ``; None if there is no kernel.
    """
    names = (
        ("" if execution.library == "oneDNN" else f"{execution.library} ")
        + execution.implementation
        for execution in executions
        if execution.primitive != "reorder"
    )
    return " + ".join(dict.fromkeys(names)) or None


def evidence(executions: list[Execution], call_s: float) -> dict[str, Any]:
    """Return the evidence of a log on why a row is slow, see ``KernelFacts.evidence``.

    Args:
        executions: executions in one call.
        call_s: time of the whole call.

    Returns:
        ``kernel``; ``kernel_s``, ``reorder_s`` and ``call_s`` in seconds; nothing if no kernel was
        logged.
    """
    name = kernels(executions)
    if name is None:
        return {}
    reorders = total_s([item for item in executions if item.primitive == "reorder"])
    return {
        "kernel": name,
        "kernel_s": total_s(executions) - reorders,
        "reorder_s": reorders,
        "call_s": call_s,
    }


def remarks(executions: list[Execution], *, threads: int, inference: bool) -> tuple[str, ...]:
    """Return notes for the reader: reorders in each call, idle threads.

    Args:
        executions: executions in one call.
        threads: number of available threads.
        inference: whether no backward pass follows.
    """
    notes = []
    reorders = [item for item in executions if item.primitive == "reorder"]
    if reorders:
        what = "; ".join(f"{item.problem} {item.formats}" for item in reorders)
        notes.append(f"oneDNN converts layouts in each call: {what}")
    if inference and any(item.propagation == "forward_training" for item in executions):
        notes.append("oneDNN was asked for its forward_training kernel, although this is inference")
    idle = [item for item in executions if item.threads is not None and item.threads < threads]
    if idle:
        notes.append(f"MKL used {idle[0].threads} of {threads} threads")
    return tuple(notes)


# -----------------------------------------------------------------------------
# The output of libraries while a function runs: oneDNN and MKL write to file descriptor 1.


@contextlib.contextmanager
def printed() -> Iterator[list[str]]:
    """Redirect file descriptor 1 to a file; the list has its text at the end."""
    lines: list[str] = []
    _flush()
    with tempfile.TemporaryFile() as file:
        stdout = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield lines
        finally:
            _flush()
            os.dup2(stdout, 1)
            os.close(stdout)
            file.seek(0)
            lines.append(file.read().decode(errors="replace"))


def _flush() -> None:
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)  # the buffer of the C library


def output_of(call: Callable[[], Any]) -> str:
    """Call once and return what was written to file descriptor 1 meanwhile."""
    with printed() as lines:
        call()
    return "".join(lines)

"""What oneDNN and MKL print about their calls, read: which kernel stands behind an operator.

A line of oneDNN names the primitive, its implementation, its memory descriptors, the problem and
the time of one execution in milliseconds::

    onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core,forward_training,
    src:f32::blocked:acdb::f0 ...,attr-scratchpad:user,alg:convolution_direct,mb2_ic16...,0.032

(oneDNN 1 to 3.2 leave out ``v1`` and ``primitive``, and write ``src_f32`` for ``src:f32``; a time
stamp may stand before them); one of MKL the routine with its arguments, the
time and the threads::

    MKL_VERBOSE SGEMM(T,N,48,64,32,...) 1.76ms CNR:OFF Dyn:0 FastMM:1 TID:0  NThr:2
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_MKL = re.compile(r"MKL_VERBOSE (\w+)\(([^)]*)\) ([\d.]+)(ns|us|ms|s)\b(?:.*\bNThr:(\d+))?")
_CREATED = re.compile(
    r"^(?:onednn|dnnl)_verbose,(?:\w+,)*create:.*,([\d.]+(?:e-?\d+)?)$", re.MULTILINE
)
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_DESCRIPTOR = re.compile(r"(\w+?)[_:](?:[a-z]+[0-9]+\w*|undef):[^:]*:[^:]*:(\w*)")
#: What begins a line that :func:`parse` reads.
MARKS = ("onednn_verbose,", "dnnl_verbose,", "MKL_VERBOSE ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a library's kernel.

    Attributes:
        library: ``oneDNN`` or ``MKL``.
        primitive: ``convolution``, ``reorder``, ``SGEMM`` and so on.
        implementation: the kernel: ``brg_conv_fwd:avx512_core``, ``SGEMM(T,N)``.
        seconds: of this execution.
        propagation: what a primitive is to do: ``forward_training``, ``backward_data``.
        problem: sizes, as the library writes them.
        formats: of source and destination: ``abcd -> aBcd16b``.
        threads: how many it used, where it says so.
        signature: what of the line says what is computed, see :mod:`pydlbench.calls.seen.onednn`.
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
    """Read the executions from what was printed, in their order; other lines are passed over."""
    executions = map(parse_line, text.splitlines())
    return [execution for execution in executions if execution is not None]


def parse_line(line: str) -> Execution | None:
    """Read the execution of one line; None where it is none's."""
    return _onednn(line) or _mkl(line)


def creation_s(text: str) -> float:
    """Return the seconds of making oneDNN's primitives, those that its cache already has included.

    Their lines stand in the log of the level that prints creation too::

        onednn_verbose,v1,primitive,create:cache_miss,cpu,convolution,...,0.281

    Args:
        text: that was printed.
    """
    return sum(map(float, _CREATED.findall(text))) / 1e3


def _onednn(line: str) -> Execution | None:
    fields = line.strip().split(",")
    if fields[0] not in ("onednn_verbose", "dnnl_verbose") or "exec" not in fields[:5]:
        return None
    if "graph" in fields[:4]:  # a partition, whose primitives have lines of their own
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
    # Addresses, and what stands behind the first of them, change from call to call.
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
    """Return the seconds that all executions took together."""
    return sum(each.seconds for each in executions)


def last_call(executions: list[Execution], calls: int) -> list[Execution]:
    """Return the executions of the last of several equal calls.

    Args:
        executions: of all calls, in their order.
        calls: how many.

    Returns:
        Nothing if the executions do not divide into so many equal calls.
    """
    each, rest = divmod(len(executions), calls)
    if rest or not each:
        return []
    logs = [executions[each * i : each * (i + 1)] for i in range(calls)]
    same = len({tuple(item.implementation for item in log) for log in logs}) == 1
    return logs[-1] if same else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A call with its log, and the same call without one, right beside it.

    Attributes:
        executions: of the logged call.
        logged_s: seconds that this call took.
        plain_s: seconds that the call without a log took; None where there was none.
    """

    executions: list[Execution]
    logged_s: float
    plain_s: float | None


def middle_turn(turns: Sequence[Turn]) -> tuple[list[Execution], float]:
    """Return the executions of a call, and the seconds of the call that they are shares of.

    Of several turns it is the one in the middle by that share: the machine may change its pace
    between them. The whole is the very call that was logged, as whatever disturbed the one has
    disturbed the other, less what writing the log costs: the shortest call with one less the
    shortest without, and no more than the call took besides its executions.

    Args:
        turns: at least one, of equal calls.
    """
    plain = [each.plain_s for each in turns if each.plain_s]
    cost = max(0.0, min(each.logged_s for each in turns) - min(plain)) if plain else 0.0
    wholes = [
        (each.executions, max(total_s(each.executions), each.logged_s - cost)) for each in turns
    ]
    return sorted(wholes, key=lambda each: total_s(each[0]) / each[1])[len(wholes) // 2]


def kernels(executions: list[Execution]) -> str | None:
    """Name the kernels that computed, in their order, conversions of layouts left out.

    Returns:
        ``brg_conv_fwd:avx512_core``, or several with `` + `` between, or None if there is none.
    """
    names = (
        each.implementation if each.library == "oneDNN" else f"{each.library} {each.implementation}"
        for each in executions
        if each.primitive != "reorder"
    )
    return " + ".join(dict.fromkeys(names)) or None


def evidence(executions: list[Execution], call_s: float) -> dict[str, Any]:
    """Return what a log tells about the causes of a slow row, see ``KernelFacts.evidence``.

    Args:
        executions: of one call.
        call_s: seconds of the call that they are shares of.

    Returns:
        ``kernel``; ``kernel_s``, ``reorder_s`` and ``call_s`` in seconds; nothing where no kernel
        was logged.
    """
    name = kernels(executions)
    if name is None:
        return {}
    reorders = sum(each.seconds for each in executions if each.primitive == "reorder")
    return {
        "kernel": name,
        "kernel_s": total_s(executions) - reorders,
        "reorder_s": reorders,
        "call_s": call_s,
    }


def remarks(executions: list[Execution], *, threads: int, inference: bool) -> tuple[str, ...]:
    """Say what a reader has to know: conversions of layouts in each call, threads left idle.

    Args:
        executions: of one call.
        threads: how many there are.
        inference: whether nothing is kept for a backward pass.
    """
    entries = []
    reorders = [each for each in executions if each.primitive == "reorder"]
    if reorders:
        what = "; ".join(f"{each.problem} {each.formats}" for each in reorders)
        entries.append(f"oneDNN converts layouts in each call: {what}")
    if inference and any(each.propagation == "forward_training" for each in executions):
        entries.append(
            "oneDNN was asked for its forward_training kernel, although this is inference"
        )
    idle = [each for each in executions if each.threads is not None and each.threads < threads]
    if idle:
        entries.append(f"MKL used {idle[0].threads} of {threads} threads")
    return tuple(entries)

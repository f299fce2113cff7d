"""Operator inputs as TritonBench reads them (``--input-loader FILE``): PyTorch's calls, counted.

Each operator has a list of ``{"count": 2, "inputs": "((T([64, 128], f32), ...), {})"}``: texts that
TritonBench evaluates to arguments and keywords; ``T(shape, type, strides)`` is a tensor. Format:
``tritonbench/operator_loader/aten/input_loader.py`` of meta-pytorch/tritonbench, the same as in
PyTorch's ``benchmarks/dynamo/microbenchmarks/operator_inp_utils.py``.
"""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydlbench.calls.meaning import Value
from pydlbench.calls.seen.aten import TorchName, leaves, read_call
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.run import RunRecord
from pydlbench.store.entry import Entry

_TYPES: Final = {
    "bfloat16": "bf16",
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bool": "b8",
    "complex64": "c64",
    "complex128": "c128",
    "uint8": "u8",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
}


def write(runs: Sequence[tuple[RunRecord, Sequence[Entry]]]) -> tuple[str, list[str]]:
    """Return the operators that runs have timed for forecasts, and notes on other calls.

    Raises:
        UsageError: there are no calls of PyTorch.
    """
    calls = [
        (str(entry.document.get("signature", "")), 1)
        for _, entries in runs
        for entry in entries
        if entry.table == "operator"
    ]
    return write_calls(calls, runs[0][0].id)


def write_calls(calls: Iterable[tuple[str, int]], source: str) -> tuple[str, list[str]]:
    """Return calls with their counts as TritonBench's inputs, and notes on other calls.

    Args:
        calls: signatures (see :mod:`pydlbench.backends.torch.steps.signature`) with their counts.
        source: name of the run or file.

    Raises:
        UsageError: there is no call of PyTorch that it can read.
    """
    by_operator: dict[str, dict[str, int]] = {}
    unread: dict[str, int] = {}
    for signature, count in calls:
        name = signature.partition("(")[0]
        try:
            inputs = _inputs(signature)
        except UnsupportedError:
            unread[name[:60]] = unread.get(name[:60], 0) + count
            continue
        counts = by_operator.setdefault(name, {})
        counts[inputs] = counts.get(inputs, 0) + count
    if not by_operator:
        raise UsageError(
            f"{source}: has no calls of PyTorch's with their operands; nearest: a trace, "
            "pydlbench export @trace.json.gz --format tritonbench, or a run of forecast"
        )
    document: dict[str, Any] = {"metadata": {"source": f"pydlbench export {source}"}}
    for name, counts in by_operator.items():
        document[name] = [{"count": count, "inputs": text} for text, count in counts.items()]
    named = ", ".join(f"{name} x {count}" for name, count in unread.items())
    notes = [f"not in it, as TritonBench cannot read their operands: {named}"] if unread else []
    return f"{json.dumps(document, indent=1)}\n", notes


def _inputs(signature: str) -> str:
    """Return the arguments of a call.

    Raises:
        UnsupportedError: it is no call of PyTorch, or has operands that TritonBench cannot make.
    """
    if signature.partition("(")[0].count(".") != 2:
        raise UnsupportedError(f"{signature[:60]}: no call of PyTorch's")
    call = read_call(signature)
    if "embedding" in call.name or not call.values:
        raise UnsupportedError(f"{call.name}: operands that are values, or none")
    if any(math.isnan(number) for number in leaves(call.arguments, float)):
        raise UnsupportedError(f"{call.name}: not a number")
    arguments = "".join(f"{_text(argument)}, " for argument in call.arguments)
    keywords = ", ".join(f"{name!r}: {_text(value)}" for name, value in call.keywords.items())
    return f"(({arguments.rstrip()}), {{{keywords}}})"


def _text(value: Any) -> str:
    if isinstance(value, Value):
        if value.dtype not in _TYPES:
            raise UnsupportedError(f"{value.dtype}: a type that TritonBench does not know")
        dense = Value.dense(value.dtype, value.shape).strides == value.strides
        strides = "" if dense else f", {list(value.strides)}"
        return f"T({list(value.shape)}, {_TYPES[value.dtype]}{strides})"
    if isinstance(value, TorchName):
        if value.kind == "device":
            return repr(value.text)
        return _TYPES.get(value.text, f"torch.{value.text}")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)

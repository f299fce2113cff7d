"""The kernel behind an operator: what TensorFlow or XLA made of the function that was traced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydlbench.backends.tensorflow.operator import FunctionOperator

__all__ = ["graph_kernels", "kernels_behind", "xla_detail", "xla_kernels"]

# Nodes that only bring tensors in and out.
_PLUMBING = {"_Arg", "_DeviceArg", "_Retval", "_DeviceRetval", "Const", "_EagerConst", "NoOp"}
_PLUMBING |= {"Identity", "_HostSend", "_HostRecv", "_Send", "_Recv"}
# XLA's instructions that are worth naming; the rest is layout and arithmetic on elements.
_HEAVY = re.compile(
    r"= (?P<type>\w+)\[[^\]]*\]\S* "
    r"(?P<word>convolution|dot|reduce|reduce-window|select-and-scatter|scatter|custom-call)\("
    r"(?:.*custom_call_target=\"(?P<target>[^\"]+)\")?"
)
_CONV = re.compile(r"= \w+\[[^\]]*\]\S* convolution\(")
_LABELS = re.compile(r"dim_labels=(\S+?)(?:,|$|\s)")
_EIGEN = re.compile(r"b(\d+)f_\1io->b\1f")
_NOT_EIGEN = ("rhs_reversal", "batch_group_count")


def kernels_behind(operator: FunctionOperator) -> tuple[str | None, str]:
    """Return the names of the kernels that compute an operator, and what else is known of them.

    The names are None, the rest is empty, where they are not known.

    In graph mode the function is traced and run anew, with TensorFlow's record of the graph that it
    makes of it.
    """
    try:
        if operator.mode == "xla":
            program = operator.function.experimental_get_compiler_ir(*operator.operands)
            text = program(stage="optimized_hlo")
            return xla_kernels(text), xla_detail(text)
        return graph_kernels(_nodes(operator)), ""
    except Exception:  # noqa: BLE001 - a name is not worth a row, and none of this is stable
        return None, ""


def graph_kernels(nodes: Iterable[str]) -> str | None:
    """Return the operators among a graph's nodes: ``_MklNativeConv2D`` is oneDNN's."""
    names = dict.fromkeys(name for name in nodes if name not in _PLUMBING)
    return ", ".join(names) or None


def xla_kernels(program: str) -> str | None:
    """Return the heavy instructions of a compiled program, with the type that they compute in."""
    found: dict[str, None] = {}
    for match in _HEAVY.finditer(program):
        found[f"{match['target'] or match['word']} {match['type']}"] = None
    return ", ".join(found) or None


def xla_detail(program: str) -> str:
    """Say who computes the convolutions of a program that XLA compiled for a CPU.

    XLA hands one over to Eigen if its channels lie innermost, its weights as (rows, columns,
    inputs, outputs), and if nothing is turned round or grouped by images (``ConvolutionThunk`` in
    XLA's sources); for all others it writes plain loops. One of another library's is a custom call.
    """
    found = dict.fromkeys(_convolution(line) for line in program.splitlines() if _CONV.search(line))
    return "; ".join(found)


def _convolution(line: str) -> str:
    labels = _LABELS.search(line)
    order = labels[1] if labels else "unknown"
    eigen = _EIGEN.fullmatch(order) and not any(word in line for word in _NOT_EIGEN)
    whose = "it goes to Eigen" if eigen else "XLA writes plain loops for it"
    return f"its program has a convolution {order}: {whose}"


def _nodes(operator: FunctionOperator) -> list[str]:
    from tensorflow.python.eager import context

    current = context.context()
    current.enable_run_metadata()
    try:
        current.export_run_metadata()  # drops what was recorded before
        # A graph is recorded when it is made, so one that has run before would not be.
        operator.again().call()
        record = current.export_run_metadata()
    finally:
        current.disable_run_metadata()
    return [node.op for graph in record.partition_graphs for node in graph.node]

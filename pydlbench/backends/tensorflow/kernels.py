"""The kernel behind an operator: what TensorFlow or XLA made of the function that was traced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydlbench.backends.tensorflow.operator import FunctionOperator

__all__ = ["graph_kernels", "kernels_behind", "xla_kernels"]

# Nodes that only bring tensors in and out.
_PLUMBING = {"_Arg", "_DeviceArg", "_Retval", "_DeviceRetval", "Const", "_EagerConst", "NoOp"}
_PLUMBING |= {"Identity", "_HostSend", "_HostRecv", "_Send", "_Recv"}
# XLA's instructions that are worth naming; the rest is layout and arithmetic on elements.
_HEAVY = re.compile(
    r"= (?P<type>\w+)\[[^\]]*\]\S* "
    r"(?P<word>convolution|dot|reduce|reduce-window|select-and-scatter|scatter|custom-call)\("
    r"(?:.*custom_call_target=\"(?P<target>[^\"]+)\")?"
)


def kernels_behind(operator: FunctionOperator) -> str | None:
    """Return the names of the kernels that compute an operator; None where they are not known.

    In graph mode the function is traced and run anew, with TensorFlow's record of the graph that it
    makes of it.
    """
    try:
        if operator.mode == "xla":
            program = operator.function.experimental_get_compiler_ir(*operator.operands)
            return xla_kernels(program(stage="optimized_hlo"))
        return graph_kernels(_nodes(operator))
    except Exception:  # noqa: BLE001 - a name is not worth a row, and none of this is stable
        return None


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

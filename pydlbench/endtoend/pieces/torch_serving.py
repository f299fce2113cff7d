"""PyTorch's parts, prepared: built, run once, calibrated, and traced where that is wanted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from pydlbench.backends.frameworks.verbose import parse
from pydlbench.backends.torch.capture import library_output
from pydlbench.endtoend.inputs import make_batch
from pydlbench.endtoend.pieces.call_cost import CallCost
from pydlbench.endtoend.pieces.kernel import PartsFacts, PartsKernel
from pydlbench.endtoend.pieces.logs import summary
from pydlbench.endtoend.pieces.torch_groups import Group, Operands, record
from pydlbench.endtoend.pieces.torch_parts import (
    FeedPart,
    GradientSum,
    GroupPart,
    LossPart,
    OptimizerPart,
    StepParts,
)
from pydlbench.endtoend.pieces.torch_traces import trace_all
from pydlbench.endtoend.torch import numbers
from pydlbench.endtoend.torch.net import Net
from pydlbench.endtoend.weights import make_weights
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.endtoend.step import StepCase
    from pydlbench.models.graph import Model

__all__ = ["prepare"]

# Operators in a chain that computes nothing, and how often it is run.
_CHAIN = 64
_REPEATS = 25
_HOW = (
    f"{_CHAIN} operators on one element in a chain, against the same {_CHAIN} run one by one; "
    "calls of one taken off each part, right after it"
)
# A chain becomes one loop there, so that operators cannot be told from their call.
_HOW_COMPILED = "a compiled function of one operator on one element, called after each part"


def prepare(backend: Any, model: Model, case: StepCase, wanted: Mapping[str, Any]) -> PartsKernel:
    """Make parts ready; see :func:`pydlbench.endtoend.pieces.serving.prepare_parts`."""
    begin = time.perf_counter()
    if wanted["kind"] == "faults":
        return PartsKernel(
            [_Allocation(wanted["bytes"])], PartsFacts(names=("call",)), backend.cpus
        )
    numbers.check(case)
    net = Net(model)
    net.load(make_weights(model, case.seed))
    parts = StepParts(net, case, make_batch(model, case.seed))
    library = f"torch {torch.__version__}"
    if wanted["kind"] == "log":
        parts.call()
        logs = [parse(library_output(parts.call)) for _ in range(wanted["calls"])]
        facts = PartsFacts(log=summary(logs), library=library)
        return PartsKernel([], facts, backend.cpus)
    single = _trivial(parts, 1)
    start, dispatch = _calibrated(parts, single)
    cost = CallCost(single.run, start / max(start + dispatch, 1e-9))
    made = _parts(parts, wanted["parts"], cost)
    for one in made.values():
        one.run()
    traces = trace_all(made) if wanted.get("traces") else {}
    facts = PartsFacts(
        names=tuple(made),
        once_s=cost.latest,
        dispatch_s=dispatch,
        how=_HOW_COMPILED if case.mode == "compiled" else _HOW,
        setup_s=time.perf_counter() - begin,
        traces=traces,
        library=library,
    )
    counts = [one["count"] for one in wanted["parts"]]
    return PartsKernel(list(made.values()), facts, backend.cpus, counts)


def _parts(parts: StepParts, wanted: list[dict[str, Any]], cost: CallCost) -> dict[str, Any]:
    compile_it = parts.case.mode == "compiled"
    needed = [one for one in wanted if one["nodes"]]
    groups = [Group(parts.net, one["nodes"], functional=compile_it) for one in needed]
    operands = dict(
        zip(
            (one["name"] for one in needed),
            zip(groups, record(parts, groups), strict=True),
            strict=True,
        )
    )
    found: dict[str, Any] = {}
    for one in wanted:
        name, kind = one["name"], one["kind"]
        if kind == "feed":
            found[name] = FeedPart(parts)
        elif kind == "optimizer":
            found[name] = OptimizerPart(parts)
        elif kind == "loss":
            shape = (parts.model.batch, *parts.model.output.shape)
            output = torch.randn(shape)
            if output.ndim == 4 and parts.case.layout == "nhwc":
                output = output.contiguous(memory_format=torch.channels_last)
            found[name] = LossPart(parts, output, cost)
        elif kind == "gradient sum":
            found[name] = GradientSum(_gradient(operands.get(name), parts))
        else:
            group, own = operands[name]
            found[name] = GroupPart(parts, group, own, cost, compile_it=compile_it)
    return found


def _gradient(found: tuple[Group, Operands] | None, parts: StepParts) -> torch.Tensor:
    """Return the gradient of a node's output, or something of the images' shape."""
    known = () if found is None else found[1].gradients
    return next((one for one in known if one is not None), parts.batch()[0])


class _Allocation:
    """A call whose result is so large that the C library may ask the system for it."""

    executions = 1

    def __init__(self, size: int) -> None:
        self._source = torch.ones(size // 4)

    def run(self) -> float:
        """Allocate, write and drop it."""
        start = time.perf_counter()
        torch.add(self._source, 1.0)
        return time.perf_counter() - start


def _calibrated(parts: StepParts, single: GroupPart) -> tuple[float, float]:
    """Return what is in each part's time but once in a step, and what an operator costs.

    Args:
        parts: the step.
        single: a call of one operator.
    """
    chain = _trivial(parts, _CHAIN)
    together, alone = [], []
    for _ in range(_REPEATS):
        together.append(chain.run())
        alone.append(sum(single.run() for _ in range(_CHAIN)))
    if parts.case.mode == "compiled":
        return median(alone) / _CHAIN, 0.0
    fixed = (median(alone) - median(together)) / (_CHAIN - 1)
    return max(0.0, fixed), max(0.0, (median(together) - fixed) / _CHAIN)


def _trivial(parts: StepParts, length: int) -> GroupPart:
    """Return a chain of operators on one element, run exactly as the parts are."""
    root = nn.Module()
    graph = fx.Graph()
    value = graph.placeholder("x")
    for number in range(length):
        root.add_module(f"n{number}", nn.ReLU())
        value = graph.call_module(f"n{number}", (value,))
    graph.output((value,))
    group: Any = Group.__new__(Group)
    group.inputs, group.outputs, group.overwritten = [value], [value], set()
    group.module = fx.GraphModule(root, graph)
    operands = Operands(group)
    operands.inputs = [torch.ones(1, 1, 1, 1).requires_grad_(parts.case.backward)]
    operands.gradients = [torch.ones(1, 1, 1, 1)]
    part = GroupPart(parts, group, operands, compile_it=parts.case.mode == "compiled")
    part.run()
    return part

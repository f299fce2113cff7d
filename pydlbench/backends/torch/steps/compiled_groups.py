"""Groups of a compiled step's calls: taken from its recording, each compiled and timed alone.

PyTorch's compiler gets the calls that the eager mode makes in network and loss. The optimizer is
not compiled: its calls are the same as in the eager mode.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import fx, nn

from pydlbench.backends.frameworks.backend import framework_errors
from pydlbench.backends.steps.timed_calls import CallCost, RepeatedOperator, prepare_operators
from pydlbench.backends.torch.layers.operator import compiled
from pydlbench.backends.torch.steps.calls_alone import CallOperator
from pydlbench.backends.torch.steps.recording import DispatchedCall, Recording, StorageSlot
from pydlbench.backends.torch.steps.signature import parse
from pydlbench.calls.groups import CallGroup, distinct_groups
from pydlbench.calls.seen.aten import leaves, map_leaves
from pydlbench.calls.step_calls import StepCall
from pydlbench.records.trace import RecordedCall

_EMPTY_CALL: Final = "aten.relu.default(float32[1](1))"


def groups_of(recording: Recording) -> tuple[RecordedCall, ...]:
    """Return the distinct groups of a recorded step, and the calls of its optimizer.

    Views of values that existed before the step, and views made without the dispatcher, are
    operands of the group that reads them.
    """
    made_by: dict[int, tuple[int, int]] = {}
    alive: dict[int, tuple[int, int]] = {}
    members: list[StepCall] = []
    for call in recording.calls:
        operands = leaves([call.arguments, call.keywords], StorageSlot)
        reads = tuple(made_by.get(operand.number) for operand in operands)
        for slot in call.freed:
            alive.pop(slot, None)
        if call.direction == "optimizer" or call.implied or (_views(call) and not any(reads)):
            continue
        results = call.results if isinstance(call.results, (list, tuple)) else (call.results,)
        for place, result in enumerate(results):
            if isinstance(result, StorageSlot):
                made_by[result.number] = len(members), place
                if result.number not in call.freed:
                    alive[result.number] = made_by[result.number]
        members.append(
            StepCall(
                signature=call.signature,
                operator=call.operator,
                direction=call.direction,
                names=call.names,
                reads=reads,
                bytes=call.bytes,
            )
        )
    optimizer = [call for call in recording.distinct() if call.direction == "optimizer"]
    return (*distinct_groups(members, outputs=list(alive.values())), *optimizer)


def _views(call: DispatchedCall) -> bool:
    """Whether a call returns a view of its operand, and computes nothing."""
    aliases = [value.alias_info for value in call.function._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


class GroupOperator(RepeatedOperator):
    """A compiled group of calls with its operands.

    Args:
        group: group of calls.
        seed: seed of the operands.
        cost: cost of an empty call, which is subtracted; None subtracts nothing.

    Raises:
        UnsupportedError: the operands of a call cannot be made up.
    """

    def __init__(self, group: CallGroup, seed: int = 0, cost: CallCost | None = None) -> None:
        calls = [CallOperator(parse(text), "cpu", seed) for text in group.calls]
        links = {(call, operand): (by, result) for call, operand, by, result in group.links}
        self.operands = [
            tensor
            for number, call in enumerate(calls)
            for place, tensor in enumerate(leaves([call.arguments, call.keywords], torch.Tensor))
            if (number, place) not in links
        ]
        graph = fx.Graph()
        given = iter([graph.placeholder(f"x{number}") for number in range(len(self.operands))])
        results: list[fx.Node] = []

        def value(call: int, result: int) -> fx.Node:
            returns = calls[call].function._schema.returns
            several = len(returns) > 1 or str(returns[0].type).startswith("List")
            node = results[call]
            return graph.call_function(operator.getitem, (node, result)) if several else node

        for number, call in enumerate(calls):
            places = itertools.count()

            def node_of(argument: Any, number: int = number, places: Iterator[int] = places) -> Any:
                if not isinstance(argument, torch.Tensor):
                    return argument
                link = links.get((number, next(places)))
                return next(given) if link is None else value(*link)

            arguments, keywords = (
                map_leaves(call.arguments, node_of),
                map_leaves(call.keywords, node_of),
            )
            results.append(graph.call_function(call.function, tuple(arguments), keywords))
        graph.output(tuple(value(*place) for place in group.results))
        module = fx.GraphModule(nn.Module(), graph)

        def run(*tensors: torch.Tensor) -> Any:
            return module(*tensors)

        compiled_run = compiled(run)

        def run_group() -> tuple[torch.Tensor, ...]:
            with torch.no_grad():
                returned: tuple[torch.Tensor, ...] = compiled_run(*self.operands)
            return returned

        super().__init__(run_group, cost=cost)

    def run(self) -> float:
        """Read the first operand, run the group once, and return its seconds."""
        for operand in self.operands[:1]:
            operand.sum()
        return super().run()


def prepare_groups(
    signatures: Sequence[str], seed: int
) -> tuple[dict[str, GroupOperator], dict[str, str]]:
    """Prepare groups, and run each once.

    After each group a compiled function of one call on one element runs, whose time is subtracted.

    Returns:
        The groups that ran, and the reasons why others did not, by signature.
    """

    @functools.cache
    def cost() -> CallCost:
        empty = GroupOperator(CallGroup(calls=(_EMPTY_CALL,), results=((0, 0),)))
        empty.run()
        return CallCost(empty.run)

    def make(text: str) -> GroupOperator:
        group = CallGroup.read(text)
        with framework_errors(group.calls[0].partition("(")[0]):
            prepared = GroupOperator(group, seed, cost())
            prepared.run()
        return prepared

    return prepare_operators(signatures, make)

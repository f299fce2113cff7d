"""Groups of a compiled step's calls: cut out of its recording, each compiled and timed alone.

What PyTorch's compiler gets of network and loss are the calls that the eager mode makes. The
optimizer is not compiled: its calls are the eager ones.
"""

from __future__ import annotations

import functools
import itertools
import operator
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx, nn

from pydlbench.backends.frameworks.backend import framework_errors
from pydlbench.backends.steps.repeated import prepare_operators
from pydlbench.backends.steps.timed_calls import CallCost
from pydlbench.backends.torch.layers.operator import compiled
from pydlbench.backends.torch.steps.calls_alone import CallOperator
from pydlbench.backends.torch.steps.recording import StorageSlot
from pydlbench.backends.torch.steps.signature import parse
from pydlbench.calls.groups import CallGroup, distinct_groups
from pydlbench.calls.seen.aten import leaves, map_leaves
from pydlbench.calls.step_calls import StepCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.backends.torch.steps.recording import DispatchedCall, Recording
    from pydlbench.records.operator import RecordedCall

_NOTHING: Final = "aten.relu.default(float32[1](1))"


def groups_of(recording: Recording) -> tuple[RecordedCall, ...]:
    """Return the distinct groups of a recorded step, and the calls of its optimizer.

    A view of what was there before the step, and one that the dispatcher did not see, is an operand
    of the group that reads it.
    """
    made: dict[int, tuple[int, int]] = {}
    alive: dict[int, tuple[int, int]] = {}
    members: list[StepCall] = []
    for call in recording.calls:
        operands = leaves([call.arguments, call.keywords], StorageSlot)
        reads = tuple(made.get(each.number) for each in operands)
        for slot in call.freed:
            alive.pop(slot, None)
        if call.direction == "optimizer" or call.implied or (_views(call) and not any(reads)):
            continue
        for result, each in enumerate(_several(call.results)):
            if isinstance(each, StorageSlot):
                made[each.number] = len(members), result
                if each.number not in call.freed:
                    alive[each.number] = made[each.number]
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
    optimizer = [each for each in recording.distinct() if each.direction == "optimizer"]
    return (*distinct_groups(members, outputs=list(alive.values())), *optimizer)


def _views(call: DispatchedCall) -> bool:
    """Whether a call gives a view of what it reads, and computes nothing."""
    returned = [each.alias_info for each in call.function._schema.returns]
    return any(each is not None and not each.is_write for each in returned)


def _several(results: Any) -> Sequence[Any]:
    return results if isinstance(results, (list, tuple)) else (results,)


class GroupOperator:
    """A group with its operands; see ``backends.steps.timed_calls.TimedOperator``.

    Args:
        group: of calls.
        seed: of the operands.
        cost: of a call of nothing, which is taken off; None leaves it in.

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
        self._cost = cost
        graph = fx.Graph()
        given = iter([graph.placeholder(f"x{number}") for number in range(len(self.operands))])
        results: list[fx.Node] = []

        def value(call: int, result: int) -> fx.Node:
            returns = calls[call].function._schema.returns
            several = len(returns) > 1 or str(returns[0].type).startswith("List")
            made = results[call]
            return graph.call_function(operator.getitem, (made, result)) if several else made

        for number, call in enumerate(calls):
            places = itertools.count()

            def put(argument: Any, number: int = number, places: Iterator[int] = places) -> Any:
                if not isinstance(argument, torch.Tensor):
                    return argument
                link = links.get((number, next(places)))
                return next(given) if link is None else value(*link)

            arguments, keywords = map_leaves(call.arguments, put), map_leaves(call.keywords, put)
            results.append(graph.call_function(call.function, tuple(arguments), keywords))
        graph.output(tuple(value(*each) for each in group.results))
        module = fx.GraphModule(nn.Module(), graph)

        def run(*tensors: torch.Tensor) -> Any:
            return module(*tensors)

        self._call = compiled(run)

    def call(self) -> tuple[torch.Tensor, ...]:
        """Run it once and return its results."""
        with torch.no_grad():
            results: tuple[torch.Tensor, ...] = self._call(*self.operands)
        return results

    def run(self) -> float:
        """Run it once and return the seconds; its first operand is read before."""
        for each in self.operands[:1]:
            each.sum()
        start = time.perf_counter()
        results = self.call()
        end = time.perf_counter()
        del results
        return end - start - (self._cost.seconds() if self._cost else 0.0)


def prepare_groups(
    signatures: Sequence[str], seed: int
) -> tuple[dict[str, GroupOperator], dict[str, str]]:
    """Make groups ready and run each once.

    What a compiled function of one call on one element takes, called after each, is taken off.

    Returns:
        Those that ran, and the reasons of those that did not, by signature.
    """

    @functools.cache
    def cost() -> CallCost:
        return CallCost(_nothing().run)

    def make(text: str) -> GroupOperator:
        group = CallGroup.read(text)
        with framework_errors(group.calls[0].partition("(")[0]):
            made = GroupOperator(group, seed, cost())
            made.run()
        return made

    return prepare_operators(signatures, make)


def _nothing() -> GroupOperator:
    made = GroupOperator(CallGroup(calls=(_NOTHING,), results=((0, 0),)))
    made.run()
    return made

"""The calls of a compiled step: the compiler's kernels, and the operators that PyTorch runs.

They cannot be recorded, and are taken from a profile of one step. Operators are matched in order
with the recorded calls of the eager step that have the same name, shapes and numbers, if both steps
make equally many of them; so their modules are known. A kernel computes calls of several modules,
and keeps its own name, in which the compiler lists the operations.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import torch
from torch import fx, nn
from torch.profiler import ProfilerActivity, profile

from pydlbench.backends.frameworks.backend import framework_errors
from pydlbench.backends.frameworks.device_clock import StepRuntime
from pydlbench.backends.steps.timed_calls import CallCost, RepeatedOperator, prepare_operators
from pydlbench.backends.steps.trace import StepTracer
from pydlbench.backends.torch.layers.operator import compiled
from pydlbench.backends.torch.steps.calls_alone import CallOperator
from pydlbench.backends.torch.steps.profiled import (
    by_profiler,
    contains,
    kineto_events,
    name_in_profile,
    plain_name,
)
from pydlbench.backends.torch.steps.recording import DispatchedCall, Recording, StorageSlot
from pydlbench.backends.torch.steps.signature import parse
from pydlbench.calls.groups import CallGroup, StepCall, distinct_groups
from pydlbench.calls.meaning import Value
from pydlbench.calls.seen.aten import leaves, map_leaves, read_call
from pydlbench.errors import UnsupportedError
from pydlbench.grouping import group_by
from pydlbench.records.trace import ProgramCall, RecordedCall, operator_of

# Maximum length of a kernel's name when it is used as the name of a module.
_MAX_NAME_LETTERS: Final = 44
# Kernels are numbered within a graph. Those of a CPU begin with the graph's number, which depends
# on what else was compiled.
_KERNEL: Final = re.compile(r"(?:graph_\d+_)?((?:cpp|triton)_\w+)")
# The event around a graph's kernels, which include user kernels with names of their own.
_GRAPH: Final = "## Call CompiledFxGraph"
# Events around the calls of a backward pass, and of an optimizer.
_DIRECTIONS: Final = {"autograd::engine::": "backward", "Optimizer.": "optimizer"}
_CONVOLUTIONS: Final = ("aten::convolution", "aten::convolution_backward")


class _CompiledCall(NamedTuple):
    """A call in a profile.

    Attributes:
        name: name of the event.
        direction: see :class:`ProgramCall`.
        shapes: shapes of the call's tensors, without scalars and tensors in lists.
        numbers: stride and other arguments of a convolution; for a backward pass also the mask of
            gradients that it computes.
    """

    name: str
    direction: str
    shapes: tuple[tuple[int, ...], ...] = ()
    numbers: tuple[Any, ...] = ()

    @property
    def inner(self) -> _CompiledCall:
        """The call without its last tensor, which may be its output."""
        return self if self.name in _CONVOLUTIONS else self._replace(shapes=self.shapes[:-1])

    @property
    def bare(self) -> _CompiledCall:
        """The call without a bias or its gradient, which the compiler may compute in a kernel."""
        match self:
            case _CompiledCall(name="aten::addmm", shapes=(_, *shapes)):
                return self._replace(name="aten::mm", shapes=tuple(shapes))
            case _CompiledCall(name="aten::convolution", shapes=(source, weights, _)):
                return self._replace(shapes=(source, weights))
            case _CompiledCall(numbers=(*others, (*mask, True))):
                return self._replace(numbers=(*others, (*mask, False)))
        return self


def name_kernels() -> None:
    """Make the compiler report the names of CPU kernels to the profiler from now on.

    That costs some 50 ns in each call of a kernel. GPU kernels always have names.
    """
    import torch._inductor.config as inductor  # takes as long as NumPy

    inductor.cpp.enable_kernel_profile = True


def count_compiled() -> int:
    """Return the number of graphs that ``torch.compile`` has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def tracer(
    recording: Recording, run: Callable[[], Any], runtime: StepRuntime | None, batch: int
) -> StepTracer:
    """Return the tracer of a compiled step.

    Args:
        recording: recording of the same step in the eager mode.
        run: runs the compiled step once.
        runtime: runtime of the GPU that the step runs on; None on a CPU.
        batch: batch of the step.

    Raises:
        UnsupportedError: on a GPU, the profiler is switched off.
    """
    run()  # anything that is compiled anew after a recording is compiled here
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    if runtime is not None:
        runtime.wait()
    calls = list(_calls_of(kineto_events(profiler.profiler), every_thread=runtime is not None))
    known = _of_eager_step(calls, recording)
    in_place = [
        known[place].now if place in known else _of_no_module(call)
        for place, call in enumerate(calls)
    ]
    profiling = by_profiler([call.name for call in calls], in_place, run, runtime)
    # The calls of the eager step that the compiled one makes, too.
    facts = recording.facts(batch)
    forms = {(call.was.signature, call.was.direction): call.now for call in known.values()}
    common = tuple(
        msgspec.structs.replace(
            call, signature=now.signature, operator=now.operator, bytes=now.bytes
        )
        for call in facts.calls
        if (now := forms.get((call.signature, call.direction)))
    )
    facts = msgspec.structs.replace(facts, calls=common, order=())
    return dataclasses.replace(profiling, compiled=True, operators=facts)


def _calls_of(events: Sequence[Any], *, every_thread: bool) -> Iterator[_CompiledCall]:
    """Yield the outermost operators and kernels of a profile in their order.

    Args:
        events: events of Kineto, PyTorch's profiler library.
        every_thread: use the events of all threads: on a GPU the backward pass has its own thread.
    """
    thread = next((event.start_thread_id() for event in events), 0)
    around: list[tuple[int, str]] = []
    inside_until_ns = 0
    for event in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
        begin_ns, end_ns = event.start_ns(), event.start_ns() + event.duration_ns()
        if begin_ns < inside_until_ns or not (every_thread or event.start_thread_id() == thread):
            continue
        around = [(until_ns, name) for until_ns, name in around if until_ns > begin_ns]
        name = plain_name(event.name())
        in_graph = bool(around) and around[-1][1].startswith(_GRAPH)
        kernel = bool(_KERNEL.fullmatch(name)) or (in_graph and name.isidentifier())
        if contains(name) and not kernel:
            around.append((end_ns, name))
            continue
        inside_until_ns = end_ns
        directions = (
            direction
            for _, outer in around
            for beginning, direction in _DIRECTIONS.items()
            if outer.startswith(beginning)
        )
        yield _CompiledCall(
            name=name,
            direction=next(directions, "forward"),
            shapes=tuple(tuple(shape) for shape in event.shapes() if shape),
            numbers=_numbers(name, event.concrete_inputs()),
        )


def _of_no_module(call: _CompiledCall) -> ProgramCall:
    """Return a call of a traced step that has its own name as its module."""
    kernel = _KERNEL.fullmatch(call.name)
    name = kernel[1] if kernel else call.name.replace("::", ".")
    module = name
    if len(name) > _MAX_NAME_LETTERS:
        end = f"...{name.rpartition('_')[2]}"
        module = name[: _MAX_NAME_LETTERS - len(end)] + end
    return ProgramCall(
        operator=name, module=module, direction=call.direction, signature=f"{name}()"
    )


# -----------------------------------------------------------------------------
# Matching operators with calls of the eager step.


class _Known(NamedTuple):
    """A call of the eager step that the compiled one makes, too.

    Attributes:
        key: the call in a profile.
        strides: strides of the call's tensors except a bias.
        was: the call in the eager step.
        now: the call in the compiled step.
    """

    key: _CompiledCall
    strides: tuple[tuple[int, ...], ...]
    was: ProgramCall
    now: ProgramCall


def _of_eager_step(calls: Sequence[_CompiledCall], recording: Recording) -> dict[int, _Known]:
    """Return the matching calls of the eager step, by the indices of the compiled step's calls.

    Calls without a match are tried again without their bias.
    """
    eager: list[_Known] = []
    functions = (call.function for call in recording.calls if not call.implied)
    for function, recorded in zip(functions, recording.in_order(), strict=True):
        direction = "forward" if recorded.direction == "loss" else recorded.direction
        known = _read(name_in_profile(function), direction, recorded.program_call)
        if known is not None:
            eager.append(known)
    pairs = _paired(dict(enumerate(calls)), eager, lambda call: call)
    used = {id(known) for known in pairs.values()}
    rest = [known for known in eager if id(known) not in used]
    places = {place: call for place, call in enumerate(calls) if place not in pairs}
    for place, known in _paired(places, rest, lambda call: call.bare).items():
        there = calls[place]
        pairs[place] = known if there.bare != there else _without_bias(known)
    return pairs


def _paired(
    places: Mapping[int, _CompiledCall],
    eager: Sequence[_Known],
    key_of: Callable[[_CompiledCall], _CompiledCall],
) -> dict[int, _Known]:
    """Return calls of the eager step by index, if both steps make equally many of them.

    Calls with equal keys and different strides cannot be told apart: products of gradients may have
    the same shapes, and the compiler changes their order.
    """
    known = group_by(eager, lambda call: key_of(call.key))
    keys = {
        place: key if (key := key_of(call)) in known else key_of(call.inner)
        for place, call in places.items()
    }
    return {
        place: call
        for key, same in group_by(keys, keys.__getitem__).items()
        if len(same) == len(known.get(key, ())) and len({call.strides for call in known[key]}) == 1
        for place, call in zip(same, known[key], strict=True)
    }


def _numbers(name: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return a convolution's arguments except tensors and the size of a bias."""
    if name not in _CONVOLUTIONS:
        return ()
    numbers = arguments[4:] if name == _CONVOLUTIONS[1] else arguments[3:]
    return tuple(tuple(value) if isinstance(value, list) else value for value in numbers)


def _read(name: str, direction: str, call: ProgramCall) -> _Known | None:
    """Return a recorded call with its key in a profile; None if its signature cannot be read."""
    try:
        parsed = read_call(call.signature)
    except UnsupportedError:
        return None
    operands = [*parsed.arguments, *parsed.keywords.values()]
    tensors = [value for value in operands if isinstance(value, Value) and value.shape]
    shapes = tuple(tensor.shape for tensor in tensors)
    key = _CompiledCall(name, direction, shapes, _numbers(name, parsed.arguments))
    # A bias is the first tensor of a product, and the last one of a convolution.
    begin = int(name == "aten::addmm")
    end = 2 if name == _CONVOLUTIONS[0] else None
    return _Known(key, tuple(tensor.strides for tensor in tensors[begin:end]), call, call)


def _without_bias(known: _Known) -> _Known:
    """Return a call without its bias, or the gradient of the bias; unchanged if it has no bias."""
    call = known.was
    name, _, rest = call.signature.partition("(")
    tree = ast.parse(f"call({rest}", mode="eval").body
    assert isinstance(tree, ast.Call), name
    if known.key.bare == known.key or tree.keywords or " of=" in rest:
        return known
    words = [ast.unparse(argument) for argument in tree.args]
    bias = 0
    if known.key.name == "aten::addmm":
        name, (bias_word, *words) = "aten.mm.default", words
    elif known.key.name == _CONVOLUTIONS[0]:
        bias_word, words[2] = words[2], "None"
    else:
        bias_word, words[-1] = "", str([*known.key.bare.numbers[-1]])
    if bias_word:
        bias = sum(value.bytes for value in read_call(f"bias({bias_word})").values)
    text = f"{name}({', '.join(words)})"
    now = msgspec.structs.replace(
        call, signature=text, operator=operator_of(text), bytes=max(0, call.bytes - bias)
    )
    return known._replace(now=now)


# -----------------------------------------------------------------------------
# Groups of a compiled step's calls: taken from its recording, each compiled and timed alone.

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

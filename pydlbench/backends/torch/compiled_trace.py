"""The calls of a compiled step: the compiler's kernels, and the operators that PyTorch runs.

Nobody records them: they are what PyTorch's profiler shows of one step. An operator is taken for
the recorded call of the eager step that has the same name and shapes, if both steps make as many of
these: that tells its module. A kernel stands for calls of several modules, and goes by its own
name, in which the compiler has put what it computes.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from torch.profiler import ProfilerActivity, profile

from pydlbench.backends.torch.profiled import (
    by_profiler,
    contains,
    kineto_events,
    name_in_profile,
    plain_name,
)
from pydlbench.errors import UnsupportedError
from pydlbench.grouping import grouped
from pydlbench.ops.meaning import Value
from pydlbench.ops.seen.aten import read_call
from pydlbench.records.operator import operator_of
from pydlbench.records.trace import ProgramCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.backends.frameworks.device_clock import StepRuntime
    from pydlbench.backends.steps.trace import StepTracer
    from pydlbench.backends.torch.recording import Recording

# Letters of a kernel's name where it stands for a module.
_LONGEST: Final = 44
# Kernels are numbered within a graph. Those of a CPU begin with the graph's number, which depends
# on what else was compiled.
_KERNEL: Final = re.compile(r"(?:graph_\d+_)?((?:cpp|triton)_\w+)")
# What surrounds a graph's kernels, those of the user's own that have other names among them.
_GRAPH: Final = "## Call CompiledFxGraph"
# What surrounds calls of a backward pass, and of an optimizer.
_AROUND: Final = {"autograd::engine::": "backward", "Optimizer.": "optimizer"}
_GRADIENTS: Final = "aten::convolution_backward"


class _Call(NamedTuple):
    """A call as the profiler shows it.

    Attributes:
        name: of the event.
        direction: see :class:`ProgramCall`.
        shapes: of its tensors, but for those of no dimension, and in lists.
        mask: which gradients a convolution's backward pass computes; empty of other calls.
    """

    name: str
    direction: str
    shapes: tuple[tuple[int, ...], ...] = ()
    mask: tuple[bool, ...] = ()


def name_kernels() -> None:
    """Have kernels that are compiled from now on for a CPU tell the profiler their names.

    That costs some 50 ns in each call of a kernel. A GPU's kernels tell them anyway.
    """
    import torch._inductor.config as inductor  # takes as long as NumPy

    inductor.cpp.enable_kernel_profile = True


def tracer(
    recording: Recording, run: Callable[[], Any], runtime: StepRuntime | None, batch: int
) -> StepTracer:
    """Return what runs a compiled step traced.

    Args:
        recording: of the same step in the eager mode.
        run: runs the compiled step once.
        runtime: of the GPU that it runs on; None on a CPU.
        batch: of the step.

    Raises:
        UnsupportedError: on a GPU, the profiler is switched off.
    """
    run()  # behind a recording; what is compiled anew is compiled here
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    if runtime is not None:
        runtime.wait()
    calls = list(_calls_of(kineto_events(profiler), every_thread=runtime is not None))
    known = _of_eager_step(calls, recording)
    in_place = [
        known[place].now if place in known else _of_no_module(call)
        for place, call in enumerate(calls)
    ]
    made = by_profiler([call.name for call in calls], in_place, run, runtime)
    # Of the eager step's calls those that the compiled one makes, too.
    facts = recording.facts(batch)
    forms = {(each.was.signature, each.was.direction): each.now for each in known.values()}
    own = tuple(
        msgspec.structs.replace(call, signature=now.signature, operator=now.operator)
        for call in facts.calls
        if (now := forms.get((call.signature, call.direction)))
    )
    facts = msgspec.structs.replace(facts, calls=own, order=())
    return dataclasses.replace(made, compiled=True, operators=facts)


def _calls_of(events: Sequence[Any], *, every_thread: bool) -> Iterator[_Call]:
    """Yield the outermost operators and kernels of a profile in their order.

    Args:
        events: Kineto's.
        every_thread: on a GPU the backward pass has a thread of its own.
    """
    thread = next((each.start_thread_id() for each in events), 0)
    around: list[tuple[int, str]] = []
    inside_until_ns = 0
    for event in sorted(events, key=lambda each: (each.start_ns(), -each.duration_ns())):
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
            for beginning, direction in _AROUND.items()
            if outer.startswith(beginning)
        )
        yield _Call(
            name=name,
            direction=next(directions, "forward"),
            shapes=tuple(tuple(shape) for shape in event.shapes() if shape),
            mask=tuple(event.concrete_inputs()[-1]) if name == _GRADIENTS else (),
        )


def _of_no_module(call: _Call) -> ProgramCall:
    """Return a call as a traced step has it, which goes by its own name."""
    kernel = _KERNEL.fullmatch(call.name)
    name = kernel[1] if kernel else call.name.replace("::", ".")
    module = name
    if len(name) > _LONGEST:
        end = f"...{name.rpartition('_')[2]}"
        module = name[: _LONGEST - len(end)] + end
    return ProgramCall(
        operator=name, module=module, direction=call.direction, signature=f"{name}()"
    )


# -----------------------------------------------------------------------------
# Which call of the eager step an operator is.


class _Known(NamedTuple):
    """A call of the eager step that the compiled one makes, too.

    Attributes:
        was: in the eager step.
        now: in the compiled one.
    """

    was: ProgramCall
    now: ProgramCall


def _of_eager_step(calls: Sequence[_Call], recording: Recording) -> dict[int, _Known]:
    """Return calls of the eager step by the places of those that are taken for them.

    What is left over may be there without its bias, which the compiler adds in a kernel.
    """
    eager: list[tuple[_Call, _Known]] = []
    functions = (each.function for each in recording.calls if not each.implied)
    for function, recorded in zip(functions, recording.in_order(), strict=True):
        direction = "forward" if recorded.direction == "loss" else recorded.direction
        key = _read(name_in_profile(function), direction, recorded.signature)
        if key is not None:
            eager.append((key, _Known(recorded.in_place, recorded.in_place)))
    places = dict(enumerate(calls))
    pairs = _paired(places, eager)
    used = {id(each) for each in pairs.values()}
    rest = [
        without for each in eager if id(each[1]) not in used and (without := _without_bias(*each))
    ]
    places = {place: call for place, call in places.items() if place not in pairs}
    return {**pairs, **_paired(places, rest)}


def _paired(
    places: Mapping[int, _Call], eager: Sequence[tuple[_Call, _Known]]
) -> dict[int, _Known]:
    """Return calls of the eager step by place, of those that both steps make equally often."""
    known = grouped(eager, lambda each: each[0])
    # The last tensor may be the one that the result is written to.
    inner = {place: call._replace(shapes=call.shapes[:-1]) for place, call in places.items()}
    keys = {place: call if call in known else inner[place] for place, call in places.items()}
    return {
        place: each
        for key, own in grouped(keys, keys.__getitem__).items()
        if len(own) == len(known.get(key, ()))
        for place, (_, each) in zip(own, known[key], strict=True)
    }


def _read(name: str, direction: str, signature: str) -> _Call | None:
    """Return a recorded call as a profile shows it; None of one whose text cannot be read."""
    try:
        call = read_call(signature)
    except UnsupportedError:
        return None
    operands = [*call.arguments, *call.keywords.values()]
    shapes = tuple(each.shape for each in operands if isinstance(each, Value) and each.shape)
    mask = tuple(call.arguments[-1]) if name == _GRADIENTS else ()
    return _Call(name, direction, shapes, mask)


def _without_bias(key: _Call, known: _Known) -> tuple[_Call, _Known] | None:
    """Return a call as it is without its bias, or the bias's gradient; None where it has none."""
    name, _, rest = known.was.signature.partition("(")
    call = ast.parse(f"call({rest}", mode="eval").body
    assert isinstance(call, ast.Call), name
    words = [ast.unparse(each) for each in call.args]
    match key:
        case _Call(name="aten::addmm", shapes=(_, *shapes)) if not call.keywords:
            name, words = "aten.mm.default", words[1:]
            key = key._replace(name="aten::mm", shapes=tuple(shapes))
        case _Call(name="aten::convolution", shapes=(*shapes, _)) if words[2] != "None":
            words[2] = "None"
            key = key._replace(shapes=tuple(shapes))
        case _Call(mask=(*others, True)):
            mask = (*others, False)
            words[-1] = str(list(mask))
            key = key._replace(mask=mask)
        case _:
            return None
    text = f"{name}({', '.join(words)})"
    now = msgspec.structs.replace(known.was, signature=text, operator=operator_of(text))
    return key, known._replace(now=now)

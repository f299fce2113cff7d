"""The calls of a compiled step: the compiler's kernels, and the operators that PyTorch runs.

Nobody records them: they are what PyTorch's profiler shows of one step. Operators are taken for the
recorded calls of the eager step that have the same name, shapes and numbers, in their order, if
both steps make as many of these: that tells their modules. A kernel stands for calls of several
modules, and goes by its own name, in which the compiler has put what it computes.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from torch.profiler import ProfilerActivity, profile

from pydlbench.backends.torch.steps.profiled import (
    by_profiler,
    contains,
    kineto_events,
    name_in_profile,
    plain_name,
)
from pydlbench.calls.seen.aten import read_call
from pydlbench.calls.value import Value
from pydlbench.errors import UnsupportedError
from pydlbench.grouping import grouped
from pydlbench.records.operator import operator_of
from pydlbench.records.trace import ProgramCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.backends.frameworks.device_clock import StepRuntime
    from pydlbench.backends.steps.trace import StepTracer
    from pydlbench.backends.torch.steps.recording import Recording

# Letters of a kernel's name where it stands for a module.
_LONGEST: Final = 44
# Kernels are numbered within a graph. Those of a CPU begin with the graph's number, which depends
# on what else was compiled.
_KERNEL: Final = re.compile(r"(?:graph_\d+_)?((?:cpp|triton)_\w+)")
# What surrounds a graph's kernels, those of the user's own that have other names among them.
_GRAPH: Final = "## Call CompiledFxGraph"
# What surrounds calls of a backward pass, and of an optimizer.
_AROUND: Final = {"autograd::engine::": "backward", "Optimizer.": "optimizer"}
_CONVOLUTIONS: Final = ("aten::convolution", "aten::convolution_backward")


class _CompiledCall(NamedTuple):
    """A call as the profiler shows it.

    Attributes:
        name: of the event.
        direction: see :class:`ProgramCall`.
        shapes: of its tensors, but for those of no dimension, and in lists.
        numbers: of a convolution, its stride and so on; backwards which gradients it computes, too.
    """

    name: str
    direction: str
    shapes: tuple[tuple[int, ...], ...] = ()
    numbers: tuple[Any, ...] = ()

    @property
    def inner(self) -> _CompiledCall:
        """Without the last tensor, which may be the one that the result is written to."""
        return self if self.name in _CONVOLUTIONS else self._replace(shapes=self.shapes[:-1])

    @property
    def bare(self) -> _CompiledCall:
        """Without a bias, or its gradient: the compiler may add it, or sum it, in a kernel."""
        match self:
            case _CompiledCall(name="aten::addmm", shapes=(_, *shapes)):
                return self._replace(name="aten::mm", shapes=tuple(shapes))
            case _CompiledCall(name="aten::convolution", shapes=(source, weights, _)):
                return self._replace(shapes=(source, weights))
            case _CompiledCall(numbers=(*others, (*mask, True))):
                return self._replace(numbers=(*others, (*mask, False)))
        return self


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
        msgspec.structs.replace(
            call, signature=now.signature, operator=now.operator, bytes=now.bytes
        )
        for call in facts.calls
        if (now := forms.get((call.signature, call.direction)))
    )
    facts = msgspec.structs.replace(facts, calls=own, order=())
    return dataclasses.replace(made, compiled=True, operators=facts)


def _calls_of(events: Sequence[Any], *, every_thread: bool) -> Iterator[_CompiledCall]:
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
        yield _CompiledCall(
            name=name,
            direction=next(directions, "forward"),
            shapes=tuple(tuple(shape) for shape in event.shapes() if shape),
            numbers=_numbers(name, event.concrete_inputs()),
        )


def _of_no_module(call: _CompiledCall) -> ProgramCall:
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
        key: as a profile shows it.
        strides: of its tensors but a bias.
        was: in the eager step.
        now: in the compiled one.
    """

    key: _CompiledCall
    strides: tuple[tuple[int, ...], ...]
    was: ProgramCall
    now: ProgramCall


def _of_eager_step(calls: Sequence[_CompiledCall], recording: Recording) -> dict[int, _Known]:
    """Return calls of the eager step by the places of those that are taken for them.

    What is left over may be there without its bias.
    """
    eager: list[_Known] = []
    functions = (each.function for each in recording.calls if not each.implied)
    for function, recorded in zip(functions, recording.in_order(), strict=True):
        direction = "forward" if recorded.direction == "loss" else recorded.direction
        known = _read(name_in_profile(function), direction, recorded.program_call)
        if known is not None:
            eager.append(known)
    pairs = _paired(dict(enumerate(calls)), eager, lambda call: call)
    used = {id(each) for each in pairs.values()}
    rest = [each for each in eager if id(each) not in used]
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
    """Return calls of the eager step by place, of those that both steps make equally often.

    Nobody knows which is which where tensors lie otherwise: products of gradients may have the
    shapes of each other, and the compiler changes their order.
    """
    known = grouped(eager, lambda each: key_of(each.key))
    keys = {
        place: key if (key := key_of(call)) in known else key_of(call.inner)
        for place, call in places.items()
    }
    return {
        place: each
        for key, own in grouped(keys, keys.__getitem__).items()
        if len(own) == len(known.get(key, ())) and len({each.strides for each in known[key]}) == 1
        for place, each in zip(own, known[key], strict=True)
    }


def _numbers(name: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return a convolution's arguments that are no tensors, nor the size of a bias."""
    if name not in _CONVOLUTIONS:
        return ()
    numbers = arguments[4:] if name == _CONVOLUTIONS[1] else arguments[3:]
    return tuple(tuple(each) if isinstance(each, list) else each for each in numbers)


def _read(name: str, direction: str, call: ProgramCall) -> _Known | None:
    """Return a recorded call as a profile shows it; None of one whose text cannot be read."""
    try:
        text = read_call(call.signature)
    except UnsupportedError:
        return None
    operands = [*text.arguments, *text.keywords.values()]
    tensors = [each for each in operands if isinstance(each, Value) and each.shape]
    shapes = tuple(each.shape for each in tensors)
    key = _CompiledCall(name, direction, shapes, _numbers(name, text.arguments))
    # A bias is the first tensor of a product, and the last one of a convolution.
    begin = int(name == "aten::addmm")
    end = 2 if name == _CONVOLUTIONS[0] else None
    return _Known(key, tuple(each.strides for each in tensors[begin:end]), call, call)


def _without_bias(known: _Known) -> _Known:
    """Return a call as it is without its bias, or the gradient of that; itself without one."""
    call = known.was
    name, _, rest = call.signature.partition("(")
    tree = ast.parse(f"call({rest}", mode="eval").body
    assert isinstance(tree, ast.Call), name
    if known.key.bare == known.key or tree.keywords or " of=" in rest:
        return known
    words = [ast.unparse(each) for each in tree.args]
    bias = 0
    if known.key.name == "aten::addmm":
        name, (bias_word, *words) = "aten.mm.default", words
    elif known.key.name == _CONVOLUTIONS[0]:
        bias_word, words[2] = words[2], "None"
    else:
        bias_word, words[-1] = "", str([*known.key.bare.numbers[-1]])
    if bias_word:
        bias = sum(each.bytes for each in read_call(f"bias({bias_word})").values)
    text = f"{name}({', '.join(words)})"
    now = msgspec.structs.replace(
        call, signature=text, operator=operator_of(text), bytes=max(0, call.bytes - bias)
    )
    return known._replace(now=now)

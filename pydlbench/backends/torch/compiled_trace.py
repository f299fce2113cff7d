"""The calls of a compiled step: the compiler's kernels, and the operators that PyTorch runs.

Nobody records them: they are what PyTorch's profiler shows of one step. An operator is taken for
the recorded call of the eager step that has the same name and shapes, if both steps make as many of
these: that tells its module. A kernel stands for calls of several modules, and goes by its own
name, in which the compiler has put what it computes.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
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
from pydlbench.records.trace import ProgramCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.backends.frameworks.device_clock import StepRuntime
    from pydlbench.backends.steps.trace import StepTracer
    from pydlbench.backends.torch.recording import Recording

# Kernels are numbered by graph and within it; those of a CPU begin with the graph's number.
_KERNEL: Final = re.compile(r"(?:graph_\d+_)?((?:cpp|triton)_\w+)")
#: What surrounds calls of a backward pass, and of an optimizer.
_AROUND: Final = {"autograd::engine::": "backward", "Optimizer.": "optimizer"}
# Tensors in the text of a call: ``float32[16, 3, 8, 8](192, 64, 8, 1)``.
_SHAPE: Final = re.compile(r"\w+\[([\d, ]+)\]\(")


#: Letters of a name in tables.
_LONGEST: Final = 44


class _Call(NamedTuple):
    """A call as the profiler shows it.

    Attributes:
        name: of the event.
        direction: see :class:`ProgramCall`.
        shapes: of its tensors, but for those of no dimension.
    """

    name: str
    direction: str
    shapes: tuple[tuple[int, ...], ...]


def name_kernels() -> None:
    """Have kernels that are compiled from now on for a CPU tell the profiler their names.

    That is one test of a flag in each call of a kernel. A GPU's kernels tell them anyway.
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
    in_place = list(_in_place(calls, recording))
    made = by_profiler([call.name for call in calls], in_place, run, runtime)
    # Of the eager step's calls those that the compiled one makes, too.
    facts = recording.facts(batch)
    kept = {(call.signature, call.direction) for call in in_place}
    own = tuple(call for call in facts.calls if (call.signature, call.direction) in kept)
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
        if contains(name) and not _KERNEL.fullmatch(name):
            around.append((end_ns, name))
            continue
        inside_until_ns = end_ns
        directions = (
            direction
            for _, outer in around
            for beginning, direction in _AROUND.items()
            if outer.startswith(beginning)
        )
        shapes = tuple(tuple(shape) for shape in event.shapes() if shape)
        yield _Call(name, next(directions, "forward"), shapes)


def _in_place(calls: Sequence[_Call], recording: Recording) -> Iterator[ProgramCall]:
    """Yield calls as a traced step has them, in their order."""
    eager: dict[_Call, list[ProgramCall]] = {}
    functions = (each.function for each in recording.calls if not each.implied)
    for function, recorded in zip(functions, recording.in_order(), strict=True):
        key = _Call(
            name=name_in_profile(function),
            direction="forward" if recorded.direction == "loss" else recorded.direction,
            shapes=_shapes(recorded.signature),
        )
        eager.setdefault(key, []).append(recorded.in_place)
    # The last tensor may be the one that the result is written to.
    inner = [call._replace(shapes=call.shapes[:-1]) for call in calls]
    keys = [key if key in eager else call for key, call in zip(inner, calls, strict=True)]
    counts = Counter(keys)
    known = {key: iter(own) for key, own in eager.items() if len(own) == counts[key]}
    for call, key in zip(calls, keys, strict=True):
        if key in known:
            yield next(known[key])
            continue
        kernel = _KERNEL.fullmatch(call.name)
        name = _short(kernel[1]) if kernel else call.name.replace("::", ".")
        yield ProgramCall(
            operator=name, module=name, direction=call.direction, signature=f"{call.name}()"
        )


def _short(name: str) -> str:
    """Return a kernel's name, of a long one the beginning and its number."""
    if len(name) <= _LONGEST:
        return name
    end = f"...{name.rpartition('_')[2]}"
    return name[: _LONGEST - len(end)] + end


def _shapes(signature: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors in a call's text."""
    return tuple(tuple(map(int, text.split(","))) for text in _SHAPE.findall(signature))

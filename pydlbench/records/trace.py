"""Calls of a step with their times in context, within the step itself."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from pydlbench.records.fields import shown
from pydlbench.records.operator import OperatorsFacts
from pydlbench.records.record import Record, one_of
from pydlbench.units import format_seconds, percent
from pydlbench.words import DIRECTIONS

#: Ways to trace a step: the framework's profiler, or time stamps around each of the recorded calls,
#: which are then replayed without modules and autograd.
TRACES = ("profile", "stamps")


class ProgramCall(Record, frozen=True, kw_only=True):
    """A call of a step, one entry per execution.

    Attributes:
        operator: the framework's name of the operator: ``aten.convolution_backward``.
        module: the user's module, or the node of the catalogue's network, that it belongs to. With
            several or none of them, its direction (an optimizer's call over all weights); for a
            compiler's kernel, whose signature has no arguments, the beginning of its name.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        signature: signature of the call, see :class:`~pydlbench.records.operator.RecordedCall`.
        bytes: size of its operands and results together; 0 where it is not known.
    """

    operator: str
    module: str
    direction: Annotated[str, one_of(*DIRECTIONS)]
    signature: str
    bytes: int = 0


class TraceFacts(Record, frozen=True, kw_only=True):
    """Facts about a step that can be traced.

    Attributes:
        calls: calls of the step, in their order.
        sources: source of the times, by way of tracing (:data:`TRACES`).
        gaps: on a GPU, the parts of a step besides the kernels of its calls, in words; the host's
            seconds of each call are known, too.
        operators: the distinct calls, if the untraced step makes the same ones; for a compiled step
            those that the compiler leaves to PyTorch, as the eager step makes them.
        compiled: whether calls are kernels of a compiler, which cannot be called alone.
    """

    calls: tuple[ProgramCall, ...]
    sources: dict[str, str]
    gaps: tuple[str, ...] = ()
    operators: OperatorsFacts | None = None
    compiled: bool = False


def program_hash(calls: Iterable[tuple[str, str]]) -> str:
    """Return a hash of a step's calls with their counts and directions.

    Args:
        calls: signature and direction of each.
    """
    counts = sorted(Counter(calls).items())
    return hashlib.sha256(json.dumps(counts).encode()).hexdigest()[:16]


def module_of(names: tuple[str, ...], direction: str) -> str:
    """Return the module that a call is listed under; see :class:`ProgramCall`.

    Args:
        names: modules or nodes that it belongs to.
        direction: direction of the call.
    """
    return names[0] if len(names) == 1 else direction


class CallInContext(Record, frozen=True, kw_only=True):
    """Calls of one operator, module and direction in a step. Times in seconds.

    Attributes:
        operator: name of the operator, see :class:`ProgramCall`.
        module: the module that the calls belong to, see :class:`ProgramCall`.
        direction: direction of the calls, see :class:`ProgramCall`.
        count: number of these calls in a step.
        in_context_s: time of all these calls in the traced step; on a GPU, time of their kernels.
        host_s: on a GPU, the host's time to enqueue all these calls; None on a CPU.
        share: share of the step.
        limit_s: roofline of all these calls: the larger of FLOPs over the measured peak and least
            bytes over the measured bandwidths; None where their computation or the machine's peaks
            are not known.
        flops: algorithmic FLOPs of all these calls; None where their computation is not known.
    """

    operator: str
    module: str
    direction: Annotated[str, one_of(*DIRECTIONS)]
    count: int
    in_context_s: float
    host_s: float | None = None
    share: float
    limit_s: float | None = None
    flops: int | None = None

    omitted = ("host_s",)


class ModuleInContext(Record, frozen=True, kw_only=True):
    """A module's calls in a step, of all directions. Times in seconds.

    Attributes:
        module: name of the module, see :class:`ProgramCall`.
        seconds: time of its calls in the traced step.
        share: share of the step.
        limit_s: the sum of the calls' rooflines; None where calls without a roofline take more than
            a tenth of the module's time.
    """

    module: Annotated[str, shown("module", right=False)]
    seconds: Annotated[float, shown("time", format_seconds, unit="s")]
    share: Annotated[float, shown("of step", percent)]
    limit_s: Annotated[float | None, shown("limit", format_seconds, unit="s")] = None

    @property
    def of_limit(self) -> Annotated[float | None, shown("of limit", percent)]:
        """The limit over the time, 0 to 1; None where either is not known."""
        return self.limit_s / self.seconds if self.limit_s is not None and self.seconds else None


class Dominant(Record, frozen=True, kw_only=True):
    """The module that takes most of a step.

    Attributes:
        name: name of the module.
        share: share of the step.
        ci_low: lower end of the 95 % interval over the rounds; None with a single round.
        ci_high: upper end of the interval.
        rivals: modules whose shares do not differ significantly from this share, the largest first.
    """

    name: str
    share: float
    ci_low: float | None = None
    ci_high: float | None = None
    rivals: tuple[str, ...] = ()


class Tracing(Record, frozen=True, kw_only=True):
    """How calls were timed in their step. Times in seconds.

    Attributes:
        source: source of the times.
        rounds: traced steps, in one process.
        calls: number of calls in a step.
        traced_s: median time of the traced step; with time stamps, median time of the replayed
            calls.
        untraced_s: median time of the untraced steps that ran beside the traced ones.
        cost: median ratio of the traced step, or of the replayed calls, to the untraced step of the
            same round. At 1 a profiler costs nothing; replayed calls have neither modules nor
            autograd.
        way: the way of tracing, one of :data:`TRACES`.
        notes: exceptions: why the profiler was not used, or that seconds are scaled.
    """

    source: str
    rounds: int
    calls: int
    traced_s: float
    untraced_s: float
    cost: float
    way: Annotated[str, one_of(*TRACES)] = TRACES[0]
    notes: tuple[str, ...] = ()

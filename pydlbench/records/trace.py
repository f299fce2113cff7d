"""Calls of a step in context: each as long as it took in the step itself."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated

from pydlbench.records.fields import shown
from pydlbench.records.operator import OperatorsFacts
from pydlbench.records.record import Record, one_of
from pydlbench.units import format_seconds, percent
from pydlbench.words import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How a step is traced: by the framework's own profiler, or by time stamps before and after each
#: call of the step's recorded calls, which run without modules and autograd then.
TRACES = ("profile", "stamps")


class ProgramCall(Record, frozen=True, kw_only=True):
    """A call of a step, in its place.

    Attributes:
        operator: its name, in the framework's words: ``aten.convolution_backward``.
        module: the user's module or the node of the catalogue's network that it is of; of what is
            of several or of none its direction, as an optimizer's call over all weights; of a
            compiler's kernel, whose signature has no arguments, the beginning of its name.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        signature: see :class:`~pydlbench.records.operator.RecordedCall`.
        bytes: of its operands and results together; 0 where nobody has counted them.
    """

    operator: str
    module: str
    direction: Annotated[str, one_of(*DIRECTIONS)]
    signature: str
    bytes: int = 0


class TraceFacts(Record, frozen=True, kw_only=True):
    """What is known of a step that can be traced.

    Attributes:
        calls: of the step, in their order.
        sources: by the ways in which it can be traced (:data:`TRACES`), whose times they are.
        gaps: on a GPU, what a step has besides the kernels of its calls, in words; the host's
            seconds of each call are known, too.
        operators: the distinct calls, where they are those of a step that is not traced; of a
            compiled step those that the compiler leaves to PyTorch, as the eager step makes them.
        compiled: whether calls are kernels of a compiler, which are not called by themselves.
    """

    calls: tuple[ProgramCall, ...]
    sources: dict[str, str]
    gaps: tuple[str, ...] = ()
    operators: OperatorsFacts | None = None
    compiled: bool = False


def program_hash(calls: Iterable[tuple[str, str]]) -> str:
    """Return a hash of a step's calls: which, how often, and in which direction.

    Args:
        calls: signature and direction of each.
    """
    counted = sorted(Counter(calls).items())
    return hashlib.sha256(json.dumps(counted).encode()).hexdigest()[:16]


def module_of(names: tuple[str, ...], direction: str) -> str:
    """Return what a call is told under; see :class:`ProgramCall`.

    Args:
        names: of the modules or nodes that it belongs to.
        direction: of the call.
    """
    return names[0] if len(names) == 1 else direction


class CallInContext(Record, frozen=True, kw_only=True):
    """Calls of one operator, module and direction in a step. Times in seconds.

    Attributes:
        operator: see :class:`ProgramCall`.
        module: likewise.
        direction: likewise.
        count: how many there are in a step.
        in_context_s: of all of them together, in the traced step itself; on a GPU of its kernels.
        host_s: on a GPU, of the host in all of them together, which enqueues them meanwhile; None
            on a CPU.
        share: of the step.
        limit_s: their roofline: the higher of FLOPs over the measured peak and least bytes over the
            measured bandwidths; None where what they compute or what the machine can is not known.
        flops: algorithmic ones of all of them; None where what they compute is not known.
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
        module: see :class:`ProgramCall`.
        seconds: of its calls together, in the traced step itself.
        share: of the step.
        limit_s: the sum of its calls' rooflines; None where calls without one take more than a
            tenth of it.
    """

    module: Annotated[str, shown("module", right=False)]
    seconds: Annotated[float, shown("time", format_seconds, unit="s")]
    share: Annotated[float, shown("of step", percent)]
    limit_s: Annotated[float | None, shown("limit", format_seconds, unit="s")] = None

    @property
    def of_limit(self) -> Annotated[float | None, shown("of limit", percent)]:
        """What the limit is of its time, 0 to 1; None where one of the two is not known."""
        return self.limit_s / self.seconds if self.limit_s is not None and self.seconds else None


class Dominant(Record, frozen=True, kw_only=True):
    """The module that takes most of a step.

    Attributes:
        name: of the module.
        share: of the step.
        ci_low: lower end of the 95 % interval over the rounds; None of a single one.
        ci_high: upper end.
        rivals: modules whose shares cannot be told from it over the rounds, the largest first.
    """

    name: str
    share: float
    ci_low: float | None = None
    ci_high: float | None = None
    rivals: tuple[str, ...] = ()


class Tracing(Record, frozen=True, kw_only=True):
    """How calls were timed in their step. Times in seconds.

    Attributes:
        source: whose times they are.
        rounds: traced steps, in one process.
        calls: in a step.
        traced_s: the traced step's median; with time stamps that of the chain of its calls.
        untraced_s: that of the steps that ran beside them without a trace.
        cost: the traced step, or the chain, over the other one of its round: the median. A
            profiler at 1 costs nothing; a chain has neither modules nor autograd.
        way: in which the step was traced, of :data:`TRACES`.
        notes: what was not as usual: why it was not the profiler, or that seconds are scaled.
    """

    source: str
    rounds: int
    calls: int
    traced_s: float
    untraced_s: float
    cost: float
    way: Annotated[str, one_of(*TRACES)] = TRACES[0]
    notes: tuple[str, ...] = ()

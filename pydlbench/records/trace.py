"""The calls of a step: recorded, and with their times in context, within the step itself."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Self

import msgspec

from pydlbench.records.record import Record, one_of, shown
from pydlbench.units import format_seconds, percent
from pydlbench.words import DIRECTIONS

Direction = Annotated[str, one_of(*DIRECTIONS)]

# Tolerance of the sum of parts against the number of calls.
_ROUNDING = 1e-6


class RecordedCall(Record, frozen=True, kw_only=True):
    """A distinct operator of a step with its number of calls.

    Attributes:
        signature: canonical text of all that changes its time in this framework, mode and process:
            operator, shapes, strides, types, scalars. Operands can be created from it, and equal
            texts mean equal operators in any model.
        operator: the framework's name of the operator: ``aten.convolution_backward``.
        count: calls in a step.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        names: nodes of the catalogue's model (the first and the last of a fused group,
            ``conv1..relu1``) or modules of the user's model that it belongs to, without repetition;
            ``loss`` for the loss.
        parts: number of calls for each name; a call that several names share is split among them.
            Empty where all names have equally many.
        bytes: size of its operands and results together; 0 where it is not known.
        profiled: share of all these calls in the framework's own profile of the step; None if
            there is no profile.
        trained: positions, from 0, of operands that are trained tensors, in a backward pass. A
            product with one of them gives a gradient of data. This cannot be seen otherwise where
            an operand has stride 0 (a sum's gradient, one number for all elements).
    """

    signature: str
    operator: str
    count: int = 1
    direction: Direction = "forward"
    names: tuple[str, ...] = ()
    parts: tuple[float, ...] = ()
    bytes: int = 0
    profiled: float | None = None
    trained: tuple[int, ...] = ()

    omitted: ClassVar[tuple[str, ...]] = ("profiled",)
    unlisted: ClassVar[tuple[str, ...]] = ("trained",)

    @classmethod
    def from_owners(
        cls, owners: Sequence[Sequence[str]], signature: str, operator: str, **fields: Any
    ) -> Self:
        """Return the record of equal calls.

        Args:
            owners: for each call, the names that it belongs to.
            signature: signature of all calls.
            operator: operator of all calls.
            fields: direction, bytes and share of a profile.
        """
        parts: dict[str, float] = {}
        for names in owners:
            for name in names:
                parts[name] = parts.get(name, 0.0) + 1 / len(names)
        alike = len(set(parts.values())) <= 1 and all(owners)
        return cls(
            signature=signature,
            operator=operator,
            count=len(owners),
            names=tuple(parts),
            parts=() if alike else tuple(parts.values()),
            **fields,
        )

    def shares(self) -> dict[str, float]:
        """Return the number of calls by name; calls without a name have an empty one."""
        if not self.names:
            return {"": float(self.count)}
        if not self.parts:
            return dict.fromkeys(self.names, self.count / len(self.names))
        named = dict(zip(self.names, self.parts, strict=True))
        rest = self.count - sum(self.parts)
        return {**named, "": rest} if rest > _ROUNDING else named


class OperatorsFacts(Record, frozen=True, kw_only=True):
    """Facts about operators besides their times.

    Attributes:
        names: names or signatures of the operators, in the order in which
            ``OperatorsKernel.sample`` returns their times.
        dispatch_s: time of an operator that computes nothing, which is part of each operator's
            time.
        executions: primitives that libraries log in one call, by signature:
            ``{"oneDNN reorder": 2, "oneDNN convolution": 1}``.
        kernels: on a GPU, names of the kernels that one call launches, by signature; without calls
            that cannot be captured into a graph.
        calls: distinct calls of a recorded step, in the order in which they first occur; empty if
            not requested.
        order: all calls of a recorded step in their order, as indices into ``calls``.
        refused: why a call could not be prepared, by signature; its name is not in ``names``.
        batch: batch of a recorded step; 0 if not requested.
        lines: source line of the first call in the user's code, by module: ``my_model.py:15``.
        notes: remarks for the reader.
        types: types of an ONNX file; see :class:`~pydlbench.records.step.StepFacts`.
    """

    names: tuple[str, ...] = ()
    dispatch_s: float = 0.0
    executions: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    kernels: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    calls: tuple[RecordedCall, ...] = ()
    order: tuple[int, ...] = ()
    refused: dict[str, str] = msgspec.field(default_factory=dict)
    batch: int = 0
    lines: dict[str, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    types: str = ""


def operator_of(signature: str) -> str:
    """Return the operator in a signature: ``aten.add`` from ``aten.add.Tensor(...)``."""
    return signature.partition("(")[0].rpartition(".")[0]


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
        signature: signature of the call, see :class:`~pydlbench.records.trace.RecordedCall`.
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
    """The part that takes most of a step: a module, or a layer of an estimate.

    Attributes:
        name: name of the part.
        share: share of the step.
        ci_low: lower end of the 95 % interval of the share; None if it is not known, as with a
            single round.
        ci_high: upper end of the interval.
        rivals: parts whose shares do not differ significantly from this share, the largest first.
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
        traced_s: median time of the traced steps with an untraced one beside them: if tracing costs
            little, those of the first rounds. With time stamps, median time of the replayed calls.
        untraced_s: median time of the untraced steps, in the same rounds.
        cost: median ratio of the traced step, or of the replayed calls, to the untraced step of the
            same round, in these rounds. At 1 a profiler costs nothing; replayed calls have neither
            modules nor autograd.
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

"""Nodes of TensorFlow's steps in functions of their own, on operands that are made up.

Where XLA compiles a step, groups of nodes that it joins.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.backend import translated
from pydlbench.backends.steps.catalogue import host_arrays
from pydlbench.backends.steps.groups import CallGroup, is_feed, is_group
from pydlbench.backends.steps.inputs import make_batch
from pydlbench.backends.steps.operators import CallCost, OperatorsKernel, TimedCall, check_on_cpu
from pydlbench.backends.tensorflow.graph import Replayed, ReplayedGroup
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.backends.tensorflow.step import Tracer
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.models import build_model
from pydlbench.ops.seen.tensorflow import Node
from pydlbench.records.operator import OperatorsFacts
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.steps.operators import TimedOperator
    from pydlbench.records.step import StepSpec


# -----------------------------------------------------------------------------
# Nodes in functions of their own.
#
# A call of a function costs more than many an operator. So a short one is put into its function
# several times, on operands of its own each time, and what an empty call costs is taken off: one
# right after it, where the caches are as operators leave them.


class RepeatedOperator(TimedCall):
    """A function of TensorFlow that holds an operator several times.

    Args:
        traced: traces as the steps are traced.
        body: returns an operator's results for one set of operands.
        sets: of operands; the operator is executed once for each.
        costs: returns what a call costs by its numbers of operands and results; None leaves it in.
    """

    def __init__(
        self,
        traced: Tracer,
        body: Callable[..., list[Any]],
        sets: Sequence[Sequence[Any]],
        costs: Callable[[int, int], CallCost] | None = None,
    ) -> None:
        width = len(sets[0])
        operands = [one for each in sets for one in each]

        def all_of(*tensors: Any) -> list[Any]:
            found: list[Any] = []
            for number in range(len(sets)):  # an operand there need not be
                found += body(*tensors[number * width : (number + 1) * width])
            # A compiler would compute no more than these elements.
            return found if traced.mode == "xla" else [_first(one) for one in found]

        function = traced(all_of)
        results = len(function(*operands))
        super().__init__(partial(function, *operands))
        self.executions = len(sets)
        self._cost = costs(len(operands), results) if costs else None

    def run(self) -> float:
        """Call it once; seconds of one execution."""
        seconds = super().run()
        return (seconds - (self._cost.seconds() if self._cost else 0.0)) / self.executions


class ProducedOperator(RepeatedOperator):
    """An operator of a forward pass that reads what was written just before, as it does in a step.

    Each operand is a product by one, made in the same function. What these products take alone, in
    a function of their own, is taken off, and what a call costs with it.

    Args:
        traced: see :class:`RepeatedOperator`.
        body: likewise.
        sets: likewise; no integers.
    """

    def __init__(
        self, traced: Tracer, body: Callable[..., list[Any]], sets: Sequence[Sequence[Any]]
    ) -> None:
        with tf.device("/CPU:0"):
            ones = {one.dtype: tf.constant(1, one.dtype) for one in sets[0]}

        def produced(*tensors: Any) -> list[Any]:
            # By operands, which no optimiser knows to be one.
            *given, one = tensors
            return [each * one for each in given]

        def together(*tensors: Any) -> list[Any]:
            return body(*produced(*tensors))

        full = [[*one, ones[one[0].dtype]] for one in sets]
        super().__init__(traced, together, full)
        self._products = RepeatedOperator(traced, produced, full)

    def run(self) -> float:
        """Call it once, and what only makes its operands; seconds of one execution."""
        return max(0.0, super().run() - self._products.run())


def _first(tensor: Any) -> Any:
    """Return an element, so that the rest is given back as soon as it is there.

    In a step the next operator's result comes to lie where one before it was, in the caches; what a
    function returns stays until it ends.
    """
    # What has no elements by its shape is a number from some kernels of oneDNN's.
    return tf.reshape(tensor, [-1])[:1] if tensor.shape.num_elements() else tensor


def copied(tensor: Any, device: str) -> Any:
    """Return a tensor of the same values in memory of its own; a variable stays the same one."""
    if tensor.dtype == tf.resource:
        return tensor
    with tf.device(device):
        return tf.constant(np.array(tensor.numpy()), dtype=tensor.dtype)


# -----------------------------------------------------------------------------
# TensorFlow's operators, prepared: traced, repeated where they are short, calibrated.

_CPU = "/CPU:0"
# An operator is repeated in its function until it lasts so long, in seconds, and so often at most.
_LONG_S = 12e-3
_MOST = 16
# The operands of all repetitions together take no more than this share of the memory.
_ROOM = 1 / 8
_CHAIN = 64
_REPEATS = 25
_HOW = (
    "empty calls with as many operands and results after each part, or in forward passes the same "
    "call without the part; "
    f"{_CHAIN} operators on two elements in a chain, against one"
)
_HOW_COMPILED = "empty calls with as many operands and results, after each part"


def prepare_calls(
    backend: FrameworkBackend, case: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Make nodes and groups of them ready; see ``operations.prepare_calls``."""
    check_on_cpu(case)
    begin = time.perf_counter()
    room = _ROOM * (read_cpu_facts().memory_total_bytes or 0) / max(1, len(signatures))
    traced = Tracer("/GPU:0" if case.on_gpu else _CPU, str(case.mode))
    # One for all: it depends on numbers of operands and results only.
    empty = _Empty(traced)
    found: dict[str, TimedCall] = {}
    refused: dict[str, str] = {}
    for signature in signatures:
        try:
            found[signature] = _made_ready(signature, case, empty, room)
        except PydlbenchError as error:
            refused[signature] = str(error)
    dispatch = empty.dispatch()
    facts = OperatorsFacts(
        names=tuple(found),
        once_s=empty.once(found.values()),
        dispatch_s=median(dispatch),
        dispatch_samples=dispatch,
        how=_HOW_COMPILED if case.mode == "xla" else _HOW,
        setup_s=time.perf_counter() - begin,
        library=backend.library,
        refused=refused,
    )
    return OperatorsKernel(list(found.values()), facts, backend.cpus)


def _made_ready(signature: str, case: StepSpec, empty: _Empty, room: float) -> TimedCall:
    """Return a node of a recorded graph, or a group of nodes."""
    if is_feed(signature):
        model = build_model(case.model, batch=case.batch, **case.options)
        batch = make_batch(model, case.seed)
        host = host_arrays(batch, case.layout)
        return TimedCall(lambda: [tf.convert_to_tensor(one) for one in host])
    alone: Replayed | ReplayedGroup
    if is_group(signature):
        group = CallGroup.read(signature)
        name, alone = Node.read(group.calls[0]).op, ReplayedGroup(group)
    else:
        node = Node.read(signature)
        name, alone = node.op, Replayed(node)
    with translated(name):
        produced = case.phase == "forward" and alone.plain
        operands = alone.operands(empty.traced.device)
        return _long_enough(empty, alone, operands, room, produced=produced)


def prepare_allocation(backend: FrameworkBackend, size: int) -> OperatorsKernel:
    """Make a call ready; see ``operations.prepare_allocation``."""
    with tf.device(_CPU):
        source = tf.ones([size // 4])

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def call(one: Any) -> Any:
        with tf.device(_CPU):
            return one + 1.0

    call(source)
    return OperatorsKernel(
        [TimedCall(partial(call, source))], OperatorsFacts(names=("call",)), backend.cpus
    )


def _long_enough(
    empty: _Empty,
    body: Callable[..., list[Any]],
    operands: list[Any],
    room: float,
    *,
    produced: bool,
) -> RepeatedOperator:
    """Return an operator that is repeated often enough to stand above the cost of its call.

    Fewer times where its operands would not fit into ``room``, in bytes: large ones take longer.
    """
    if produced:
        make: Callable[..., RepeatedOperator] = ProducedOperator
    else:
        make = partial(RepeatedOperator, costs=empty.of)
    made = make(empty.traced, body, [operands])
    made.run()
    once = min(made.run() for _ in range(3))
    size = sum(one.dtype.size * one.shape.num_elements() for one in operands)
    times = min(_MOST, math.ceil(_LONG_S / max(once, 1e-5)), int(room / max(size, 1)))
    # XLA takes a variable once only.
    if times <= 1 or (empty.traced.mode == "xla" and any(x.dtype == tf.resource for x in operands)):
        return made
    sets = [operands, *([copied(one, _CPU) for one in operands] for _ in range(times - 1))]
    made = make(empty.traced, body, sets)
    made.run()
    return made


class _Empty:
    """Calls that compute nothing, by their numbers of operands and results.

    Args:
        traced: traces as the steps are traced whose operators are timed.

    Attributes:
        operands: that such a step's call has.
    """

    def __init__(self, traced: Tracer) -> None:
        self.traced = traced
        self.operands = 1
        self._known: dict[tuple[int, int], CallCost] = {}
        with tf.device(_CPU):
            self._scalar = tf.constant(1.0)

    def of(self, operands: int, results: int) -> CallCost:
        """Return what a call costs."""
        # A few more or less make no difference that could be measured.
        key = _rounded(operands), _rounded(results)
        if key not in self._known:
            self._known[key] = self.new(*key)
        return self._known[key]

    def new(self, operands: int, results: int) -> CallCost:
        """Return the same, of calls that no operator has to do with."""

        def body(*tensors: Any) -> list[Any]:
            return [tf.identity(tensors[i % len(tensors)]) for i in range(results)]

        return CallCost(RepeatedOperator(self.traced, body, [[self._scalar] * operands]).run)

    def once(self, operators: Iterable[TimedOperator]) -> float:
        """Return what a step's call costs when operators have run before it."""
        cost = self.new(self.operands, 1)
        cost.seconds()
        for one in operators:
            one.run()
            cost.seconds()
        return cost.latest

    def dispatch(self) -> tuple[float, ...]:
        """Return what an operator costs that computes nothing, by repetition.

        Softmax is joined with nothing.
        """
        if self.traced.mode == "xla":
            return (0.0,)  # a compiled program has no operators any more
        with tf.device(_CPU):
            source = tf.ones([1, 2])

        def chain(length: int) -> RepeatedOperator:
            def body(value: Any) -> list[Any]:
                for _ in range(length):
                    value = tf.nn.softmax(value)
                return [value]

            return RepeatedOperator(self.traced, body, [[source]])

        long, short = chain(_CHAIN), chain(1)
        differences = [long.run() - short.run() for _ in range(_REPEATS)]
        return tuple(max(0.0, one / (_CHAIN - 1)) for one in differences)


def _rounded(number: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, number - 1).bit_length()

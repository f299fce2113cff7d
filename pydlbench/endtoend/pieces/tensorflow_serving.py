"""TensorFlow's parts, prepared: traced, repeated where they are short, calibrated."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pydlbench.backends.tensorflow.arithmetic import arithmetic
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.devices.cpu.read import read_cpu_facts
from pydlbench.endtoend.inputs import make_batch
from pydlbench.endtoend.pieces.call_cost import CallCost
from pydlbench.endtoend.pieces.kernel import PartsFacts, PartsKernel
from pydlbench.endtoend.pieces.tensorflow_parts import (
    FeedPart,
    FunctionPart,
    ProducedPart,
    StepParts,
    copied,
)
from pydlbench.endtoend.weights import make_weights
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydlbench.endtoend.pieces.kernel import Part
    from pydlbench.endtoend.step import StepCase
    from pydlbench.models.graph import Model

__all__ = ["prepare"]

_CPU = "/CPU:0"
# A part is repeated in its function until it lasts so long, in seconds, and so often at most.
_LONG_S = 12e-3
_MOST = 16
# The operands of all parts' repetitions together take no more than this part of the memory.
_ROOM = 1 / 8
_CHAIN = 64
_REPEATS = 25
_HOW = (
    "empty calls with as many operands and results after each part, or in forward passes the same "
    "call without the part; "
    f"{_CHAIN} operators on two elements in a chain, against one"
)
_HOW_COMPILED = "empty calls with as many operands and results, after each part"


def prepare(backend: Any, model: Model, case: StepCase, wanted: Mapping[str, Any]) -> PartsKernel:
    """Make parts ready; see :func:`pydlbench.endtoend.pieces.serving.prepare_parts`."""
    begin = time.perf_counter()
    cpu = read_cpu_facts()
    numbers = arithmetic(case.precision, case.on_gpu, frozenset(cpu.isa))
    weights, batch = make_weights(model, case.seed), make_batch(model, case.seed)
    step = StepParts(model, weights, case, batch, numbers, _CPU)
    if wanted["kind"] == "faults":
        with tf.device(_CPU):
            source = tf.ones([wanted["bytes"] // 4])
        call = FunctionPart(step, lambda one: [one + 1.0], [[source]])
        return PartsKernel([call], PartsFacts(names=("call",)), backend.cpus)
    empty = _Empty(step)
    made: dict[str, FeedPart | FunctionPart] = {}
    bodies = _bodies(step, wanted["parts"])
    room = _ROOM * (cpu.memory_total_bytes or 0) / len(bodies)
    for name, body, operands in bodies:
        if body is None:
            made[name] = FeedPart(step)
            continue
        made[name] = _long_enough(step, body, operands, empty, room)
    facts = PartsFacts(
        names=tuple(made),
        once_s=_once(empty.new(len(step.operands()), 1), made.values()),
        dispatch_s=_dispatch(step),
        how=_HOW_COMPILED if case.mode == "xla" else _HOW,
        setup_s=time.perf_counter() - begin,
        library=f"TensorFlow {tf.__version__}",
    )
    counts = [one["count"] for one in wanted["parts"]]
    return PartsKernel(list(made.values()), facts, backend.cpus, counts)


def _bodies(
    step: StepParts, wanted: Sequence[Mapping[str, Any]]
) -> list[tuple[str, Callable[..., list[Any]] | None, list[Any]]]:
    """Return name, function and operands of each part; what is fed has no function."""
    outside = {
        name: [
            one
            for node in each["nodes"]
            for one in step.model[node].inputs
            if one not in each["nodes"]
        ]
        for each in wanted
        for name in [each["name"]]
    }
    needed = {one for each in wanted if _is_group(each) for one in outside[each["name"]]}
    produced = {one for each in wanted for one in each["outputs"]}
    produced |= {
        each["nodes"][0] for each in wanted if each["kind"] == "gradient sum" and each["nodes"]
    }
    produced.add(step.model.output.name)
    passed = {one for each in wanted if _is_group(each) for one in each["outputs"]}
    values, gradients = step.values(
        sorted(needed | produced), sorted(passed) if step.case.backward else ()
    )
    found: list[tuple[str, Callable[..., list[Any]] | None, list[Any]]] = []
    for each in wanted:
        kind, name = each["kind"], each["name"]
        body: Callable[..., list[Any]] | None = None
        operands: list[Any] = []
        if kind == "optimizer":
            body = _listed(step.update)
            operands = [tf.random.normal(one.shape) * 1e-6 for one in step.net.trained]
        elif kind == "loss":
            labels = [*step.operands()[1:]]
            body, operands = _loss(step), [values[step.model.output.name], *labels]
        elif kind == "gradient sum":
            like = values[each["nodes"][0]] if each["nodes"] else step.operands()[0]
            body, operands = _sum, [_random(like), _random(like)]
        elif kind != "feed":
            inputs = list(dict.fromkeys(outside[name]))
            upstream = [gradients[one] for one in each["outputs"]] if step.case.backward else []
            body = _group(step, each, inputs)
            operands = [*(values[one] for one in inputs), *upstream]
        found.append((name, body, operands))
    return found


def _is_group(each: Mapping[str, Any]) -> bool:
    return each["kind"] in ("layer", "pointwise")


def _group(
    step: StepParts, each: Mapping[str, Any], inputs: Sequence[str]
) -> Callable[..., list[Any]]:
    def body(*tensors: Any) -> list[Any]:
        known = dict(zip(inputs, tensors, strict=False))
        upstream = tensors[len(inputs) :]
        return step.group(each["nodes"], known, each["differentiated"], each["outputs"], upstream)

    return body


def _loss(step: StepParts) -> Callable[..., list[Any]]:
    return lambda output, labels=None: step.loss_part(output, labels)


def _listed(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda *tensors: list(function(*tensors))


def _sum(first: Any, second: Any) -> list[Any]:
    return [tf.add_n([first, second])]


def _random(like: Any) -> Any:
    return tf.random.normal(like.shape, stddev=1e-3, dtype=like.dtype)


def _long_enough(
    step: StepParts,
    body: Callable[..., list[Any]],
    operands: list[Any],
    empty: _Empty,
    room: float,
) -> FunctionPart:
    """Return a part that is repeated often enough to stand above the cost of its call.

    Fewer times where its operands would not fit into ``room``, in bytes: large ones take longer.
    """
    # Else gradients would be computed for the products too.
    if step.case.mode == "graph" and not step.case.backward:
        make: Callable[..., FunctionPart] = ProducedPart
    else:
        make = partial(FunctionPart, costs=empty.of)
    part = make(step, body, [operands])
    part.run()
    once = min(part.run() for _ in range(3))
    size = sum(one.dtype.size * one.shape.num_elements() for one in operands)
    times = min(_MOST, math.ceil(_LONG_S / max(once, 1e-5)), int(room / max(size, 1)))
    if times <= 1:
        return part
    sets = [operands, *([copied(one, _CPU) for one in operands] for _ in range(times - 1))]
    part = make(step, body, sets)
    part.run()
    return part


class _Empty:
    """Calls that compute nothing, by their numbers of operands and results."""

    def __init__(self, step: StepParts) -> None:
        self._step = step
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
        """Return the same, of calls that no part has to do with."""

        def body(*tensors: Any) -> list[Any]:
            return [tf.identity(tensors[i % len(tensors)]) for i in range(results)]

        return CallCost(FunctionPart(self._step, body, [[self._scalar] * operands]).run)


def _once(cost: CallCost, parts: Iterable[Part]) -> float:
    """Return what a call costs when the parts have run before it, one after the other."""
    for part in parts:
        part.run()
        cost.seconds()
    return cost.latest


def _rounded(number: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, math.ceil(math.log2(max(1, number))))


def _dispatch(step: StepParts) -> float:
    """Return what an operator costs that computes nothing; softmax is joined with nothing."""
    if step.case.mode == "xla":
        return 0.0  # a compiled program has no operators any more
    with tf.device(_CPU):
        source = tf.ones([1, 2])

    def chain(length: int) -> FunctionPart:
        def body(value: Any) -> list[Any]:
            for _ in range(length):
                value = tf.nn.softmax(value)
            return [value]

        return FunctionPart(step, body, [[source]])

    long, short = chain(_CHAIN), chain(1)
    differences = [long.run() - short.run() for _ in range(_REPEATS)]
    return max(0.0, median(differences) / (_CHAIN - 1))

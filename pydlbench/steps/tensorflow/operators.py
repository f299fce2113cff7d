"""Operators of TensorFlow's step: those of the step in functions of their own."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.backend import arithmetic
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.models.graph import INPUT
from pydlbench.steps.inputs import make_batch, make_weights
from pydlbench.steps.operators import CallCost, PartsFacts, PartsKernel
from pydlbench.steps.tensorflow.step import TensorflowStep
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydlbench.models.graph import Model, Node
    from pydlbench.records.step import StepCase
    from pydlbench.steps.operators import Part

__all__ = ["prepare"]


# -----------------------------------------------------------------------------
# Parts of TensorFlow's step: the operators of the step in functions of their own.
#
# A call of a function costs more than many a part. So a part that is short is put into its
# function
# several times, on operands of its own each time, and what an empty call costs is taken off: one
# right after it, where the caches are as parts leave them.


class StepParts(TensorflowStep):
    """A step that is never run, its nodes, its loss and its update within reach."""

    def node(self, node: Node, inputs: list[Any]) -> Any:
        """Return a node's output, by the code that builds the step."""
        return self.net.apply(node, inputs, self.ways())

    def values(
        self, names: Sequence[str], differentiated: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values that nodes have in a step, by name, and gradients of them; untimed.

        How long an operator takes may hang on its operands: the gradient of a local response
        normalisation leaves out what is multiplied by zero, and behind a pooling most is.
        """

        def run(images: Any, labels: Any = None) -> list[Any]:
            found = {INPUT: self.net.cast(images)}
            with tf.GradientTape() as tape:
                for node in self.model:
                    found[node.name] = self.node(node, [found[name] for name in node.inputs])
                loss = self._loss_after(found[self.model.output.name], labels)
            gradients = tape.gradient(
                loss,
                [found[name] for name in differentiated],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [tf.identity(one) for one in (*(found[name] for name in names), *gradients)]

        every = self.traced(run)(*self.operands())
        count = len(names)
        return (
            dict(zip(names, every[:count], strict=True)),
            dict(zip(differentiated, every[count:], strict=True)),
        )

    def group(
        self,
        nodes: Sequence[str],
        inputs: dict[str, Any],
        wanted: Sequence[str],
        outputs: Sequence[str],
        upstream: Sequence[Any],
    ) -> list[Any]:
        """Return the outputs of nodes, and the gradients of what is wanted and of their weights."""
        known = dict(inputs)
        own = [one for name in nodes for one in self._trained_of(name)]
        sources = [inputs[name] for name in wanted]
        with tf.GradientTape() as tape:
            for one in sources:
                tape.watch(one)
            for name in nodes:
                node = self.model[name]
                known[name] = self.node(node, [known[one] for one in node.inputs])
        results = [known[name] for name in outputs]
        if not (self.case.backward and upstream and (sources or own)):
            return results
        found = tape.gradient(results, [*sources, *own], output_gradients=list(upstream))
        return [*results, *(one for one in found if one is not None)]

    def loss_part(self, output: Any, labels: Any) -> list[Any]:
        """Return the loss of an output, and the gradients of that and of what L2 terms name."""
        variables = {id(v): v for v in self._decayed()}
        with tf.GradientTape() as tape:
            tape.watch(output)
            loss = self._loss_after(output, labels)
        first, *others = tape.gradient(loss, [output, *variables.values()])
        # A weight's gradient has two sources then, and they are summed.
        sums = [tf.add_n([g, v.value()]) for g, v in zip(others, variables.values(), strict=True)]
        return [loss, first, *sums]

    def update(self, *gradients: Any) -> Any:
        """Update all weights with given gradients; returns a constant."""
        return self._train(gradients)

    def fed(self) -> list[Any]:
        """Return images and labels as a function takes them over from the host's arrays."""
        return [tf.convert_to_tensor(one) for one in self._host]

    def _differentiated(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        """Give the update the gradients that it was called with."""
        del labels
        return tf.constant(0.0), list(images)

    def _loss_after(self, output: Any, labels: Any) -> Any:
        """Return the loss of an output that is there already."""
        kept, stand_in = self.net, _Given(self.net)
        self.net = stand_in  # type: ignore[assignment]  # the loss asks it for the output only
        try:
            return self.loss_of(output, labels)
        finally:
            self.net = kept

    def _trained_of(self, name: str) -> list[Any]:
        own = {id(one) for one in self.net.trained}
        return [
            variable
            for path, variable in self.net.variables.items()
            if path.rpartition("/")[0] == name and id(variable) in own
        ]

    def _decayed(self) -> list[Any]:
        terms = self.model.decays if self.case.phase == "training" else ()
        return [self.net.variables[f"{one.node}/{one.tensor}"] for one in terms]


class FeedPart:
    """Images and labels from the host's arrays."""

    executions = 1

    def __init__(self, step: StepParts) -> None:
        self._step = step

    def run(self) -> float:
        """Take them over once."""
        start = time.perf_counter()
        found = self._step.fed()
        seconds = time.perf_counter() - start
        del found
        return seconds


class _Given:
    """Stands in for a network whose output is given."""

    def __init__(self, net: Any) -> None:
        self.variables = net.variables

    def __call__(self, output: Any, ways: Any) -> Any:
        """Return the output."""
        del ways
        return output


class FunctionPart:
    """A function of TensorFlow that holds a part several times.

    Args:
        step: traces as the step is traced.
        body: returns a part's results for one set of operands.
        sets: of operands; the part is executed once for each.
        costs: returns what a call costs by its numbers of operands and results; None leaves it in.
    """

    def __init__(
        self,
        step: StepParts,
        body: Callable[..., list[Any]],
        sets: Sequence[Sequence[Any]],
        costs: Callable[[int, int], CallCost] | None = None,
    ) -> None:
        self.executions = len(sets)
        width = len(sets[0])
        self._operands = [one for each in sets for one in each]

        def all_of(*tensors: Any) -> list[Any]:
            found: list[Any] = []
            for start in range(self.executions):
                found += body(*tensors[start * width : (start + 1) * width])
            # A compiler would compute no more than these elements.
            return found if step.case.mode == "xla" else [_first(one) for one in found]

        self._function = step.traced(all_of)
        results = len(self._function(*self._operands))
        self._cost = costs(len(self._operands), results) if costs else None

    def run(self) -> float:
        """Call it once; seconds of one execution."""
        seconds = _call(self._function, self._operands)
        return (seconds - (self._cost.seconds() if self._cost else 0.0)) / self.executions


class ProducedPart(FunctionPart):
    """A part of a forward pass that reads what was written just before, as it does in a step.

    Each operand is a product by one, made in the same function. What these products take alone, in
    a function of their own, is taken off, and what a call costs with it.

    Args:
        step: see :class:`FunctionPart`.
        body: likewise.
        sets: likewise; no integers.
    """

    def __init__(
        self, step: StepParts, body: Callable[..., list[Any]], sets: Sequence[Sequence[Any]]
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
        super().__init__(step, together, full)
        self._products = FunctionPart(step, produced, full)

    def run(self) -> float:
        """Call it once, and what only makes its operands; seconds of one execution."""
        return max(0.0, super().run() - self._products.run())


def _call(function: Any, operands: Sequence[Any]) -> float:
    """Call a function once, and return the seconds."""
    start = time.perf_counter()
    found = function(*operands)
    end = time.perf_counter()
    del found
    return end - start


def _first(tensor: Any) -> Any:
    """Return an element, so that the rest is given back as soon as it is there.

    In a step the next operator's result comes to lie where one before it was, in the caches; what a
    function returns stays until it ends.
    """
    return tf.reshape(tensor, [-1])[:1]


def copied(tensor: Any, device: str) -> Any:
    """Return a tensor of the same values in memory of its own."""
    with tf.device(device):
        return tf.constant(np.array(tensor.numpy()), dtype=tensor.dtype)


# -----------------------------------------------------------------------------
# TensorFlow's parts, prepared: traced, repeated where they are short, calibrated.

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
    """Make parts ready; see :func:`pydlbench.steps.operators.prepare_parts`."""
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

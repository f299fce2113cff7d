"""Operators of JAX's steps: subgraphs in programs of their own, on operands that are made up."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.backend import translated
from pydlbench.backends.jax.settings import jax, place_of
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.steps.definition import definition_of
from pydlbench.steps.inputs import make_batch, make_weights, trained
from pydlbench.steps.jax.net import Run
from pydlbench.steps.jax.step import JaxModel, JaxStep
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.steps.operators import CallCost, OperatorsKernel, TimedCall
from pydlbench.steps.signatures import read_signature, step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.jax.settings import Place
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.steps.operators import TimedOperator
    from pydlbench.steps.signatures import OperatorRequest

    # Of what all repetitions share (weights), and of one set of operands.
    Body: TypeAlias = Callable[..., list[Any]]

jnp = jax.numpy


# -----------------------------------------------------------------------------
# Parts of the step, as functions. What they read are operands: XLA folds constants.


def _subgraph(step: JaxStep, asked: OperatorRequest, inputs: Sequence[str]) -> Body:
    """Return the function of a subgraph's inputs, and of the gradients of its outputs.

    It returns the outputs, the gradients of what is differentiated and of the weights, and what has
    become of running statistics.
    """
    definition, net = step.definition, step.owner.net

    def body(state: dict[str, Any], *tensors: Any) -> list[Any]:
        known = dict(zip(inputs, tensors, strict=False))
        upstream = list(tensors[len(inputs) :])

        def forward(sources: dict[str, Any], own: dict[str, Any]) -> Any:
            run = Run({**state["buffers"], **own}, definition, state["key"], {})
            values = net.values({**known, **sources}, run, asked.nodes)
            return [values[name] for name in asked.outputs], run.moved

        sources = {name: known[name] for name in asked.differentiated}
        own = state["trained"]
        if not (definition.backward and upstream and (sources or own)):
            results, moved = forward(sources, own)
            return [*results, *moved.values()]
        results, pull, moved = jax.vjp(forward, sources, own, has_aux=True)
        return [*results, *jax.tree.leaves(pull(upstream)), *moved.values()]

    return body


def _loss(step: JaxStep) -> Body:
    """Return the function of an output to its loss and gradients: its own, and of L2 terms."""
    model, kind = step.owner, step.definition.loss
    terms = model.model.decays if kind == "model" else ()
    named = {f"{one.node}/{one.tensor}" for one in terms}

    def body(state: dict[str, Any], output: Any, labels: Any = None) -> list[Any]:
        weights = {name: one for name, one in state["trained"].items() if name in named}

        def of(result: Any, own: dict[str, Any]) -> Any:
            return model.loss(kind, result, labels, own)

        loss, (first, others) = jax.value_and_grad(of, (0, 1))(output, weights)
        # A weight's gradient has two sources then, and they are summed.
        return [loss, first, *(others[name] + one for name, one in weights.items())]

    return body


def _sum(state: dict[str, Any], first: Any, second: Any) -> list[Any]:
    del state
    return [first + second]


class RepeatedOperator(TimedCall):
    """A program that holds an operator several times.

    Args:
        place: where it computes, and in what.
        body: returns an operator's results.
        state: what all repetitions share.
        sets: of operands; the operator is executed once for each.
        cost: of a call, which is taken off; None leaves it in.
    """

    def __init__(
        self,
        place: Place,
        body: Body,
        state: dict[str, Any],
        sets: Sequence[Sequence[Any]],
        cost: CallCost | None = None,
    ) -> None:
        def all_of(shared: dict[str, Any], *each: Sequence[Any]) -> list[Any]:
            return [one for operands in each for one in body(shared, *operands)]

        operands = (state, *(list(one) for one in sets))
        program = place.compiled(all_of, operands)
        super().__init__(lambda: jax.block_until_ready(program(*operands)))
        self._executions, self._cost = len(sets), cost

    def run(self) -> float:
        """Call it once; seconds of one execution."""
        seconds = super().run()
        return (seconds - (self._cost.seconds() if self._cost else 0.0)) / self._executions


class Update:
    """The update of all weights with given gradients, in place, as the step makes it.

    Args:
        step: with its optimizer.
        cost: of a call, which is taken off.
    """

    def __init__(self, step: JaxStep, cost: CallCost) -> None:
        weights, velocity, rate, _ = _optimized(step)
        self._state = {"trained": weights, "velocity": velocity}
        # So small that weights stay what they are, however often they are moved.
        self._others = ({name: one * 1e-6 for name, one in weights.items()}, rate)
        self._cost = cost

        def body(state: dict[str, Any], gradients: dict[str, Any], rate: Any) -> dict[str, Any]:
            return step.updated(state["trained"], state["velocity"], gradients, rate)

        self._program = step.owner.place.compiled(body, (self._state, *self._others), donated=(0,))
        self.run()

    def run(self) -> float:
        """Call it once; seconds."""
        start = time.perf_counter()
        self._state = jax.block_until_ready(self._program(self._state, *self._others))
        return time.perf_counter() - start - self._cost.seconds()


def _optimized(step: JaxStep) -> tuple[Any, ...]:
    changed, _, rate, batch = step.operands()
    return changed["trained"], changed["velocity"], rate, batch


# -----------------------------------------------------------------------------
# JAX's operators, prepared: compiled, repeated where they are short, calibrated.

# A call costs more than many an operator: one is repeated in its program until it lasts so long, in
# seconds, and so often at most.
_LONG_S = 12e-3
_MOST = 16
# The operands of all repetitions together take no more than this share of the memory.
_ROOM = 1 / 8
_HOW = "empty calls of as many operands, after each part"


def prepare_signatures(
    backend: FrameworkBackend, case: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Make subgraphs ready by signature; see :func:`pydlbench.steps.operations.prepare_calls`."""
    begin = time.perf_counter()
    room = _ROOM * (read_cpu_facts().memory_total_bytes or 0) / max(1, len(signatures))
    costs = _Costs(place_of(case.device, case.precision))
    found: dict[str, TimedOperator] = {}
    refused: dict[str, str] = {}
    for signature in signatures:
        try:
            found[signature] = _of_graph(signature, case, costs, room)
        except PydlbenchError as error:
            refused[signature] = str(error)
    facts = OperatorsFacts(
        names=tuple(found),
        once_s=costs.once(found.values()),
        dispatch_s=0.0,  # a compiled program has no operators any more
        dispatch_samples=(0.0,),
        how=_HOW,
        setup_s=time.perf_counter() - begin,
        library=backend.library,
        refused=refused,
    )
    return OperatorsKernel(list(found.values()), facts, backend.cpus)


def _of_graph(signature: str, case: StepSpec, costs: _Costs, room: float) -> TimedOperator:
    """Return a subgraph of a model of the catalogue."""
    said, graph, asked = read_signature(signature)
    own = step_of(said, case)
    with translated(asked.kind):
        weights, batch = make_weights(graph, own.seed), make_batch(graph, own.seed)
        model = JaxModel(graph, weights, own, batch)
        step = JaxStep(model, definition_of(own, graph))
        costs.operands = len(model.resident)
        if asked.kind == "feed":
            return TimedCall(lambda: jax.block_until_ready(model.placed(model.host)))
        if asked.kind == "optimizer":
            return Update(step, costs.of(2 * len(weights)))
        names = {path for path in trained(graph) if path.rpartition("/")[0] in asked.nodes}
        kept = names if asked.is_subgraph else set(trained(graph))
        tensors = {name: one for name, one in model.state["trained"].items() if name in kept}
        state = {**model.state, "trained": tensors}
        body, operands = _made_up(step, asked, said.marks)
        make = partial(RepeatedOperator, model.place, body, state)
        return _long_enough(make, costs.of(len(operands) + len(tensors)), operands, room)


def _made_up(
    step: JaxStep, asked: OperatorRequest, marks: Sequence[Sequence[str]]
) -> tuple[Body, list[Any]]:
    """Return function and operands of an operator of which only its signature is known."""
    del marks  # sums of gradients cost the same, whatever they come through
    model, graph = step.owner, step.owner.model
    stream = np.random.default_rng(0)

    def like(name: str) -> Any:
        shape = graph[name].shape
        if len(shape) == 3 and model.net.images == "nhwc":
            shape = (*shape[1:], shape[0])
        drawn = stream.uniform(-1, 1, (graph.batch, *shape))
        return model.place.put(drawn.astype(np.float32))

    if asked.kind == "loss":
        return _loss(step), [like(graph.output.name), *model.resident[1:]]
    if asked.kind == "gradient sum":
        return _sum, [like("x0"), like("x0")]
    inputs = _outside(graph, asked.nodes)
    operands = [like(name) for name in inputs]
    if step.definition.backward:
        operands += [like(name) for name in asked.outputs]
    return _subgraph(step, asked, inputs), operands


def _outside(model: Model, nodes: Sequence[str]) -> list[str]:
    """Return what nodes read that none of them has made."""
    read = (one for node in nodes for one in model[node].inputs if one not in nodes)
    return list(dict.fromkeys(read))


def _long_enough(
    make: Callable[..., RepeatedOperator], cost: CallCost, operands: list[Any], room: float
) -> RepeatedOperator:
    """Return an operator that is repeated often enough to stand above the cost of its call.

    Fewer times where its operands would not fit into ``room``, in bytes: large ones take longer.
    """
    made = make([operands], cost)
    made.run()
    once = min(made.run() for _ in range(3))
    size = sum(one.nbytes for one in operands)
    times = min(_MOST, math.ceil(_LONG_S / max(once, 1e-5)), int(room / max(size, 1)))
    if times <= 1:
        return made
    sets = [operands, *([jnp.array(one, copy=True) for one in operands] for _ in range(times - 1))]
    made = make(sets, cost)
    made.run()
    return made


class _Costs:
    """Calls that compute next to nothing, by their number of operands.

    Args:
        place: where they are made.

    Attributes:
        operands: that a step's call has.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[int, CallCost] = {}
        self._scalar = place.put(np.ones((), np.float32))
        self.operands = 1

    def of(self, operands: int) -> CallCost:
        """Return what a call costs."""
        # A few more or less make no difference that could be measured.
        key = 1 << max(0, operands - 1).bit_length()
        if key not in self._known:
            self._known[key] = self.new(key)
        return self._known[key]

    def new(self, operands: int) -> CallCost:
        """Return the same, of calls that no operator has to do with."""

        def body(state: dict[str, Any], *tensors: Any) -> list[Any]:
            del state
            return list(tensors)

        empty = RepeatedOperator(self._place, body, {}, [[self._scalar] * operands])
        return CallCost(empty.run)

    def once(self, operators: Iterable[TimedOperator]) -> float:
        """Return what a step's call costs when operators have run before it."""
        cost = self.new(self.operands)
        cost.seconds()
        for one in operators:
            one.run()
            cost.seconds()
        return cost.latest


def prepare_allocation(backend: FrameworkBackend, size: int) -> OperatorsKernel:
    """Make a call ready; see :func:`pydlbench.steps.operations.prepare_allocation`."""
    place = place_of(backend.device, "fp32")
    source = place.put(np.ones(size // 4, np.float32))
    call = RepeatedOperator(place, lambda _, one: [one + 1.0], {}, [[source]])
    return OperatorsKernel([call], OperatorsFacts(names=("call",)), backend.cpus)

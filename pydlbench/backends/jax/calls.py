"""Groups of a JAX step's equations in programs of their own, on operands that are made up.

A step is traced and cut into what XLA runs as one. The signature of an equation is its text, from
which it is not made again: the step is traced once more, and its groups are found by their texts.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.extend.core import Literal

from pydlbench.backends.frameworks.backend import translated
from pydlbench.backends.jax.settings import jax, place_of
from pydlbench.backends.jax.step import JaxModel, JaxStep
from pydlbench.backends.steps.groups import EQUATION, CallGroup, Member, grouped, groups_of, is_feed
from pydlbench.backends.steps.network import LOSS, OPTIMIZER, scope_of
from pydlbench.backends.steps.operators import CallCost, OperatorsKernel, TimedCall, check_on_cpu
from pydlbench.backends.steps.serving import model_of
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.records.operator import OperatorsFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.jax.settings import Place
    from pydlbench.backends.steps.operators import TimedOperator
    from pydlbench.records.step import StepSpec

    # Of what all repetitions share (weights), and of one set of operands.
    Body: TypeAlias = Callable[..., list[Any]]

jnp = jax.numpy


# -----------------------------------------------------------------------------
# A step's equations, and the groups of them.


@dataclass(frozen=True, slots=True)
class Program:
    """A traced step.

    Attributes:
        equations: in their order.
        members: the same as calls.
        kept: which of their results outlive the step.
    """

    equations: Sequence[Any]
    members: Sequence[Member]
    kept: Sequence[tuple[int, int]]


def traced(step: JaxStep) -> Program:
    """Return a step's equations, functions within it in their place."""
    with jax.disable_jit():
        program = jax.make_jaxpr(step.body)(*step.operands()).jaxpr
    nodes = {scope_of(node.name): node.name for node in step.owner.model}
    made: dict[Any, tuple[int, int]] = {}
    members = []
    for number, equation in enumerate(program.eqns):
        direction, name = _place(str(equation.source_info.name_stack), nodes)
        read = [one for one in equation.invars if not isinstance(one, Literal)]
        members.append(
            Member(
                signature=_text(equation),
                operator=equation.primitive.name,
                direction=direction,
                names=(name,) if name else (),
                reads=tuple(made.get(one) for one in read),
                bytes=sum(_bytes(one.aval) for one in (*read, *equation.outvars)),
            )
        )
        made |= {one: (number, place) for place, one in enumerate(equation.outvars)}
    results = [one for one in program.outvars if not isinstance(one, Literal)]
    return Program(program.eqns, members, [made[one] for one in results if one in made])


def _place(scopes: str, nodes: Mapping[str, str]) -> tuple[str, str]:
    """Return the direction of an equation, and the node that it is of; empty of none.

    ``transpose(jvp(conv1))`` is a gradient.
    """
    words = re.findall(r"[^()/]+", scopes)
    if OPTIMIZER in words:
        return "optimizer", ""
    backward = "transpose" in words
    if LOSS in words:
        return ("backward" if backward else "loss"), "loss"
    name = next((nodes[one] for one in words if one in nodes), "")
    return ("backward" if backward else "forward"), name


def _text(equation: Any) -> str:
    """Return all that changes an equation's time; functions have no text, and nothing to say."""
    said = (f"{name}={one}" for name, one in equation.params.items() if not callable(one))
    operands = (
        f"{one.val}:{one.aval.str_short()}" if isinstance(one, Literal) else one.aval.str_short()
        for one in equation.invars
    )
    return f"{EQUATION}{equation.primitive.name}[{' '.join(said)}]({', '.join(operands)})"


def _bytes(kind: Any) -> int:
    return int(kind.size * kind.dtype.itemsize)


def _function(equations: Sequence[Any], calls: Sequence[int], group: CallGroup) -> Body:
    """Return the function of a group's operands to its results."""
    links = {(call, operand): (by, result) for call, operand, by, result in group.links}

    def body(state: dict[str, Any], *operands: Any) -> list[Any]:
        del state
        given, results = iter(operands), list[list[Any]]()
        for number, call in enumerate(calls):
            equation, place, read = equations[call], 0, []
            for one in equation.invars:
                if isinstance(one, Literal):
                    read.append(one.val)
                    continue
                link = links.get((number, place))
                read.append(next(given) if link is None else results[link[0]][link[1]])
                place += 1
            params = equation.primitive.get_bind_params(equation.params)
            found = equation.primitive.bind(*read, **params)
            results.append(list(found) if equation.primitive.multiple_results else [found])
        return [results[call][result] for call, result in group.results]

    return body


def _operands(equations: Sequence[Any], calls: Sequence[int], group: CallGroup) -> list[Any]:
    """Return what no equation of a group makes: uniform in [-1, 1); other types are zeros."""
    linked = {(call, operand) for call, operand, _, _ in group.links}
    stream = np.random.default_rng(0)
    found = []
    for number, call in enumerate(calls):
        read = [one for one in equations[call].invars if not isinstance(one, Literal)]
        found += [
            _like(one.aval, stream)
            for place, one in enumerate(read)
            if (number, place) not in linked
        ]
    return found


def _like(kind: Any, stream: np.random.Generator) -> Any:
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        keys = jax.random.key(0)
        return jnp.broadcast_to(keys, kind.shape)
    if jnp.issubdtype(kind.dtype, jnp.floating):
        return jnp.asarray(stream.uniform(-1, 1, kind.shape), kind.dtype)
    return jnp.zeros(kind.shape, kind.dtype)


# -----------------------------------------------------------------------------
# Programs of a group.


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


# -----------------------------------------------------------------------------
# JAX's operators, prepared: compiled, repeated where they are short, calibrated.

# A call costs more than many an operator: one is repeated in its program until it lasts so long, in
# seconds, and so often at most.
_LONG_S = 12e-3
_MOST = 16
# The operands of all repetitions together take no more than this share of the memory.
_ROOM = 1 / 8
_HOW = "empty calls of as many operands, after each part"


def _program(backend: FrameworkBackend, case: StepSpec) -> tuple[JaxStep, Program]:
    made = model_of(backend, case)
    assert isinstance(made, JaxModel), "all models of this worker are"
    step = JaxStep(made, made.definition)
    return step, traced(step)


def record_calls(backend: FrameworkBackend, case: StepSpec) -> OperatorsKernel:
    """List the groups of a step's equations; see ``operations.record_calls``."""
    begin = time.perf_counter()
    step, program = _program(backend, case)
    facts = OperatorsFacts(
        setup_s=time.perf_counter() - begin,
        library=backend.library,
        calls=grouped(program.members, program.kept),
        batch=step.owner.model.batch,
    )
    return OperatorsKernel([], facts, backend.cpus)


def prepare_calls(
    backend: FrameworkBackend, case: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Make groups ready; see ``operations.prepare_calls``."""
    check_on_cpu(case)
    begin = time.perf_counter()
    room = _ROOM * (read_cpu_facts().memory_total_bytes or 0) / max(1, len(signatures))
    step, program = _program(backend, case)
    costs = _Costs(step.owner.place)
    costs.operands = len(step.owner.resident)
    groups = dict(groups_of(program.members, program.kept))
    found: dict[str, TimedOperator] = {}
    refused: dict[str, str] = {}

    def feed() -> Any:
        return jax.block_until_ready(step.owner.placed(step.owner.host))

    for text in signatures:
        if is_feed(text):
            found[text] = TimedCall(feed)
            continue
        try:
            with translated(program.members[groups[text][0]].operator):
                found[text] = _made_ready(program, groups[text], CallGroup.read(text), costs, room)
        except PydlbenchError as error:
            refused[text] = str(error)
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


def _made_ready(
    program: Program, calls: Sequence[int], group: CallGroup, costs: _Costs, room: float
) -> TimedOperator:
    body = _function(program.equations, calls, group)
    operands = _operands(program.equations, calls, group)
    make = partial(RepeatedOperator, costs.place, body, {})
    return _long_enough(make, costs.of(len(operands)), operands, room)


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
        self.place = place
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

        empty = RepeatedOperator(self.place, body, {}, [[self._scalar] * operands])
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
    """Make a call ready; see ``operations.prepare_allocation``."""
    place = place_of(backend.device, "fp32")
    source = place.put(np.ones(size // 4, np.float32))
    call = RepeatedOperator(place, lambda _, one: [one + 1.0], {}, [[source]])
    return OperatorsKernel([call], OperatorsFacts(names=("call",)), backend.cpus)

"""Groups of a JAX step's equations in programs of their own, on operands that are made up.

A step is traced and cut into what XLA runs as one. The signature of an equation is its text, from
which it is not made again: the step is traced once more, and its groups are found by their texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.extend.core import Literal

from pydlbench.backends.frameworks.backend import framework_errors
from pydlbench.backends.jax.settings import jax
from pydlbench.backends.jax.step import JaxModel, JaxStep
from pydlbench.backends.steps.network import LOSS, OPTIMIZER, scope_of
from pydlbench.backends.steps.repeated import (
    CallCosts,
    RepeatedOperator,
    long_enough,
    prepare_operators,
)
from pydlbench.backends.steps.serving import model_of
from pydlbench.backends.steps.timed_calls import OperatorsKernel, TimedCall, check_on_cpu
from pydlbench.calls.groups import JAX_PREFIX, CallGroup, distinct_groups, is_feed, step_groups
from pydlbench.calls.step_calls import StepCall
from pydlbench.records.operator import OperatorsFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.jax.settings import JaxDevice
    from pydlbench.records.step import StepSpec

jnp = jax.numpy


# -----------------------------------------------------------------------------
# A step's equations, and the groups of them.


@dataclass(frozen=True, slots=True)
class JaxProgram:
    """A traced step.

    Attributes:
        equations: in their order.
        members: the same as calls.
        kept: which of their results outlive the step.
    """

    equations: Sequence[Any]
    members: Sequence[StepCall]
    kept: Sequence[tuple[int, int]]


def traced(step: JaxStep) -> JaxProgram:
    """Return a step's equations, functions within it in their place."""
    with jax.disable_jit():
        program = jax.make_jaxpr(step.body)(*step.operands()).jaxpr
    nodes = {scope_of(node.name): node.name for node in step.owner.model}
    made: dict[Any, tuple[int, int]] = {}
    members = []
    for number, equation in enumerate(program.eqns):
        direction, name = _place(str(equation.source_info.name_stack), nodes)
        read = [each for each in equation.invars if not isinstance(each, Literal)]
        members.append(
            StepCall(
                signature=_text(equation),
                operator=equation.primitive.name,
                direction=direction,
                names=(name,) if name else (),
                reads=tuple(made.get(each) for each in read),
                bytes=sum(_bytes(each.aval) for each in (*read, *equation.outvars)),
            )
        )
        made |= {each: (number, place) for place, each in enumerate(equation.outvars)}
    results = [each for each in program.outvars if not isinstance(each, Literal)]
    return JaxProgram(program.eqns, members, [made[each] for each in results if each in made])


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
    name = next((nodes[each] for each in words if each in nodes), "")
    return ("backward" if backward else "forward"), name


def _text(equation: Any) -> str:
    """Return all that changes an equation's time; functions have no text, and nothing to say."""
    params = (f"{name}={each}" for name, each in equation.params.items() if not callable(each))
    operands = (
        f"{each.val}:{each.aval.str_short()}"
        if isinstance(each, Literal)
        else each.aval.str_short()
        for each in equation.invars
    )
    return f"{JAX_PREFIX}{equation.primitive.name}[{' '.join(params)}]({', '.join(operands)})"


def _bytes(kind: Any) -> int:
    return int(kind.size * kind.dtype.itemsize)


def _function(
    equations: Sequence[Any], calls: Sequence[int], group: CallGroup
) -> Callable[..., list[Any]]:
    """Return the function of a group's operands to its results."""
    links = {(call, operand): (by, result) for call, operand, by, result in group.links}

    def body(*operands: Any) -> list[Any]:
        given, results = iter(operands), list[list[Any]]()
        for number, call in enumerate(calls):
            equation, place, read = equations[call], 0, []
            for each in equation.invars:
                if isinstance(each, Literal):
                    read.append(each.val)
                    continue
                link = links.get((number, place))
                read.append(next(given) if link is None else results[link[0]][link[1]])
                place += 1
            params = equation.primitive.get_bind_params(equation.params)
            returned = equation.primitive.bind(*read, **params)
            results.append(list(returned) if equation.primitive.multiple_results else [returned])
        return [results[call][result] for call, result in group.results]

    return body


def _operands(equations: Sequence[Any], calls: Sequence[int], group: CallGroup) -> list[Any]:
    """Return what no equation of a group makes: uniform in [-1, 1); other types are zeros."""
    linked = {(call, operand) for call, operand, _, _ in group.links}
    stream = np.random.default_rng(0)
    operands = []
    for number, call in enumerate(calls):
        read = [each for each in equations[call].invars if not isinstance(each, Literal)]
        operands += [
            _like(each.aval, stream)
            for place, each in enumerate(read)
            if (number, place) not in linked
        ]
    return operands


def _like(kind: Any, stream: np.random.Generator) -> Any:
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        keys = jax.random.key(0)
        return jnp.broadcast_to(keys, kind.shape)
    if jnp.issubdtype(kind.dtype, jnp.floating):
        return jnp.asarray(stream.uniform(-1, 1, kind.shape), kind.dtype)
    return jnp.zeros(kind.shape, kind.dtype)


# -----------------------------------------------------------------------------
# Programs of a group.


def repeated(
    place: JaxDevice,
    body: Callable[..., list[Any]],
    sets: Sequence[Sequence[Any]],
    costs: CallCosts | None = None,
) -> RepeatedOperator:
    """Return a program that holds an operator several times.

    Args:
        place: where it computes, and in what.
        body: returns an operator's results.
        sets: of operands; the operator is executed once for each.
        costs: of calls, which are taken off; None leaves them in.
    """

    def all_of(*each: Sequence[Any]) -> list[Any]:
        return [item for operands in each for item in body(*operands)]

    operands = tuple(list(item) for item in sets)
    program = place.compiled(all_of, operands)
    cost = costs.at(sum(map(len, sets)), 1) if costs else None
    return RepeatedOperator(lambda: jax.block_until_ready(program(*operands)), len(sets), cost)


# -----------------------------------------------------------------------------
# JAX's operators, prepared: compiled, repeated where they are short, calibrated.


def _program(backend: FrameworkBackend, spec: StepSpec) -> tuple[JaxStep, JaxProgram]:
    made = model_of(backend, spec)
    assert isinstance(made, JaxModel), "all models of this worker are"
    step = JaxStep(made, made.definition)
    return step, traced(step)


def serve_call_list(backend: FrameworkBackend, spec: StepSpec) -> OperatorsKernel:
    """List the groups of a step's equations; see ``requests.request_call_list``."""
    step, program = _program(backend, spec)
    facts = OperatorsFacts(
        calls=distinct_groups(program.members, program.kept),
        batch=step.owner.model.batch,
    )
    return OperatorsKernel([], facts, backend.cpus)


def serve_calls(
    backend: FrameworkBackend, spec: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Make groups ready; see ``requests.request_calls``."""
    check_on_cpu(spec)
    step, program = _program(backend, spec)
    place = step.owner.place
    costs = CallCosts(partial(_empty, place))
    groups = dict(step_groups(program.members, program.kept))

    def feed() -> Any:
        return jax.block_until_ready(step.owner.placed(step.owner.host))

    def make(text: str) -> TimedCall:
        if is_feed(text):
            return TimedCall(feed)
        calls, group = groups[text], CallGroup.read(text)
        with framework_errors(program.members[calls[0]].operator):
            operands = _operands(program.equations, calls, group)
            return long_enough(
                partial(repeated, place, _function(program.equations, calls, group), costs=costs),
                operands,
                partial(jnp.array, copy=True),
                size=sum(each.nbytes for each in operands),
                among=len(signatures),
            )

    ready, refused = prepare_operators(signatures, make)
    # A compiled program has no operators any more, which are started one by one.
    facts = OperatorsFacts(names=tuple(ready), dispatch_s=0.0, refused=refused)
    return OperatorsKernel(list(ready.values()), facts, backend.cpus)


def _empty(place: JaxDevice, operands: int, results: int) -> RepeatedOperator:
    """Return a call that computes nothing, with so many operands and as many results."""
    del results
    scalar = place.put(np.ones((), np.float32))
    return repeated(place, lambda *tensors: list(tensors), [[scalar] * operands])

"""Groups of a JAX step's equations, timed alone in programs of their own on random operands.

A traced step is divided into groups that XLA compiles to one kernel. The signature of an equation
is its text, from which it cannot be rebuilt; the step is traced again, and its groups are found by
their signatures.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jax.extend.core import Literal

from pydlbench.backends.frameworks.backend import FrameworkBackend, framework_errors
from pydlbench.backends.jax.settings import JaxDevice, jax
from pydlbench.backends.jax.step import JaxModel, JaxStep
from pydlbench.backends.steps.network import LOSS, OPTIMIZER, scope_of
from pydlbench.backends.steps.serving import model_of
from pydlbench.backends.steps.timed_calls import (
    CallCosts,
    OperatorsKernel,
    RepeatedOperator,
    TimedCall,
    check_on_cpu,
    long_enough,
    prepare_operators,
)
from pydlbench.calls.groups import (
    JAX_PREFIX,
    CallGroup,
    LinkedCalls,
    StepCall,
    distinct_groups,
    is_feed,
    step_groups,
)
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts

jnp = jax.numpy


# -----------------------------------------------------------------------------
# The equations of a step, and their groups.


@dataclass(frozen=True, slots=True)
class JaxProgram:
    """A traced step.

    Attributes:
        equations: equations of the step, in their order.
        members: the equations as calls.
        kept: results that outlive the step, each as the equation's number and the result's number.
    """

    equations: Sequence[Any]
    members: Sequence[StepCall]
    kept: Sequence[tuple[int, int]]


def trace_step(step: JaxStep) -> JaxProgram:
    """Return a step's equations, with functions in it inlined."""
    with jax.disable_jit():
        program = jax.make_jaxpr(step.body)(*step.operands()).jaxpr
    nodes = {scope_of(node.name): node.name for node in step.owner.model}
    sources: dict[Any, tuple[int, int]] = {}
    members = []
    for number, equation in enumerate(program.eqns):
        direction, name = _origin(str(equation.source_info.name_stack), nodes)
        read = _variables(equation.invars)
        members.append(
            StepCall(
                signature=_text(equation),
                operator=equation.primitive.name,
                direction=direction,
                names=(name,) if name else (),
                reads=tuple(sources.get(variable) for variable in read),
                bytes=sum(_bytes(variable.aval) for variable in (*read, *equation.outvars)),
            )
        )
        sources |= {variable: (number, index) for index, variable in enumerate(equation.outvars)}
    kept = [sources[variable] for variable in _variables(program.outvars) if variable in sources]
    return JaxProgram(program.eqns, members, kept)


def _variables(terms: Sequence[Any]) -> list[Any]:
    """Return terms of an equation that are not literals."""
    return [term for term in terms if not isinstance(term, Literal)]


def _origin(scopes: str, nodes: Mapping[str, str]) -> tuple[str, str]:
    """Return the direction and the node of an equation; the node may be empty.

    ``transpose(jvp(conv1))`` is a gradient.
    """
    words = re.findall(r"[^()/]+", scopes)
    if OPTIMIZER in words:
        return "optimizer", ""
    backward = "transpose" in words
    if LOSS in words:
        return ("backward" if backward else "loss"), "loss"
    name = next((nodes[word] for word in words if word in nodes), "")
    return ("backward" if backward else "forward"), name


def _text(equation: Any) -> str:
    """Return the text of an equation: everything that affects its time, without functions."""
    params = (f"{name}={value}" for name, value in equation.params.items() if not callable(value))
    operands = (
        f"{term.val}:{term.aval.str_short()}"
        if isinstance(term, Literal)
        else term.aval.str_short()
        for term in equation.invars
    )
    return f"{JAX_PREFIX}{equation.primitive.name}[{' '.join(params)}]({', '.join(operands)})"


def _bytes(kind: Any) -> int:
    return int(kind.size * kind.dtype.itemsize)


def _equation_call(equation: Any) -> Callable[..., list[Any]]:
    """Return an equation as a function of its operands that are not literals."""

    def call(*operands: Any) -> list[Any]:
        given = iter(operands)
        read = [each.val if isinstance(each, Literal) else next(given) for each in equation.invars]
        params = equation.primitive.get_bind_params(equation.params)
        returned = equation.primitive.bind(*read, **params)
        return list(returned) if equation.primitive.multiple_results else [returned]

    return call


def linked_calls(equations: Sequence[Any], group: CallGroup) -> tuple[LinkedCalls, list[Any]]:
    """Return a group as a function, and random operands for it."""
    variables = [_variables(equation.invars) for equation in equations]
    calls = [_equation_call(equation) for equation in equations]
    linked = LinkedCalls(group, calls, [range(len(items)) for items in variables])
    stream = np.random.default_rng(0)
    operands = [_random(item.aval, stream) for item in linked.unlinked(variables)]
    return linked, operands


def _random(kind: Any, stream: np.random.Generator) -> Any:
    """Return a random operand: uniform in [-1, 1), or zeros if its type is not floating-point."""
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), kind.shape)
    if jnp.issubdtype(kind.dtype, jnp.floating):
        return jnp.asarray(stream.uniform(-1, 1, kind.shape), kind.dtype)
    return jnp.zeros(kind.shape, kind.dtype)


# -----------------------------------------------------------------------------
# Programs of a group.


def repeat(
    device: JaxDevice,
    body: Callable[..., list[Any]],
    sets: Sequence[Sequence[Any]],
    costs: CallCosts | None = None,
) -> RepeatedOperator:
    """Return a program that executes an operator several times.

    Args:
        device: the device and the precision.
        body: function that returns the results of the operator.
        sets: sets of operands; the operator is executed once for each set.
        costs: costs of calls, which are subtracted; None to subtract nothing.
    """
    operands = tuple(list(item) for item in sets)
    program = device.compile(
        lambda *sets: [result for operands in sets for result in body(*operands)], operands
    )
    cost = costs.at(sum(map(len, sets)), 1) if costs else None
    return RepeatedOperator(lambda: jax.block_until_ready(program(*operands)), len(sets), cost)


# -----------------------------------------------------------------------------
# Requests.


def _program(backend: FrameworkBackend, spec: StepSpec) -> tuple[JaxStep, JaxProgram]:
    model = model_of(backend, spec)
    assert isinstance(model, JaxModel), "all models of this worker are"
    step = JaxStep(model, model.definition)
    return step, trace_step(step)


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
    """Prepare groups of equations; see ``requests.request_calls``."""
    check_on_cpu(spec)
    step, program = _program(backend, spec)
    device = step.owner.device
    costs = CallCosts(partial(_empty, device))
    groups = dict(step_groups(program.members, program.kept))

    def feed() -> Any:
        return jax.block_until_ready(step.owner.copy_to_device(step.owner.host))

    def make(text: str) -> TimedCall:
        if is_feed(text):
            return TimedCall(feed)
        calls, group = groups[text], CallGroup.read(text)
        with framework_errors(program.members[calls[0]].operator):
            body, operands = linked_calls([program.equations[call] for call in calls], group)
            return long_enough(
                partial(repeat, device, body, costs=costs),
                operands,
                partial(jnp.array, copy=True),
                size=sum(operand.nbytes for operand in operands),
                among=len(signatures),
            )

    ready, refused = prepare_operators(signatures, make)
    # A compiled program does not dispatch single operators.
    facts = OperatorsFacts(names=tuple(ready), dispatch_s=0.0, refused=refused)
    return OperatorsKernel(list(ready.values()), facts, backend.cpus)


def _empty(
    device: JaxDevice,
    operands: int,
    results: int,  # noqa: ARG001 - the interface of all frameworks
) -> RepeatedOperator:
    """Return a call that returns its operands."""
    scalar = device.put(np.ones((), np.float32))
    return repeat(device, lambda *tensors: list(tensors), [[scalar] * operands])

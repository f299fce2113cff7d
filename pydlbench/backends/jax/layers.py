"""A layer's pass as XLA compiles it, from JAX's forward function, with its operands in place.

A gradient is what :func:`jax.vjp` makes of the forward pass: a function of the incoming gradient
and of what it keeps, which are the row's operands. A new op is an entry in
:data:`~pydlbench.backends.jax.forward.FORWARD`.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jax import jit, tree_util, vjp

from pydlbench.backends.frameworks.backend import Variant, entry_of, op_of
from pydlbench.backends.frameworks.operands import LayerLayout, layouts_of
from pydlbench.backends.frameworks.operator import FrameworkLayerPass, FrameworkOperator
from pydlbench.backends.jax.forward import FILTERS, FORWARD, SOURCES, STATISTICS, JaxForwardOptions
from pydlbench.backends.jax.settings import jax
from pydlbench.errors import UnsupportedError
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.jax.settings import JaxDevice
    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec

    Array = NDArray[Any]

#: What JAX calls what it computes for a layer; others are called by their op.
_NAMES: Final = {
    "conv": "lax.conv_general_dilated",
    "deconv": "transpose of lax.conv_general_dilated",
    "gemm": "lax.dot_general",
    "pool": "lax.reduce_window",
}


def variants_of(layer: Layer, spec: KernelSpec, place: JaxDevice) -> list[Variant]:
    """Return the ways to compute a pass of a layer.

    Args:
        layer: of the case.
        spec: what is computed.
        place: where it is computed, and in what.

    Raises:
        UnsupportedError: JAX has no such layers here.
    """
    entry = entry_of("jax", FORWARD, layer)
    if layer.kind == "pointwise" and place.queues:
        raise UnsupportedError("jax: memory-bound layers are run on CPUs so far")
    backward_maxima = layer.op == "pool" and layer.mode == "max" and spec.pass_ != "forward"
    if backward_maxima and max(layer.dilation) > 1:
        raise UnsupportedError("jax: no gradient of maxima over windows with holes")
    training = spec.pass_ != "forward" or spec.propagation == "training"
    return [
        _variant(entry, spec, JaxForwardOptions(word, training), place)
        for word in layouts_of(layer)
    ]


def _variant(
    entry: Callable[[Any, JaxForwardOptions], Callable[..., Any]],
    spec: KernelSpec,
    options: JaxForwardOptions,
    place: JaxDevice,
) -> Variant:
    """Return a way to compute a pass.

    Args:
        entry: of the table.
        spec: what is computed.
        options: of the forward function.
        place: where it is computed, and in what.
    """
    layer, word = spec.layer, options.word
    layout = LayerLayout(layer, word, FILTERS.get(word, "oihw"))
    run = FrameworkLayerPass(spec, entry(layer, options), layout, {})
    roles = run.roles

    def build(inputs: Mapping[str, Array]) -> JaxOperator:
        given = dict(inputs)
        if roles.derived and layer.op in SOURCES:
            given["src"] = SOURCES[layer.op](given["result"])

        def put(role: str) -> Any:
            kind = "float32" if layer.in_float32(role) else None
            return place.put(layout.array(role, given), kind)

        operands = {role: put(role) for role in roles.reads}
        called, tensors = run.function, list(operands.values())
        if roles.derived:
            statistics = {role: put(role) for role in STATISTICS if role in given}
            called = entry(layer, dataclasses.replace(options, statistics=statistics))
            with place.exact():
                called, kept = _gradient(called, operands, roles.writes)
            tensors = [*kept, put("dst")]

        def results(returned: Any) -> Mapping[str, Array]:
            several = returned if isinstance(returned, tuple | list) else [returned]
            return run.plain(dict(zip(roles.writes, several, strict=True)), as_array)

        return JaxOperator(called, tensors, results, place)

    name = _NAMES.get(op_of(layer), layer.op)
    products = layer.op in ("conv", "deconv", "gemm", "attention")
    return Variant(
        algorithm=f"gradient of {name}" if roles.derived else name,
        layout=layout.text(spec.pass_),
        variant=word,
        build=build,
        accumulate=place.numbers.accumulate if products else place.numbers.dtype,
    )


def _gradient(
    function: Callable[..., Any], operands: Mapping[str, Any], wanted: Sequence[str]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return gradients as a function of what they keep and the incoming gradient, and what is kept.

    Args:
        function: of the forward pass.
        operands: of it, by role.
        wanted: roles whose gradients are wanted.
    """

    def of_wanted(*tensors: Any) -> Any:
        known = {**operands, **dict(zip(wanted, tensors, strict=True))}
        results = function(*known.values())
        return results[0] if isinstance(results, tuple) else results

    pull = jit(lambda *tensors: vjp(of_wanted, *tensors)[1])(*(operands[role] for role in wanted))
    kept, structure = tree_util.tree_flatten(pull)

    def gradient(*tensors: Any) -> Any:
        return tree_util.tree_unflatten(structure, tensors[:-1])(tensors[-1])

    return gradient, kept


# -----------------------------------------------------------------------------
# The compiled function with its operands: called, waited for, read.

# Readings of what a launch costs, and executions in each.
_READINGS, _LAUNCHES = 20, 10


def as_array(array: Any) -> NDArray[Any]:
    """Return the values of an array of JAX's, on the host, as float32."""
    return np.asarray(array).astype(np.float32, copy=False)


class JaxOperator(FrameworkOperator):
    """A compiled function with its operands on the device; it has run once.

    On a CPU a call returns with its result, on a GPU the result is in the queue. Nothing is
    donated: each call gets new memory for its result, as a user's line does.

    Args:
        function: what is compiled.
        operands: all arguments, on the device.
        results: see :class:`FrameworkOperator`.
        place: where it computes, and in what.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[Any],
        results: Callable[[Any], Mapping[str, NDArray[Any]]],
        place: JaxDevice,
    ) -> None:
        self._compiled = place.compiled(function, operands)
        self._last: Any = None
        called = self._queued if place.queues else self._finished
        super().__init__(called, operands, results, wait=self._wait)
        self.call()  # touches what is touched once
        self.wait()

    def _finished(self, *operands: Any) -> Any:
        return jax.block_until_ready(self._compiled(*operands))

    def _queued(self, *operands: Any) -> Any:
        self._last = self._compiled(*operands)
        return self._last

    def _wait(self) -> None:
        # A device runs calls in their order, one after the other.
        if self._last is not None:
            jax.block_until_ready(self._last)

    def program(self) -> str:
        """Return the text of the optimised program."""
        return str(self._compiled.as_text())

    def launch_times(self) -> dict[str, float]:
        """Return seconds per execution on the host's clock, and of putting one into the queue.

        ``host`` and ``enqueue`` of ``KernelFacts.launch_s``: JAX gives nobody its streams, so there
        is no time between two events.
        """
        host, enqueue = [], []
        for _ in range(_READINGS):
            start = time.perf_counter()
            for _ in range(_LAUNCHES):
                self.call()
            launched = time.perf_counter()
            self.wait()
            host.append((time.perf_counter() - start) / _LAUNCHES)
            enqueue.append((launched - start) / _LAUNCHES)
        return {"host": median(host), "enqueue": median(enqueue)}

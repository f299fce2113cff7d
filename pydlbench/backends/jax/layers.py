"""Passes of layers, compiled by XLA from JAX's forward functions.

A gradient is derived by :func:`jax.vjp`: a function of the incoming gradient and of the residuals
of the forward pass, which are operands of the row. A new op is an entry in
:data:`~pydlbench.backends.jax.forward.FORWARD`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from jax import jit, tree_util, vjp
from numpy.typing import NDArray

from pydlbench.backends.frameworks.backend import Variant, entry_of, op_of
from pydlbench.backends.frameworks.operands import (
    FrameworkLayerPass,
    FrameworkOperator,
    LayerLayout,
    layouts_of,
)
from pydlbench.backends.jax.forward import FILTERS, FORWARD, SOURCES, STATISTICS, JaxForwardOptions
from pydlbench.backends.jax.settings import JaxDevice, jax
from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.statistics import median

Array = NDArray[Any]

#: Names of algorithms by op; for all other ops the op is the name.
_ALGORITHMS: Final = {
    "conv": "lax.conv_general_dilated",
    "deconv": "transpose of lax.conv_general_dilated",
    "gemm": "lax.dot_general",
    "pool": "lax.reduce_window",
}


def variants_of(layer: Layer, spec: KernelSpec, device: JaxDevice) -> list[Variant]:
    """Return the ways to compute a pass of a layer.

    Args:
        layer: layer of the case.
        spec: the case.
        device: the device and the precision.

    Raises:
        UnsupportedError: JAX has no such layers on this device.
    """
    entry = entry_of("jax", FORWARD, layer)
    if layer.kind == "pointwise" and device.queues:
        raise UnsupportedError("jax: memory-bound layers are run on CPUs so far")
    backward_maxima = layer.op == "pool" and layer.mode == "max" and spec.pass_ != "forward"
    if backward_maxima and max(layer.dilation) > 1:
        raise UnsupportedError("jax: no gradient of maxima over windows with holes")
    training = spec.pass_ != "forward" or spec.propagation == "training"
    return [
        _variant(entry, spec, JaxForwardOptions(layout=layout, training=training), device)
        for layout in layouts_of(layer)
    ]


def _variant(
    entry: Callable[[Any, JaxForwardOptions], Callable[..., Any]],
    spec: KernelSpec,
    options: JaxForwardOptions,
    device: JaxDevice,
) -> Variant:
    """Return a way to compute a pass.

    Args:
        entry: entry of the table of forward functions.
        spec: the case.
        options: options of the forward function.
        device: the device and the precision.
    """
    layer = spec.layer
    layout = LayerLayout(layer, options.layout, FILTERS.get(options.layout, "oihw"))
    layer_pass = FrameworkLayerPass(spec, entry(layer, options), layout, {})
    roles = layer_pass.roles

    def build(inputs: Mapping[str, Array]) -> JaxOperator:
        given = dict(inputs)
        if roles.derived and layer.op in SOURCES:
            given["src"] = SOURCES[layer.op](given["result"])

        def put(role: str) -> Any:
            kind = "float32" if layer.in_float32(role) else None
            return device.put(layout.array(role, given), kind)

        operands = {role: put(role) for role in roles.reads}
        function, tensors = layer_pass.function, list(operands.values())
        if roles.derived:
            statistics = {role: put(role) for role in STATISTICS if role in given}
            function = entry(layer, dataclasses.replace(options, statistics=statistics))
            with device.exact():
                function, residuals = _gradient(function, operands, roles.writes)
            tensors = [*residuals, put("dst")]

        def results(returned: Any) -> Mapping[str, Array]:
            several = returned if isinstance(returned, tuple | list) else [returned]
            return layer_pass.plain(dict(zip(roles.writes, several, strict=True)), as_array)

        return JaxOperator(function, tensors, results, device)

    name = _ALGORITHMS.get(op_of(layer), layer.op)
    products = layer.op in ("conv", "deconv", "gemm", "attention")
    return Variant(
        algorithm=f"gradient of {name}" if roles.derived else name,
        layout=layout.text(spec.pass_),
        variant=options.layout,
        build=build,
        accumulate=device.numbers.accumulate if products else device.numbers.dtype,
    )


def _gradient(
    function: Callable[..., Any], operands: Mapping[str, Any], wanted: Sequence[str]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return gradients as a function of residuals and the incoming gradient, and the residuals.

    Args:
        function: the forward pass.
        operands: operands of the forward pass, by role.
        wanted: roles of the operands to differentiate by.
    """

    def forward(*tensors: Any) -> Any:
        known = {**operands, **dict(zip(wanted, tensors, strict=True))}
        results = function(*known.values())
        return results[0] if isinstance(results, tuple) else results

    pull = jit(lambda *tensors: vjp(forward, *tensors)[1])(*(operands[role] for role in wanted))
    residuals, structure = tree_util.tree_flatten(pull)
    return (
        lambda *tensors: tree_util.tree_unflatten(structure, tensors[:-1])(tensors[-1]),
        residuals,
    )


# -----------------------------------------------------------------------------
# Compiled functions with their operands.

# Number of measurements of the cost of a launch, and number of launches in each.
_READINGS, _LAUNCHES = 20, 10


def as_array(array: Any) -> NDArray[Any]:
    """Return the values of a JAX array on the host, as float32."""
    return np.asarray(array).astype(np.float32, copy=False)


class JaxOperator(FrameworkOperator):
    """A compiled function with its operands on the device; it has run once.

    On a CPU a call returns with its result; on a GPU it returns when it is queued. No memory is
    donated: each call allocates its result, as a user's code does.

    Args:
        function: the function to compile.
        operands: all arguments, on the device.
        results: function that copies the results to the host, see :class:`FrameworkOperator`.
        device: the device and the precision.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[Any],
        results: Callable[[Any], Mapping[str, NDArray[Any]]],
        device: JaxDevice,
    ) -> None:
        self._compiled = device.compile(function, operands)
        self._last: Any = None
        called = self._enqueue if device.queues else self._run
        super().__init__(called, operands, results, wait=self._wait)
        self.call()  # first use of memory
        self.wait()

    def _run(self, *operands: Any) -> Any:
        return jax.block_until_ready(self._compiled(*operands))

    def _enqueue(self, *operands: Any) -> Any:
        self._last = self._compiled(*operands)
        return self._last

    def _wait(self) -> None:
        # A device executes calls in their order.
        if self._last is not None:
            jax.block_until_ready(self._last)

    def program(self) -> str:
        """Return the text of the optimised program."""
        return str(self._compiled.as_text())

    def launch_times(self) -> dict[str, float]:
        """Return seconds per execution on the host's clock, and seconds of a launch.

        They are ``host`` and ``enqueue`` of ``KernelFacts.launch_s``. There is no time between
        events, as JAX gives no access to its streams.
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

"""The JAX backend: each layer is one function, compiled ahead of time by XLA."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from jax import jit, tree_util, vjp
from numpy.typing import NDArray

from pydlbench.backends import autotune
from pydlbench.backends.base import KernelFacts
from pydlbench.backends.frameworks import hlo
from pydlbench.backends.frameworks.backend import (
    HostTimedBackend,
    Variant,
    entry_of,
    op_of,
    rename_algorithm,
    resolve_mode,
)
from pydlbench.backends.frameworks.operands import (
    FrameworkLayerPass,
    FrameworkOperator,
    LayerLayout,
    layouts_of,
)
from pydlbench.backends.host_clock import Operator
from pydlbench.backends.jax.forward import FILTERS, FORWARD, SOURCES, STATISTICS, JaxForwardOptions
from pydlbench.backends.jax.settings import JaxDevice, choose, jax, jax_device
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.statistics import median


class JaxBackend(HostTimedBackend):
    """JAX on one device; on CPUs XLA has a thread for each CPU of the process.

    On a GPU the host's clock times as many queued calls as a sample has executions. The cost of a
    launch on the host is measured separately.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.

    Raises:
        UnsupportedError: JAX cannot use the device.
    """

    name = "jax"
    library = f"JAX {jax.__version__}"
    modes = ("xla",)

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        self._device = choose(device)
        if self.on_gpu:
            self.effort = autotune.GPU_EFFORT

    def describe(self) -> dict[str, Any]:
        """Return versions, threads and settings."""
        return {
            "name": "JAX",
            "version": jax.__version__,
            "jaxlib": jax.lib.__version__,
            "numpy": np.__version__,
            "threads": len(self.cpus),
            "device": str(self._device),
            "modes": list(self.modes),
            "settings": {"async_dispatch": self.on_gpu, "donation": False, "preallocation": False},
            "timing": self.timing,
        }

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see :class:`FrameworkBackend`."""
        resolve_mode(self.name, self.modes, spec.mode)
        device = jax_device(self.device, spec.precision)
        if spec.fuse != "none":
            raise UnsupportedError(f"jax has no function for --fuse {spec.fuse} here")
        self.check_timing(spec)
        return variants_of(spec.layer, spec, device)

    def empty(self, mode: str | None) -> Operator:
        """Return the identity of a scalar."""
        resolve_mode(self.name, self.modes, mode)
        device = jax_device(self.device, "fp32")
        scalar = [device.put(np.zeros((), np.float32))]
        return JaxOperator(
            lambda tensor: tensor,
            scalar,
            lambda returned: {"dst": np.atleast_1d(as_array(returned))},
            device,
        )

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return facts with XLA's kernels, and on a GPU the cost of a launch."""
        assert isinstance(operator, JaxOperator)
        known: dict[str, Any] = {
            "timing": self.timing,
            "accumulate": facts.accumulate.removesuffix("-tensor"),
        }
        if self.on_gpu:
            known["launch_s"] = operator.launch_times()
            if spec.layer.weight_elements:
                known["notes"] = [*facts.notes, *self.tf32_notes(spec.precision)]
        text = operator.program()
        kernels = hlo.kernels(text)
        if kernels is None:
            return rename_algorithm(facts, facts.algorithm, **known)
        evidence: dict[str, Any] = {**facts.evidence, "kernel": f"XLA {kernels}"}
        if not self.on_gpu and (detail := hlo.detail(text)):
            evidence["detail"] = detail
        algorithm = f"{facts.algorithm}: {kernels}"
        return rename_algorithm(facts, algorithm, evidence=evidence, **known)


def create(device: str) -> JaxBackend:
    """Create the backend for a device, on the CPUs of this process.

    Raises:
        UnsupportedError: JAX cannot use the device.
    """
    return JaxBackend(device, process_cpus())


# -----------------------------------------------------------------------------
# Passes of layers, compiled by XLA from JAX's forward functions.

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

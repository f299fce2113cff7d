"""Measures a single layer, and the limits of a device, for the Python API."""

from __future__ import annotations

from collections.abc import Sequence

from pydlbench.backends import capabilities
from pydlbench.backends.capabilities import default_device
from pydlbench.devices.cpu.record import DeviceRecord
from pydlbench.devices.gpu.record import GpuRecord
from pydlbench.errors import BackendMissingError, UsageError
from pydlbench.models.catalog import find_layers
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import DevicePeaks, KernelSpec, Measurement
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.timing.policy import LAYER_BUDGET_S
from pydlbench.words import CPU_PRECISIONS, GPU_PRECISIONS, check_device, check_word


def measure(
    layer: Layer | str,
    *,
    precision: str = "fp32",
    pass_: str = "forward",
    propagation: str = "inference",
    cache: str = "hot",
    layout: str = "best",
    backend: str = "native",
    device: str | None = None,
    timing: str = "auto",
    fuse: str = "none",
    options: RunnerOptions | None = None,
) -> Measurement:
    """Measure one layer and return the record that the command line prints.

    Args:
        layer: the problem, ``pydlbench.build_layer("conv", ...)``, or its name or descriptor, as
            ``--shape`` takes it: ``conv3``.
        precision: storage and arithmetic: ``fp32``, ``bf16``, ``fp16`` on a CPU; ``fp32``,
            ``tf32``, ``fp16``, ``fp16-tc``, ``bf16-tc``, ``fp8-tc`` on a GPU.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        propagation: ``inference`` or ``training``, for the forward pass.
        cache: ``hot``, ``weights-cold`` or ``all-cold``.
        layout: ``best`` or one of ``any``, ``nchw``, ``nhwc``, ``blocked``.
        backend: name of the backend.
        device: ``cpu`` or ``cuda:N``; None is the GPU if there is one, as on the command line.
        timing: ``events`` or ``cuda-graph`` on a GPU; ``auto`` chooses by cache state.
        fuse: ``bias-relu`` computes conv + bias + ReLU in one kernel on a GPU.
        options: settings of the session; None for those of the command line: four repetitions in a
            second of sampling.

    Returns:
        The record. If the layer cannot be measured, its ``status`` is ``skipped`` or ``failed``,
        with a ``reason``. Times in seconds, rates in TFLOP/s and GB/s.

    Raises:
        UsageError: an unknown word, or a layer that does not fit into memory.
    """
    capabilities.declaration(backend)
    if isinstance(layer, str):
        layer, *others = find_layers([layer], option="layer")
        if others:
            raise UsageError(f"layer {layer}: several layers; nearest: {layer.name}")
    spec = KernelSpec(
        layer=layer,
        pass_=pass_,
        precision=precision,
        propagation=propagation,
        cache=cache,
        layout=layout,
        backend=backend,
        device=device or default_device()[0],
        timing=timing,
        fuse=fuse,
    )
    usual = RunnerOptions(budget_s=LAYER_BUDGET_S, repetitions=None)
    with Session(options or usual) as session:
        return next(row for _, row in session.measure([spec]))


def peaks(
    device: str = "cpu", precision: str = "fp32", *, threads: int | None = None
) -> DevicePeaks:
    """Return the compute peaks of a device, theoretical and measured, for MFU.

    Args:
        device: ``cpu`` or ``cuda:N``.
        precision: ``fp32``, ``bf16`` or ``fp16`` on a CPU; also others on a GPU.
        threads: threads of a CPU's probe, one pinned per core; None for one per physical core.

    Returns:
        The record, in FLOP/s: theoretical peak at the clock of the probe, and measured peak. That
        of a CPU is stored for a day and only confirmed.

    Raises:
        UsageError: no such device or precision, or more threads than CPUs.
        BackendMissingError: the native module or a library is missing.
        UnsupportedError: the device cannot compute in this precision; says why.
    """
    check_device(device)
    check_word("precision", precision, CPU_PRECISIONS if device == "cpu" else GPU_PRECISIONS)
    with Session(RunnerOptions(threads=threads)) as session:
        probed: DeviceRecord | GpuRecord
        if device == "cpu":
            probed = session.devices.cpu((precision,), (), ())
        else:
            probed = session.devices.gpu(device, (precision,), (), ())
        limits, peak = probed.limits(precision), probed.peak(precision)
        assert peak is not None, "its limits are known"
        return DevicePeaks(
            device=device,
            name=str(probed.to_dict()["name"]),
            precision=precision,
            threads=len(session.cpus) if device == "cpu" else None,
            measured=limits.measured,
            theoretical=limits.theoretical,
            nominal=None if peak.nominal is None else peak.nominal.flops_per_s,
            clock_hz=peak.clock_hz or 0.0,
            derivation=None if peak.theoretical is None else peak.theoretical.derivation,
            kernel=peak.kernel,
        )


def probe_device(
    device: str = "cpu", threads: int | None = None, precisions: Sequence[str] | None = None
) -> DeviceRecord | GpuRecord:
    """Return a device's facts with its theoretical and measured peaks and bandwidths.

    Without its native module a CPU's record holds the facts and a warning that says so.

    Args:
        device: ``cpu`` or ``cuda:N``.
        threads: threads of a CPU's probes, one pinned per CPU; None is one per physical core.
        precisions: which peaks to measure; None is every one that the device has.

    Raises:
        UsageError: no such device, or more threads than CPUs.
        BackendMissingError: the CUDA module or one of its libraries is missing.
        UnsupportedError: there is no NVIDIA driver, or no such GPU.
        ImpossiblePeakError: a probe measured more than the device can do.
    """
    check_device(device)
    with Session(RunnerOptions(threads=threads, keep_probes=False)) as session:
        if device != "cpu":
            return session.devices.gpu(device, GPU_PRECISIONS if precisions is None else precisions)
        try:
            return session.devices.cpu(CPU_PRECISIONS if precisions is None else precisions)
        except BackendMissingError as error:
            return session.devices.unprobed(str(error))

"""PyTorch as a backend: the variants of a case, and the backend of a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pydlbench.backends.base import KernelFacts
from pydlbench.backends.frameworks.backend import (
    FrameworkBackend,
    Variant,
    rename_algorithm,
    resolve_mode,
)
from pydlbench.backends.host_clock import HostClock, Operator
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.layers import user_kernel
from pydlbench.backends.torch.layers.layer_pass import variants_of
from pydlbench.backends.torch.layers.library_kernels import library_kernels
from pydlbench.backends.torch.layers.operator import (
    CompilationSite,
    TensorPlace,
    TorchOperator,
    empty,
)
from pydlbench.errors import UnsupportedError
from pydlbench.models.user_model import is_user_model
from pydlbench.records.specs import KernelSpec

MODES = ("eager", "compiled", "frozen")
FROZEN_NOTE = (
    "frozen: the weights are constants that torch.compile (torch._inductor.config.freezing) packed "
    "beforehand; packing is in no sample, as for native rows"
)


def ways_to_run(
    spec: KernelSpec, device: torch.device, wait: Callable[[], None] = lambda: None
) -> list[Variant]:
    """List the ways to run a case.

    Args:
        spec: what is computed.
        device: device of the tensors.
        wait: returns when the device has done everything that was called.

    Raises:
        UnsupportedError: PyTorch has no such operator, mode or precision here.
    """
    if is_user_model(spec.mode or ""):
        if spec.fuse != "none":
            raise UnsupportedError(f"torch: --fuse {spec.fuse} is for PyTorch's own operators")
        place = TensorPlace(device, settings.DTYPES[spec.precision])
        return user_kernel.variants_of(CompilationSite(spec, place, wait))
    resolve_mode("torch", MODES, spec.mode)
    if spec.fuse not in ("none", "bias"):
        raise UnsupportedError(
            f"torch: --fuse {spec.fuse} is for the native GPU backend so far; nearest: bias"
        )
    if spec.mode == "frozen":
        _check_frozen(spec)
    settings.check_precision(spec.precision, spec.on_gpu)
    place = TensorPlace(device, settings.DTYPES[spec.precision])
    return variants_of(CompilationSite(spec, place, wait))


def _check_frozen(spec: KernelSpec) -> None:
    """Check that a case has constant weights, which the compiler can pack in advance."""
    if spec.on_gpu:
        raise UnsupportedError("torch frozen is for CPUs: on a GPU no weights are packed")
    if spec.pass_ != "forward" or spec.propagation != "inference":
        raise UnsupportedError(
            "torch frozen is for the forward pass of inference: training changes the weights"
        )
    if spec.layer.op not in ("conv", "gemm") or getattr(spec.layer, "batch_count", 1) > 1:
        raise UnsupportedError("torch frozen is for convolutions and products with weights")


class TorchBackend(FrameworkBackend):
    """PyTorch on one device; a GPU has a class of its own.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to; one thread for each.
    """

    name = "torch"
    library = f"torch {torch.__version__}"

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        self._place = torch.device(device)
        settings.choose(len(self.cpus))

    def describe(self) -> dict[str, Any]:
        """Return version, threads, settings and the libraries that PyTorch is built with."""
        return {
            "name": self.name,
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "settings": settings.in_words(),
            "modes": list(MODES),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "built_with": _built_with(),
            "numpy": np.__version__,
        }

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see :class:`FrameworkBackend`."""
        notes = (FROZEN_NOTE,) if spec.mode == "frozen" else ()
        return [
            replace(
                variant,
                accumulate=self.accumulator(variant.accumulate, spec),
                notes=(*variant.notes, *notes),
            )
            for variant in ways_to_run(spec, self._place, self.wait)
        ]

    def empty(self, mode: str | None) -> Operator:
        """Return an operator that computes next to nothing, in a mode.

        Raises:
            UnsupportedError: there is no such mode.
        """
        known = MODES[0] if is_user_model(mode or "") else resolve_mode("torch", MODES, mode)
        return empty(self._place, known, torch.inference_mode, self.wait)

    def clock(self, operator: Operator, cache: str = "hot") -> HostClock:
        """Return the clock of an operator on this device: on a CPU the host's clock."""
        del cache  # a CPU has hot caches only
        assert isinstance(operator, TorchOperator)
        return HostClock(operator, self.cpus, operator.guard)

    def wait(self) -> None:
        """Return when the device has done everything that was called: on a CPU at once."""

    def accumulator(self, accumulate: str, spec: KernelSpec) -> str:
        """Return the type of accumulators on this device.

        Args:
            accumulate: type of the accumulators according to the operators.
            spec: what is computed.
        """
        del spec
        return accumulate

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return the facts with the kernels that oneDNN and MKL ran in the call."""
        assert isinstance(operator, TorchOperator)
        inference = spec.pass_ == "forward" and spec.propagation == "inference"
        seen = library_kernels(operator, threads=len(self.cpus), inference=inference)
        algorithm = f"{facts.algorithm} ({seen.kernels})" if seen.kernels else facts.algorithm
        notes = [*facts.notes, *seen.remarks]
        return rename_algorithm(facts, algorithm, notes=notes, evidence=seen.evidence)


def _built_with() -> list[str]:
    """Return the lines of PyTorch's configuration that name libraries, without compiler flags."""
    lines = (line.strip("- ") for line in torch.__config__.show().splitlines())
    words = ("Math Kernel", "MKL-DNN", "OpenMP", "CUDA Runtime", "CuDNN")
    return [line for line in lines if any(word in line for word in words) and len(line) < 200]

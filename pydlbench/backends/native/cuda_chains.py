"""Chains of native kernels on a GPU: those of cuDNN, cuBLASLt and our own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, TypeVar

import pydlbench._cuda as _cuda
from pydlbench.backends.base import DEFAULT_WORKSPACE
from pydlbench.backends.native.cuda_plans import native_pass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.backends.native.chains import ChainLink
    from pydlbench.backends.native.cuda import CudaBackend, CudaKernel

__all__ = ["CudaChains"]

Facts = TypeVar("Facts")

_WAYS: Final = {
    "channels last": _cuda.Layouts.channels_last,
    "channels first": _cuda.Layouts.channels_first,
    "as each row": _cuda.Layouts.chosen,
}


class CudaChains:
    """See :class:`pydlbench.backends.native.chains.Chains`.

    A chain is timed as one CUDA graph or, between events, as a stream of launches.

    Args:
        backend: of the GPU.
    """

    ways: tuple[str, ...] = tuple(_WAYS)
    timings: tuple[str, ...] = ("cuda-graph", "events")

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._offers = _cuda.Offers(backend.device, "fp32", DEFAULT_WORKSPACE)

    def make(
        self,
        links: Sequence[ChainLink],
        given: Mapping[str, NDArray[np.float32]],
        kept: Collection[str],
        way: str,
    ) -> _cuda.Chain:
        """Return a chain that is ready to run."""
        made = [_cuda.Link(pass_=native_pass(link.case), **link.arguments()) for link in links]
        return _cuda.Chain(self._offers, made, given, kept, _WAYS[way])

    def seconds(self, chain: _cuda.Chain, samples: int, timing: str) -> list[float]:
        """Return times of executions."""
        raw = chain.sample(samples, graph=timing == "cuda-graph")
        found: list[float] = raw["seconds"].tolist()
        return found

    def kernel(self, chain: _cuda.Chain, facts: Facts, timing: str) -> CudaKernel[Facts]:
        """Return the chain with what NVML tells around its samples."""
        sample = functools.partial(chain.sample, graph=timing == "cuda-graph")
        return self._backend.monitored(sample, facts)

    def notes(self, chain: _cuda.Chain) -> list[str]:
        """Say where the host's time to start kernels is in the chain's."""
        if chain.gated:
            return []
        note = (
            "too many kernels for a launch gate: between events, a host that is slower than the GPU"
        )
        return [f"{note} is in the time"]

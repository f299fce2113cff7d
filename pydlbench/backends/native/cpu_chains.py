"""Chains of native kernels on CPUs: oneDNN's and our own loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import pydlbench._cpu as _cpu
from pydlbench.backends.native.cpu import CpuBackend, CpuKernel, native_pass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.backends.native.chains import ChainLink

__all__ = ["CpuChains"]

Facts = TypeVar("Facts")

_WAYS: Final = {
    "channels last": _cpu.Layouts.channels_last,
    "blocked": _cpu.Layouts.blocked,
    "as each row": _cpu.Layouts.chosen,
}


class CpuChains:
    """See :class:`pydlbench.backends.native.chains.Chains`.

    Args:
        backend: whose counters are read around samples; None where nobody samples.
    """

    ways: tuple[str, ...] = tuple(_WAYS)
    timings: tuple[str, ...] = ("steady",)

    def __init__(self, backend: CpuBackend | None = None) -> None:
        self._backend = backend
        self._known = _cpu.Choices()

    def make(
        self,
        links: Sequence[ChainLink],
        given: Mapping[str, NDArray[np.float32]],
        kept: Collection[str],
        way: str,
    ) -> _cpu.Chain:
        """Return a chain that is ready to run."""
        made = [_cpu.Link(pass_=native_pass(link.case), **link.arguments()) for link in links]
        cpus = [] if self._backend is None else self._backend.cpus
        return _cpu.Chain(made, given, kept, _cpu.Precision.fp32, _WAYS[way], self._known, cpus)

    def seconds(self, chain: _cpu.Chain, samples: int, timing: str) -> list[float]:  # noqa: ARG002 - there is one
        """Return times of executions."""
        found: list[float] = chain.sample(samples)["seconds"].tolist()
        return found

    def kernel(self, chain: _cpu.Chain, facts: Facts, timing: str) -> CpuKernel[Facts]:  # noqa: ARG002 - there is one
        """Return the chain with the counters around its samples."""
        assert self._backend is not None, "nobody samples"
        return self._backend.clocked(chain, facts)

    def notes(self, chain: _cpu.Chain) -> list[str]:  # noqa: ARG002 - a CPU's calls return when done
        """Return nothing."""
        return []

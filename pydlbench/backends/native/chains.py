"""Chains of native kernels on CPUs: those of a step, run in order on each other's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

import pydlbench._cpu as _cpu
from pydlbench.backends.native.cpu import native_pass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.backends.native.cpu import CpuBackend, CpuKernel
    from pydlbench.backends.native.listing import Link
    from pydlbench.records.chain import ChainFacts


class Step(TypedDict):
    """A kernel of a chain, or a conversion of ``tensor``."""

    name: str
    tensor: str
    algorithm: str
    layout: str
    bytes: int


class Load(TypedDict):
    """A tensor as it lies before the first execution."""

    tensor: str
    layout: str
    bytes: int
    plain: bool


_WAYS: Final = {
    "channels last": _cpu.Layouts.channels_last,
    "blocked": _cpu.Layouts.blocked,
    "as each row": _cpu.Layouts.chosen,
}


class CpuChains:
    """Makes chains, and knows what those before have found out.

    Args:
        backend: whose counters are read around samples; None where nobody samples.

    Attributes:
        ways: words for how convolutions' tensors may lie.
    """

    ways: tuple[str, ...] = tuple(_WAYS)

    def __init__(self, backend: CpuBackend | None = None) -> None:
        self._backend = backend
        self._known = _cpu.Choices()

    def make(
        self,
        links: Sequence[Link],
        given: Mapping[str, NDArray[np.float32]],
        kept: Collection[str],
        way: str,
        choices: Mapping[str, str],
    ) -> _cpu.Chain:
        """Return a chain that is ready to run.

        Args:
            links: in the order of execution.
            given: tensors that no link makes, dense.
            kept: names of what is read back.
            way: one of ``ways``.
            choices: ``<algorithm> <layout>`` of the fastest kernels alone, by problem.

        Raises:
            UnsupportedError: a link of which there is no kernel.
        """
        made = [
            _cpu.Link(pass_=native_pass(link.step_pass), **link.arguments(choices))
            for link in links
        ]
        cpus = [] if self._backend is None else self._backend.cpus
        return _cpu.Chain(made, given, kept, _cpu.Precision.fp32, _WAYS[way], self._known, cpus)

    def kernel(self, chain: _cpu.Chain, facts: ChainFacts) -> CpuKernel[ChainFacts]:
        """Return the chain with the counters around its samples."""
        assert self._backend is not None, "nobody samples"
        return self._backend.clocked(chain, facts)

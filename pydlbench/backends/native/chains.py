"""What a native backend offers to run the kernels of a step in order on each other's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.backends.native.listing import Link


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


class Chain(Protocol):
    """A chain in its native module."""

    def load(self) -> None:
        """Give all given tensors their first values again."""

    def run(self) -> None:
        """Execute once."""

    def step_seconds(self) -> NDArray[np.float64]:
        """Execute once with a clock read behind each step; return seconds by step."""

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return a kept tensor, dense and in one dimension."""

    @property
    def steps(self) -> Sequence[Step]:
        """Kernels and conversions in their order."""

    @property
    def loads(self) -> Sequence[Load]:
        """What is filled before the first execution."""

    @property
    def memory(self) -> dict[str, int]:
        """Bytes: ``kept``, ``shared``, ``unshared``, ``scratch``."""


class Chains(Protocol):
    """Makes chains on one device, and knows what those before have found out.

    Attributes:
        ways: words for how convolutions' tensors may lie.
        timings: how a chain is timed, the preferred one first.
    """

    ways: tuple[str, ...]
    timings: tuple[str, ...]

    def make(
        self,
        links: Sequence[Link],
        given: Mapping[str, NDArray[np.float32]],
        kept: Collection[str],
        way: str,
        choices: Mapping[str, str],
    ) -> Any:
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

    def seconds(self, chain: Any, samples: int, timing: str) -> list[float]:
        """Return times of executions, in seconds, behind one that nobody times.

        Raises:
            UnsupportedError: the chain cannot be timed so.
            PrimitiveError: the same, by the word of a library.
        """

    def kernel(self, chain: Any, facts: Any, timing: str) -> Any:
        """Return the chain as what a worker times."""

    def notes(self, chain: Any) -> list[str]:
        """Return what a reader has to know of a chain's times."""

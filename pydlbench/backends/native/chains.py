"""What a native backend offers to run the kernels of a step in order on each other's outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.records.specs import KernelSpec


class LinkArguments(TypedDict):
    """What a native module's ``Link`` takes, but for its word for the pass."""

    name: str
    problem: str
    kind: str
    fields: Mapping[str, object]
    reads: Mapping[str, str]
    writes: Mapping[str, str]
    workspace: NotRequired[str]
    choice: NotRequired[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A kernel of a step, by the names of the tensors that it works on.

    Attributes:
        name: for people: ``conv1 forward``.
        problem: links with the same text compute the same.
        case: layer, pass and propagation; the rest is not looked at.
        reads: names of tensors by role.
        writes: the same; updated ones in both.
        workspace: what a forward link leaves for the backward link of the same text, or empty.
        choice: ``<algorithm> <layout>`` that was found to be the fastest alone, or empty.
    """

    name: str
    problem: str
    case: KernelSpec
    reads: dict[str, str]
    writes: dict[str, str]
    workspace: str = ""
    choice: str = ""

    def arguments(self) -> LinkArguments:
        """Return what a native module's ``Link`` takes."""
        return {
            "name": self.name,
            "problem": self.problem,
            "kind": self.case.layer.kind,
            "fields": self.case.layer.problem_fields(),
            "reads": self.reads,
            "writes": self.writes,
            "workspace": self.workspace,
            "choice": self.choice,
        }


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
        links: Sequence[ChainLink],
        given: Mapping[str, NDArray[np.float32]],
        kept: Collection[str],
        way: str,
    ) -> Any:
        """Return a chain that is ready to run.

        Args:
            links: in the order of execution.
            given: tensors that no link makes, dense.
            kept: names of what is read back.
            way: one of ``ways``.

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

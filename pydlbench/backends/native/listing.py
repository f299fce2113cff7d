"""A step as a list of native kernels, each with the names of the tensors that it works on.

A :class:`Listing` is made from a recorded step (``backends.torch.links``), or from the graph of a
catalogue model (``backends.native.links``). Both list forward kernels; those of the gradients
follow from them (``backends.native.gradients``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NotRequired, Self, TypedDict

import numpy as np

from pydlbench.errors import UnsupportedError
from pydlbench.models.passes import StepPass
from pydlbench.ops.table import read_layer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer
    from pydlbench.records.step import StepSpec

_TEXT: Final = "listing.json"
#: What may leave something for its gradient: which element was the largest, intermediate sums.
LEAVING: Final = ("pool", "lrn")
#: What is done to weights once all gradients are there.
UPDATES: Final = ("sgd", "momentum")


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
class Link:
    """A kernel of a step.

    Attributes:
        name: for people: ``conv1/bias backward-weights``.
        step_pass: what is computed.
        reads: names of tensors by role; more than the kernel asks for may stand here.
        writes: names of what is written, by role; of what is updated too.
        workspace: what a forward kernel may leave for the backward one that has the same text
            here; empty where it leaves nothing.
    """

    name: str
    step_pass: StepPass
    reads: dict[str, str]
    writes: dict[str, str]
    workspace: str = ""

    @property
    def problem(self) -> str:
        """A text that links share which compute the same."""
        return problem_text(self.step_pass.layer, self.step_pass.pass_, self.step_pass.propagation)

    def arguments(self, choices: Mapping[str, str]) -> LinkArguments:
        """Return what a native module's ``Link`` takes.

        Args:
            choices: ``<algorithm> <layout>`` of the fastest kernels alone, by problem.
        """
        return {
            "name": self.name,
            "problem": self.problem,
            "kind": self.step_pass.layer.kind,
            "fields": self.step_pass.layer.problem_fields(),
            "reads": self.reads,
            "writes": self.writes,
            "workspace": self.workspace,
            "choice": choices.get(self.problem, ""),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The kernels of a step.

    Attributes:
        links: in the order of execution.
        output: the tensor that the step returns.
        output_shape: of it, as the framework has it: images are NCHW.
        given: all tensors that no kernel makes, by name; what is read in another order than it was
            given stands here once more, dense in that order.
        gradients: by trained tensor (``conv1/weights``), the tensor of its gradient; empty in a
            forward phase.
        rate: the learning rate with which trained tensors are updated; None where they are not.
    """

    links: tuple[Link, ...]
    output: str
    output_shape: tuple[int, ...]
    given: Mapping[str, NDArray[np.float32]]
    gradients: dict[str, str]
    rate: float | None = None

    def before_updates(self) -> Self:
        """Return the same without what is done to weights once their gradients are there."""
        links = tuple(link for link in self.links if link.step_pass.layer.op not in UPDATES)
        return replace(self, links=links, rate=None)

    def save(self, folder: Path) -> None:
        """Write it down for another process: a text, and numbered files of what is given.

        Args:
            folder: that there is; nothing else is in it.
        """
        links = [
            {
                "name": link.name,
                "node": link.step_pass.node,
                "layer": link.step_pass.layer.to_dict(),
                "pass_": link.step_pass.pass_,
                "propagation": link.step_pass.propagation,
                "reads": link.reads,
                "writes": link.writes,
                "workspace": link.workspace,
            }
            for link in self.links
        ]
        for number, values in enumerate(self.given.values()):
            np.save(folder / f"{number}.npy", values)
        text = {
            "links": links,
            "output": self.output,
            "output_shape": self.output_shape,
            "given": list(self.given),
            "gradients": self.gradients,
            "rate": self.rate,
        }
        (folder / _TEXT).write_text(json.dumps(text))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` has written."""
        text = json.loads((folder / _TEXT).read_text())
        names = text.pop("given")
        return cls(
            links=tuple(_read_link(link) for link in text.pop("links")),
            output_shape=tuple(text.pop("output_shape")),
            given={name: np.load(folder / f"{number}.npy") for number, name in enumerate(names)},
            **text,
        )


def _read_link(text: dict[str, Any]) -> Link:
    layer = read_layer(text.pop("layer"))
    own = {name: text.pop(name) for name in ("node", "pass_", "propagation")}
    return Link(step_pass=StepPass(layer=layer, **own), **text)


def problem_text(layer: Layer, pass_: str, propagation: str) -> str:
    """Return a text that kernels of the same problem share, whatever their layers are called.

    Args:
        layer: what is computed.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        propagation: ``inference`` or ``training``, which only a forward pass knows.
    """
    which = f"{pass_} {propagation}" if pass_ == "forward" else pass_
    return f"{layer.kind} {layer.problem} {which}"


def check_chained(spec: StepSpec) -> None:
    """Refuse steps that have no native chain, whatever they compute.

    Raises:
        UnsupportedError: a GPU, another precision than float32, or normalisations that train with
            the running statistics.
    """
    if spec.on_gpu:
        raise UnsupportedError("native chains run on CPUs; nearest: --device cpu")
    if spec.precision != "fp32":
        raise UnsupportedError(f"native chains are in fp32 so far, not in {spec.precision}")
    if spec.running_statistics and spec.backward:
        raise UnsupportedError("native kernels train normalisations with the batch's statistics")

"""A step of a whole model: which model, which phase, in which framework, and how it is run."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends.case import PRECISIONS, check_device
from pydlbench.errors import UsageError, nearest
from pydlbench.models.work import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FEEDS", "FRAMEWORKS", "FRAMEWORK_MODES", "LAYOUTS", "StepCase"]

FRAMEWORKS: Final = ("torch", "tensorflow")
#: Modes by framework; the first is the default.
FRAMEWORK_MODES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"torch": ("eager", "compiled"), "tensorflow": ("graph", "xla")}
)
_CASTS: Final = ("mixed", "whole")
#: The first of each is the default.
LAYOUTS: Final = ("nhwc", "nchw")
FEEDS: Final = ("resident", "host")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """What one end-to-end row measures.

    Attributes:
        model: by its name on the command line.
        options: of the model, as :func:`pydlbench.models.build_model` takes them.
        batch: images per step; None is the model's own.
        phase: ``forward``, ``forward-backward`` (gradients of all weights) or ``training`` (L2
            terms and an update besides).
        framework: ``torch`` or ``tensorflow``.
        mode: ``eager`` or ``compiled``, ``graph`` or ``xla``; None is the first of its framework.
        precision: of the products, one of ``pydlbench.backends.case.PRECISIONS``.
        cast: below float32: ``mixed`` keeps weights in float32 (PyTorch's autocast, TensorFlow's
            mixed precision), ``whole`` keeps the whole model in the narrow type.
        layout: of images: ``nhwc`` (PyTorch's channels_last) or ``nchw``.
        device: ``cpu`` or ``cuda:N``.
        feed: ``resident`` images and labels, or new ones from NumPy arrays of the ``host`` in each
            step.
        fetch: bring what the step computes to the host as NumPy arrays, as ``session.run`` did:
            the output of a forward phase, all gradients, or the loss of training.
        dropout: whether it drops anything outside the forward phase.
        running_statistics: normalise with the running statistics in every phase.
        seed: of weights, images and labels.

    Raises:
        UsageError: a word that is not among its choices.
    """

    model: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch: int | None = None
    phase: str = "forward"
    framework: str = "torch"
    mode: str | None = None
    precision: str = "fp32"
    cast: str = "mixed"
    layout: str = "nhwc"
    device: str = "cpu"
    feed: str = "resident"
    fetch: bool = False
    dropout: bool = True
    running_statistics: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _check("--framework", self.framework, FRAMEWORKS)
        modes = FRAMEWORK_MODES[self.framework]
        if self.mode is None:
            object.__setattr__(self, "mode", modes[0])
        _check("--mode", str(self.mode), modes)
        _check("--phase", self.phase, PHASES)
        _check("--precision", self.precision, PRECISIONS)
        _check("--cast", self.cast, _CASTS)
        _check("--layout", self.layout, LAYOUTS)
        _check("--feed", self.feed, FEEDS)
        check_device(self.device)
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"--batch {self.batch}: no images; nearest: 1")

    @property
    def on_gpu(self) -> bool:
        """Whether its device is a GPU."""
        return self.device != "cpu"

    @property
    def backward(self) -> bool:
        """Whether its phase computes gradients."""
        return self.phase != "forward"

    @property
    def label(self) -> str:
        """A short name for progress lines: ``vgg11 training fp32 torch eager``."""
        return f"{self.model} {self.phase} {self.precision} {self.framework} {self.mode}"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form that :meth:`from_dict` reads back."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {**fields, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> StepCase:
        """Rebuild a case from :meth:`to_dict`'s form."""
        return cls(**fields)


def _check(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        near = nearest(value, choices) or list(choices)
        raise UsageError(f"{option} {value}: not one of {', '.join(choices)}; nearest: {near[0]}")

"""What is asked of a backend: a layer and a pass, in a precision, a cache state, on a device."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.layer import KINDS, Layer
from pydlbench.records.record import Record, one_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CACHES",
    "CPU_PRECISIONS",
    "FUSIONS",
    "GPU_PRECISIONS",
    "LAYOUTS",
    "PASSES",
    "PRECISIONS",
    "PROPAGATIONS",
    "TIMINGS",
    "Cache",
    "KernelSpec",
    "LayerKind",
    "PassName",
    "Precision",
    "Propagation",
    "check_device",
]

PASSES = ("forward", "backward-data", "backward-weights")
PRECISIONS = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc", "bf16")
#: Precisions that exist on CPUs; the others are modes of GPUs.
CPU_PRECISIONS = ("fp32", "bf16", "fp16")
#: Precisions that exist on GPUs.
GPU_PRECISIONS = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc")
PROPAGATIONS = ("inference", "training")
CACHES = ("hot", "weights-cold", "all-cold")
LAYOUTS = ("best", "any", "nchw", "nhwc", "blocked")
#: How samples are taken on a GPU; ``auto`` is what suits the cache state.
TIMINGS = ("auto", "events", "cuda-graph")
#: What is computed in the same call: a bias (or its gradient), or a bias and a ReLU.
FUSIONS = ("none", "bias-relu", "bias")

LayerKind = Annotated[str, one_of(*KINDS)]
PassName = Annotated[str, one_of(*PASSES)]
Precision = Annotated[str, one_of(*PRECISIONS)]
Propagation = Annotated[str, one_of(*PROPAGATIONS)]
Cache = Annotated[str, one_of(*CACHES)]


class KernelSpec(Record, frozen=True, kw_only=True):
    """What one row of a table measures.

    Attributes:
        layer: the problem.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        precision: storage and arithmetic together, one of ``PRECISIONS``.
        propagation: which forward kernel: ``inference`` may skip what ``training`` keeps for
            the backward pass (the argmax of a max pooling). No meaning for backward passes.
        cache: which tensors a sample finds in the cache.
        layout: ``best`` lets all layouts compete; the others restrict the choice.
        backend: who computes it, by a name that ``pydlbench.backends.capabilities`` knows.
        device: ``cpu`` or ``cuda:N``.
        timing: ``events`` (each sample behind a closed gate, between two CUDA events),
            ``cuda-graph`` (many launches in a graph) or ``auto``: a graph where caches are hot,
            events behind a cache flush where they are not. CPUs know ``auto`` only.
        fuse: ``bias-relu`` adds a bias and clips at zero in the same kernel (forward only);
            ``bias`` adds a bias as frameworks do in one operator of theirs, and backward-weights
            gives its gradient too.
        mode: how a framework runs it (``eager``, ``compiled``, ``graph``, ``xla``); None natively.

    Raises:
        UsageError: a word that is not among its choices; backends and modes are not looked at.
    """

    layer: Layer
    pass_: str = "forward"
    precision: str = "fp32"
    propagation: str = "inference"
    cache: str = "hot"
    layout: str = "best"
    backend: str = "native"
    device: str = "cpu"
    timing: str = "auto"
    fuse: str = "none"
    mode: str | None = None

    def __post_init__(self) -> None:
        for option, value, choices in (
            ("--pass", self.pass_, PASSES),
            ("--precision", self.precision, PRECISIONS),
            ("--propagation", self.propagation, PROPAGATIONS),
            ("--cache", self.cache, CACHES),
            ("--layout", self.layout, LAYOUTS),
            ("--timing", self.timing, TIMINGS),
            ("--fuse", self.fuse, FUSIONS),
        ):
            if value not in choices:
                near = nearest(str(value), choices) or list(choices)
                raise UsageError(
                    f"{option} {value}: not one of {', '.join(choices)}; nearest: {near[0]}"
                )
        check_device(self.device)

    @property
    def on_gpu(self) -> bool:
        """Whether its device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def label(self) -> str:
        """A short name for progress lines: ``alexnet/conv3 forward fp32``."""
        who = [] if self.backend == "native" else [self.backend, *filter(None, [self.mode])]
        name = self.layer.name or self.layer.problem
        return " ".join([name, self.pass_, self.precision, *who])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form that :meth:`from_dict` reads back."""
        layer = {"kind": self.layer.kind, **msgspec.to_builtins(self.layer)}
        return {**super().to_dict(), "layer": layer}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a case from :meth:`to_dict`'s form."""
        layer = dict(data["layer"])
        kind = KINDS[layer.pop("kind")]
        return cls(**{**data, "layer": kind(**layer)})


def check_device(device: str) -> None:
    """Make sure that a word names a device, whether it is there or not.

    Raises:
        UsageError: it is neither ``cpu`` nor ``cuda:N``.
    """
    if device == "cpu" or re.fullmatch(r"cuda:(0|[1-9][0-9]{0,3})", device):
        return
    near = "cuda:0" if nearest(device, ("cuda:0", "gpu:0"), 1) else "cpu"
    given = shlex.quote(device)
    raise UsageError(f"--device {given}: no such device; nearest: {near}; choices: cpu, cuda:N")

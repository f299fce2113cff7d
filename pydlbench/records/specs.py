"""A request to a backend: a layer and a pass, in a precision, a cache state, on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec

from pydlbench.ops.op import Layer
from pydlbench.ops.table import KINDS, read_layer
from pydlbench.records.record import Record, one_of
from pydlbench.words import (
    CACHES,
    FRAMEWORK_MODES,
    FUSIONS,
    LAYOUTS,
    PASSES,
    PHASES,
    PRECISIONS,
    PROPAGATIONS,
    TIMINGS,
    check_device,
    check_word,
)

LayerKind = Annotated[str, one_of(*KINDS)]
PassName = Annotated[str, one_of(*PASSES)]
Precision = Annotated[str, one_of(*PRECISIONS)]
Propagation = Annotated[str, one_of(*PROPAGATIONS)]
Cache = Annotated[str, one_of(*CACHES)]
Framework = Annotated[str, one_of(*FRAMEWORK_MODES)]
Phase = Annotated[str, one_of(*PHASES)]


class KernelSpec(Record, frozen=True, kw_only=True):
    """One kernel in one setting, as one row of a table measures it.

    Attributes:
        layer: the problem.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        precision: storage and arithmetic together, one of ``pydlbench.words.PRECISIONS``.
        propagation: which forward kernel: ``inference`` may skip what ``training`` keeps for
            the backward pass (the argmax of a max pooling). No meaning for backward passes.
        cache: tensors that are in the cache when a sample starts.
        layout: ``best`` lets all layouts compete; the others restrict the choice.
        backend: name of the backend, see ``pydlbench.backends.capabilities``.
        device: ``cpu`` or ``cuda:N``.
        timing: ``events`` (each sample behind a closed gate, between two CUDA events),
            ``cuda-graph`` (many launches in a graph) or ``auto``: a graph where caches are hot,
            events after a cache flush where they are not. CPUs have ``auto`` only.
        fuse: ``bias-relu`` adds a bias and clips at zero in the same kernel (forward only);
            ``bias`` adds a bias as frameworks do in one operator, and backward-weights computes its
            gradient, too.
        mode: mode of a framework (``eager``, ``compiled``, ``graph``, ``xla``); None for native.

    Raises:
        UsageError: a word that is not among its choices; backends and modes are not checked.
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
            check_word(option, value, choices)
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

    @property
    def nameless(self) -> Self:
        """The spec without its layer's name: equal for two rows of the same kernel."""
        return msgspec.structs.replace(self, layer=dataclasses.replace(self.layer, name=None))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a spec from its JSON object."""
        return cls(**{**data, "layer": read_layer(data["layer"])})

"""Every backend at a glance: where it runs, how it can be run, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

__all__ = ["OFFERS", "Offer", "installed_version", "is_there", "offer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One backend.

    Attributes:
        name: as ``--backend`` takes it.
        title: what it is, in words.
        distributions: packages that bring it; any one of them does.
        install: the command that gets it.
        modes: how it runs a layer on each kind of device; the first is the default. ``None`` stands
            for a backend that knows one way only.
        precisions: on each kind of device.
    """

    name: str
    title: str
    distributions: tuple[str, ...]
    install: str
    modes: dict[str, tuple[str | None, ...]]
    precisions: dict[str, tuple[str, ...]]

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of devices that it runs on: ``cpu``, ``cuda``."""
        return tuple(self.modes)


OFFERS = (
    Offer(
        name="native",
        title="oneDNN on CPUs; cuDNN, cuBLASLt and own kernels on GPUs",
        distributions=("pydlbench",),
        install="pip install . (PYDLBENCH_CUDA=1 pip install '.[cuda]' for GPUs)",
        modes={"cpu": (None,), "cuda": (None,)},
        precisions={
            "cpu": ("fp32", "bf16", "fp16"),
            "cuda": ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc"),
        },
    ),
    Offer(
        name="torch",
        title="PyTorch's operators",
        distributions=("torch",),
        install="pip install 'pydlbench[torch]'",
        modes={"cpu": ("eager", "compiled"), "cuda": ("eager", "compiled")},
        precisions={
            "cpu": ("fp32", "bf16", "fp16"),
            "cuda": ("fp32", "tf32", "fp16-tc", "bf16-tc", "fp8-tc"),
        },
    ),
    Offer(
        name="tensorflow",
        title="TensorFlow's operators",
        distributions=("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
        install="pip install 'pydlbench[tensorflow]'",
        modes={"cpu": ("graph", "xla"), "cuda": ("graph", "xla")},
        precisions={
            "cpu": ("fp32", "bf16", "fp16"),
            "cuda": ("fp32", "tf32", "fp16-tc", "bf16-tc"),
        },
    ),
    Offer(
        name="cupy",
        title="cuBLAS behind im2col: the historical baseline",
        distributions=("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        install="pip install 'pydlbench[cupy]'",
        modes={"cuda": (None,)},
        precisions={"cuda": ("fp32", "tf32", "fp16-tc")},
    ),
    Offer(
        name="numba",
        title="loops of an afternoon: the hand-written baseline",
        distributions=("numba",),
        install="pip install 'pydlbench[numba]'",
        modes={"cpu": (None,), "cuda": (None,)},
        precisions={"cpu": ("fp32",), "cuda": ("fp32",)},
    ),
)


def offer(name: str) -> Offer:
    """Return a backend's entry.

    Raises:
        KeyError: there is no such backend.
    """
    return _BY_NAME[name]


def installed_version(one: Offer) -> str | None:
    """Return the version of the package that brings a backend, without importing it."""
    for distribution in one.distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def is_there(one: Offer) -> bool:
    """Whether a backend can be imported, whatever the package is called that brought it."""
    return one.name == "native" or importlib.util.find_spec(one.name) is not None


_BY_NAME = {one.name: one for one in OFFERS}

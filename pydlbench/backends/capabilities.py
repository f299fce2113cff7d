"""Every backend at a glance: where it runs, how it can be run, and how to get it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydlbench.backends.native import native_module
from pydlbench.devices.cpu.affinity import remember
from pydlbench.errors import BackendMissingError, UsageError

if TYPE_CHECKING:
    from pydlbench.backends.base import Backend, Kernel

__all__ = [
    "OFFERS",
    "Offer",
    "default_device",
    "installed_version",
    "is_there",
    "load",
    "offer",
    "prepare_step",
]


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


# -----------------------------------------------------------------------------
# Backends by name, imported only when a worker asks for one.

#: Where each backend's ``create()`` lives, and the native module that it stands on.
_MODULES: dict[tuple[str, str], tuple[str, str | None]] = {
    ("native", "cpu"): ("pydlbench.backends.native.cpu", "_cpu"),
    ("native", "cuda"): ("pydlbench.backends.native.cuda", "_cuda"),
    ("torch", "cpu"): ("pydlbench.backends.torch.backend", None),
    ("torch", "cuda"): ("pydlbench.backends.torch.backend", None),
    ("tensorflow", "cpu"): ("pydlbench.backends.tensorflow.backend", None),
    ("tensorflow", "cuda"): ("pydlbench.backends.tensorflow.backend", None),
    ("cupy", "cpu"): ("pydlbench.backends.cupy.backend", None),
    ("cupy", "cuda"): ("pydlbench.backends.cupy.backend", None),
    ("numba", "cpu"): ("pydlbench.backends.numba.backend", None),
    ("numba", "cuda"): ("pydlbench.backends.numba.backend", None),
}


def load(name: str, device: str) -> Backend:
    """Import and create the backend ``name`` for ``device`` (``cpu`` or ``cuda:N``).

    Raises:
        UsageError: no such backend for this device.
        BackendMissingError: it is not installed; the message says why.
    """
    kind = device.partition(":")[0]
    found = _MODULES.get((name, kind))
    if found is None:
        known = ", ".join(sorted(f"{backend} on {where}" for backend, where in _MODULES))
        raise UsageError(f"backend {name} on {device}: no such backend; there is: {known}")
    remember()
    module, native = found
    if native is not None:
        native_module(native)
    elif importlib.util.find_spec(name) is None:
        raise BackendMissingError(f"{name} is not installed; get it with: {offer(name).install}")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        text = " ".join(str(error).split())
        raise BackendMissingError(f"{name} cannot be imported: {text}") from error
    return cast("Backend", imported.create(device))


def prepare_step(backend: Backend, case: dict[str, Any], preparation: dict[str, Any]) -> Kernel:
    """Make a whole model's step ready in this process; raises what ``Backend.prepare`` raises.

    What builds steps stands above backends and workers, so it is found by name, as backends are.

    Args:
        backend: of this process.
        case: a ``pydlbench.records.step.StepCase`` in its JSON form.
        preparation: a ``StepPreparation`` likewise.
    """
    serving = importlib.import_module("pydlbench.steps.serving")
    return cast("Kernel", serving.prepare(backend, case, preparation))


# -----------------------------------------------------------------------------
# Which device to use when none is named: the first GPU, if there is one that we can use.

# Made by the driver's kernel module; the second one is the paravirtual device of WSL.
_DRIVER_NODES = ("/dev/nvidiactl", "/dev/dxg")


def default_device() -> tuple[str, tuple[str, ...]]:
    """Return ``cuda:0`` where there is an NVIDIA GPU and the CUDA module, else ``cpu``.

    Asks the file system only: loading the driver would cost every command a tenth of a second.

    Returns:
        The device, and a note for the user where a GPU is there but pydlbench cannot use it.
    """
    if not _gpu_is_there():
        return "cpu", ()
    try:
        reason = str(importlib.import_module("pydlbench._build").CUDA_MISSING)
    except (ImportError, AttributeError):
        reason = "pydlbench is not built"
    if reason:
        return "cpu", (f"there is a GPU, but the CPU is measured: {reason}",)
    return "cuda:0", ()


def _gpu_is_there() -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return False
    return any(Path(node).exists() for node in _DRIVER_NODES)

"""Which device to use when none is named: the first GPU, if there is one that we can use."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

__all__ = ["default_device"]

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

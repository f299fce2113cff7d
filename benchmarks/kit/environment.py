"""The machine: card, libraries, versions. No error here is fatal."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.items import main

_VERSIONS = ("torch", "numpy", "triton", "cupy-cuda13x", "nvidia-cudnn-cu13", "nvidia-cublas")


def _card() -> dict[str, Any]:
    """Ask nvidia-smi, our module and PyTorch."""
    reasons = []
    for ask in (_by_module, _by_smi, _by_torch):
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - the next one may know
            reasons.append(f"{type(error).__name__}: {error}")
    raise SystemExit("no GPU: " + "; ".join(reasons))


def _by_module() -> dict[str, Any]:
    import pydlbench._cuda as cuda

    return dict(cuda.device_facts(0))


def _by_smi() -> dict[str, Any]:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    name, driver, memory = said.splitlines()[0].split(", ")
    return {"name": name, "driver": driver, "memory": memory}


def _by_torch() -> dict[str, Any]:
    import torch

    return {"name": torch.cuda.get_device_name(0)}


def _libraries() -> Any:
    from pydlbench.backends.native import modules

    return modules.load_libraries()


def _module() -> Any:
    import pydlbench._cuda as cuda

    return cuda.built_with()


def _properties() -> Any:
    import pydlbench._cuda as cuda

    return cuda.device_properties(cuda.Device(0))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _host() -> dict[str, Any]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpus": os.cpu_count(), "memory_bytes": pages, "machine": platform.platform()}


ITEMS = {
    "card": _card,
    "versions": _versions,
    "host": _host,
    "module": _module,
    "libraries": _libraries,
    "properties": _properties,
}

if __name__ == "__main__":
    raise SystemExit(main(ITEMS))

"""The software environment of a run: versions, and variables and settings that affect times."""

import functools
import hashlib
import importlib.util
import os
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pydlbench.devices.cpu.facts import read_text

_PACKAGES = ("pydlbench", "numpy", "onednn-cpu-gomp", "pybind11")
_PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "DNNL_", "ONEDNN_", "MKL_", "OPENBLAS_", "BLIS_"),
    *("MALLOC_", "TCMALLOC_", "MIMALLOC_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_TF32"),
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "PYDLBENCH_HUGE_PAGES"),
)
# System settings that affect times: allocation of pages and addresses, mitigations of processor
# vulnerabilities, revision of the microcode.
_SETTINGS = {
    "huge pages": "sys/kernel/mm/transparent_hugepage/enabled",
    "address randomisation": "proc/sys/kernel/randomize_va_space",
    "NUMA balancing": "proc/sys/kernel/numa_balancing",
    "clock source": "sys/devices/system/clocksource/clocksource0/current_clocksource",
}
_VULNERABILITIES = "sys/devices/system/cpu/vulnerabilities"


def read_environment(
    variables: Mapping[str, str] | None = None,
    packages: Iterable[str] = (),
    prefixes: Iterable[str] = (),
    root: Path = Path("/"),
) -> dict[str, Any]:
    """Return the environment for JSON.

    Args:
        variables: environment variables, by default those of the process. Only variables of compute
            libraries and allocators are recorded.
        packages: further packages whose versions are recorded.
        prefixes: prefixes of further variables to record.
        root: folder that holds ``proc`` and ``sys``.
    """
    variables = os.environ if variables is None else variables
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "os": _system_name(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "packages": _versions((*_PACKAGES, *packages)),
        "build": _build(),
        "code": _code(),
        "variables": {
            name: value
            for name, value in sorted(variables.items())
            if name.startswith((*_PREFIXES, *prefixes))
        },
        "settings": _settings(root),
    }


def _settings(root: Path) -> dict[str, str]:
    """The system's settings, without unknown ones."""
    settings = {}
    for name, path in _SETTINGS.items():
        if text := read_text(root / path):
            # Among several choices, the one in brackets is active.
            _, bracket, chosen = text.partition("[")
            settings[name] = chosen.partition("]")[0] if bracket else text
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "microcode":
            settings["microcode"] = value.strip()
            break
    flaws = root / _VULNERABILITIES
    names = sorted(flaw.name for flaw in flaws.iterdir()) if flaws.is_dir() else []
    states = {name: read_text(flaws / name) or "" for name in names}
    worked_around = [name for name, state in states.items() if state.startswith("Mitigation")]
    if names:
        settings["mitigations"] = ", ".join(worked_around) or "none"
    return settings


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:  # not Linux, or a system without this file
        return platform.platform(terse=True)


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


# Folders of this package that a row's time depends on.
_TIMED = ("timing", "verification", "backends", "workers", "runner", "steps")


@functools.cache
def _code() -> str:
    """Return a digest of the code that times kernels, including the native modules.

    Commits share a version number, and an installed package has no commit id. The digest tells
    whether two runs used the same code.
    """
    package = Path(__file__).parents[1]
    files = [path for name in _TIMED for path in package.joinpath(name).rglob("*.py")]
    # The native modules may be installed in another folder.
    for name in ("pydlbench._cpu", "pydlbench._cuda"):
        spec = importlib.util.find_spec(name)
        files += [] if spec is None or spec.origin is None else [Path(spec.origin)]
    # By content and name, so that the folder of the installation does not matter.
    digests = sorted(
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files
    )
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:12]


def _build() -> dict[str, str]:
    """Build settings of the native modules; empty in a source tree that was never built."""
    try:
        module = importlib.import_module("pydlbench._build")
    except ImportError:
        return {}
    return {
        name.lower(): value
        for name in ("COMPILER", "FLAGS", "BUILD_TYPE", "ONEDNN_VERSION")
        if isinstance(value := getattr(module, name, None), str)
    }

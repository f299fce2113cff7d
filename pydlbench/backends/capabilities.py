"""Declarations of all backends: devices, modes, installation, and the way to load them.

A backend is a folder beside this file, or another package that an entry point in the group
``pydlbench.backends`` names. Its ``__init__`` declares ``CAPABILITIES`` without importing the
library; its module ``backend`` has ``create(device)``, which only a worker calls. The declaration
has all special properties of a backend outside its process, so that other code need not know its
name. The command line's help reads the declarations, so modules that only a run needs are imported
in functions.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pydlbench.errors import BackendMissingError, unknown_word
from pydlbench.words import IMAGE_LAYOUTS

if TYPE_CHECKING:
    from pydlbench.backends.base import Backend

#: Variable with a folder for files of a worker, which the host removes after the process has ended.
FOLDER_VARIABLE: Final = "PYDLBENCH_WORKER_FOLDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCapabilities:
    """Properties of a framework's steps that their explanation depends on.

    Attributes:
        layouts: layouts of images in a step on a CPU, the default first.
        layout_words: the framework's own names of layouts that its users can choose.
        makes_calls: whether single calls run on the operands of a step; otherwise operands are made
            up.
        logged_modes: modes on a CPU whose libraries log what each call executes.
        pads_evenly: whether its convolutions pad both ends of a side by the same number, so that
            images are copied for a layer with other padding.
        fuses_optimizers: whether it has optimizers that read and write each tensor once.
        sparse_tables: whether gradients of tables are dense unless a model asks for sparse ones.
        layout_alternatives: by kind of layer and layout of images: the layout of operands in a
            step and the alternative, in the words of ``--layout``.
        limitation: note on properties of a user model that are not examined.
    """

    layouts: tuple[str, ...] = IMAGE_LAYOUTS
    layout_words: dict[str, str] = field(default_factory=dict)
    makes_calls: bool = False
    logged_modes: tuple[str, ...] = ()
    pads_evenly: bool = False
    fuses_optimizers: bool = False
    sparse_tables: bool = False
    layout_alternatives: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    limitation: str = "a model of your own has no graph: its loss and its copies are not examined"

    def layout_text(self, layout: str) -> str:
        """Return a layout as the end of a line; empty if users cannot choose one."""
        return f", {self.layout_words[layout]}" if layout in self.layout_words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Declared properties of a backend.

    Attributes:
        name: value of ``--backend``.
        rank: position in lists; native kernels are the first.
        title: short description.
        distributions: alternative packages that provide the backend.
        install: command that installs the backend.
        tested: newest release series that the tests have run with, such as ``2.13``; empty if
            unknown.
        requires: module that must exist; None for the native modules, which report themselves why
            they are missing.
        modes: modes of a layer or a step on each kind of device, the default first. ``None`` is the
            mode of a backend that has only one.
        on_request: modes that run only if they are named, or if all modes are requested.
        precisions: precisions on each kind of device.
        start_s: minimum and maximum time in seconds until its worker is ready and the peaks for its
            rows are probed; for the forecast of a sweep.
        layers: whether it runs single layers, or only whole files.
        fresh_results: whether each call on a CPU allocates its results from the C library, so that
            a second process that keeps pages shows the cost of fresh memory.
        log_environment: variables that make it log its kernels, if it has no function for that.
        settings: prefixes of variables that change results: workers do not inherit them.
        kept_settings: prefixes of exceptions from ``settings``, which workers inherit.
        code_folder: variable with the folder of compiled code for later processes; empty if there
            is none, or none that saves time.
        preload: modules that each of its workers imports; a process without GPU imports them once
            and forks for each worker. They must start no thread.
        recorded: prefixes of further variables that the record of a run shows.
        steps: properties of the backend's whole steps, if it runs any.
    """

    name: str
    title: str
    distributions: tuple[str, ...]
    install: str
    requires: str | None
    modes: dict[str, tuple[str | None, ...]]
    precisions: dict[str, tuple[str, ...]]
    tested: str = ""
    rank: int = 100
    start_s: tuple[float, float] = (1.0, 10.0)
    on_request: tuple[str, ...] = ()
    layers: bool = True
    fresh_results: bool = False
    log_environment: dict[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    kept_settings: tuple[str, ...] = ()
    code_folder: str = ""
    preload: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    steps: StepCapabilities = field(default_factory=StepCapabilities)

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of devices that it runs on: ``cpu``, ``cuda``."""
        return tuple(self.modes)


@functools.cache
def all_capabilities() -> tuple[Capabilities, ...]:
    """Return the declarations of all backends, in the order of lists."""
    return tuple(declared for declared, _ in _all_declarations().values())


@functools.cache
def _builtin_declarations() -> dict[str, tuple[Capabilities, str]]:
    """Return the declarations of this package's backends by name, with their modules."""
    package = importlib.import_module("pydlbench.backends")
    folders = (item.name for item in pkgutil.iter_modules(package.__path__) if item.ispkg)
    modules = (importlib.import_module(f"{package.__name__}.{folder}") for folder in folders)
    return {
        declared.name: (declared, module.__name__)
        for module in modules
        if (declared := getattr(module, "CAPABILITIES", None)) is not None
    }


def is_builtin(name: str) -> bool:
    """Whether a backend is one of this package."""
    return name in _builtin_declarations()


@functools.cache
def _all_declarations() -> dict[str, tuple[Capabilities, str]]:
    """Return the declarations of all backends, including other packages."""
    from pydlbench import plugins

    declarations = dict(_builtin_declarations())
    for name, module in plugins.modules(plugins.BACKENDS).items():
        declared = getattr(module, "CAPABILITIES", None)
        if not isinstance(declared, Capabilities):
            plugins.leave_out(plugins.BACKENDS, name, f"{module.__name__} has no CAPABILITIES")
        elif declared.name in declarations:
            reason = f"there is a backend {declared.name} already"
            plugins.leave_out(plugins.BACKENDS, name, reason)
        else:
            declarations[declared.name] = (declared, module.__name__)
    return dict(sorted(declarations.items(), key=lambda item: (item[1][0].rank, item[0])))


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends."""
    return tuple(backend.name for backend in all_capabilities())


def all_modes() -> tuple[str, ...]:
    """Return the modes of all backends."""
    by_device = (modes for backend in all_capabilities() for modes in backend.modes.values())
    return tuple(dict.fromkeys(mode for modes in by_device for mode in modes if mode is not None))


def declaration(name: str) -> Capabilities:
    """Return a backend's declaration.

    Raises:
        UsageError: there is no such backend.
    """
    if (found := _find(name)) is not None:
        return found[0]
    names = backend_names()
    raise unknown_word(f"--backend {name}: not one of {', '.join(names)}", name, names, 1)


def _find(name: str) -> tuple[Capabilities, str] | None:
    # Looking for other packages takes as long as importing NumPy: avoid it for our own backends.
    return _builtin_declarations().get(name) or _all_declarations().get(name)


def installed_version(backend: Capabilities) -> str | None:
    """Return the version of the package that provides a backend, without importing it."""
    import importlib.metadata

    for distribution in backend.distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def untested_versions(wanted: Iterable[str]) -> tuple[str, ...]:
    """Return a line for each backend whose installed version is newer than the tested one.

    Args:
        wanted: names of backends; unknown ones are ignored.
    """
    chosen = set(wanted)
    declared = [item for item in all_capabilities() if item.name in chosen and item.tested]
    versions = [(item, installed_version(item)) for item in declared]
    return tuple(
        f"{item.name} {version} is newer than what this pydlbench was tested with ({item.tested})"
        for item, version in versions
        if version is not None and _series(version) > _series(item.tested)
    )


def _series(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def is_installed(backend: Capabilities) -> bool:
    """Whether a backend can be imported, whichever package provides it."""
    return backend.requires is None or importlib.util.find_spec(backend.requires) is not None


def load(name: str, device: str) -> Backend:
    """Import and create the backend ``name`` for ``device`` (``cpu`` or ``cuda:N``).

    Raises:
        UsageError: no such backend.
        UnsupportedError: it does not run on this device.
        BackendMissingError: it is not installed, or a dependency is missing.
    """
    from pydlbench.devices.cpu.affinity import remember_cpus

    declared = declaration(name)
    remember_cpus()
    if not is_installed(declared):
        raise BackendMissingError(f"{name} is not installed; get it with: {declared.install}")
    try:
        package = (_find(name) or ("", ""))[1]
        imported = importlib.import_module(f"{package}.backend")
        return cast("Backend", imported.create(device))
    except BackendMissingError:
        raise
    except ImportError as error:
        # A missing dependency of the backend may show only here.
        text = " ".join(str(error).split())
        raise BackendMissingError(f"{name} cannot be imported: {text}") from error


def environment(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the software environment of a run, with the packages and variables of all backends.

    Args:
        variables: the environment variables; the process's variables by default.
    """
    from pydlbench.devices.environment import read_environment

    backends = all_capabilities()
    return read_environment(
        variables,
        packages=[name for backend in backends for name in backend.distributions],
        prefixes=[name for backend in backends for name in (*backend.settings, *backend.recorded)],
    )


# -----------------------------------------------------------------------------
# The default device: the first GPU, if there is one that we can use.

# Device files of the driver's kernel module, and of WSL's paravirtual device.
_DRIVER_NODES = ("/dev/nvidiactl", "/dev/dxg")


def default_device() -> tuple[str, tuple[str, ...]]:
    """Return ``cuda:0`` if there is an NVIDIA GPU and the CUDA module, else ``cpu``.

    Only the file system is read: loading the driver would cost every command a tenth of a second.

    Returns:
        The device, and a note for the user if there is a GPU that pydlbench cannot use.
    """
    if not _has_gpu():
        return "cpu", ()
    try:
        reason = str(importlib.import_module("pydlbench._build").CUDA_MISSING)
    except (ImportError, AttributeError):
        reason = "pydlbench is not built"
    if reason:
        return "cpu", (f"there is a GPU, but the CPU is measured: {reason}",)
    return "cuda:0", ()


def _has_gpu() -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return False
    return any(Path(node).exists() for node in _DRIVER_NODES)

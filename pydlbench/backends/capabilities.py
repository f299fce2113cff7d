"""Every backend at a glance: where it runs, how it can be run, how to get it, how to load it.

A backend is a folder beside this file, or a package of somebody else that an entry point in the
group ``pydlbench.backends`` names. Its ``__init__`` declares ``CAPABILITIES``, and imports nothing
of the library behind it; its module ``backend`` has ``create(device)``, which only a worker calls.
Whatever is special about a backend outside its process stands in its declaration, so that nothing
else has to know its name. The command line's help reads the declarations, so what only a run needs
is imported where it is used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pkgutil
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pydlbench.errors import BackendMissingError, UsageError, nearest
from pydlbench.words import IMAGE_LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydlbench.backends.base import Backend

#: Names a folder for what a worker writes, which the host removes once the process has ended,
#: however that was.
FOLDER_VARIABLE: Final = "PYDLBENCH_WORKER_FOLDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """How a framework runs whole steps, as far as those have to know who explain them.

    Attributes:
        layouts: of images that a step on a CPU can have, the default first.
        layout_words: what its users call each, where they choose one.
        apart: modes in which each call computes one layer.
        joined: modes whose calls compute several layers together.
        makes_calls: whether single calls are made on the operands of a step, and what libraries
            log is known of each; else operands are made up, and a log is of a step.
        pads_alike: whether its convolutions pad both ends of a side alike, and images are copied
            where a layer does otherwise.
        fuses_optimizers: whether it has optimizers that read and write each tensor once.
        other_ways: by kind of layer, and layout of images, how the operands are kept in a step and
            the other way in which they can be, by the words of ``--layout``.
        unseen: what is not looked at, or not tried, in a model of the user's own.
    """

    layouts: tuple[str, ...] = IMAGE_LAYOUTS
    layout_words: dict[str, str] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    makes_calls: bool = False
    pads_alike: bool = False
    fuses_optimizers: bool = False
    other_ways: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    unseen: str = "a model of your own has no graph: its loss and its copies are not examined"

    def layout_text(self, layout: str) -> str:
        """Return a layout as a line about a step ends with it; empty where nobody chooses one."""
        return f", {self.layout_words[layout]}" if layout in self.layout_words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What is to be known of one backend without starting it.

    Attributes:
        name: as ``--backend`` takes it.
        rank: its place in lists; native kernels are the first.
        title: what it is, in words.
        distributions: packages that bring it; any one of them does.
        install: the command that gets it.
        tested: the newest series of releases that the tests have run with, such as ``2.13``; empty
            where nobody says.
        requires: the module that must be there; None for the native modules, which say themselves
            why they are missing.
        modes: how it runs a layer or a step on each kind of device; the first is the default.
            ``None`` stands for a backend that knows one way only.
        on_request: modes that run only where they are named, or all modes are asked for.
        precisions: on each kind of device.
        start_s: seconds until its worker serves, with the peaks that rows are held against probed:
            least and most, as a sweep forecasts them.
        layers: whether it runs single layers; one that does not runs whole files only.
        fresh_results: whether each call on a CPU allocates its results from the C library, so that
            a second process that keeps its pages tells what fresh memory costs.
        log_environment: variables that make it report its kernels where it has no switch for that.
        settings: prefixes of variables that change what it computes: a worker inherits none.
        kept_settings: prefixes of those among them that a worker inherits nevertheless.
        code_folder: variable with the folder that it keeps compiled code in for later processes,
            where we name one; empty where it has none, or none that pays.
        recorded: prefixes of further variables that the record of a run shows.
        steps: how it runs whole steps, if it does.
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
    recorded: tuple[str, ...] = ()
    steps: Steps = field(default_factory=Steps)

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of devices that it runs on: ``cpu``, ``cuda``."""
        return tuple(self.modes)


@functools.cache
def every() -> tuple[Capabilities, ...]:
    """Return the declarations of all backends, in the order in which they are listed."""
    return tuple(declared for declared, _ in _declared().values())


@functools.cache
def _own() -> dict[str, tuple[Capabilities, str]]:
    """Return declarations by the names of our backends, each with the name of its module."""
    package = importlib.import_module("pydlbench.backends")
    folders = (each.name for each in pkgutil.iter_modules(package.__path__) if each.ispkg)
    modules = (importlib.import_module(f"{package.__name__}.{folder}") for folder in folders)
    return {
        declared.name: (declared, module.__name__)
        for module in modules
        if (declared := getattr(module, "CAPABILITIES", None)) is not None
    }


@functools.cache
def _declared() -> dict[str, tuple[Capabilities, str]]:
    """Return declarations of all backends, those of other packages among them."""
    from pydlbench import plugins

    declarations = dict(_own())
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


def names() -> tuple[str, ...]:
    """Return the names of all backends."""
    return tuple(each.name for each in every())


def modes() -> tuple[str, ...]:
    """Return all modes that some backend has."""
    known = (mode for each in every() for modes in each.modes.values() for mode in modes)
    return tuple(dict.fromkeys(mode for mode in known if mode is not None))


def declaration(name: str) -> Capabilities:
    """Return a backend's declaration.

    Raises:
        UsageError: there is no such backend.
    """
    # A worker of ours need not look for packages of others, which takes as long as NumPy.
    for known in (_own, _declared):
        if name in known():
            return known()[name][0]
    near = nearest(name, names(), 1) or names()[:1]
    raise UsageError(f"--backend {name}: not one of {', '.join(names())}; nearest: {near[0]}")


def installed_version(backend: Capabilities) -> str | None:
    """Return the version of the package that brings a backend, without importing it."""
    import importlib.metadata

    for distribution in backend.distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def untested(backends: Iterable[str]) -> tuple[str, ...]:
    """Return a line for each of some backends that is newer here than what was tested.

    Args:
        backends: names; those that nobody has are passed over.
    """
    wanted = set(backends)
    declared = [each for each in every() if each.name in wanted and each.tested]
    versions = [(each, installed_version(each)) for each in declared]
    return tuple(
        f"{each.name} {version} is newer than what this pydlbench was tested with ({each.tested})"
        for each, version in versions
        if version is not None and _series(version) > _series(each.tested)
    )


def _series(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def is_there(backend: Capabilities) -> bool:
    """Whether a backend can be imported, whatever the package is called that brought it."""
    return backend.requires is None or importlib.util.find_spec(backend.requires) is not None


def load(name: str, device: str) -> Backend:
    """Import and create the backend ``name`` for ``device`` (``cpu`` or ``cuda:N``).

    Raises:
        UsageError: no such backend.
        UnsupportedError: it does not run on this device.
        BackendMissingError: it is not installed, or lacks something; the message says what.
    """
    from pydlbench.devices.cpu.affinity import remember

    known = declaration(name)
    remember()
    if not is_there(known):
        raise BackendMissingError(f"{name} is not installed; get it with: {known.install}")
    try:
        declared = _own().get(name) or _declared()[name]
        imported = importlib.import_module(f"{declared[1]}.backend")
        return cast("Backend", imported.create(device))
    except BackendMissingError:
        raise
    except ImportError as error:
        # Whatever a backend needs beside its library, which may be imported as late as here.
        text = " ".join(str(error).split())
        raise BackendMissingError(f"{name} cannot be imported: {text}") from error


def environment(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the software around a run, with what every backend wants recorded.

    Args:
        variables: the environment variables; those of the process by default.
    """
    from pydlbench.devices.environment import read_environment

    return read_environment(
        variables,
        packages=[distribution for each in every() for distribution in each.distributions],
        prefixes=[prefix for each in every() for prefix in (*each.settings, *each.recorded)],
    )


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

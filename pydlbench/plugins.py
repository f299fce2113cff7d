"""Plugins: modules that other packages declare as entry points.

A package that cannot be imported, or whose module lacks the expected names, is left out.
"""

import functools
import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import ModuleType
from typing import Final

BACKENDS: Final = "pydlbench.backends"
MODELS: Final = "pydlbench.models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """An entry point that is left out.

    Attributes:
        group: group of the entry point, :data:`BACKENDS` or :data:`MODELS`.
        name: name of the entry point.
        distribution: package that declares the entry point, with its version.
        reason: why the entry point is left out, in one line.
    """

    group: str
    name: str
    distribution: str
    reason: str


#: Entry points left out so far, by group and name.
_broken: Final[dict[tuple[str, str], Broken]] = {}


@functools.cache
def modules(group: str) -> dict[str, ModuleType]:
    """Return the modules of a group's entry points, by name."""
    imported = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        try:
            imported[entry.name] = importlib.import_module(entry.value)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever somebody's code raises
            leave_out(group, entry.name, f"{type(error).__name__}: {error}")
    return imported


def leave_out(group: str, name: str, reason: str) -> None:
    """Record that an entry point is left out.

    Args:
        group: group of the entry point, :data:`BACKENDS` or :data:`MODELS`.
        name: name of the entry point.
        reason: why it is left out; line ends become blanks.
    """
    entries = entry_points(group=group, name=name)
    packages = ", ".join(
        f"{entry.dist.name} {entry.dist.version}" for entry in entries if entry.dist is not None
    )
    _broken[group, name] = Broken(
        group=group, name=name, distribution=packages, reason=" ".join(reason.split())
    )


def broken_entry_points() -> tuple[Broken, ...]:
    """Return the entry points that were left out, ordered by group and name."""
    return tuple(_broken[key] for key in sorted(_broken))

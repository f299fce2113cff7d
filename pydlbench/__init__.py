"""Low-level deep-learning kernel benchmarks, from a single layer to a model step.

Example:
    >>> import pydlbench
    >>> layer = pydlbench.build_layer(
    ...     "conv", batch=32, in_channels=192, in_size=13, out_channels=384, kernel=3, padding=1
    ... )
    >>> record = pydlbench.measure(layer, precision="fp32", pass_="forward")  # doctest: +SKIP
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING


def _find_native_modules() -> None:
    """Make the native modules of the installed package importable from the source tree.

    ``python -m pydlbench`` in a checkout imports the checkout's folder, which has no compiled
    modules. Those of the installed distribution are found by another entry in the package's path.
    """
    if os.path.exists(os.path.join(__path__[0], "_build.py")):  # noqa: PTH110, PTH118 - pathlib costs 5 ms
        return
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = distribution("pydlbench").locate_file("pydlbench")
    except PackageNotFoundError:
        return
    if str(installed) not in __path__:
        __path__.append(str(installed))


_find_native_modules()

if TYPE_CHECKING:
    from pydlbench.api import (
        breakdown,
        compare_kernels,
        compare_models,
        compare_runs,
        diagnose_step,
        estimate,
        forecast,
        step,
    )
    from pydlbench.ops.table import build_layer
    from pydlbench.records.record import Record
    from pydlbench.report.frames import to_arrow, to_pandas, to_polars
    from pydlbench.runner.options import RunnerOptions as Options
    from pydlbench.runner.session import Session, measure, peaks
    from pydlbench.store.store import Store
    from pydlbench.version import __version__

__all__ = [
    "Options",
    "Session",
    "Store",
    "__version__",
    "breakdown",
    "build_layer",
    "compare_kernels",
    "compare_models",
    "compare_runs",
    "diagnose_step",
    "estimate",
    "forecast",
    "measure",
    "peaks",
    "step",
    "to_arrow",
    "to_pandas",
    "to_polars",
]

# Imported at first use, so that the command line starts faster. A name that
# differs in its module stands behind a colon.
_HOMES = {
    "build_layer": "pydlbench.ops.table",
    "Options": "pydlbench.runner.options:RunnerOptions",
    "Session": "pydlbench.runner.session",
    "Store": "pydlbench.store.store",
    "__version__": "pydlbench.version",
    "breakdown": "pydlbench.api",
    "compare_kernels": "pydlbench.api",
    "compare_models": "pydlbench.api",
    "compare_runs": "pydlbench.api",
    "diagnose_step": "pydlbench.api",
    "estimate": "pydlbench.api",
    "step": "pydlbench.api",
    "forecast": "pydlbench.api",
    "measure": "pydlbench.runner.session",
    "peaks": "pydlbench.runner.session",
    "to_arrow": "pydlbench.report.frames",
    "to_pandas": "pydlbench.report.frames",
    "to_polars": "pydlbench.report.frames",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pydlbench' has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    # Every record in a notebook comes from one of these.
    import_module("pydlbench.records.record").Record.notebook = _notebook
    globals()[name] = value
    return value


def _notebook(record: Record, form: str) -> str | None:
    """Return the text of a record in a notebook; see ``Record.notebook``."""
    from importlib import import_module

    text: str | None = getattr(import_module("pydlbench.report.notebook"), form)(record)
    return text


def __dir__() -> list[str]:
    return sorted(__all__)

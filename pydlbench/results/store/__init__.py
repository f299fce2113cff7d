"""The store: every run with all that is needed to trust it, in one SQLite file.

``Store`` writes and reads the file, ``load`` takes a run of a store or a JSON document that a
command wrote. Nothing here imports ``sqlite3`` or ``platformdirs`` before it is used.
"""

from __future__ import annotations

from pydlbench.results.store.columns import LAYER_COLUMNS
from pydlbench.results.store.continued import continued
from pydlbench.results.store.entry import ANSWERED, BEING_WRITTEN, Entry, RunInfo
from pydlbench.results.store.place import NOWHERE, VARIABLE, chosen_path, default_path
from pydlbench.results.store.reading import Loaded, load
from pydlbench.results.store.resume import case_key, done_keys, refuse_differences
from pydlbench.results.store.store import Store

__all__ = [
    "ANSWERED",
    "BEING_WRITTEN",
    "LAYER_COLUMNS",
    "NOWHERE",
    "VARIABLE",
    "Entry",
    "Loaded",
    "RunInfo",
    "Store",
    "case_key",
    "chosen_path",
    "continued",
    "default_path",
    "done_keys",
    "load",
    "refuse_differences",
]

"""Where the store is: an option, an environment variable, or the user's data directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError
from pydlbench.results.paths import user_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NOWHERE", "VARIABLE", "chosen_path", "default_path"]

#: Environment variable that names the store.
VARIABLE: Final = "PYDLBENCH_STORE"
#: Word that stands for no store at all, as an option and in the variable.
NOWHERE: Final = "none"


def default_path() -> Path:
    """Return ``$PYDLBENCH_STORE``, or ``store.sqlite`` in the user's data directory."""
    named = os.environ.get(VARIABLE)
    if named:
        return user_path(named)
    from platformdirs import user_data_path

    return user_data_path("pydlbench", appauthor=False) / "store.sqlite"


def chosen_path(option: str | None) -> tuple[Path | None, str]:
    """Return the store that a command uses, and who named it.

    Args:
        option: what was given with ``--store``.

    Returns:
        The path, None where nothing is to be kept; and ``--store``, the variable's name, or an
        empty word for the user's data directory.

    Raises:
        UsageError: the option is an empty word.
    """
    if option == "":
        raise UsageError("--store '': empty file name; nearest: none, or leave it out")
    named, by = (option, "--store") if option else (os.environ.get(VARIABLE), VARIABLE)
    if named == NOWHERE:
        return None, by
    if named:
        return user_path(named), by
    return default_path(), ""

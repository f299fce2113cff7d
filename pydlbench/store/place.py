"""Where the store is, and what makes two machines in it the same."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydlbench.errors import UsageError

# -----------------------------------------------------------------------------
# What a list calls a machine, and what makes two machines the same.

# What vendors print around a name.
_NOISE = re.compile(r"\((?:R|TM)\)|\b(?:CPU|Processor|NVIDIA|\d+-Core)\b|@.*", re.IGNORECASE)
# What does not change while a machine is the same one. Clocks, load and free memory do.
_FACTS = ("vendor", "family", "model", "stepping", "brand", "machine", "isa", "sockets", "cores")


def machine_name(device: Any) -> str:
    """Return the short name of a run's CPU or GPU; empty where the record has none.

    Args:
        device: ``RunRecord.device``.
    """
    name = device.get("name") if isinstance(device, Mapping) else None
    if not isinstance(name, str):
        return ""
    plain = name.encode("utf-8", "backslashreplace").decode()
    return " ".join(_NOISE.sub(" ", plain).split()) or plain


def cpu_identity(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a run's CPU has to be the same for its rows to be continued.

    Args:
        device: ``RunRecord.device``; of a GPU's, the host beside it counts.
    """
    cpu = device.get("host") or device
    facts = cpu.get("facts")
    if not isinstance(facts, Mapping):
        return {"name": cpu.get("name")}
    # The default number of threads follows from how many CPUs the process may use.
    usable = len(facts.get("affinity") or ())
    known = {name: facts.get(name) for name in _FACTS}
    return {"name": cpu.get("name"), **known, "usable CPUs": usable}


def gpu_name(device: Mapping[str, Any]) -> str | None:
    """Return the name of a run's GPU; None where none has been used yet."""
    name = device.get("name")
    return str(name) if "host" in device else None


# -----------------------------------------------------------------------------
# Paths as people write them.


def user_path(text: str | Path) -> Path:
    """Return a path, its ``~`` replaced as a shell does: that of an unknown user stays as it is."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:  # no such user, or nobody's home is known
        return path


# -----------------------------------------------------------------------------
# Where the store is: an option, an environment variable, or the user's data directory.

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

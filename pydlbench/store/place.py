"""Location of the store, and identity of the machines in it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydlbench.errors import UsageError

# -----------------------------------------------------------------------------
# Names and identity of machines.

# Noise in the names of vendors.
_NOISE = re.compile(r"\((?:R|TM)\)|\b(?:CPU|Processor|NVIDIA|\d+-Core)\b|@.*", re.IGNORECASE)
# Facts that identify a machine. Clocks, load and free memory vary.
_FACTS = ("vendor", "family", "model", "stepping", "brand", "machine", "isa", "sockets", "cores")


def machine_name(device: Any) -> str:
    """Return the short name of a run's CPU or GPU; empty if the record has none.

    Args:
        device: ``RunRecord.device``.
    """
    name = device.get("name") if isinstance(device, Mapping) else None
    if not isinstance(name, str):
        return ""
    plain = name.encode("utf-8", "backslashreplace").decode()
    return " ".join(_NOISE.sub(" ", plain).split()) or plain


def cpu_identity(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a run's CPU that must be equal to resume the run.

    Args:
        device: ``RunRecord.device``; for a GPU the host counts.
    """
    cpu = device.get("host") or device
    facts = cpu.get("facts")
    if not isinstance(facts, Mapping):
        return {"name": cpu.get("name")}
    # The number of usable CPUs determines the default number of threads.
    usable = len(facts.get("affinity") or ())
    known = {name: facts.get(name) for name in _FACTS}
    return {"name": cpu.get("name"), **known, "usable CPUs": usable}


def gpu_name(device: Mapping[str, Any]) -> str | None:
    """Return the name of a run's GPU; None if no GPU was used yet."""
    name = device.get("name")
    return str(name) if "host" in device else None


def is_same_gpu(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two runs used one GPU, by its uuid, with the same libraries.

    Args:
        before: ``RunRecord.device`` of the first run.
        now: ``RunRecord.device`` of the second run.
    """
    if gpu_name(before) is None or gpu_name(now) is None:
        return False
    uuids = [(device.get("facts") or {}).get("uuid") for device in (before, now)]
    same = uuids[0] is not None and uuids[0] == uuids[1]
    return same and before.get("libraries") == now.get("libraries")


# -----------------------------------------------------------------------------
# Paths given by the user.


def user_path(text: str | Path) -> Path:
    """Return a path with ``~`` expanded; that of an unknown user is left unchanged."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:  # no such user, or no home folder is known
        return path


# -----------------------------------------------------------------------------
# Path of the store: an option, an environment variable, or the user's data directory.

#: Environment variable with the path of the store.
VARIABLE: Final = "PYDLBENCH_STORE"
#: Value of option and variable for running without a store.
NOWHERE: Final = "none"


def default_path() -> Path:
    """Return ``$PYDLBENCH_STORE``, or ``store.sqlite`` in the user's data directory."""
    named = os.environ.get(VARIABLE)
    if named:
        return user_path(named)
    from platformdirs import user_data_path

    return user_data_path("pydlbench", appauthor=False) / "store.sqlite"


def select_path(option: str | None) -> tuple[Path | None, str]:
    """Return the store that a command uses, and where its path comes from.

    Args:
        option: value of ``--store``.

    Returns:
        The path, or None to store nothing; and ``--store``, the variable's name, or an empty text
        for the user's data directory.

    Raises:
        UsageError: the option is empty.
    """
    if option == "":
        raise UsageError("--store '': empty file name; nearest: none, or omit the option")
    named, by = (option, "--store") if option else (os.environ.get(VARIABLE), VARIABLE)
    if named == NOWHERE:
        return None, by
    return (user_path(named), by) if named else (default_path(), "")

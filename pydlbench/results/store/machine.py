"""What a list calls a machine, and what makes two machines the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["cpu_identity", "gpu_name", "machine_name"]

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

"""Reading the kernel's small text files under /proc and /sys; None for missing ones."""

from __future__ import annotations

import re
from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return the stripped text of ``path``, or None if it is missing, unreadable or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the whole number in ``path``, or None."""
    text = read_text(path)
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]+", text) else None


def parse_cpu_list(text: str | None) -> tuple[int, ...]:
    """Return the CPUs of a list such as ``0-3,8``; empty for None or another text."""
    numbers: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part)
        if match is None:
            return ()
        first = int(match[1])
        numbers.update(range(first, int(match[2] or first) + 1))
    return tuple(sorted(numbers))


def parse_size(text: str | None) -> int | None:
    """Return the bytes of a size such as ``32K`` or ``8M``, or None."""
    match = re.fullmatch(r"([0-9]+)([KMG]?)", text or "")
    return None if match is None else int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def read_cpuinfo(path: Path) -> list[dict[str, str]]:
    """Return one dict per block of /proc/cpuinfo: its keys in lower case, its values stripped."""
    blocks = []
    for block in re.split(r"\n\s*\n", read_text(path) or ""):
        pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
        values = {key.strip().lower(): value.strip() for key, value in pairs}
        if values:
            blocks.append(values)
    return blocks

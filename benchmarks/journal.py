"""Journal of finished tasks, a JSON line each, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["Journal"]


class Journal:
    """The finished tasks of a run, in an append-only file.

    A line that a crash truncated is ignored; its task runs again.

    Args:
        path: the file, created with the first entry.
        sources: further journals to read (of an earlier machine), oldest first.
    """

    def __init__(self, path: Path, sources: tuple[Path, ...] = ()) -> None:
        self.path = path
        self._entries: dict[str, dict[str, Any]] = {}
        for source in (*sources, path):
            self._entries |= _read(source)
        if not path.exists():
            for task, entry in self._entries.items():
                self._append(task, entry)

    def reload(self) -> None:
        """Read the entries that other processes have added."""
        self._entries |= _read(self.path)

    def __contains__(self, task: str) -> bool:
        return task in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, task: str) -> dict[str, Any] | None:
        """Return a finished task's entry, or None."""
        return self._entries.get(task)

    def entries(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Return the finished tasks whose names begin with ``prefix``."""
        return {task: entry for task, entry in self._entries.items() if task.startswith(prefix)}

    def add(self, task: str, entry: dict[str, Any]) -> None:
        """Record a finished task, on disk before this returns."""
        self._append(task, entry)
        self._entries[task] = entry

    def _append(self, task: str, entry: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            # Start a new line after one that a crash truncated.
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.write(b"\n")
            line = json.dumps({"task": task, **entry}, separators=(",", ":"))
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return found
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # cut off
            continue
        found[entry.pop("task")] = entry
    return found

"""Many small items in one process on a card; an item that fails costs no other.

A script with items calls :func:`main`. It watches a process of itself that performs them one after
another, and prints a line of JSON for each that is finished::

    {"item": "gate", "seconds": 0.1, "found": ..., "error": ...}

What ends that process, or hangs, is the fault of the item that was begun last: a new process goes
on behind it. So does one where the device is lost, which is nobody's afterwards.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Items", "main"]

Items = Mapping[str, Callable[[], Any]]
#: By item: what later items, and processes, have in their environment where it failed.
Fallbacks = Mapping[str, Mapping[str, str]]

_CHILD = "--child"
# The first item may import PyTorch and load kernels; a gate that never opens takes seconds.
_ITEM_S = 60.0
_MAX_PROCESSES = 8
_LOST = "DeviceLostError"


def main(items: Items, fallbacks: Fallbacks | None = None) -> int:
    """Perform all items, even if some fail; return 0 if none failed, else 1.

    Args:
        items: by name, in their order; each returns what it found, as JSON has it, or raises.
        fallbacks: see :data:`Fallbacks`.
    """
    if sys.argv[1:2] == [_CHILD]:
        return _perform(items, set(sys.argv[2:]), fallbacks or {})
    failed: dict[str, bool] = {}
    for _ in range(_MAX_PROCESSES):
        if len(failed) == len(items):
            break
        _watch(failed, fallbacks or {})
    for name in items:
        if name not in failed:
            _tell({"item": name, "error": f"not tried: {_MAX_PROCESSES} processes have ended"})
    return int(len(failed) < len(items) or any(failed.values()))


def _perform(items: Items, done: set[str], fallbacks: Fallbacks) -> int:
    for name, call in items.items():
        if name in done:
            continue
        _tell({"begun": name})
        begin = time.monotonic()
        entry: dict[str, Any] = {"item": name}
        lost = False
        try:
            entry["found"] = call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it costs this item only
            said = " ".join(str(error).split())
            entry["error"] = f"{type(error).__name__}: {said[:300]}"
            os.environ.update(fallbacks.get(name, {}))
            lost = type(error).__name__ == _LOST
        _tell({**entry, "seconds": round(time.monotonic() - begin, 3)})
        if lost:
            return 1
    return 0


def _watch(failed: dict[str, bool], fallbacks: Fallbacks) -> None:
    """Start one process, and record which of its items have failed."""
    environment = dict(os.environ)
    for name in (one for one, bad in failed.items() if bad):
        environment |= fallbacks.get(name, {})
    process = subprocess.Popen(
        [sys.executable, "-P", sys.argv[0], _CHILD, *failed],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    begun, why = "", ""
    while True:
        try:
            line = lines.get(timeout=_ITEM_S)
        except queue.Empty:
            why = f"hung for {_ITEM_S:.0f} s"
            process.kill()
            break
        if not line:
            break
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # a library's word
        if "begun" in entry:
            begun = entry["begun"]
        elif "item" in entry:
            begun = ""
            failed[entry["item"]] = "error" in entry
            _tell(entry)
    code = process.wait()
    if begun:
        failed[begun] = True
        _tell({"item": begun, "error": why or f"ended the process: exit code {code}"})


def _read(stream: Any, lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def _tell(entry: Mapping[str, Any]) -> None:
    print(json.dumps(entry), flush=True)

"""The worker process: serves one backend over its standard input and output."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO

from pydlbench.backends import capabilities as registry
from pydlbench.backends.base import Backend, Kernel, Preparation
from pydlbench.records.specs import Case
from pydlbench.timing.chunk import Request
from pydlbench.workers.channel import Replies, decode, error_reply, is_fatal

__all__ = ["main", "serve"]


class _Server:
    """The operations that a host may ask for. Kernels are known by number."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kernels: dict[int, Kernel] = {}
        self._next = 1

    def describe(self) -> dict[str, Any]:
        return self._backend.describe()

    def prepare(self, case: dict[str, Any], preparation: dict[str, Any]) -> dict[str, Any]:
        if "step" in case:  # of a whole model
            kernel = registry.prepare_step(self._backend, case["step"], preparation)
        else:
            kernel = self._backend.prepare(Case.from_dict(case), Preparation(**preparation))
        number = self._next
        self._next += 1
        self._kernels[number] = kernel
        return {"kernel": number, "facts": kernel.facts.to_dict()}

    def sample(self, kernel: int, samples: int, inner: int, untimed: int) -> dict[str, Any]:
        request = Request(samples=samples, inner=inner, untimed=untimed)
        return self._kernels[kernel].sample(request).to_dict()

    def release(self, kernel: int) -> None:
        del self._kernels[kernel]

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._backend.probe(name, arguments)


_OPERATIONS = ("describe", "prepare", "sample", "release", "probe")


def serve(backend: Backend, requests: BinaryIO, replies: Replies) -> None:
    """Answer requests until the host closes its end."""
    server = _Server(backend)
    for line in requests:
        replies.begin()
        try:
            message = decode(line)
            operation = message.pop("op")
            if operation not in _OPERATIONS:
                raise KeyError(f"unknown operation {operation!r}")
            reply = {"ok": getattr(server, operation)(**message)}
        except Exception as error:  # noqa: BLE001 - whatever goes wrong here costs a row, not the run
            reply = error_reply(error)
        replies.answer(reply)
        if "error" in reply and is_fatal(reply["error"]):
            return  # the context is beyond use: the host starts a fresh process


def main() -> None:
    """Serve the backend named on the command line, pinned to the CPUs named there."""
    setup = json.loads(sys.argv[1])
    # Before any library is loaded: thread pools take the affinity that they find.
    if setup["cpus"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, setup["cpus"])
    # Libraries print where they please; the wire gets descriptors of its own.
    requests = os.fdopen(os.dup(0), "rb")
    replies = Replies(os.fdopen(os.dup(1), "wb", buffering=0), setup["beat_s"])
    # Before the backend is imported: frameworks take their time.
    replies.begin()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        try:
            backend = registry.load(setup["backend"], setup["device"])
            described = backend.describe()
        except Exception as error:  # noqa: BLE001 - the host turns it into the row's reason
            replies.answer(error_reply(error))
            return
        replies.answer({"ok": described})
        serve(backend, requests, replies)
    finally:
        replies.close()

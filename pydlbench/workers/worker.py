"""The worker process: serves one backend over its standard input and output."""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from threading import Event
from typing import Any, BinaryIO

from pydlbench.backends import capabilities
from pydlbench.backends.base import Backend, Kernel
from pydlbench.backends.host_clock import refuse_monitoring
from pydlbench.workers.channel import (
    Build,
    CallFunction,
    Describe,
    Operation,
    Probe,
    Release,
    ReplyWriter,
    Sample,
    TraceStep,
    decode_request,
    error_reply,
    is_fatal,
)
from pydlbench.workers.environment import adopt_orphans


class _Server:
    """Serves the host's requests; kernels have numbers."""

    def __init__(self, backend: Backend, replies: ReplyWriter) -> None:
        self._backend = backend
        self._replies = replies
        self._kernels: dict[int, Kernel] = {}
        self._last = 0

    def serve(self, operation: Operation) -> Any:
        """Serve one request and return its result, which can be written as JSON."""
        match operation:
            case Describe():
                return self._backend.describe()
            case Build(builder, arguments):
                kernel: Kernel = _import_function(builder)(self._backend, **arguments)
                self._last += 1
                self._kernels[self._last] = kernel
                return {"kernel": self._last, "facts": kernel.facts}
            case CallFunction(function, arguments):
                return _import_function(function)(self._backend, self._replies.tell, **arguments)
            case Sample(number, request):
                return self._kernels[number].sample(request)
            case TraceStep(number):
                step: Any = self._kernels[number]  # only steps are traced
                return step.trace()
            case Release(number):
                del self._kernels[number]
                return None
            case Probe(name, arguments):
                return self._backend.probe(name, arguments)


def _import_function(name: str) -> Callable[..., Any]:
    """Import a function by name, since packages above this one may define it."""
    module, _, function = name.partition(":")
    resolved: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return resolved


def serve(
    backend: Backend,
    requests: BinaryIO,
    replies: ReplyWriter,
    imported: Callable[[], list[str]] = list,
) -> None:
    """Answer requests until the host closes its end.

    Args:
        backend: backend of this process.
        requests: stream of requests.
        replies: writes the replies.
        imported: returns modules that were imported since its last call.
    """
    server = _Server(backend, replies)
    for line in requests:
        replies.begin()
        try:
            reply = {"ok": server.serve(decode_request(line))}
            if names := imported():
                reply["imported"] = names
        except Exception as error:  # noqa: BLE001 - whatever goes wrong here costs a row, not the run
            reply = error_reply(error)
        replies.answer(reply)
        if "error" in reply and is_fatal(reply["error"]):
            return  # the device context is unusable: the host starts a new process


def main() -> None:
    """Serve the backend named on the command line, pinned to the CPUs named there."""
    run(json.loads(sys.argv[1]))


def run(setup: dict[str, Any], imported: Callable[[], list[str]] = list) -> None:
    """Serve a backend until the host closes its end.

    Args:
        setup: the ``backend``, the ``device``, the ``cpus`` of its threads and ``heartbeat_s``.
        imported: see :func:`serve`.
    """
    adopt_orphans()
    # Before any library is loaded, because thread pools inherit the affinity.
    if setup["cpus"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, setup["cpus"])
    served = Event()
    if setup["device"] == "cpu":  # on a GPU, profilers write their files when objects are freed
        atexit.register(_end, served)  # runs after all functions that are registered later
    # Libraries may print to standard output, so the channel gets its own descriptors.
    requests = os.fdopen(os.dup(0), "rb")
    replies = ReplyWriter(os.fdopen(os.dup(1), "wb", buffering=0), setup["heartbeat_s"])
    # Send heartbeats during the import of the backend, which can be slow.
    replies.begin()
    if hasattr(signal, "SIGUSR1"):  # the host's way to find where a request hangs
        faulthandler.register(signal.SIGUSR1, all_threads=False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        try:
            # Exclude the framework's half a million objects from garbage collection, which would
            # slow down the import and samples.
            gc.disable()
            if not capabilities.is_builtin(setup["backend"]):  # another package's code is judged
                importlib.import_module("pydlbench.backends.frameworks.shared_kernel")
                refuse_monitoring()
            backend = capabilities.load(setup["backend"], setup["device"])
            description = backend.describe()
            gc.freeze()
            gc.enable()
            refuse_monitoring()
        except Exception as error:  # noqa: BLE001 - the host turns it into the row's reason
            replies.answer(error_reply(error))
            return
        replies.answer({"ok": description})
        serve(backend, requests, replies, imported)
        served.set()
    finally:
        replies.close()


def _end(served: Event) -> None:
    """End the process without freeing the frameworks' objects, which takes up to a second.

    Open files are flushed, as at a normal exit.

    Args:
        served: set if the host has closed the channel; otherwise the process ends normally.
    """
    if not served.is_set():
        return
    files = [value for value in gc.get_objects() if issubclass(type(value), io.IOBase)]
    for file in (*files, sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or without a reader
            file.flush()
    os._exit(0)

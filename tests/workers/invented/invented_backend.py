"""A backend for tests of the worker: does what the layer's name says, nothing else."""

import atexit
import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

from pydlbench import errors
from pydlbench.backends.base import KernelFacts
from pydlbench.records.measurement import Correctness
from pydlbench.timing.chunk import Chunk


def last_words():
    print("first words\nsomething native went wrong", file=sys.stderr, flush=True)


def end(code):
    last_words()
    os._exit(code)


def leave():
    """End as a user's script does."""
    last_words()
    sys.exit(7)


class Freed:
    """Writes a file when it is freed."""

    def __init__(self, file):
        self.file = file

    def __del__(self):
        self.file.write_text("freed")


KEPT = []


def register():
    """Have files written at the end of the process: by a function, a buffer, and what is freed."""
    folder = Path(os.environ["INVENTED_FOLDER"])
    atexit.register((folder / "registered").write_text, "the end")
    log = (folder / "log").open("w")
    log.write("a line")
    KEPT.extend([log, Freed(folder / "freed")])


def crash():
    last_words()
    signal.raise_signal(signal.SIGSEGV)


def abort():
    ctypes.CDLL(None).abort()


def babble():
    """Print on every road to standard output that a library has."""
    print('{"ok": "python"}')
    os.write(1, b'{"ok": "descriptor"}\n')
    libc = ctypes.CDLL(None)
    libc.puts(b'{"ok": "stdio"}')
    libc.fflush(None)


def allocate():
    """Ask for more than ``ulimit -v`` allows."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)


def fork():
    """Leave a child behind that holds a pipe open."""
    if os.fork() == 0:
        with Path(os.environ["INVENTED_PIPE"]).open("w"):
            time.sleep(3600)


def fail(error):
    raise error


DEEDS = {
    "works": lambda: None,
    "babbles": babble,
    "exits": lambda: end(7),
    "leaves": leave,
    "registers": register,
    "crashes": crash,
    "aborts": abort,
    "hangs": lambda: time.sleep(3600),
    "takes its time": lambda: time.sleep(0.5),
    "keeps the lock": lambda: ctypes.PyDLL(None).sleep(3600),
    "is stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "is killed": lambda: signal.raise_signal(signal.SIGKILL),
    "allocates": allocate,
    "forks": fork,
    "lacks": lambda: fail(errors.UnsupportedError("this machine has no such thing")),
    "refuses": lambda: fail(errors.PrimitiveError("oneDNN convolution: run-time error")),
    "loses the device": lambda: fail(errors.DeviceLostError("an illegal memory access")),
    "outgrows": lambda: fail(MemoryError("8 TB")),
    "stumbles": lambda: fail(ZeroDivisionError("division by zero")),
    "garbles": lambda: os.write(GARBLED, b"not JSON\n"),
}
# The wire's own descriptor: dup(0), dup(1) take the first two that are free.
GARBLED = 4


def count(backend, tell, to, deed="works"):
    """Tell numbers one by one, and return the last."""
    for number in range(to):
        tell({"number": number})
        DEEDS[deed]()
    return {"last": to - 1, "backend": backend.name}


class Kernel:
    def __init__(self, deed):
        self._deed = deed
        self.facts = KernelFacts(
            algorithm=deed,
            layout="nhwc",
            library="invented 1",
            accumulate="float32",
            workspace_bytes=0,
            reorder_s={},
            setup_s=0.001,
            correct=Correctness(status="ok", rel_error=0.0, tolerance=1e-6),
            candidates=[],
        )

    def sample(self, request):
        DEEDS[self._deed]()
        return Chunk(seconds=(0.001,) * request.samples, wall_s=0.001 * request.samples)


class Backend:
    name = "invented"

    def describe(self):
        babble()
        return {"name": "invented", "version": "1", "pid": os.getpid()}

    def prepare(self, case, _preparation):
        when, _, deed = (case.layer.name or "later works").partition(" ")
        if when == "now":
            DEEDS[deed]()
        return Kernel(deed)

    def probe(self, name, arguments):
        if name == "empty_call":
            return {"seconds": 1e-6, "least_s": 1e-6}
        return {"name": name, "stdin": sys.stdin.read(), **arguments}


def create(*_):
    # As a framework whose import takes long.
    time.sleep(float(os.environ.get("INVENTED_START_S", "0")))
    return Backend()

"""A process for native kernels that starts before the command line imports its own modules.

Both then import at the same time. So this module imports nothing: what depends on options and CPUs
is sent once it is known, and the process loads no library before.
"""

import os
import sys

#: Beginnings of variables that workers do not inherit from the shell: settings of thread pools,
#: math libraries and the allocator influence results. Backends declare further ones.
DROPPED_PREFIXES = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "GLIBC_TUNABLES",
    "MALLOC_",
    # It differs from test to test, so that no two workers would have the same environment.
    "PYTEST_CURRENT_TEST",
)
#: Variables of each worker. NumPy's BLAS gets a single thread, because its pool would spin while
#: kernels are timed.
FIXED = {"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
# It imports what a native worker needs (NumPy and what verifies results, too), then becomes one as
# soon as its setup has arrived.
_BOOTSTRAP = (
    "import gc, sys; gc.disable(); sys.path[:] = sys.argv[1:]; "
    "from pydlbench.backends import autotune; "
    "from pydlbench.workers import ahead, worker; worker.run(ahead.read_setup())"
)
_MAX_PART_BYTES = 1 << 16

# Process id, and descriptors of its input, output and errors, until a worker takes them.
_started: list[tuple[int, int, int, int]] = []


def start() -> None:
    """Start the process; without it a run only takes longer.

    Nothing is started where the C library is older than 2.27 or not Linux's, or if a standard
    stream is closed: a pipe would get its descriptor.
    """
    if not hasattr(os, "memfd_create") or None in (sys.stdin, sys.stdout, sys.stderr):
        return
    opened = [*os.pipe(), *os.pipe()]
    stdin, to_child, from_child, stdout = opened
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(DROPPED_PREFIXES)
    }
    try:
        opened.append(errors := os.memfd_create("stderr"))
        pid = os.posix_spawn(
            sys.executable,
            # -P: do not import a json.py from the working directory.
            [sys.executable, "-P", "-c", _BOOTSTRAP, *sys.path],
            inherited | FIXED,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, descriptor, number)
                for number, descriptor in enumerate((stdin, stdout, errors))
            ],
            setsid=True,  # Ctrl-C in the terminal shall reach only this process
        )
    except (NotImplementedError, OSError):  # no setsid in an old C library
        pass
    else:
        _started.append((pid, to_child, from_child, errors))
        opened = [stdin, stdout]
    for descriptor in opened:
        os.close(descriptor)


def take() -> tuple[int, int, int, int] | None:
    """Return process id, and descriptors of input, output and errors; None if none is left."""
    return _started.pop() if _started else None


def read_setup() -> dict[str, object]:
    """Wait for the setup in the process; return it, and take over its environment."""
    import json

    message = b""
    while not message.endswith(b"\n"):
        part = os.read(0, _MAX_PART_BYTES)
        if not part:  # nobody needs it
            sys.exit()
        message += part
    setup = json.loads(message)
    os.environ.clear()
    os.environ.update(setup.pop("environment"))
    return dict(setup)

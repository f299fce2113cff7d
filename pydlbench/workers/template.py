"""Processes that have imported a framework, and fork for each worker.

The import of a framework takes a second or two, in each process anew. A template imports it once
and then waits. Each worker is a fork of it: it gets the imported modules, and everything that it
does later (threads, memory, packed weights, compiled code) is its own. A template has a single
thread, since only the thread that forks goes on in the child.

Steps import further modules of the framework and of packages that it requires: PyTorch its compiler
when it trains. A worker reports them, and the template imports them before its next fork. What a
user's code imports besides is imported in each process: a package may change the framework, and so
the time of another model that does not import it.

Workers of one template share the addresses at which libraries are loaded and the seed of Python's
hashes, which are drawn anew for processes that are started one by one.
"""

import atexit
import contextlib
import gc
import importlib
import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Final

from pydlbench.workers.environment import KEEP_PAGES, adopt_orphans, keep_pages

_MAX_SETUP_BYTES: Final = 1 << 17
# Further modules in one message, of some 40 bytes each.
_MAX_MODULES: Final = 2000
_POLL_S: Final = 1e-3
#: Each keeps the memory of an imported framework.
MAX_TEMPLATES: Final = 4
_BOOTSTRAP: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from pydlbench.workers.template import main; main()"
)


class ForkedProcess:
    """A fork of a template; the part of :class:`subprocess.Popen` that a worker's host needs.

    Attributes:
        pid: process id; 0 until :meth:`has_started` has returned True.
        stdin: the process's standard input.
        stdout: the process's standard output.
        returncode: exit code, negative after a signal; None while it runs, or if it is unknown.
    """

    def __init__(
        self, stdin: IO[bytes], stdout: IO[bytes], identity: IO[bytes] | None = None
    ) -> None:
        self.pid = 0
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._identity = identity

    def has_started(self, timeout: float) -> bool:
        """Wait for the fork; return False if there is none: the template has ended, or hangs.

        Args:
            timeout: maximum time in seconds.
        """
        if not self.pid and self._identity is not None:
            with self._identity:
                if select.select([self._identity], [], [], timeout)[0]:
                    self.pid = int(self._identity.readline() or 0)
        return bool(self.pid)

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""
        if self.returncode is None and self.pid:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the process; return its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended within ``timeout`` seconds.
        """
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while self.pid and self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            time.sleep(_POLL_S)
        if self._identity is not None:
            self._identity.close()  # without a reader, a fork that comes later ends
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process has started and has not ended."""
        if self.pid and self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)


class Template:
    """The host's side of a template.

    Args:
        modules: modules to import before the first fork.
        cpus: logical CPUs of the process's threads.
        environment: environment variables.
    """

    def __init__(
        self, modules: Sequence[str], cpus: Sequence[int], environment: Mapping[str, str]
    ) -> None:
        adopt_orphans()
        self._learned: dict[str, None] = {}
        self._sent = 0
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        setup = json.dumps({"modules": list(modules), "cpus": list(cpus)})
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOTSTRAP, setup, json.dumps(sys.path)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def learn(self, modules: Sequence[str]) -> None:
        """Have further modules imported before the next fork.

        Args:
            modules: modules that a fork has imported, in their order.
        """
        self._learned |= dict.fromkeys(modules)

    def fork(self, setup: Mapping[str, Any], stderr: IO[bytes]) -> ForkedProcess:
        """Ask for a fork, without waiting for it.

        Args:
            setup: setup of the worker, as JSON, with its ``environment``.
            stderr: file for the standard error.

        Raises:
            OSError: the template has ended.
        """
        pipes = [os.pipe() for _ in range(3)]
        (stdin, to_child), (from_child, stdout), (identity, to_identity) = pipes
        theirs = (stdin, stdout, stderr.fileno(), to_identity)
        further = list(self._learned)[self._sent :][:_MAX_MODULES]
        self._sent += len(further)
        message = json.dumps({**setup, "modules": further}).encode()
        try:
            socket.send_fds(self._requests, [message], theirs)
        except OSError:
            for descriptor in (to_child, from_child, identity):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (stdin, stdout, to_identity):
                os.close(descriptor)
        return ForkedProcess(
            os.fdopen(to_child, "wb"), os.fdopen(from_child, "rb"), os.fdopen(identity, "rb")
        )

    def close(self) -> None:
        """End the process, and those that it waits for; its workers go on."""
        self._requests.close()
        group = self._process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(ChildProcessError):  # they are now children of this process
            while True:
                os.waitpid(-group, 0)


_templates: dict[tuple[Any, ...], Template] = {}


def template_for(
    modules: Sequence[str], cpus: Sequence[int], environment: Mapping[str, str]
) -> Template | None:
    """Return the running template of these properties, after starting it if it is the first.

    Args:
        modules: modules to import before the first fork; without any there is no template.
        cpus: logical CPUs of the process's threads.
        environment: environment variables.

    Returns:
        The template; None on other systems than Linux, and if the template has ended by itself.
    """
    if not modules or not sys.platform.startswith("linux"):
        return None
    key = (tuple(modules), tuple(cpus), tuple(sorted(environment.items())), tuple(sys.path))
    if key not in _templates:
        while len(_templates) >= MAX_TEMPLATES:
            _templates.pop(next(iter(_templates))).close()
        _templates[key] = Template(modules, cpus, environment)
    return template if (template := _templates[key]).alive else None


@atexit.register
def close_templates() -> None:
    """End all templates of this process."""
    while _templates:
        _templates.popitem()[1].close()


os.register_at_fork(after_in_child=_templates.clear)


# -----------------------------------------------------------------------------
# The template's own process.


def main() -> None:
    """Import the modules, then fork once for each message on standard input."""
    from pydlbench.backends.capabilities import declaration
    from pydlbench.workers.worker import run

    setup = json.loads(sys.argv[1])
    os.sched_setaffinity(0, setup["cpus"] or os.sched_getaffinity(0))
    if not _can_fork_with(setup["modules"]):
        sys.exit(1)
    packages = _required_by(setup["modules"])
    # Not as descriptor 0, which each fork replaces.
    with socket.socket(fileno=os.dup(0)) as requests:
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, _MAX_SETUP_BYTES, 4)
            if not message:
                return
            worker = json.loads(message)
            _import_further(worker.pop("modules"), descriptors)
            if _fork(descriptors):
                break
    environment = worker.pop("environment")
    os.environ.update(environment)
    if KEEP_PAGES.items() <= environment.items():
        keep_pages()
    run(worker, ImportedModules(declaration(worker["backend"]).kept_settings, packages).new)


def _can_fork_with(modules: Sequence[str]) -> bool:
    """Import modules; return whether there is a single thread: a fork would lack the others."""
    gc.disable()
    for module in modules:
        # The worker imports it again, and reports why it fails.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _import_further(modules: Sequence[str], descriptors: Sequence[int]) -> None:
    """Import modules in a child, which takes the place of this process until it ends.

    If they start a thread, or end the process, this process goes on without them. Otherwise it
    only waits, with the pipes of the next worker closed: at their end the host sees that the worker
    has ended.

    Args:
        modules: names of the modules.
        descriptors: the next worker's pipes.
    """
    modules = [module for module in modules if module not in sys.modules]
    if not modules:
        return
    success, to_parent = os.pipe()
    if child := os.fork():
        os.close(to_parent)
        imported = os.read(success, 1)
        os.close(success)
        if imported:
            for descriptor in descriptors:
                os.close(descriptor)
        os.waitpid(child, 0)
        if imported:
            os._exit(0)
        return
    os.close(success)
    if not _can_fork_with(modules):
        os._exit(1)
    os.write(to_parent, b"1")
    os.close(to_parent)


def _required_by(modules: Sequence[str]) -> set[str]:
    """Return the packages of modules and all that they require, by their distributions' names."""
    found = {module.partition(".")[0] for module in modules}
    waiting = list(found)
    while waiting:
        with contextlib.suppress(metadata.PackageNotFoundError):
            for line in metadata.requires(waiting.pop()) or ():
                name = re.split(r"[^\w.-]", line)[0].lower().replace("-", "_")
                if name not in found and "extra ==" not in line:
                    found.add(name)
                    waiting.append(name)
    return found


class ImportedModules:
    """The modules of known packages that a worker imports after its start.

    Known are packages of which a module was imported before. Code of the user, and what else it
    imports, may differ from process to process. If it has set variables of the environment, which
    packages read when they are imported, there are none.

    Args:
        kept_settings: beginnings of variables that the framework itself may set.
        packages: further known packages.
    """

    def __init__(self, kept_settings: tuple[str, ...] = (), packages: Collection[str] = ()) -> None:
        self._kept_settings = kept_settings
        paths = sysconfig.get_paths()
        self._folders = (paths["purelib"], paths["platlib"], str(Path(__file__).parents[1]))
        self._environment = self._read_environment()
        self._known = set(sys.modules)
        self._packages = {name.partition(".")[0] for name in sys.modules}.union(packages)

    def new(self) -> list[str]:
        """Return the modules that were imported since the last call, in their order."""
        if len(sys.modules) == len(self._known) or self._environment != self._read_environment():
            return []
        names = [name for name in sys.modules if name not in self._known]
        self._known |= set(names)
        return [name for name in names if self._is_shared(name)]

    def _read_environment(self) -> dict[str, str]:
        return {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(self._kept_settings)
        }

    def _is_shared(self, name: str) -> bool:
        origin = getattr(getattr(sys.modules[name], "__spec__", None), "origin", None)
        if name.partition(".")[0] not in self._packages or not isinstance(origin, str):
            return False
        return origin.startswith(self._folders)


def _fork(descriptors: Sequence[int]) -> bool:
    """Fork a worker whose parent becomes the host; return True in the worker."""
    if middle := os.fork():
        os.waitpid(middle, 0)
        for descriptor in descriptors:
            os.close(descriptor)
        return False
    middle = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == middle:
        time.sleep(_POLL_S / 10)
    os.setsid()
    *standard, identity = descriptors
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.write(identity, b"%d\n" % os.getpid())
    os.close(identity)
    return True

"""The host's side of a worker: starts it when needed, sends requests, and handles its death."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Generic, TypeVar

import msgspec

from pydlbench.backends.base import KernelFacts, Preparation, prepare
from pydlbench.backends.capabilities import FOLDER_VARIABLE, declaration
from pydlbench.errors import PydlbenchError, WorkerError
from pydlbench.records.measurement import KernelSpec
from pydlbench.records.trace import TraceFacts
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.workers import ahead
from pydlbench.workers.channel import (
    HEARTBEAT_S,
    Build,
    CallFunction,
    EndOfWorkerError,
    Operation,
    OverdueError,
    Probe,
    Release,
    ReplyReader,
    Sample,
    SilentError,
    TraceStep,
    encode,
    is_fatal,
    raise_error,
)
from pydlbench.workers.environment import KEEP_PAGES, inherited_environment, worker_environment
from pydlbench.workers.stopping import children_of, descendants_of, guardian
from pydlbench.workers.template import ForkedProcess, Template, template_for

Facts = TypeVar("Facts")


# Advice by the signal that ended a process.
_ADVICE = {
    "SIGKILL": "if nobody killed it, the system ran out of memory: try a smaller --batch",
    "SIGILL": "its library was built for another CPU: install one for this one",
}


def exit_status(code: int | None, stderr: str) -> str:
    """Describe the end of a process: ``was killed by SIGSEGV: malloc(): corrupted``.

    Args:
        code: exit code, negative after a signal; None if unknown.
        stderr: standard error since the request; its last line is quoted.
    """
    advice = None
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        cause = f"was killed by {name}"
        advice = _ADVICE.get(name)
    else:
        cause = f"ended with exit code {code}"
    lines = stderr.strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    return f"{cause}{last}" + (f"; {advice}" if advice else "")


# A sample or a probe takes seconds. The preparation of a huge layer, which times and verifies all
# candidates, can take most of an hour.
DEFAULT_TIMEOUT = 900.0
PREPARE_TIMEOUT = 3600.0
# While the worker serves a request, one of its threads sends heartbeats. Code that holds the GIL
# interrupts them (loading gigabytes of libraries, compiling), but for tens of seconds at most. A
# stopped or swapped-out process stays silent.
SILENCE_TIMEOUT = 120.0
# A process that receives the signal writes its traceback at once, or not at all.
_TRACEBACK_TIMEOUT_S = 1.0
_MAX_TRACEBACK_BYTES = 1 << 16
# Waiting threads of a process that cannot be stopped spin for some milliseconds (GNU OpenMP).
_SPIN_TIME_S = 0.012
# All workers of this process, so that one can have the machine for itself.
_workers: Final[weakref.WeakSet[Worker]] = weakref.WeakSet()

# Processes that were started by :func:`launch_early` and not taken yet.
_early_workers: Final[list[Worker]] = []

# The worker gets the host's module path, wherever the host was started; a worker of another
# installation has its own.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]) or sys.path; "
    "from pydlbench.workers.worker import main; main()"
)


class Worker:
    """A process that serves one backend; started by the first request, and again after its death.

    The time limits are attributes and may be changed between requests.

    Args:
        backend: name of the backend.
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs to pin the worker's threads to, one each.
        timeout: seconds without an answer after which the worker is killed.
        prepare_timeout: seconds without an answer, while the worker prepares a kernel, after which
            it is killed.
        environment: further environment variables, besides the variables that every worker has.
        silence: seconds without a heartbeat after which a busy worker is killed.
        heartbeat_s: seconds between two heartbeats.
        allows: option that allows more time, for messages.
        start_timeout: maximum seconds for the start; None for ``timeout``.
        python: interpreter of another installation, whose pydlbench the worker runs; None for this
            process's interpreter.
    """

    def __init__(
        self,
        backend: str,
        device: str,
        cpus: Sequence[int],
        timeout: float = DEFAULT_TIMEOUT,
        prepare_timeout: float = PREPARE_TIMEOUT,
        environment: Mapping[str, str] | None = None,
        silence: float = SILENCE_TIMEOUT,
        heartbeat_s: float = HEARTBEAT_S,
        allows: str = "timeout_s in the options",
        start_timeout: float | None = None,
        python: str | None = None,
    ) -> None:
        self.backend = backend
        self.device = device
        self.cpus = tuple(cpus)
        self.timeout = timeout
        self.prepare_timeout = prepare_timeout
        self._environment = dict(environment or {})
        self.silence = silence
        self.heartbeat_s = heartbeat_s
        self.allows = allows
        self.start_timeout = timeout if start_timeout is None else start_timeout
        self._python = python
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._replies: ReplyReader | None = None
        self._ready = False
        self._folder = ""
        # It lives as long as the worker.
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - see above
        self._stderr_start = 0  # bytes of standard error that belong to earlier requests
        self._description: dict[str, Any] = {}
        self._stopped = False
        #: Process groups that its code has started in sessions of their own.
        self.groups: set[int] = set()
        self._pending: Operation | None = None
        # The process that the worker is a fork of.
        self._template: Template | None = None
        self.generation = 0
        _workers.add(self)

    @property
    def pid(self) -> int | None:
        """Process id, or ``None`` while no process is running."""
        return self._process.pid or None if self._process else None

    def describe(self) -> dict[str, Any]:
        """Return the backend's description; starts the process if it is not running."""
        self._start()
        return self._description

    def prepare(self, spec: KernelSpec, preparation: Preparation) -> RemoteKernel[KernelFacts]:
        """Prepare a spec in the worker, and raise the backend's exceptions here."""
        self.start_preparing(spec, preparation)
        return self.finish_preparing()

    def start_preparing(self, spec: KernelSpec, preparation: Preparation) -> None:
        """Start to prepare a spec while other workers go on; :meth:`finish_preparing` follows.

        Raises:
            WorkerError: the request cannot be sent, see :meth:`send`.
        """
        arguments = {"spec": spec.to_dict(), "preparation": preparation}
        self.send(Build(_name_of(prepare), arguments))

    def finish_preparing(self) -> RemoteKernel[KernelFacts]:
        """Wait for the kernel of :meth:`start_preparing`, and raise the backend's exceptions."""
        return self._remote_kernel(self.receive(), KernelFacts)

    def build(
        self, builder: Callable[..., Any], facts: type[Facts], **arguments: Any
    ) -> RemoteKernel[Facts]:
        """Call a function in the worker that prepares a kernel.

        Args:
            builder: function that is called with the backend and the arguments; the worker imports
                it by name, so that it may be defined in a package above this one.
            facts: type of the kernel's facts.
            arguments: arguments that can be written as JSON; structs and dataclasses are allowed.

        Raises:
            PydlbenchError: raised by the function.
        """
        return self._remote_kernel(self.request(Build(_name_of(builder), arguments)), facts)

    def _remote_kernel(self, reply: Mapping[str, Any], facts: type[Facts]) -> RemoteKernel[Facts]:
        converted = msgspec.convert(reply["facts"], facts, strict=False, str_keys=True)
        return RemoteKernel(self, reply["kernel"], converted)

    def call(
        self,
        function: Callable[..., Any],
        on_message: Callable[[dict[str, Any]], None],
        **arguments: Any,
    ) -> Any:
        """Call a function in the worker, and receive its messages meanwhile.

        Args:
            function: function to call with the backend, a function that sends a message to the
                host, and the arguments; the worker imports it by name.
            on_message: called with each message; an exception in it ends the worker.
            arguments: arguments that can be written as JSON.

        Returns:
            The result of the function, read from JSON.

        Raises:
            PydlbenchError: raised by the function.
        """

        def handle(message: dict[str, Any]) -> None:
            try:
                on_message(message)
            except BaseException:
                self.close(kill=True)  # else the next request would get this one's reply
                raise

        return self.request(CallFunction(_name_of(function), arguments), handle)

    def probe(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Run a device probe in the worker."""
        return dict(self.request(Probe(name, arguments)))

    def request(
        self, operation: Operation, on_message: Callable[[dict[str, Any]], None] | None = None
    ) -> Any:
        """Send one request and return its result.

        While a worker takes samples or probes the machine, all other workers of this process are
        stopped; each continues with its next request.

        Args:
            operation: the request.
            on_message: called with messages before the reply.

        Raises:
            WorkerError: the worker died (the message has its signal or exit code) or hung.
            PydlbenchError: raised by the backend.
        """
        self.send(operation)
        return self.receive(on_message)

    def send(self, operation: Operation) -> None:
        """Send one request, whose result :meth:`receive` returns; other workers go on meanwhile.

        Args:
            operation: the request.

        Raises:
            WorkerError: the worker died, or its last result was not received yet.
        """
        self._start()
        process = self._process
        if process is None or process.stdin is None or self._pending is not None:
            raise WorkerError(f"the {self.backend} worker is not ready for a request")
        if isinstance(operation, (Sample, Probe)):
            _stop_all_but(self)
        # Not by seek(): the worker shares the file's position.
        self._stderr_start = os.fstat(self._stderr.fileno()).st_size
        message = encode(operation)
        try:
            process.stdin.write(message)
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        except KeyboardInterrupt:
            # A partial request would corrupt the next one.
            self.close(kill=True)
            raise
        self._pending = operation

    def receive(self, on_message: Callable[[dict[str, Any]], None] | None = None) -> Any:
        """Return the result of the request that was sent.

        Args:
            on_message: called with messages before the reply.

        Raises:
            WorkerError: the worker died (the message has its signal or exit code) or hung.
            PydlbenchError: raised by the backend.
        """
        operation, self._pending = self._pending, None
        is_slow = isinstance(operation, (Build, CallFunction))
        try:
            return self._reply(self.prepare_timeout if is_slow else self.timeout, on_message)
        except KeyboardInterrupt:
            self.close(kill=True)
            raise

    def stop(self) -> bool:
        """Stop the process until its next request; return whether none of its threads runs."""
        if self._process is None or self._stopped:
            return True
        # A process that is starting or serving a request must not be stopped.
        if self._ready and self._pending is None:
            self._stopped = guardian.stop(self._process.pid)
            self.groups = self._other_groups() if self._stopped else set()
            for group in self.groups:
                guardian.stop(group)
        return self._stopped

    def resume(self) -> None:
        """Continue the process, if it was stopped."""
        if self._stopped and self._process is not None:
            for group in (self._process.pid, *self.groups):
                guardian.resume(group)
        self._stopped = False

    def _other_groups(self) -> set[int]:
        """Return the process groups of descendants that are in sessions of their own.

        A descendant whose parent has ended is a child of this process.
        """
        if not self.pid:
            return set()
        orphans = filter(self._has_started, children_of(os.getpid()))
        groups = set()
        for process in {*descendants_of(self.pid), *orphans} - {self.pid}:
            with contextlib.suppress(ProcessLookupError):
                groups.add(os.getpgid(process))
        return groups - {self.pid, os.getpgrp()}

    def _has_started(self, process: int) -> bool:
        """Whether a process has the variables or the standard error of this worker."""
        own = Path(f"/proc/{process}")
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if f"{FOLDER_VARIABLE}={self._folder}".encode() in (own / "environ").read_bytes():
                return True
            error = (own / "fd/2").stat()
            return os.path.samestat(error, os.fstat(self._stderr.fileno()))
        return False

    def stderr(self) -> str:
        """Return the process's output to standard error since its last request."""
        descriptor = self._stderr.fileno()
        size = os.fstat(descriptor).st_size
        # Not by seek() and read(): the worker shares the file's position.
        return os.pread(descriptor, size - self._stderr_start, self._stderr_start).decode(
            errors="replace"
        )

    def close(self, kill: bool = False) -> None:
        """End the process, by the end of its input, or at once with ``kill``.

        Its children end with it.
        """
        groups = self._other_groups()
        self.resume()
        self._pending = None
        process, self._process = self._process, None
        if self._replies is not None:
            self._replies.close()
            self._replies = None
        if process is None:
            return
        if kill:
            process.kill()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # Children that the user's code has forked would go on, on cores that are timed.
        for group in {process.pid, *groups} - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.groups = set()
        if process.stdout is not None:
            process.stdout.close()
        # A killed process has not removed its folder.
        shutil.rmtree(self._folder, ignore_errors=True)

    def discard(self) -> None:
        """Close the worker for good."""
        self.close(kill=True)
        self._stderr.close()

    def launch(self, from_template: bool = True) -> None:
        """Start the process without waiting until it is ready; the next request waits.

        Args:
            from_template: whether it may be a fork of a process that has imported the framework.
        """
        if self._process is not None:
            return
        setup = {
            "backend": self.backend,
            "device": self.device,
            "cpus": self.cpus,
            "heartbeat_s": self.heartbeat_s,
        }
        path = json.dumps(sys.path if self._python is None else [])
        inherited = inherited_environment(self._python)
        self._stderr.seek(0)
        self._stderr.truncate()
        self._stderr_start = 0
        self._folder = tempfile.mkdtemp(prefix="pydlbench-worker-")
        folder = {FOLDER_VARIABLE: self._folder}
        environment = {**worker_environment(inherited, self.cpus), **self._environment}
        self._process = None
        if from_template:
            own = {**environment, **folder}
            self._process = self._take_ahead(setup, own) or self._fork(setup, environment, folder)
        if self._process is None:
            self._process = subprocess.Popen(
                # -P: do not import a json.py from the working directory.
                [self._python or sys.executable, "-P", "-c", _BOOTSTRAP, json.dumps(setup), path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**environment, **folder},
                # Ctrl-C in the terminal shall reach only the host.
                start_new_session=True,
            )
        self.generation += 1
        self._ready = False
        if self._process.stdout is None:
            raise WorkerError(f"the {self.backend} worker has no output")
        self._replies = ReplyReader(self._process.stdout)

    def _take_ahead(
        self, setup: Mapping[str, Any], environment: Mapping[str, str]
    ) -> ForkedProcess | None:
        """Take the process that the command line has started; None if there is none, or no use."""
        usual = self._python is None and not self._environment
        if not usual or (self.backend, self.device) != ("native", "cpu"):
            return None
        if (started := ahead.take()) is None:
            return None
        pid, stdin, stdout, errors = started
        self._stderr.close()
        self._stderr = os.fdopen(errors, "w+b")
        process = ForkedProcess(os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))
        process.pid = pid
        try:
            process.stdin.write(encode({**setup, "environment": environment}))
            process.stdin.flush()
        except BrokenPipeError:  # it has ended
            process.kill()
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
            return None
        return process

    def _fork(
        self, setup: Mapping[str, Any], environment: Mapping[str, str], own: Mapping[str, str]
    ) -> ForkedProcess | None:
        """Start the process as a fork of a template; None if its backend has none."""
        if self._python is not None or self.device != "cpu":
            return None
        modules = declaration(self.backend).preload
        # The fork itself tells the C library to keep pages.
        late = dict(environment.items() & KEEP_PAGES.items())
        shared = {name: value for name, value in environment.items() if name not in late}
        if (template := template_for(modules, self.cpus, shared)) is None:
            return None
        try:
            process = template.fork({**setup, "environment": {**own, **late}}, self._stderr)
        except OSError:  # it has ended
            return None
        self._template = template
        return process

    def _start(self) -> None:
        self.launch()
        self.resume()
        if self._ready:
            return
        if isinstance(self._process, ForkedProcess) and not self._process.has_started(
            self.start_timeout
        ):
            self.close()
            self.launch(from_template=False)
        try:
            self._description = self._reply(self.start_timeout)
        except BaseException:
            self.close(kill=True)
            raise
        self._ready = True

    def _reply(
        self, timeout: float, on_message: Callable[[dict[str, Any]], None] | None = None
    ) -> Any:
        if self._replies is None:
            raise WorkerError(f"the {self.backend} worker is not running")
        try:
            message = self._replies.reply(timeout, self.silence, on_message)
        except EndOfWorkerError:
            raise self._died() from None
        except OverdueError:
            line = self._current_line()
            self.close(kill=True)
            where = f" at {line}" if line else ""
            raise WorkerError(
                f"the {self.backend} worker gave no answer for {timeout:g} s and was killed"
                f"{where}; a larger {self.allows} allows more"
            ) from None
        except SilentError:
            self.close(kill=True)
            raise WorkerError(
                f"the {self.backend} worker gave no sign of life for {self.silence:g} s and was "
                "killed: stopped, swapped out (try a smaller --batch), or hung in its library"
            ) from None
        except WorkerError:
            self.close(kill=True)  # later messages cannot be trusted
            raise
        if "error" in message:
            if is_fatal(message["error"]):
                self.close(kill=True)  # the next request gets a new process
            raise_error(message["error"])
        if self._template is not None:
            self._template.learn(message.get("imported", ()))
        return message["ok"]

    def _current_line(self) -> str:
        """Return the line at which a process hangs: ``my_model.py:7 in build``.

        It is the innermost frame outside of Python, libraries and this package; without such a
        frame, the innermost of all. Empty if the process does not write a traceback.
        """
        if self._process is None or not hasattr(signal, "SIGUSR1"):
            return ""
        descriptor = self._stderr.fileno()
        before = os.fstat(descriptor).st_size
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _TRACEBACK_TIMEOUT_S
        dump = ""
        while time.monotonic() < deadline and not dump.endswith("\n"):
            time.sleep(_TRACEBACK_TIMEOUT_S / 20)
            dump = os.pread(descriptor, _MAX_TRACEBACK_BYTES, before).decode(errors="replace")
        frames = [
            (Path(path), line, name)
            for path, line, name in re.findall(r'File "(.+)", line (\d+) in (.+)', dump)
        ]
        users = [frame for frame in frames if not _is_library(frame[0])]
        return next((f"{path.name}:{line} in {name}" for path, line, name in users or frames), "")

    def _died(self) -> WorkerError:
        process = self._process
        self.close()
        code = process.returncode if process else None
        self._stderr.seek(self._stderr_start)
        dump = self._stderr.read().decode(errors="replace")
        return WorkerError(f"the {self.backend} worker {exit_status(code, dump)}")


def start_together(workers: Sequence[Worker]) -> None:
    """Start processes at the same time, and wait until all are ready.

    An error of a process is raised by its next request.
    """
    for worker in workers:
        worker.launch()
    for worker in workers:
        with contextlib.suppress(PydlbenchError):
            worker.describe()


@contextlib.contextmanager
def launch_early(backend: str, device: str, cpus: Sequence[int]) -> Iterator[None]:
    """Start a process while this one still imports modules.

    It ends with the context, unless :func:`take_early` took it.

    Args:
        backend: name of the backend.
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs to pin the process's threads to, one each.
    """
    worker = Worker(backend, device, cpus)
    worker.launch()
    _early_workers.append(worker)
    try:
        yield
    finally:
        if worker in _early_workers:
            _early_workers.remove(worker)
            worker.discard()


def early_count() -> int:
    """Return the number of processes that were started early and not taken yet."""
    return len(_early_workers)


def take_early(backend: str, device: str, cpus: Sequence[int]) -> Worker | None:
    """Take the worker that was started early for a backend; None if there is no such worker."""
    for worker in _early_workers:
        if (worker.backend, worker.device, worker.cpus) == (backend, device, tuple(cpus)):
            _early_workers.remove(worker)
            return worker
    return None


def _stop_all_but(worker: Worker) -> None:
    """Stop all workers but one; wait for the threads of those that cannot be stopped to sleep."""
    stopped = [other.stop() for other in list(_workers) if other is not worker]
    if not all(stopped):
        time.sleep(_SPIN_TIME_S)


def _is_library(path: Path) -> bool:
    """Whether a file belongs to Python, an installed library or this package, or is no file."""
    package, standard = Path(__file__).parents[1], Path(os.__file__).parent
    by_name = "site-packages" in path.parts or str(path).startswith("<")
    return by_name or any(map(path.is_relative_to, (package, standard)))


def _name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__qualname__}"


class RemoteKernel(Generic[Facts]):
    """A kernel in a worker, with its facts.

    Attributes:
        worker: the worker.
        number: number of the kernel in its process.
        facts: facts of the kernel.
    """

    def __init__(self, worker: Worker, number: int, facts: Facts) -> None:
        self.worker = worker
        self.number = number
        self._generation = worker.generation
        self.facts = facts

    @property
    def generation(self) -> int:
        """Number of the worker's process that holds the kernel, counted from 1."""
        return self._generation

    @property
    def alive(self) -> bool:
        """Whether the process that holds the kernel is still running."""
        return self.worker.pid is not None and self.worker.generation == self._generation

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time samples in the worker.

        Raises:
            WorkerError: the worker died, now or since the kernel was prepared.
        """
        if not self.alive:
            raise WorkerError(f"the {self.worker.backend} worker that held this kernel has died")
        return msgspec.convert(self.worker.request(Sample(self.number, request)), Chunk)

    def trace(self) -> TraceFacts:
        """Record the step in the worker, so that samples can be traced.

        Raises:
            UnsupportedError: the step cannot be traced; the message has the reason.
        """
        return msgspec.convert(self.worker.request(TraceStep(self.number)), TraceFacts)

    def release(self) -> None:
        """Free the kernel's memory, if its process is still running."""
        if self.alive:
            self.worker.request(Release(self.number))


@contextlib.contextmanager
def releasing(kernels: Iterable[RemoteKernel[Any] | None]) -> Iterator[None]:
    """Release kernels at the end of the context, including those that are added meanwhile."""
    try:
        yield
    finally:
        for kernel in list(kernels):
            if kernel is not None:
                with contextlib.suppress(PydlbenchError):  # its worker may have died
                    kernel.release()

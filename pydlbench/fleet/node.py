"""Runs on a node: one sweep in a process of its own, on a slot that is held by locks.

An engine calls :func:`visit` on the node. This module uses nothing of the engine, and only the
waiting parent runs together with the sweep. Finished rows are in a file on the node: the next visit
of the same slot and round resumes it, even if a process was killed.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydlbench.devices.cpu.affinity import format_cpus
from pydlbench.errors import PydlbenchError, StoreError, WorkerError
from pydlbench.store.store import Store
from pydlbench.workers.environment import is_private

#: Where the locks of a node lie: all users of the node see it, and it is empty after a boot.
LOCKS: Path = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())  # noqa: S108 - as the comment says
# Interval for polling a lock or a sweep.
_POLL_S: Final = 0.2
# Time for a sweep to store its results after SIGTERM.
_GRACE_S: Final = 30.0
_LOG_BYTES: Final = 4096
_RUN_ENDED: Final = "the run was ended"
# Executes a program that the kernel ends (1 is PR_SET_PDEATHSIG) with the thread that has started
# it: a sweep without its visit would hold the slot for hours. It is a program of its own, because
# only the first thread may run Python between fork and exec.
_TIED: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("its visit was killed")
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlot:
    """Resources of one visit.

    Attributes:
        name: name of the slot, the same whenever the engine lists it.
        cpus: logical CPUs that the sweep is bound to; empty for all CPUs that the process may use.
        gpu: number or UUID of the GPU, as in ``CUDA_VISIBLE_DEVICES``; empty if there is no GPU, or
            if the node itself sets the variable.
    """

    name: str
    cpus: tuple[int, ...] = ()
    gpu: str = ""

    @property
    def prefix(self) -> str:
        """Prefix of a command line that runs on this slot."""
        card = f"CUDA_VISIBLE_DEVICES={self.gpu} " if self.gpu else ""
        return f"{card}taskset -c {format_cpus(self.cpus)} " if self.cpus else card

    def locks(self) -> list[str]:
        """Return names of the files that are locked for it, in an order that all slots share.

        The node is asked for UUIDs, so that a card has one name whether its number or UUID is
        given.
        """
        named = [name.strip() for name in self.gpu.split(",") if name.strip()]
        try:
            listed = list_cards() if named else []
        except (OSError, subprocess.SubprocessError):
            listed = []  # the given names are used
        cards = sorted({uuid for name in named for uuid in _held_cards(name, listed)})
        plain = [re.sub(r"[^A-Za-z0-9-]", "_", card) for card in cards]
        numbers = [f"cpu-{number}" for number in sorted(self.cpus)]
        return [f"pydlbench-{name}.lock" for name in (*plain, *numbers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a visit does.

    Attributes:
        fleet: id of the fleet's run.
        round: number of the round, counted from 0.
        text: content of the sweep's file.
        folder: folder for the store; None for a folder of the node, in which case the store is
            returned as bytes.
        limit_s: time in seconds after which the sweep is terminated.
        wait_s: time to wait for a slot that is in use, in seconds.
        program: program to call; ``pydlbench`` of the same interpreter by default.
    """

    fleet: str
    round: int
    text: str
    folder: str | None = None
    limit_s: float = 86400.0
    wait_s: float = 600.0
    program: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Result of a visit.

    Attributes:
        slot: slot of the visit, with its CPUs and GPU filled in.
        reason: why the sweep is incomplete; None if it is complete.
        refused: whether the sweep refused its input; another try would be refused, too.
        began: start of the visit, in seconds since 1970 by the node's clock.
        ended: end of the visit, in seconds since 1970 by the node's clock.
        data: bytes of the store; None if the store is in the given folder, or if there is no store.
    """

    slot: NodeSlot
    reason: str | None
    refused: bool = False
    began: float
    ended: float
    data: bytes | None = None


# Time limit for the driver to list its cards.
_LIST_TIMEOUT_S: Final = 60.0


def list_cards() -> list[tuple[str, str]]:
    """Return UUID and model of each GPU, in the order of the bus.

    Raises:
        OSError: there is no ``nvidia-smi``.
        SubprocessError: it lists none, or hangs because of a faulty driver.
    """
    done = subprocess.run(  # a program of the driver, found as the user's shell finds it
        ["nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader"],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
        timeout=_LIST_TIMEOUT_S,
    )
    lines = [line.partition(",") for line in done.stdout.splitlines() if line.strip()]
    return [(uuid.strip(), model.strip()) for uuid, _, model in lines]


def _held_cards(named: str, listed: Sequence[tuple[str, str]]) -> list[str]:
    """Return the UUIDs of a card as CUDA names it, or the name itself if that is ambiguous."""
    uuids = [uuid for uuid, _ in listed]
    if not named.isdecimal():  # CUDA takes the beginning of a UUID
        return [uuid for uuid in uuids if uuid.startswith(named)] or [named]
    # CUDA counts by speed, unless it is told to count as they are listed; alike cards are in order.
    by_place = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if by_place or len({model for _, model in listed}) == 1:
        return uuids[int(named) : int(named) + 1] or [named]
    return [named]


def look(name: str | None = None) -> NodeSlot:
    """Return the slot that this process has been given.

    Args:
        name: name of the slot; by default the host's name, followed by the CPUs or GPUs if the slot
            does not have all of them.
    """
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    own = socket.gethostname()
    if cards:
        own += f":{cards}"
    elif len(cpus) < (os.cpu_count() or 0):
        own += f":{format_cpus(cpus)}"
    return NodeSlot(name=name or own, cpus=cpus, gpu=cards)


def visit(slot: NodeSlot, order: Order) -> Brought:
    """Run or resume the sweep on a slot; errors of the node are returned, not raised.

    Args:
        slot: slot to run on; CPUs or GPU that it leaves open are taken from this process.
        order: sweep to run, with its limits.
    """
    own = look(slot.name)
    slot = replace(slot, cpus=slot.cpus or own.cpus, gpu=slot.gpu or own.gpu)
    began = time.time()
    data, refused = None, False
    try:
        folder = _folder(order)
        path = folder / store_name(slot.name, order.round)
        with exclusive(slot, order.wait_s) as locks:
            reason, refused = _sweep(slot, order, path, locks)
        if order.folder is None and path.exists():
            data = path.read_bytes()
    except (OSError, PydlbenchError) as error:
        reason = str(error)
    return Brought(
        slot=slot, reason=reason, refused=refused, began=began, ended=time.time(), data=data
    )


def longest(order: Order) -> float:
    """Return the seconds after which a visit has ended: waiting, running, and terminating."""
    return order.wait_s + order.limit_s + 2 * _GRACE_S


def store_name(node: str, number: int) -> str:
    """Return the file name of a visit's store; it is different for each node."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", node)[:80]
    digest = hashlib.sha256(node.encode("utf-8", "backslashreplace")).hexdigest()[:6]
    return f"{plain}-{digest}.{number}.sqlite"


@contextlib.contextmanager
def exclusive(slot: NodeSlot, wait_s: float) -> Iterator[tuple[int, ...]]:
    """Lock a slot against all other processes on the node that ask for it.

    A process that inherits the descriptors holds the locks as well, such as a sweep that is
    terminated because its visit was killed.

    Args:
        slot: slot whose CPUs and GPU are locked.
        wait_s: time to wait for other processes that hold the slot, in seconds.

    Yields:
        The descriptors.

    Raises:
        WorkerError: the slot is still locked after ``wait_s``.
    """
    end = time.monotonic() + wait_s
    held: list[int] = []
    try:
        for name in slot.locks():
            held.append(_opened(LOCKS / name))
            while True:
                try:
                    fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > end:
                        raise WorkerError(
                            f"{slot.name}: another process holds {LOCKS / name} for more than "
                            f"{wait_s:g} s: two runs on one slot"
                        ) from error
                    if _ended.wait(_POLL_S):
                        raise WorkerError(_RUN_ENDED) from error
        yield tuple(held)
    finally:
        for descriptor in held:
            os.close(descriptor)


def _opened(path: Path) -> int:
    """Open a lock file, which may be another user's; its content does not matter."""
    # A link is refused, and a pipe in its place does not block.
    reading = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, reading)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            fresh = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            try:
                os.fchmod(fresh, 0o644)  # other users have to open it, whatever the umask is
            finally:
                os.close(fresh)
        return os.open(path, reading)


def _folder(order: Order) -> Path:
    if order.folder is not None:
        return Path(order.folder)
    own = Path(tempfile.gettempdir()) / f"pydlbench-fleet-{os.getuid()}"
    own.mkdir(exist_ok=True, mode=0o700)
    if not is_private(own):
        raise WorkerError(f"{own}: another user's, or others may write to it; set TMPDIR")
    path = own / order.fleet
    path.mkdir(exist_ok=True, mode=0o700)
    return path


def _sweep(
    slot: NodeSlot, order: Order, path: Path, locks: tuple[int, ...]
) -> tuple[str | None, bool]:
    """Run or resume the sweep; return why it is incomplete, and whether that would recur."""
    file = path.with_suffix(".toml")
    file.write_text(order.text, encoding="utf-8")
    begun, status = _stored_sweep(path)
    if status == "done":  # its visit was killed before it returned
        return _complete(path)
    if status == "running":  # by another container, it seems; but this visit holds the slot
        with Store.open(path) as store:
            store.end(begun)
    words = ["sweep", "--resume", begun] if begun else ["sweep", str(file)]
    code, message = _run(slot, order, [*words, "--quiet", "--store", str(path)], path, locks)
    if code == 2 and begun:
        # The machine or its libraries have changed: the earlier rows stay in another file.
        path.replace(path.with_suffix(f".{begun}.sqlite"))
        words = ["sweep", str(file), "--quiet", "--store", str(path)]
        code, message = _run(slot, order, words, path, locks)
    if _stored_sweep(path)[1] == "done":
        return _complete(path)
    if path.exists():
        with Store.open(path) as store:
            store.settle()
    return message or f"the sweep ended with {code} and without results", code == 2


def _complete(path: Path) -> tuple[None, bool]:
    """Delete the files of a visit except its store; return that it is complete."""
    with Store.open(path) as store:
        store.settle()
    for name in (".toml", ".log"):
        path.with_suffix(name).unlink(missing_ok=True)
    return None, False


def _stored_sweep(path: Path) -> tuple[str, str]:
    """Return id and status of the sweep in a store; two empty texts if there is none.

    A file that cannot be read is renamed.
    """
    if not path.exists():
        return "", ""
    try:
        with Store.open(path, readonly=True) as store:
            runs = [run for run in store.runs() if run.kind == "sweep"]
    except StoreError:
        path.replace(path.with_suffix(f".damaged-{time.time():.0f}"))
        return "", ""
    return (runs[0].id, runs[0].status) if runs else ("", "")


# Sweeps of this process, for an engine that runs in it; and whether that engine has ended: a later
# visit must not start its sweep, because nobody would end it.
_running: set[subprocess.Popen[bytes]] = set()
_ended = threading.Event()
_starting = threading.Lock()


def allow() -> None:
    """Let visits in this process start sweeps, again after :func:`end_all`."""
    _ended.clear()


def end_all() -> None:
    """Terminate the sweeps of this process; their finished rows are stored."""
    with _starting:
        _ended.set()
        for process in _running:
            process.terminate()


def _run(
    slot: NodeSlot, order: Order, words: Sequence[str], path: Path, locks: tuple[int, ...]
) -> tuple[int, str]:
    """Run a command line on a slot; return its exit code and the last line of its output."""
    program = order.program or (sys.executable, "-m", "pydlbench")
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": slot.gpu} if slot.gpu else {})}
    before = os.sched_getaffinity(0)
    with path.with_suffix(".log").open("w+b") as log:
        tied = (sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()))
        with _starting:
            if _ended.is_set():
                raise WorkerError(_RUN_ENDED)
            # The process inherits the CPUs of this thread, which only waits.
            os.sched_setaffinity(0, slot.cpus)
            try:
                process = subprocess.Popen(
                    [*tied, *program, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env=environment,
                    pass_fds=locks,
                )
            finally:
                os.sched_setaffinity(0, before)
            _running.add(process)
        try:
            code = _wait(process, order.limit_s)
        finally:
            _running.discard(process)
        log.seek(max(0, log.tell() - _LOG_BYTES))
        lines = log.read().decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if code is None:
        return 1, f"no end within {order.limit_s:g} s"
    if code < 0:
        return code, f"the sweep was killed by signal {-code}"
    return code, last.removeprefix("pydlbench: ")


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Return the exit code; None if the process exceeded its time limit."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None

"""Several processes of PyTorch that compute together, asked as one; see ``steps.torch.ranks``.

Those of this machine are workers of the session, each with its own cores or GPU. Under ``torchrun``
(``RANK`` and ``WORLD_SIZE`` in the environment) each of its processes has one, and the host of
rank 0 leads: the others follow until it is done.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from pydlbench.devices.cpu.affinity import choose_cpus, split_cpus
from pydlbench.errors import PydlbenchError, UsageError, WorkerError
from pydlbench.records.step import Check, StepFacts
from pydlbench.steps import operations
from pydlbench.timing.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.timing.chunk import Request
    from pydlbench.workers.host import Worker


#: Seconds to wait for a rank.
LIMIT_S: Final = 60.0
# Once one rank has failed, the others fail for want of it: who was first is known a little later.
_SETTLE_S: Final = 3.0
# How a worker's end is told, and what a rank says that another one has left.
_GONE: Final = re.compile(r"was killed|ended with exit code")
_MISSES: Final = re.compile(
    r"(?i)gloo|nccl|connection (closed|reset)|broken pipe|timed? ?out|barrier"
)


class Torchrun(msgspec.Struct, frozen=True):
    """Which rank a process is, as ``torchrun`` says in its environment.

    Attributes:
        rank: of all.
        ranks: how many there are.
        local: number of the rank on its machine.
        here: ranks on this machine.
    """

    rank: int
    ranks: int
    local: int = 0
    here: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """Read an environment; None where ``torchrun`` has not started this process.

        Raises:
            UsageError: a value is no number.
        """
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            return None
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        given = [environment.get(name) for name in names]
        for name, text in zip(names, given, strict=True):
            if text is not None and not text.isdecimal():
                raise UsageError(f"{name}={text}: not a whole number; nearest: start with torchrun")
        return cls(*(int(text) for text in given if text is not None))


def places(session: Session, count: int | None, device: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return device and CPUs of each rank that this process starts.

    Args:
        session: on a CPU each rank has as many cores of its own as it has threads; ranks on GPUs,
            and those that ``torchrun`` has started on one machine, share them.
        count: of ranks; None where ``torchrun`` has started this process as one of them.
        device: ``cpu`` or ``cuda``.

    Raises:
        UsageError: there are fewer CPUs.
    """
    if count is None:
        own = Torchrun.of(os.environ)
        assert own is not None, "whoever says so has looked"
        part = split_cpus(session.cpus, own.here)[own.local]
        return [(device if device == "cpu" else f"cuda:{own.local}", part)]
    if device != "cpu":
        parts = split_cpus(session.cpus, count)
        return [(f"cuda:{rank}", part) for rank, part in enumerate(parts)]
    cpus = choose_cpus(session.facts, len(session.cpus) * count)
    return [("cpu", part) for part in split_cpus(cpus, count)]


def follow(session: Session, device: str, limit_s: float = LIMIT_S) -> None:
    """Be the rank that ``torchrun`` has started this process as, until rank 0 says it is over.

    Args:
        session: whose worker it is.
        device: ``cpu`` or ``cuda``.
        limit_s: seconds to wait for a rank.

    Raises:
        WorkerError: another rank is gone.
    """
    (worker,) = session.ranks(places(session, None, device))
    place = {"ranks": 0, "file": "", "limit_s": limit_s}
    worker.call(operations.follow_ranks, lambda _: None, **place, rank=0)


class Ranks:
    """Ranks that are there until they are closed. Use as a context manager.

    Args:
        session: whose workers they are.
        count: how many; None where ``torchrun`` has started this process.
        device: ``cpu`` or ``cuda``.
        limit_s: seconds to wait for a rank.

    Attributes:
        hosts: name of the machine that each is on.
        library: that carries the data.

    Raises:
        WorkerError: one does not come; it is named.
        UsageError: there are fewer CPUs.
        UnsupportedError: PyTorch lacks the library.
    """

    def __init__(
        self, session: Session, count: int | None, device: str, limit_s: float = LIMIT_S
    ) -> None:
        self._failed: dict[int, PydlbenchError] = {}
        self._threads: list[threading.Thread] = []
        # A rank says every few seconds that it lives: sooner than a message is given up.
        self._silence_s = max(10.0, limit_s / 2)
        started = Torchrun.of(os.environ) if count is None else None
        self._size = started.ranks if started is not None else count
        self._folder = tempfile.TemporaryDirectory(prefix="pydlbench-ranks-")
        self._workers: Sequence[Worker] = session.ranks(places(session, count, device))
        #: Of each rank.
        self.threads = len(self._workers[0].cpus)
        place = {
            "ranks": count or 0,
            "file": str(Path(self._folder.name) / "store") if count else "",
            "limit_s": limit_s,
        }
        for worker in self._workers:
            worker.launch()
        for rank, worker in enumerate(self._workers[1:], start=1):
            thread = threading.Thread(
                target=self._follow, args=(worker, {**place, "rank": rank}), daemon=True
            )
            thread.start()
            self._threads.append(thread)
        try:
            self._begin(self._workers[0])
            told = self._asked(operations.join_ranks, **place, rank=0)
        except BaseException:
            self.close()
            raise
        self.hosts: list[str] = told["hosts"]
        self.library: str = told["library"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def processes(self) -> list[int | None]:
        """The ranks of this machine, by the numbers that the system has for them."""
        return [one.pid for one in self._workers]

    def ask(self, **command: Any) -> list[Any]:
        """Have all ranks do something and return what each says; see ``steps.torch.ranks.lead``.

        Raises:
            WorkerError: a rank is gone or hangs; it is named.
            PydlbenchError: what rank 0 raised.
        """
        found: list[Any] = self._asked(operations.lead_ranks, command=command)
        return found

    def sample(self, number: int, request: Request) -> list[Chunk]:
        """Time samples of a subject by its number; return each rank's."""
        found = self.ask(what="sample", number=number, request=msgspec.to_builtins(request))
        return [msgspec.convert(one, Chunk) for one in found]

    def close(self) -> None:
        """End all ranks: politely, where they still listen."""
        if self._workers and self._workers[0].pid is not None and not self._failed:
            with contextlib.suppress(PydlbenchError):
                self.ask(what="end")
                for thread in self._threads:
                    thread.join(_SETTLE_S)
        for worker in self._workers[1:]:
            _kill(worker)
        for thread in self._threads:
            thread.join(_SETTLE_S)
        for worker in self._workers:
            worker.close(kill=True)
        self._workers = ()
        self._folder.cleanup()

    def _begin(self, worker: Worker) -> None:
        """Wait until a process is there; loading PyTorch may keep it silent for long."""
        worker.describe()
        worker.silence = self._silence_s

    def _asked(self, function: Any, **arguments: Any) -> Any:
        try:
            return self._workers[0].call(function, lambda _: None, **arguments)
        except WorkerError as error:
            raise self._named(error) from error

    def _follow(self, worker: Worker, place: dict[str, Any]) -> None:
        try:
            self._begin(worker)
            worker.call(operations.follow_ranks, lambda _: None, **place)
        except PydlbenchError as error:
            self._failed[place["rank"]] = error
            _kill(worker)  # its connections with it: the others need not wait for the limit

    def _named(self, error: PydlbenchError) -> PydlbenchError:
        """Return what has happened, by the rank that it has happened to first."""
        for thread in self._threads:
            thread.join(_SETTLE_S / len(self._threads))
        self._failed.setdefault(0, error)
        # A process that is gone comes first, then what its code has raised: the others miss it.
        texts = {rank: str(one) for rank, one in self._failed.items()}
        gone = [rank for rank, text in texts.items() if _GONE.search(text)]
        own = [rank for rank, text in texts.items() if not _MISSES.search(text)]
        if not gone and not own:
            return WorkerError(f"a rank does not answer: {texts[0]}")
        rank = (gone or own)[0]
        text = texts[rank].removeprefix("the torch worker ")
        return WorkerError(f"rank {rank} of {self._size}: {text}")


def _kill(worker: Worker) -> None:
    """End a process from another thread than the one that waits for it, which then sees its end."""
    if worker.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)


class RankedStep:
    """A step of all ranks, to be sampled as that of one: as long as on the slowest.

    Args:
        case: the step, with its ranks.
        session: whose workers they are.

    Attributes:
        facts: of rank 0, with a check that all have the same gradients from other inputs.
    """

    def __init__(self, case: StepSpec, session: Session) -> None:
        device = "cuda" if case.on_gpu else "cpu"
        self._ranks = Ranks(session, case.ranks, device)
        try:
            told = self._ranks.ask(what="step", case=case.to_dict())
        except BaseException:
            self._ranks.close()
            raise
        self._number: int = told[0]["number"]
        #: Which processes: those of rank 0 have another number each time.
        self.generation = self._ranks.processes[0] or 0
        facts = msgspec.convert(told[0]["facts"], StepFacts, strict=False, str_keys=True)
        check = _same_gradients([one["gradients"] for one in told])
        self.facts = msgspec.structs.replace(facts, checks=(check,))

    def sample(self, request: Request) -> Chunk:
        """Time samples on all ranks."""
        return merged(self._ranks.sample(self._number, request))

    def release(self) -> None:
        """End the ranks."""
        self._ranks.close()


def _same_gradients(sums: Sequence[Sequence[float]]) -> Check:
    """Say whether the sums of squares of all gradients are finite and the same on all ranks."""
    finite = all(map(math.isfinite, (value for own in sums for value in own)))
    same = all(own == sums[0] for own in sums)
    if finite and same:
        detail = f"{len(sums[0])} gradients are the same on {len(sums)} ranks, from other inputs"
        return Check(name="gradients", status="ok", detail=detail)
    what = "are not the same on all ranks" if finite else "are not finite"
    return Check(name="gradients", status="failed", detail=f"gradients {what}")


def merged(chunks: Sequence[Chunk]) -> Chunk:
    """Return the chunk of all ranks: a call takes as long as it does on the slowest.

    Threads that wait for a core are left out: those of gloo have none but those that compute. That
    others had the cores is known from the canary, and from stolen time.
    """
    counted = [one.cpu_s for one in chunks if one.cpu_s is not None]
    others = [one.others_s for one in chunks if one.others_s is not None]
    faults = [one.faults for one in chunks if one.faults is not None]
    return Chunk(
        seconds=tuple(map(max, zip(*(one.seconds for one in chunks), strict=True))),
        steal_s=sum(one.steal_s for one in chunks),
        wall_s=max(one.wall_s for one in chunks),
        threads=sum(one.threads for one in chunks),
        faults=sum(faults) if faults else None,
        cpu_s=sum(counted) if counted else None,
        others_s=sum(others) if others else None,
    )

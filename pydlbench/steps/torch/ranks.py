"""One rank of several: collectives and data-parallel steps in PyTorch, led by rank 0.

The host asks rank 0 only. What it asks for is broadcast to the other ranks, which follow; all of
them do it together, and what each has found is gathered. So ranks that were started elsewhere, by
``torchrun`` on other machines, are led in the same way as those that the host has started itself.

Commands travel over gloo, whatever library the data takes. Before each chunk of samples all ranks
meet at a barrier that names those which do not come.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pydlbench.backends.host_clock import Account
from pydlbench.devices.cpu.affinity import bind
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.models import build_model
from pydlbench.records.collectives import partner_of
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Protocol

    from pydlbench.backends.frameworks.backend import FrameworkBackend

    class Subject(Protocol):
        """What all ranks time together."""

        def sample(self, request: Request) -> Chunk:
            """Time the requested samples on this rank."""


_FLOAT: Final = 4
# The others wait for what rank 0 is asked next; what is wrong meanwhile closes their connections.
_PATIENCE: Final = timedelta(days=1)
# Results are compared in slices of so many elements, operands repeat with a prime period: a piece
# at a wrong place has other numbers.
_SLICE: Final = 1 << 20
_PERIOD: Final = 251
# Rows of the matrices that are multiplied beside an all-reduce, and products that are timed alone.
_ROWS: Final = 384
_PRODUCTS: Final = 30


class _Group:
    """The ranks as one of them sees them.

    Args:
        backend: of this process.
        place: ``rank``, ``ranks``, ``file`` (that they meet at; empty where the environment says
            where, as ``torchrun`` has it) and ``limit_s`` (to wait for a rank).
    """

    def __init__(self, backend: FrameworkBackend, place: dict[str, Any]) -> None:
        self.backend = backend
        self.limit = timedelta(seconds=place["limit_s"])
        self.on_gpu = backend.device != "cpu"
        if self.on_gpu:
            torch.cuda.set_device(backend.device)
        self.library = "nccl" if self.on_gpu else "gloo"
        if self.on_gpu and not dist.is_nccl_available():
            raise UnsupportedError("this PyTorch has no NCCL; nearest: --device cpu")
        how: dict[str, Any] = {}
        if place["file"]:
            store = dist.FileStore(place["file"], place["ranks"])
            how = {"store": store, "rank": place["rank"], "world_size": place["ranks"]}
        with _unbound(backend.cpus):
            dist.init_process_group(self.library, timeout=self.limit, **how)
            self.control = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._arenas: dict[str, torch.Tensor] = {}
        self.subjects: list[Subject] = []
        #: The last network whose gradients are shared.
        self.network: torch.nn.Module | None = None

    def tell(self, command: dict[str, Any] | None) -> dict[str, Any]:
        """Send a command from rank 0 to all; the others give None and receive it."""
        held = [command]
        dist.broadcast_object_list(held, src=0, group=self.control)
        found: dict[str, Any] = held[0] or {}
        return found

    def gather(self, found: Any) -> list[Any]:
        """Return what each rank has found; an empty list on all but rank 0."""
        every: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(found, every, dst=0, group=self.control)
        return every or []

    def meet(self) -> None:
        """Wait until all ranks are here.

        Raises:
            RuntimeError: some do not come; it names them.
        """
        dist.monitored_barrier(self.control, self.limit, wait_all_ranks=True)

    def line_up(self) -> None:
        """Have all ranks begin as close together as a message takes, with nothing under way."""
        dist.barrier()
        self.wait()

    def wait(self) -> None:
        """Return when the device has done everything that was called."""
        if self.on_gpu:
            torch.cuda.synchronize(self.backend.device)

    def arena(self, name: str, elements: int) -> torch.Tensor:
        """Return so many elements of a buffer that all collectives share; it grows as needed."""
        known = self._arenas.get(name)
        if known is None or len(known) < elements:
            self._arenas.pop(name, None)
            known = self._arenas[name] = torch.empty(elements, device=self.backend.device)
        return known[:elements]


_group: _Group | None = None


@contextlib.contextmanager
def _unbound(cpus: Sequence[int]) -> Iterator[None]:
    """Let threads that are started meanwhile run on all CPUs of the process.

    OpenMP has bound this thread to one of them, and gloo's would inherit that: all of them would
    wait for the core that computes.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    bind(cpus)
    try:
        yield
    finally:
        bind(before)


# -----------------------------------------------------------------------------
# What a host asks for.


def join(
    backend: FrameworkBackend, tell: Callable[[dict[str, Any]], None], **place: Any
) -> dict[str, Any]:
    """Become rank 0 of several; see :class:`_Group` for the place.

    Returns:
        How many ranks there are, their hosts, and the library that carries the data.
    """
    global _group  # noqa: PLW0603 - a process is in one group
    del tell
    _group = _Group(backend, place)
    hosts = _group.gather(socket.gethostname())
    return {"ranks": _group.size, "hosts": hosts, "library": _group.library}


def follow(backend: FrameworkBackend, tell: Callable[[dict[str, Any]], None], **place: Any) -> None:
    """Be another rank than 0 until rank 0 says that it is over.

    What goes wrong on this rank alone ends it, and with it the waiting of the others.
    """
    global _group  # noqa: PLW0603 - a process is in one group
    del tell
    group = _group = _Group(backend, place)
    group.gather(socket.gethostname())
    try:
        while True:
            command = group.tell(None)
            if command["what"] == "end":
                return
            group.gather(_perform(group, command))
    finally:
        # Its connections with it: the others learn that it is gone.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def lead(
    backend: FrameworkBackend, tell: Callable[[dict[str, Any]], None], command: dict[str, Any]
) -> list[Any]:
    """Have all ranks do something; return what each has found, rank 0 first.

    Args:
        backend: not asked.
        tell: likewise.
        command: ``what`` is ``collective``, ``step``, ``sample``, ``overlap`` or ``end``; the rest
            is what that takes.
    """
    del backend, tell
    assert _group is not None, "the host joins first"
    _group.tell(command)
    if command["what"] == "end":
        return []
    return _group.gather(_perform(_group, command))


def _perform(group: _Group, command: dict[str, Any]) -> Any:
    """Do on this rank what all ranks are asked for."""
    match command:
        case {"what": "collective", "operation": str(operation), "bytes": int(size)}:
            subject = _Collective(group, operation, size, command.get("round"))
            wrong = subject.wrong() if command["checks"] else 0
            group.subjects.append(subject)
            return {"number": len(group.subjects) - 1, "wrong": wrong}
        case {"what": "step", "case": dict(case)}:
            return _prepare_step(group, StepSpec.from_dict(case))
        case {"what": "sample", "number": int(number), "request": dict(request)}:
            group.meet()
            chunk = group.subjects[number].sample(msgspec.convert(request, Request))
            return msgspec.to_builtins(chunk)
        case {"what": "overlap", "bytes": int(size)}:
            group.meet()
            return _overlap(group, size)
    raise UsageError(f"{command['what']}: nothing that ranks do")


# -----------------------------------------------------------------------------
# Collectives.


class _Collective:
    """One collective of one size, on this rank.

    Args:
        group: of the ranks.
        operation: one of ``records.collectives.OPERATIONS``, or ``pairs``.
        size: in bytes.
        round_: of ``pairs``: in each round every rank has another partner, by the circle method.
    """

    def __init__(self, group: _Group, operation: str, size: int, round_: int | None) -> None:
        self._group = group
        self._operation = operation
        # All-gather and reduce-scatter have a piece of equal size for each rank.
        part = max(1, size // _FLOAT // group.size)
        divided = operation in ("all-gather", "reduce-scatter")
        count = part * group.size if divided else max(1, size // _FLOAT)
        self._given = group.arena("given", part if operation == "all-gather" else count)
        self._source = group.arena("source", len(self._given))
        taken = {"all-reduce": 0, "broadcast": 0, "reduce-scatter": part}.get(operation, count)
        self._taken = group.arena("taken", taken)
        following, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        if round_ is not None:
            following = before = partner_of(group.rank, group.size, round_)
        self._to, self._from = following, before
        self._call = self._calls()

    def _calls(self) -> Callable[[], Any]:
        given, taken = self._given, self._taken
        match self._operation:
            case "all-reduce":
                return lambda: dist.all_reduce(given)
            case "broadcast":
                return lambda: dist.broadcast(given, 0)
            case "all-gather":
                gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
                return lambda: gather(taken, given)
            case "reduce-scatter":
                scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
                return lambda: scatter(taken, given)
        if self._to == self._group.rank:  # an odd one out
            return lambda: None

        def exchange() -> None:
            sends = dist.P2POp(dist.isend, given, self._to)
            receives = dist.P2POp(dist.irecv, taken, self._from)
            for one in dist.batch_isend_irecv([sends, receives]):
                one.wait()

        return exchange

    def sample(self, request: Request) -> Chunk:
        """Time calls, the ranks lined up before each sample; a sum is taken of fresh numbers."""
        group, now = self._group, time.perf_counter
        self._source.uniform_(-1, 1)
        self._given.copy_(self._source)
        for _ in range(min(request.untimed, 10)):
            self._call()
        group.wait()
        seconds = []
        inner = range(request.inner)
        with Account(group.backend.cpus) as account:
            for _ in range(request.samples):
                self._given.copy_(self._source)
                group.line_up()
                start = now()
                for _ in inner:
                    self._call()
                group.wait()
                seconds.append((now() - start) / request.inner)
        faults = account.faults / (request.samples * request.inner)
        return account.chunk(seconds, faults=faults)

    def wrong(self) -> int:
        """Run it once on numbers whose results are exact; return how many elements are wrong."""
        group = self._group
        ranks = range(group.size)
        _fill(self._given, group.rank)
        self._taken.fill_(float("nan"))
        self._call()
        group.wait()
        expected: list[tuple[torch.Tensor, Iterable[int], int]]
        match self._operation:
            case "all-reduce":
                expected = [(self._given, ranks, 0)]
            case "broadcast":
                expected = [(self._given, (0,), 0)]
            case "reduce-scatter":
                expected = [(self._taken, ranks, group.rank * len(self._taken))]
            case "all-gather":
                part = len(self._given)
                expected = [(self._taken[r * part : (r + 1) * part], (r,), 0) for r in ranks]
            case _:
                expected = [(self._taken, (self._from,), 0)] if self._to != group.rank else []
        return sum(_differing(found, of, first) for found, of, first in expected)


def _numbers(first: int, count: int, rank: int) -> torch.Tensor:
    """Return whole numbers that depend on the place and the rank; sums of them are exact."""
    places = torch.arange(first, first + count)
    return ((places * 7 + rank * 13) % _PERIOD).to(torch.float32)


def _fill(tensor: torch.Tensor, rank: int) -> None:
    for first in range(0, len(tensor), _SLICE):
        piece = tensor[first : first + _SLICE]
        piece.copy_(_numbers(first, len(piece), rank))


def _differing(found: torch.Tensor, of: Iterable[int], offset: int) -> int:
    """Return how many elements are not the sum of what some ranks had at these places."""
    wrong = 0
    for first in range(0, len(found), _SLICE):
        piece = found[first : first + _SLICE].cpu()
        expected = sum(_numbers(offset + first, len(piece), rank) for rank in of)
        wrong += int((piece != expected).sum())
    return wrong


# -----------------------------------------------------------------------------
# Data-parallel steps.


def shared(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module that takes the mean of its gradients over all ranks, with PyTorch's defaults.

    The weights become those of rank 0.
    """
    assert _group is not None, "asked for ranks, a host joins first"
    places = [_group.backend.device] if _group.on_gpu else None
    _group.network = DistributedDataParallel(module, device_ids=places)
    return _group.network


def _prepare_step(group: _Group, case: StepSpec) -> dict[str, Any]:
    """Make a step ready on this rank, with inputs of its own; what it shares is looked at."""
    from pydlbench.steps.inputs import make_batch
    from pydlbench.steps.serving import prepare_model
    from pydlbench.steps.torch.own import prepare_step

    here = msgspec.structs.replace(case, device=group.backend.device)
    plain = StepPreparation(checks=False)
    if case.own is None:
        model = build_model(case.model, case.batch, **case.options)
        batch = make_batch(model, case.seed + group.rank)
        kernel = prepare_model(group.backend, model, here, plain, batch)
    else:
        other = msgspec.structs.replace(here, seed=case.seed + group.rank)
        kernel = prepare_step(group.backend, other, plain)
    # Buckets are put into the order in which gradients come in the first step; twice is steady.
    kernel.sample(Request(samples=2))
    assert group.network is not None, "the case has ranks"
    gradients = [one.grad for one in group.network.parameters() if one.grad is not None]
    sums = [float(one.double().square().sum()) for one in gradients]
    group.subjects.append(kernel)
    return {"number": len(group.subjects) - 1, "facts": kernel.facts, "gradients": sums}


# -----------------------------------------------------------------------------
# Computing beside an all-reduce.


def _overlap(group: _Group, size: int) -> dict[str, float | None]:
    """Multiply matrices alone, and beside an all-reduce; see ``records.collectives.OverlapRow``.

    On a GPU products are only enqueued, and nobody counts those beside it: None there.
    """
    now = time.perf_counter
    buffer = group.arena("given", size // _FLOAT)
    bucket = group.arena("source", size // _FLOAT)
    buffer.uniform_(-1, 1)

    def copied() -> None:  # as DistributedDataParallel fills a bucket, and empties it
        torch.mul(buffer, 0.5, out=bucket)
        buffer.copy_(bucket)

    copied()
    group.wait()
    begin = now()
    copied()
    group.wait()
    copy_s = now() - begin
    if group.on_gpu:
        return {"compute": None, "transfer": None, "copy_s": copy_s}
    one, other = torch.rand(_ROWS, _ROWS), torch.rand(_ROWS, _ROWS)
    out = torch.empty(_ROWS, _ROWS)

    def alone() -> float:
        begin = now()
        for _ in range(_PRODUCTS):
            torch.mm(one, other, out=out)
        return (now() - begin) / _PRODUCTS

    products, transfers, besides, counts = [], [], [], []
    for _ in range(3):
        group.line_up()
        products.append(alone())
        group.line_up()
        begin = now()
        dist.all_reduce(buffer)
        transfers.append(now() - begin)
        group.line_up()
        begin, count = now(), 0
        work = dist.all_reduce(buffer, async_op=True)
        while not work.is_completed():
            torch.mm(one, other, out=out)
            count += 1
        besides.append(now() - begin)
        counts.append(count)
        work.wait()
        buffer.uniform_(-1, 1)
    beside = sum(besides)
    return {
        "compute": min(1.0, sum(counts) * median(products) / beside),
        "transfer": min(1.0, sum(transfers) / beside),
        "copy_s": copy_s,
    }

"""Engines that run visits, behind one small protocol. Only this module imports them.

Dask's workers have one thread each, so that a slot has one visit at a time; its profiler is
switched off in workers of this process. With Slurm each visit is a job of its own on a named node,
on which nothing else runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydlbench.errors import PydlbenchError, UsageError, WorkerError, nearest
from pydlbench.fleet.node import (
    Brought,
    NodeSlot,
    Order,
    allow,
    end_all,
    list_cards,
    longest,
    look,
    visit,
)

_INSTALL: Final = "pip install 'pydlbench[fleet]'"
_FORMS: Final = "local, dask://HOST:PORT, tls://HOST:PORT, slurm"
_CONNECT_S: Final = 10.0
# Time limit for closing a client or a cluster, which may wait for a visit to end.
_CLOSE_S: Final = 10.0
# Interval for polling the files of jobs, which are on a network file system.
_POLL_S: Final = 0.2
# States of sinfo, by their beginnings, in which no job ever begins on a node.
_UNUSABLE: Final = (
    *("down", "drain", "drng", "fail", "futr", "inval", "maint", "no_r", "rebo", "unk"),
)
_NO_ANSWER: Final = "*"


@dataclass(frozen=True, slots=True)
class Finished:
    """A visit that has ended.

    Attributes:
        node: name of the slot on which the visit ran.
        brought: result of the visit; None if the engine has lost the visit.
        reason: why the visit was lost.
        received: time of arrival of the result, in seconds since 1970 by this machine's clock.
        last: whether the visit must not be tried again in this round.
    """

    node: str
    brought: Brought | None
    reason: str | None
    received: float
    last: bool = False


def open_engine(
    text: str,
    *,
    slots: str = "1",
    nodes: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    folder: Path,
    patience_s: float = 3600.0,
) -> Engine:
    """Return the engine that ``--on`` names.

    Args:
        text: ``local``, ``dask://HOST:PORT``, ``tls://HOST:PORT`` or ``slurm``.
        slots: number of sets of cores for ``local``, or ``gpus`` for a slot per GPU.
        nodes: names of nodes for ``slurm``; all nodes of the partition by default.
        options: options of ``sbatch`` for ``slurm``, by submitit's names.
        folder: folder for this fleet's files.
        patience_s: maximum time that a job of ``slurm`` may be queued, in seconds.

    Raises:
        UsageError: no such engine, its package is missing, or it is not reachable.
    """
    if text == "local":
        return DaskEngine.local(local_slots(slots))
    if re.match("(dask|tls)://.", text):
        return DaskEngine.reach(text)
    if text == "slurm":
        return SlurmEngine(folder / "jobs", nodes, options or {}, patience_s)
    near = (nearest(text, ("local", "slurm"), 1) or ["local"])[0]
    near = "dask://HOST:8786" if "dask" in text or ":" in text else near
    raise UsageError(f"--on {text or repr(text)}: expected {_FORMS}; nearest: {near}")


def local_slots(text: str) -> list[NodeSlot]:
    """Return the slots of this machine.

    Args:
        text: number of slots, or ``gpus`` for a slot per GPU.

    Raises:
        UsageError: there are fewer cores, or no GPUs.
    """
    from pydlbench.devices.cpu.affinity import choose_cpus, physical_cores, split_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts

    facts = read_cpu_facts()
    cpus = choose_cpus(facts, None)
    if text != "gpus":
        count = int(text)
        if count > physical_cores(facts, cpus):
            raise UsageError(
                f"--slots {text}: more than the {physical_cores(facts, cpus)} physical cores that "
                f"this process may use; nearest: {physical_cores(facts, cpus)}"
            )
        parts = split_cpus(cpus, count)
        return [NodeSlot(name=f"cpus-{number}", cpus=part) for number, part in enumerate(parts)]
    try:
        listed = [uuid for uuid, _ in list_cards()]
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"--slots gpus: nvidia-smi lists none ({error}); nearest: 1") from error
    parts = split_cpus(cpus, len(listed))
    return [
        NodeSlot(name=card, cpus=part, gpu=card) for card, part in zip(listed, parts, strict=True)
    ]


class DaskEngine:
    """Dask's workers: those of a cluster in this process, or of the user's scheduler.

    Args:
        client: connected client.
        cluster: cluster that runs in this process; None if the cluster is the user's own.
        given: slots of the cluster's workers, by name of the worker.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, client: Any, cluster: Any, given: Mapping[int, NodeSlot]) -> None:
        self.shares_files = cluster is not None
        self._client, self._cluster, self._given = client, cluster, given
        self._seen: dict[str, NodeSlot] = {}  # by a worker's address
        self._running: dict[Any, tuple[str, str]] = {}  # future -> slot's name, address

    @classmethod
    def local(cls, slots: Sequence[NodeSlot]) -> DaskEngine:
        """Start one worker per slot in threads of this process, which wait for their sweeps."""
        distributed = _distributed()
        allow()
        cluster = distributed.LocalCluster(
            n_workers=len(slots),
            threads_per_worker=1,
            processes=False,
            memory_limit=0,
            # No dashboard; the rest of its server uses any free port.
            dashboard_address="localhost:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        )
        client = distributed.Client(cluster)
        return cls(client, cluster, dict(enumerate(slots)))

    @classmethod
    def reach(cls, text: str) -> DaskEngine:
        """Connect to a scheduler.

        Raises:
            UsageError: the scheduler does not answer.
        """
        distributed = _distributed()
        address = text.replace("dask://", "tcp://")
        try:
            client = distributed.Client(address, timeout=_CONNECT_S)
        except TypeError as error:  # Dask's, about its settings of TLS
            raise UsageError(
                f"--on {text}: {error}; nearest: name certificate and key in Dask's settings, "
                "distributed.comm.tls"
            ) from error
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--on {text}: no scheduler answers within {_CONNECT_S:g} s; nearest: start one "
                f"with dask scheduler --port {address.rpartition(':')[2]}, or --on local"
            ) from error
        return cls(client, None, {})

    def slots(self) -> dict[str, NodeSlot]:
        """Return a slot per worker; if two workers have the same slot, that of the first one."""
        with _lost_scheduler():
            threads = self._client.nthreads()
            several = [address for address, count in threads.items() if count != 1]
            if several:
                raise UsageError(
                    f"{several[0]}: this worker has {threads[several[0]]} threads, which would "
                    "time two things at once; nearest: dask worker HOST:PORT --nthreads 1"
                )
            fresh = [address for address in threads if address not in self._seen]
            if self._given:
                workers = self._cluster.workers
                by_address = {worker.address: self._given[name] for name, worker in workers.items()}
                self._seen.update({address: by_address[address] for address in fresh})
            elif fresh:
                answers = self._client.run(look, workers=fresh, on_error="return")
                self._seen.update(_answered_slots(answers))
        self._seen = {address: slot for address, slot in self._seen.items() if address in threads}
        slots: dict[str, NodeSlot] = {}
        for slot in self._seen.values():
            slots.setdefault(slot.name, slot)
        return slots

    def start(self, slot: NodeSlot, order: Order) -> None:
        """Send a visit to the worker of a slot only."""
        address = next(known for known, seen in self._seen.items() if seen.name == slot.name)
        with _lost_scheduler():
            future = self._client.submit(
                visit, slot, order, workers=[address], allow_other_workers=False, pure=False
            )
        self._running[future] = (slot.name, address)

    def finished(self, wait_s: float) -> list[Finished]:
        """Return visits that have ended, and those whose worker is gone."""
        distributed = _distributed()
        if not self._running:
            time.sleep(wait_s)
            return []
        with contextlib.suppress(TimeoutError, CancelledError), _lost_scheduler():
            distributed.wait(list(self._running), timeout=wait_s, return_when="FIRST_COMPLETED")
        if self._client.status != "running":
            raise WorkerError("the scheduler is gone")
        with _lost_scheduler():
            there = self._client.nthreads()
        ended = []
        for future, (node, address) in list(self._running.items()):
            brought, reason = None, None
            if future.status == "finished":
                brought = future.result()
            elif future.done():
                error = future.exception() if future.status == "error" else None
                reason = f"{type(error).__name__}: {error}" if error else "the engine dropped it"
            elif address not in there:
                future.cancel()
                reason = "its worker has died"
            else:
                continue
            del self._running[future]
            ended.append(Finished(node, brought, reason, time.time()))
        return ended

    def close(self) -> None:
        """End the cluster of this process and its sweeps; leave a user's scheduler as it is."""
        if self._cluster is not None:
            end_all()
        for future in self._running:
            with contextlib.suppress(Exception):
                future.cancel()
        with contextlib.suppress(Exception):
            self._client.close(timeout=_CLOSE_S)
        if self._cluster is not None:
            with contextlib.suppress(Exception):
                self._cluster.close(timeout=_CLOSE_S)


class SlurmEngine:
    """Slurm jobs by submitit, one per visit, each on a named node.

    Args:
        folder: folder for submitit's files, visible from the nodes.
        nodes: names of nodes; empty for all nodes of the partition.
        options: options of ``sbatch``, by submitit's names: ``partition``, ``account``, ``gres``.
        patience_s: maximum time that a job may be queued before it is cancelled, in seconds.
        cluster: kind of cluster, by submitit's names; for ``local`` submitit starts processes on
            this machine instead.

    Raises:
        UsageError: submitit has no such option, or the nodes cannot be listed.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str],
        options: Mapping[str, str],
        patience_s: float,
        cluster: str = "slurm",
    ) -> None:
        try:
            import submitit
        except ImportError as error:
            raise UsageError(
                f"--on slurm: submitit is not installed; nearest: {_INSTALL}"
            ) from error
        self.shares_files = False
        self._options = {"exclusive": True, **_slurm_values(options)}
        self.notes: tuple[str, ...] = ()
        self._nodes = tuple(nodes)
        if not nodes:
            self._nodes, out = _listed(options.get("partition"))
            self.notes = tuple(f"{name}: left out, sinfo says {state}" for name, state in out)
        try:
            self._executor = submitit.AutoExecutor(folder=folder / "%j", cluster=cluster)
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"--on slurm: {error}; nearest: --on local") from error
        self._patience_s = patience_s
        self._running: dict[str, tuple[Any, float]] = {}  # job, and when it was submitted
        self._refused: list[Finished] = []

    def slots(self) -> dict[str, NodeSlot]:
        """Return the nodes; Slurm knows which are available."""
        return {name: NodeSlot(name=name) for name in self._nodes}

    def parameters(self, node: str, limit_s: float) -> dict[str, Any]:
        """Return the parameters of a job on a node, by submitit's names.

        Args:
            node: name of the node.
            limit_s: maximum time of the job in seconds, including its wait for the slot and its
                end.
        """
        given = {name: value for name, value in self._options.items() if value is not False}
        options = {f"slurm_{name}": value for name, value in given.items()}
        minutes = max(1, int(-(-limit_s // 60)))
        return {
            "name": "pydlbench-fleet",
            "timeout_min": minutes,
            "slurm_nodelist": node,
            **options,
        }

    def start(self, slot: NodeSlot, order: Order) -> None:
        """Submit a job for a visit; if sbatch refuses it, the visit has failed."""
        self._executor.update_parameters(**self.parameters(slot.name, longest(order)))
        try:
            job = self._executor.submit(visit, slot, order)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, other nodes have theirs
            reason = f"sbatch refuses a job: {_first_line(error)}"
            self._refused.append(Finished(slot.name, None, reason, time.time()))
        else:
            self._running[slot.name] = (job, time.monotonic())

    def finished(self, wait_s: float) -> list[Finished]:
        """Return visits whose jobs have ended, or were queued for too long."""
        end = time.monotonic() + wait_s
        while True:
            ended, self._refused = self._refused, []
            for node, (job, submitted) in list(self._running.items()):
                if job.done():
                    ended.append(_ended_job(node, job))
                elif self._queued_too_long(job, submitted):
                    with contextlib.suppress(Exception):
                        job.cancel()
                    reason = f"job {job.job_id}: queued for more than {self._patience_s:g} s"
                    ended.append(Finished(node, None, reason, time.time(), last=True))
                else:
                    continue
                del self._running[node]
            if ended or time.monotonic() > end:
                return ended
            time.sleep(_POLL_S)

    def _queued_too_long(self, job: Any, submitted: float) -> bool:
        """Whether a job is late and has no output file, which Slurm creates when it begins."""
        late = time.monotonic() - submitted > self._patience_s
        return late and not job.paths.stdout.exists()

    def close(self) -> None:
        """Cancel the jobs; finished results of their sweeps stay on the nodes."""
        for job, _ in self._running.values():
            with contextlib.suppress(Exception):
                job.cancel()


#: Runs visits: a slot has one at a time. ``shares_files`` says whether visits see the folders of
#: this machine, and ``notes`` are for the reader.
Engine: TypeAlias = DaskEngine | SlurmEngine


def _ended_job(node: str, job: Any) -> Finished:
    try:
        return Finished(node, job.result(), None, time.time())
    except Exception as error:  # noqa: BLE001 - whatever a job's end was, it is its node's
        return Finished(node, None, f"job {job.job_id}: {_first_line(error)}", time.time())


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _answered_slots(answers: Mapping[str, Any]) -> dict[str, NodeSlot]:
    """Return the slots that workers have answered with; workers that are gone have none.

    Raises:
        UsageError: a worker raised another error, such as that pydlbench is not installed.
    """
    for address, answer in answers.items():
        if not isinstance(answer, (NodeSlot, OSError)):
            raise UsageError(
                f"{address}: no answer from this worker ({type(answer).__name__}: {answer}); "
                "nearest: install the same pydlbench where it runs"
            )
    return {address: answer for address, answer in answers.items() if isinstance(answer, NodeSlot)}


def _slurm_values(options: Mapping[str, str]) -> dict[str, Any]:
    """Return options with numbers and switches converted.

    Raises:
        UsageError: submitit has no such option.
    """
    from submitit.slurm.slurm import SlurmExecutor

    known = sorted(SlurmExecutor._valid_parameters() - {"nodelist", "map_count"})  # noqa: SLF001 - submitit has no other list
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name not in known:
            near = ", ".join(nearest(name, known, 1) or ["partition"])
            raise UsageError(f"--slurm {name}={text}: no such option of sbatch; nearest: {near}")
        values[name] = (
            int(text) if text.isdecimal() else {"true": True, "false": False}.get(text, text)
        )
    return values


def _listed(partition: str | None) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """Return the nodes that Slurm lists, and those out of use with their state.

    Raises:
        UsageError: no listed node can be used, or Slurm is not installed.
    """
    words = ["sinfo", "--noheader", "--Node", "--format=%N %t"]
    words += [] if partition is None else [f"--partition={partition}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(
            f"--on slurm: {words[0]} cannot be run ({error.strerror}); nearest: --on slurm --nodes "
            "NAME..., where Slurm is, or --on local"
        ) from error
    states = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.strip())
    out = [
        (name, state)
        for name, state in states.items()
        if state.startswith(_UNUSABLE) or _NO_ANSWER in state
    ]
    names = tuple(name for name in states if name not in dict(out))
    if done.returncode or not names:
        reason = " ".join(done.stderr.split())
        reason = reason or ", ".join(f"{name} is {state}" for name, state in out[:3]) or "no node"
        raise UsageError(f"--on slurm: {shlex.join(words)}: {reason}; nearest: --nodes NAME...")
    return names, out


def _distributed() -> Any:
    """Import Dask, with its profiler switched off and without a directory of its own.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise UsageError(f"--on: dask is not installed; nearest: {_INSTALL}") from error
    dask.config.set({"distributed.worker.profile.enabled": False})
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "false")
    return distributed


@contextlib.contextmanager
def _lost_scheduler() -> Any:
    """Raise Dask's error of a lost scheduler as a ``WorkerError``."""
    try:
        yield
    except (TimeoutError, PydlbenchError):
        raise
    except OSError as error:  # as Dask's CommClosedError is one
        raise WorkerError(f"the scheduler is gone ({error})") from error

"""Native rows beside PyTorch's operators on the same CPUs, sampled interleaved."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from pydlbench.errors import WorkerError
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner.session import Session
from pydlbench.study.estimate import contrast
from pydlbench.study.loop import ROUNDS, Study, Subject, random_order
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.policy import Policy
from pydlbench.workers.environment import worker_environment
from pydlbench.workers.host import releasing

__all__ = ["TorchPeer", "TorchRow"]

FORMATS = ("nchw", "nhwc")
# Limit of one request; the largest layers take some seconds.
_TIMEOUT_S = 180.0
# GNU OpenMP's threads spin for some milliseconds after their work, on cores that the next needs.
_REST_S = 0.012
PRECISIONS = ("fp32", "bf16")


def rested(sample: Callable[[ChunkRequest], Chunk]) -> Callable[[ChunkRequest], Chunk]:
    """Return a sampler that first waits until the threads of the last sampler sleep."""

    def sample_rested(request: ChunkRequest) -> Chunk:
        time.sleep(_REST_S)
        return sample(request)

    return sample_rested


@dataclass(frozen=True)
class TorchRow:
    """One layer and pass, native and in PyTorch's better memory format.

    Attributes:
        layer: its name, or its problem.
        pass_: of the layer.
        precision: storage and arithmetic.
        native_s: median of the native kernel, in seconds per execution.
        torch_s: likewise of PyTorch.
        torch_format: the memory format that PyTorch was faster in.
        ratio: native / torch, the median over rounds.
        low: lower end of its interval, from the variance between rounds; None of too few.
        high: upper end.
        rounds: that both were in.
        contended: other work disturbed the native samples.
        algorithm: the native implementation.
        timing: how the native samples were taken.
    """

    layer: str
    pass_: str
    precision: str
    native_s: float
    torch_s: float
    torch_format: str
    ratio: float
    low: float | None
    high: float | None
    rounds: int
    contended: bool
    algorithm: str
    timing: str


class TorchPeer:
    """The process that runs PyTorch, started by the first request. A context manager.

    Args:
        cpus: that it may use.
        command: what starts it; the setup is appended.
        timeout_s: after so many seconds without an answer it counts as hung and is killed.
    """

    def __init__(
        self,
        cpus: Sequence[int],
        command: Sequence[str] = (sys.executable, str(Path(__file__).with_name("torch_peer.py"))),
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._cpus, self._command = tuple(cpus), tuple(command)
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, so that it does not use the CPUs while other rows are timed."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def knows(self, spec: KernelSpec) -> bool:
        """Whether PyTorch has this layer as one operator."""
        layer = spec.layer
        if spec.precision not in PRECISIONS:
            return False
        if layer.kind == "pool2d":
            return bool(layer.pad_before == layer.pad_after)
        if layer.kind == "gemm":
            return bool(layer.batch_count == 1)
        # Asymmetric padding is applied before, untimed.
        return layer.kind == "conv2d"

    def describe(self) -> dict[str, Any]:
        """Return PyTorch's version and libraries."""
        return self.ask(op="describe")

    def compare(
        self, session: Session, spec: KernelSpec, policy: Policy, rounds: int = ROUNDS
    ) -> TorchRow:
        """Sample native and PyTorch in two memory formats interleaved; ratio to the better one.

        Args:
            session: for the native kernel.
            spec: of a layer on a CPU.
            policy: of the sampling.
            rounds: in which all are sampled.

        Raises:
            UnsupportedError: the native backend has no such kernel.
            WorkerError: one of the processes has died; this one is started anew by the next call.
        """
        kernel = session.prepare(spec)
        with releasing([kernel]):
            try:
                for number, memory_format in enumerate(FORMATS):
                    self._prepare(spec, number, memory_format)
                samplers: list[Callable[[ChunkRequest], Chunk]] = [
                    kernel.sample,
                    *(partial(self.sample, number) for number in range(len(FORMATS))),
                ]
                study = Study(random_order(session.options.seed))
                subjects = [
                    Subject(key=number, sample=rested(sample), policy=policy)
                    for number, sample in enumerate(samplers)
                ]
                for error in study.take(subjects, rounds=rounds).values():
                    raise error
                self.ask(op="release")
            except WorkerError:
                self.close()  # whatever state it is in
                raise
        native, *torches = (study.table.series(number) for number in range(len(samplers)))
        best = min(range(len(torches)), key=lambda i: torches[i].median)
        ratio = contrast(native, torches[best])
        assert ratio is not None, "they shared all rounds"
        return TorchRow(
            layer=spec.layer.name or spec.layer.problem,
            pass_=spec.pass_,
            precision=spec.precision,
            native_s=native.median,
            torch_s=torches[best].median,
            torch_format=FORMATS[best],
            ratio=ratio.median,
            low=ratio.interval.low if ratio.interval else None,
            high=ratio.interval.high if ratio.interval else None,
            rounds=ratio.rounds,
            contended=ratio.contended,
            algorithm=kernel.facts.algorithm,
            timing=kernel.facts.timing,
        )

    def _prepare(self, spec: KernelSpec, number: int, memory_format: str) -> None:
        layer = {"kind": spec.layer.kind, **spec.layer.to_dict()}
        words = {"layer": layer, "format": memory_format, "precision": spec.precision}
        self.ask(op="prepare", id=number, **words, **{"pass": spec.pass_})

    def sample(self, number: int, request: ChunkRequest) -> Chunk:
        """Time the requested samples of a statement that was prepared."""
        reply = self.ask(op="sample", id=number, **msgspec.structs.asdict(request))
        faults = reply.get("faults", 0.0)
        return Chunk(seconds=tuple(reply["seconds"]), wall_s=reply["wall_s"], faults=faults)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the reply to a request; starts the process if there is none."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            # An answer is one line, so that nothing is left in Python's buffer.
            if not select.select([process.stdout], [], [], self._timeout_s)[0]:
                self.close()
                raise WorkerError(f"the torch process gave no answer for {self._timeout_s:g} s")
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise WorkerError(f"the torch process ended with exit code {process.wait()}")
        reply: dict[str, Any] = json.loads(answer)
        if "error" in reply:
            raise WorkerError(f"torch: {reply['error']}")
        return reply

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, json.dumps(self._cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=worker_environment(os.environ, self._cpus),
            text=True,
            bufsize=1,
        )

"""Native rows beside PyTorch's operators on the same GPU, sampled in turn."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydlbench.errors import UnsupportedError, WorkerError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.pool import Pool2d
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.guards import disturbance
from pydlbench.timing.policy import Policy, gpu_policy
from pydlbench.timing.procedure import Samples, Sampling, interleave
from pydlbench.timing.statistics import paired_ratio
from pydlbench.workers.host import RemoteKernel

__all__ = ["TorchRows"]

_ROUNDS = 9
_FORMATS = ("nchw", "nhwc")
_SCRIPT = Path(__file__).parents[1] / "torch_gpu_peer.py"


class TorchRows:
    """The peer process, started with the first comparison. Use as a context manager.

    Args:
        budget_s: sampling time per kernel, in seconds.
        command: what starts the peer; the device is appended.
    """

    precisions = ("fp32", "tf32", "fp16-tc", "bf16-tc")

    def __init__(
        self, budget_s: float, command: Sequence[str] = (sys.executable, str(_SCRIPT))
    ) -> None:
        self._budget_s = budget_s
        self._command = tuple(command)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the peer: nobody else is to be on the GPU while other rows are timed."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()

    def knows(self, case: KernelSpec) -> bool:
        """Whether PyTorch has this layer as one operator."""
        layer = case.layer
        if case.precision not in self.precisions:
            return False
        if isinstance(layer, Pool2d):
            return (layer.pad_top, layer.pad_left) == (layer.pad_bottom, layer.pad_right)
        if layer.kind == "gemm":
            return getattr(layer, "batch_count", 1) == 1
        # What is padded unevenly gets its padding before, untimed.
        return isinstance(layer, Conv2d)

    def compare(self, session: Session, case: KernelSpec) -> dict[str, Any]:
        """Sample native and torch's two memory formats in turn; ratio to the better format."""
        try:
            kernel = session.prepare(case)
        except UnsupportedError as error:
            return {"status": "skipped", "reason": str(error)}
        try:
            for number, memory_format in enumerate(_FORMATS):
                self._prepare(case, number, memory_format)
            native, *torches = self._sampled(session, case, kernel)
            self._ask(case.device, op="release")
        except WorkerError:
            # Whatever state it is in, the next comparison gets a new one.
            self.close()
            raise
        finally:
            kernel.release()
        best = min(range(len(torches)), key=lambda i: torches[i].summary().median)
        ratio = paired_ratio(native.by_round(), torches[best].by_round())
        return {
            "status": "ok",
            "native_s": native.summary().median,
            "torch_s": torches[best].summary().median,
            "torch_format": _FORMATS[best],
            "ratio": ratio.median,
            "low": ratio.interval.low if ratio.interval else None,
            "high": ratio.interval.high if ratio.interval else None,
            "rounds": ratio.n,
            "contended": native.contended,
            "algorithm": kernel.facts["algorithm"],
            "timing": kernel.facts["timing"],
        }

    def about(self, device: str) -> dict[str, Any]:
        """Return PyTorch's version and libraries."""
        return self._ask(device, op="describe")

    def _prepare(self, case: KernelSpec, number: int, memory_format: str) -> None:
        layer = {"kind": case.layer.kind, **dataclasses.asdict(case.layer)}
        words = {"layer": layer, "format": memory_format, "precision": case.precision}
        self._ask(case.device, op="prepare", id=number, **words, **{"pass": case.pass_})

    def _sampled(self, session: Session, case: KernelSpec, kernel: RemoteKernel) -> list[Samples]:
        policy = gpu_policy(
            Policy(budget_s=self._budget_s, min_rounds=_ROUNDS, chunk_s=0.02),
            kernel.facts,
            case.cache,
        )
        samplings = [Sampling(policy) for _ in range(1 + len(_FORMATS))]

        def sample(index: int, request: Request) -> Chunk:
            if index == 0:
                return self._without_the_peer(kernel.sample(request))
            return self._sample(case, index - 1, request)

        interleave(samplings, sample, random.Random(session.options.seed))
        return [sampling.result() for sampling in samplings]

    def _without_the_peer(self, chunk: Chunk) -> Chunk:
        """What the peer did on the GPU between two chunks of ours speaks against none of them."""
        if chunk.gpu is None or self._process is None:
            return chunk
        others = tuple(pid for pid in chunk.gpu.others if pid != self._process.pid)
        gpu = dataclasses.replace(chunk.gpu, others=others)
        return dataclasses.replace(chunk, gpu=gpu, disturbance=disturbance(gpu))

    def _sample(self, case: KernelSpec, number: int, request: Request) -> Chunk:
        counts = dataclasses.asdict(request)
        reply = self._ask(case.device, op="sample", id=number, **counts)
        seconds: Sequence[float] = reply["seconds"]
        return Chunk(seconds=tuple(seconds), wall_s=reply["wall_s"])

    def _ask(self, device: str, **request: Any) -> dict[str, Any]:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = _started([*self._command, device])
        reply = _exchange(process, json.dumps(request) + "\n")
        if "error" in reply:
            raise WorkerError(f"torch: {reply['error']}")
        return reply


def _started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def _exchange(process: subprocess.Popen[str], line: str) -> dict[str, Any]:
    if process.stdin is None or process.stdout is None:
        raise WorkerError("the torch process has no pipes")
    try:
        process.stdin.write(line)
        answer = process.stdout.readline()
    except OSError:
        answer = ""
    if not answer:
        raise WorkerError(f"the torch process ended with exit code {process.wait()}")
    reply: dict[str, Any] = json.loads(answer)
    return reply

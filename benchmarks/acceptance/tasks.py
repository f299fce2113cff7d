"""The tasks of an acceptance run, each short enough to be repeated when it is cut off."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch_rows import TorchPeer

from pydlbench.errors import UnsupportedError
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.layer import Layer
from pydlbench.models.catalog import find_layers
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.session import Options, Session
from pydlbench.timing.policy import Policy
from pydlbench.words import GPU_PRECISIONS

__all__ = ["Settings", "Task", "open_session", "read_tests", "tasks"]

REPOSITORY = Path(__file__).resolve().parents[2]
# Verified on the device, the best three in the finals, then sampled until known to 0.5 %.
_BUDGET_S = 0.5
_ROUNDS = 9
# A plan that hangs must not cost the shard.
_TIMEOUT_S = 180.0
GEMM_SIZE = 8192
# Files whose tests are too many for one task: they have the mode as their last parameter.
_MODE_BY_MODE = "test_correct_conv2d.py"
_MARK = "pytest.mark.gpu"
_TESTS_TIMEOUT_S = 420
_TESTS_LEAST_S = 90
_LAST_WORDS = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an acceptance run covers.

    Attributes:
        device: ``cuda:N``.
        patterns: layers, as for ``--shape``.
        batch: of the layers; None is the catalog's.
        precisions: modes.
        caches: cache states.
        kinds: which kinds of tasks.
    """

    device: str = "cuda:0"
    patterns: tuple[str, ...] = ("alexnet-owt/*", "vgg16/*")
    batch: int | None = None
    precisions: tuple[str, ...] = GPU_PRECISIONS
    caches: tuple[str, ...] = ("hot", "all-cold")
    kinds: tuple[str, ...] = ("tests", "device", "gemm", "torch", "layers", "repeat")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to do.

    Attributes:
        name: in the journal.
        run: does it, and returns its entry.
        least_s: seconds that must be left for it to be begun.
    """

    name: str
    run: Callable[[Session], dict[str, Any]]
    least_s: float = 10.0


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield all tasks, in the order in which they are most useful if time runs out.

    What a kind of tasks holds on to, such as PyTorch's process, lives until its last one is done.
    """
    for kind in settings.kinds:
        yield from _KINDS[kind](settings)


def _tests(settings: Settings) -> Iterator[Task]:
    """The gpu tests, file by file; the longest mode by mode."""
    for file in _test_files():
        modes = GPU_PRECISIONS if file.endswith(_MODE_BY_MODE) else (None,)
        for mode in modes:
            name = f"tests {file}" if mode is None else f"tests {file} {mode}"
            yield Task(name=name, run=_testing(file, mode, settings), least_s=_TESTS_LEAST_S)


def _test_files() -> list[str]:
    """Every file that has tests marked gpu, from the repository's root."""
    return [
        path.relative_to(REPOSITORY).as_posix()
        for path in sorted((REPOSITORY / "tests").rglob("test_*.py"))
        if _MARK in path.read_text()
    ]


def _testing(
    file: str, mode: str | None, settings: Settings
) -> Callable[[Session], dict[str, Any]]:
    def run(_: Session) -> dict[str, Any]:
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--no-header", file]
        if mode is not None:
            # The mode is the last parameter in the names of these tests.
            command += ["-k", f"{mode}]"]
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": _visible(settings.device)},
                capture_output=True,
                text=True,
                check=False,
                timeout=_TESTS_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"gave no answer for {_TESTS_TIMEOUT_S} s"}
        return read_tests(done.returncode, done.stdout)

    return run


def read_tests(exit_code: int, output: str) -> dict[str, Any]:
    """Return counts and failures from what pytest printed; what it said if that is no summary."""
    lines = output.strip().splitlines()
    counts = {
        word: int(count)
        for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", "".join(lines[-1:]))
    }
    bad = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    entry = {"exit_code": exit_code, "counts": counts, "failed": bad, "skipped": skipped}
    return entry if counts else {**entry, "said": lines[-_LAST_WORDS:]}


def _visible(device: str) -> str:
    """The tests take the first GPU that they see."""
    number = int(device.partition(":")[2] or 0)
    outer = os.environ.get("CUDA_VISIBLE_DEVICES")
    return outer.split(",")[number] if outer else str(number)


def _device(settings: Settings) -> Iterator[Task]:
    def run(session: Session) -> dict[str, Any]:
        return {"device": session.devices.gpu(settings.device, GPU_PRECISIONS).to_dict()}

    yield Task(name="device", run=run, least_s=30)


def _gemm(settings: Settings) -> Iterator[Task]:
    layer = Gemm(m=GEMM_SIZE, k=GEMM_SIZE, n=GEMM_SIZE)
    for precision in settings.precisions:
        spec = KernelSpec(layer=layer, precision=precision, device=settings.device)
        yield Task(name=f"gemm {precision}", run=_measuring(spec))


def _layers(settings: Settings) -> Iterator[Task]:
    yield from (
        Task(name=f"layers {_key(spec)}", run=_measuring(spec)) for spec in _specs(settings)
    )


def _repeat(settings: Settings) -> Iterator[Task]:
    """The same rows again, each from nothing: a new search, new memory."""
    yield from (
        Task(name=f"repeat {_key(spec)}", run=_measuring(spec)) for spec in _specs(settings)
    )


def _torch(settings: Settings) -> Iterator[Task]:
    with TorchPeer(settings.device) as peer:
        for spec in _specs(dataclasses.replace(settings, caches=("hot",))):
            if peer.knows(spec):
                yield Task(name=f"torch {_key(spec)}", run=_comparing(peer, spec))


def _comparing(peer: TorchPeer, spec: KernelSpec) -> Callable[[Session], dict[str, Any]]:
    policy = Policy(budget_s=_BUDGET_S, min_rounds=_ROUNDS, chunk_s=0.02)

    def run(session: Session) -> dict[str, Any]:
        try:
            row = peer.compare(session, spec, policy)
        except UnsupportedError as error:
            return {"status": "skipped", "reason": str(error)}
        return {"status": "ok", **dataclasses.asdict(row)}

    return run


_KINDS = {
    "tests": _tests,
    "device": _device,
    "gemm": _gemm,
    "torch": _torch,
    "layers": _layers,
    "repeat": _repeat,
}


def _specs(settings: Settings) -> Iterator[KernelSpec]:
    """Yield every combination, hot ones first; equal layers of the models (VGG has some) once."""
    layers: dict[str, Layer] = {}
    for layer in find_layers(settings.patterns, settings.batch):
        layers.setdefault(f"{layer.kind} {layer.problem}", layer)
    for cache in settings.caches:
        for layer in layers.values():
            for pass_ in layer.passes:
                for precision in settings.precisions:
                    yield KernelSpec(
                        layer=layer,
                        pass_=pass_,
                        precision=precision,
                        cache=cache,
                        device=settings.device,
                    )


def _measuring(spec: KernelSpec) -> Callable[[Session], dict[str, Any]]:
    def run(session: Session) -> dict[str, Any]:
        ((_, row),) = session.measure([spec])
        return {"measurement": row.to_dict()}

    return run


def _key(spec: KernelSpec) -> str:
    name = spec.layer.name or spec.layer.problem
    return f"{name} {spec.pass_} {spec.precision} {spec.cache}"


def open_session() -> Session:
    """Return the session that all tasks of one invocation share."""
    return Session(Options(budget_s=_BUDGET_S, timeout_s=_TIMEOUT_S))

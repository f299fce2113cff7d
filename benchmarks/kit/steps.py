"""What is done on a GPU machine, the most informative work first, and what is kept of each step."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Step", "read_document", "read_tests", "steps"]

REPOSITORY = Path(__file__).resolve().parents[2]
_MODES = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc")
#: Those that PyTorch has, too.
_COMMON = ("fp32", "tf32", "fp16-tc", "bf16-tc")
_PASSES = ("forward", "backward-data", "backward-weights")
_PRODUCT = "8192x8192:8192x8192"
_MODELS = ("alexnet-owt", "vgg16")
# One visit of half a second: the first numbers of a card are worth more than narrow intervals.
_BRIEF = ("--visits", "1", "--budget", "0.5", "--quiet")

# The first thing on a card: whether the module loads, what the driver tells, and the launch gate.
_FACTS = """
import importlib.metadata, json
import pydlbench._cuda as cuda
from pydlbench.backends.native import cuda_libraries
cuda_libraries.load()
device = cuda.Device(0)
names = ("torch", "numpy", "cupy-cuda13x", "nvidia-cudnn-cu13", "nvidia-cublas")
versions = {}
for name in names:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        versions[name] = None
print(json.dumps({"facts": device.facts, "launch": cuda.launch_seconds(device),
    "libraries": cuda.libraries(), "built_with": cuda.built_with(), "versions": versions,
    "device_properties": cuda.device_properties(device)}))
"""
# Three doubts about PyTorch's clock: whether launches cost more once somebody has profiled, whether
# kernels of a graph overlap, so that another one there costs less than it takes, and whether graphs
# and a second profile survive the first, after which CUPTI is torn down. That may end the process:
# what is known is printed before each of these steps, and the last line counts.
_PROFILER = """
import json, statistics, time
import torch
from pydlbench.backends.torch.gpu import Runtime, kernel_names
runtime = Runtime()
small = torch.rand(1024, device="cuda")
large = torch.rand(2048, 2048, device="cuda", dtype=torch.float16)

def enqueueing():
    runtime.wait()
    begin = time.perf_counter()
    for _ in range(500):
        torch.relu(small)
    seconds = time.perf_counter() - begin
    runtime.wait()
    return seconds / 500

def median(call):
    return statistics.median(call() for _ in range(20))

graphs = {count: runtime.capture(lambda: large @ large, count) for count in (100, 200)}

def replaying(count):
    def once():
        begin = runtime.record()
        graphs[count].replay()
        end = runtime.record()
        runtime.wait()
        return runtime.between(begin, end)
    once()
    return median(once)

def profiling():
    activities = [torch.profiler.ProfilerActivity.CUDA]
    try:
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(20):
                large @ large
            runtime.wait()
        events = [one for one in profile.events() or () if "CUDA" in str(one.device_type)]
    except RuntimeError:
        return None
    times = [one.device_time_total for one in events]
    return statistics.median(times) * 1e-6 if times else None

def note(what, seconds):
    if seconds is not None:
        found[what] = seconds
    print(json.dumps({"seconds": found, "kernels": names}), flush=True)

found, names = {}, []
enqueueing()
note("launch before a profile", median(enqueueing))
note("another product in a graph", (replaying(200) - replaying(100)) / 100)
names = kernel_names(lambda: torch.relu(small))
note("launch after it", median(enqueueing))
note("another product in a graph after it", (replaying(200) - replaying(100)) / 100)
note("a product by a second profile", profiling())
note("another product in a graph after that", (replaying(200) - replaying(100)) / 100)
"""
# Every kind of kernel once, for the memory checker, which makes them tens of times slower.
_MEMCHECK = (
    *("tests/cuda/test_kernel.py", "-k", "poisoned or overwritten or samples_are_seconds"),
)

Read = Callable[[int, str], dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command.

    Attributes:
        name: in the journal.
        command: its words; run in the folder of the results.
        timeout_s: after so many seconds it is interrupted, and then killed.
        read: returns the entry from its exit code and standard output; raises ValueError where that
            is not what it should have printed.
    """

    name: str
    command: tuple[str, ...]
    timeout_s: float
    read: Read


def steps(device: str, store: Path) -> Iterator[Step]:
    """Yield all steps, in the order in which they are most useful if time runs out.

    The first looks whether there is a GPU at all, and which.

    Args:
        device: ``cuda:N``.
        store: where the package keeps its runs.
    """

    def package(name: str, timeout_s: float, *words: str) -> Step:
        command = (sys.executable, "-P", "-m", "pydlbench", *words)
        kept = () if words[0] == "device" else ("--store", str(store))
        command += ("--device", device, "--json", "-", *kept)
        return Step(name=name, command=command, timeout_s=timeout_s, read=read_document)

    yield Step(
        name="facts",
        command=(sys.executable, "-P", "-c", _FACTS),
        timeout_s=60,
        read=lambda code, said: _checked(code, json.loads(said)),
    )
    yield _tests("gate and graph", 150, "tests/cpp/test_real_calls.py")
    yield package("device", 120, "device", "--quiet")
    yield package("products", 150, "layers", "--shape", _PRODUCT, "--precision", *_MODES, *_BRIEF)
    yield package(
        *("conv3", 150, "layers", "--shape", "alexnet/conv3", "--precision", "fp32", "bf16-tc"),
        *("--cache", "hot", "all-cold", "--algorithms", *_BRIEF),
    )
    yield _tests(
        *("sampling", 240, "tests/cuda/test_timing.py", "tests/cuda/test_probes.py"),
        *("tests/cuda/test_kernel.py", "tests/cuda/test_errors.py"),
    )
    yield Step(
        name="profiler",
        command=(sys.executable, "-P", "-c", _PROFILER),
        timeout_s=90,
        read=_times,
    )
    for model in _MODELS:
        for precision in _COMMON:
            for pass_ in _PASSES:
                yield package(
                    *(f"{model} {precision} {pass_}", 180, "layers", "--model", model),
                    *("--precision", precision, "--pass", pass_, "--backend", "native", "torch"),
                    *_BRIEF,
                )
        if model == _MODELS[0]:
            yield from _whole_steps(package)
    for file in sorted((REPOSITORY / "tests/cuda").glob("test_correct_*.py")):
        # The longest has the mode as the last parameter of its tests; only products have 8 bits.
        for mode in _MODES[:-1] if file.stem.endswith("conv2d") else ("",):
            words = ("-k", f"{mode}]") if mode else ()
            yield _tests(f"{file.stem} {mode}".strip(), 300, f"tests/cuda/{file.name}", *words)
    for name in ("chain", "modes", "arena", "layers_gpu", "reference", "device"):
        yield _tests(f"test_{name}", 240, f"tests/cuda/test_{name}.py")
    name = "compute-sanitizer"
    checker = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin") or name
    memory = _tests("memcheck", 300, *_MEMCHECK)
    yield dataclasses.replace(memory, command=(checker, "--error-exitcode=9", *memory.command))


def _whole_steps(package: Callable[..., Step]) -> Iterator[Step]:
    """What a framework's steps take, the estimate from native kernels, and what lies between."""
    for model in ("alexnet-owt", "resnet50"):
        yield package(
            *(f"e2e {model}", 280, "e2e", model, "--framework", "torch", "--mode", "all"),
            *("--phase", "all", "--visits", "1", "--budget", "2", "--quiet"),
        )
        yield package(f"model {model}", 280, "model", model, "--phase", "training", *_BRIEF)
        yield package(
            *(f"check {model}", 420, "check", model, "--framework", "torch", "--phase", "training"),
            *("--laps", "6", "--stop-after", "60", "--quiet"),
        )


def _tests(name: str, timeout_s: float, *words: str) -> Step:
    # The repository's own folder of the package has no compiled module: not that one (-P).
    command = (sys.executable, "-P", "-m", "pytest", "-m", "gpu", "-q", "--no-header", "-n0")
    # What newer libraries warn of is not what is asked here.
    command += ("--rootdir", str(REPOSITORY), "-c", str(REPOSITORY / "pyproject.toml"))
    command += ("-o", "filterwarnings=default", "-p", "no:cacheprovider")
    files = tuple(str(REPOSITORY / one) if one.startswith("tests/") else one for one in words)
    return Step(name=name, command=(*command, *files), timeout_s=timeout_s, read=read_tests)


# -----------------------------------------------------------------------------
# What is kept of a step.

# Exit codes of the package after which there is a document: 3 is a finding, 4 an undecided one.
_DOCUMENTED = (0, 3, 4)
# A check of one framework is a single object, without a list of its own.
_OF_DOCUMENT = (
    *("steps", "estimate", "dominant", "checks"),
    *("rungs", "ledger", "unexplained", "measured_s"),
)
_LAST_LINES = 12
# pytest's exit code where it had nothing to run.
_NO_TESTS = 5


def read_tests(code: int, said: str) -> dict[str, Any]:
    """Return counts and failures from what pytest printed; what it said if that is no summary."""
    lines = said.strip().splitlines()
    counts = {
        word: int(count)
        for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", "".join(lines[-1:]))
    }
    bad = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    entry: dict[str, Any] = {"counts": counts, "failed": bad}
    if code not in (0, _NO_TESTS):
        entry["error"] = f"exit code {code}"
    elif counts.get("skipped") and not counts.get("passed"):
        entry["error"] = "all were skipped"
    return entry if counts else {**entry, "said": lines[-_LAST_LINES:]}


def read_document(code: int, said: str) -> dict[str, Any]:
    """Return what is kept of a document of the package.

    Raises:
        ValueError: it is none.
    """
    found = json.loads(said) if said.strip() else {}
    entry: dict[str, Any] = {}
    if "peaks" in found.get("device", {}):
        entry["device"] = found["device"]
    elif "measurements" in found:
        entry["rows"] = [_row(one) for one in found["measurements"]]
    for name in _OF_DOCUMENT:
        if name in found:
            entry[name] = found[name]
    if code not in _DOCUMENTED:
        entry["error"] = f"exit code {code}"
    return entry


_KEPT = (
    *("layer", "problem", "pass", "precision", "backend", "mode", "cache", "timing", "status"),
    *("reason", "tflops", "gbps", "clock_hz", "cycles", "algorithm", "library", "warnings"),
    *("ratio", "launch_s", "power_w", "contended", "accumulate"),
)
_OF_TIME = ("median", "ci_low", "ci_high", "n")


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """A measurement without what only matters beside others of its run."""
    kept = {name: row.get(name) for name in _KEPT if row.get(name) not in (None, [], ())}
    time = row.get("time_s") or {}
    kept["time_s"] = {name: time.get(name) for name in _OF_TIME} if time else None
    kept["peak_tflops"] = row.get("peak_tflops")
    roof = row.get("roofline") or {}
    kept["roofline"] = {name: roof.get(name) for name in ("bound", "efficiency")} if roof else None
    kept["correct"] = (row.get("correct") or {}).get("status")
    if row.get("candidates"):
        kept["candidates"] = [
            {name: one.get(name) for name in ("algorithm", "layout", "status", "reason")}
            | {"median": (one.get("time_s") or {}).get("median")}
            for one in row["candidates"]
        ]
    return kept


def _times(code: int, said: str) -> dict[str, Any]:
    """Return the last line's times: all that was found before the process ended, however."""
    found = json.loads((said.strip().splitlines() or [""])[-1])
    return _checked(code, {"times_s": found["seconds"], "kernels": found["kernels"]})


def _checked(code: int, found: dict[str, Any]) -> dict[str, Any]:
    return found if code == 0 else {**found, "error": f"exit code {code}"}

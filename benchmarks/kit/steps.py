"""The steps on a GPU machine, in breadth first, and the parts of each result that are kept."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from journal import Journal

__all__ = ["ENVIRONMENT", "JOURNAL", "Step", "Switches", "first_steps", "row_of", "steps"]

REPOSITORY = Path(__file__).resolve().parents[2]
_KIT = REPOSITORY / "benchmarks" / "kit"
_MODES = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc", "fp8-tc-fast")
#: Those that PyTorch has, too.
_COMMON = ("fp32", "tf32", "fp16-tc", "bf16-tc")
_PRODUCT = "8192x8192:8192x8192"
# Training with a causal mask, and the decoding of a token with grouped queries; then what lies
# between the layers of such models.
_ATTENTION = (
    ("attention:mb8h16q2048d64causal1", "forward,backward-data"),
    ("attention:mb16h32kvh8q1k4096d128", "forward"),
    ("rmsnorm:mb4ic1ih1024iw4096", "forward,backward-data"),
    ("8x2048x4096:8x4096x1024", "forward"),
)
_VGG = ("vgg16/conv1_2", "vgg16/conv3_2", "vgg16/fc6")
# One visit of half a second: the first numbers of a card are worth more than narrow intervals.
_BRIEF = ("--repetitions", "1", "--budget", "0.5", "--quiet")
# Every kind of kernel once, for the memory checker, which makes them tens of times slower.
_MEMCHECK = (
    *("tests/cuda/test_kernel.py", "-k", "poisoned or overwritten or samples_are_seconds"),
)
# Tests of values, and those of times.
_CORRECT = tuple(
    str(file.relative_to(REPOSITORY))
    for pattern in ("test_correct_*.py", "test_arena.py", "test_reference.py")
    for file in sorted((REPOSITORY / "tests/cuda").glob(pattern))
)
_TIMED = (
    "tests/backends/torch/test_gpu.py",
    *(
        f"tests/cuda/test_{name}.py"
        for name in (
            *("timing", "probes", "kernel", "errors", "foreign", "modes", "device"),
            "layers_gpu",
        )
    ),
)
#: In the folder of the results.
JOURNAL = "journal.jsonl"
#: The first step, without which nothing is begun where it finds no card.
ENVIRONMENT = "environment"
_SMOKE = "smoke"

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
        environment: variables of its process, beside those of all steps.
        given: its standard input.
    """

    name: str
    command: tuple[str, ...]
    timeout_s: float
    read: Read
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    given: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Features that later steps avoid, because they failed in the smoke run.

    Attributes:
        environment: without the launch gate, and without PyTorch's profiler.
        words: of ``layers``, without CUDA graphs.
        backends: that have rows: of the two that stand beside each other, those that work.
    """

    environment: Mapping[str, str]
    words: tuple[str, ...]
    backends: tuple[str, ...]

    @classmethod
    def of(cls, journal: Journal) -> Switches:
        """Return the switches of a journal's smoke run; untried features are assumed to work."""
        items = (journal.get(_SMOKE) or {}).get("items", {})
        failed = {name for name, one in items.items() if "error" in one}
        environment = {
            variable: "0"
            for item, variable in (("gate", "PYDLBENCH_GATE"), ("profiler", "PYDLBENCH_PROFILER"))
            if item in failed
        }
        graphs = any(name.startswith("graph of") for name in failed)
        gemms = [name for name in items if name.startswith("gemm ")]
        native = not gemms or any(name not in failed for name in gemms)
        torch = "torch row" not in failed
        backends = [name for name, works in (("native", native), ("torch", torch)) if works]
        return cls(
            environment=environment,
            words=("--timing", "events") if graphs and native else (),
            backends=tuple(backends) or ("native", "torch"),
        )

    def said(self) -> list[str]:
        """Return the avoided features in words."""
        found = [f"{name}=0" for name in self.environment]
        if self.words:
            found.append(" ".join(self.words))
        if len(self.backends) == 1:
            found.append(f"--backend {self.backends[0]}")
        return found


def first_steps() -> Iterator[Step]:
    """Yield the first steps: the machine, the card without pydlbench, everything once."""
    for name, timeout_s in ((ENVIRONMENT, 180), ("control", 90), (_SMOKE, 240)):
        yield Step(
            name=name,
            command=(sys.executable, "-P", str(_KIT / f"{name}.py")),
            timeout_s=timeout_s,
            read=read_items,
        )


def steps(device: str, out: Path, switches: Switches) -> Iterator[Step]:
    """Yield the steps after the smoke run, the most useful first.

    Args:
        device: ``cuda:N``.
        out: folder of the journal, and where the package keeps its runs.
        switches: what is done without.
    """
    on = ("--device", device)
    backends = ("--backend", ",".join(switches.backends))

    def package(name: str, timeout_s: float, *words: str) -> Step:
        kept = () if words[0] == "device" else ("--store", str(out / "runs.sqlite"))
        return Step(
            name=name,
            command=(sys.executable, "-P", "-m", "pydlbench", *words, *on, "--json", "-", *kept),
            timeout_s=timeout_s,
            read=read_document,
            environment=switches.environment,
        )

    def layers(name: str, timeout_s: float, *words: str) -> Step:
        return package(name, timeout_s, "layers", *words, *switches.words, *_BRIEF)

    def rows(name: str, timeout_s: float, *lines: tuple[str, ...]) -> Step:
        words = [
            (*line, *(() if "--backend" in line else backends), *switches.words, *_BRIEF, *on)
            for line in lines
        ]
        return Step(
            name=name,
            command=(sys.executable, "-P", str(_KIT / "rows.py"), str(out / JOURNAL), name),
            timeout_s=timeout_s,
            read=lambda code, said: _checked(code, {"problems": len(said.splitlines())}),
            environment=switches.environment,
            given="".join(json.dumps(line) + "\n" for line in words),
        )

    def tests(name: str, timeout_s: float, *words: str) -> Step:
        return dataclasses.replace(
            _tests(name, timeout_s, *words), environment=switches.environment
        )

    yield package("device", 120, "device", "--quiet")
    yield layers("products", 150, "--shape", _PRODUCT, "--precision", ",".join(_MODES), *backends)
    yield layers(
        *("sustained", 90, "--shape", _PRODUCT, "--precision", "bf16-tc,fp8-tc-fast", *backends),
        "--energy",
    )
    if "torch" in switches.backends:
        yield package(
            *("breakdown alexnet-owt", 240, "breakdown", "alexnet-owt", "--framework", "torch"),
            *("--mode", "eager", "--quiet"),
        )
        lines = (
            ("--shape", shape, "--pass", passes, "--precision", "bf16-tc", "--backend", "torch")
            for shape, passes in _ATTENTION
        )
        yield rows("attention", 180, *lines)
    yield layers(
        *("conv3", 150, "--shape", "alexnet/conv3", "--precision", "bf16-tc", "--algorithms")
    )
    yield tests("gate and graph", 150, "tests/cpp/test_real_calls.py")
    # Nothing in these is timed, and the host does the checking: many at once.
    yield tests("correct", 400, *_CORRECT, "-n12", "--dist=worksteal")
    yield tests("sampling", 240, *_TIMED)
    yield rows(
        *("alexnet-owt", 600),
        *(
            ("--model", "alexnet-owt", "--pass", "all", "--precision", precision)
            for precision in _COMMON
        ),
    )
    for model in ("alexnet-owt", "resnet50"):
        yield package(
            *(f"step {model}", 180, "step", model, "--framework", "torch", "--mode", "eager"),
            *("--phase", "all", "--repetitions", "1", "--budget", "2", "--quiet"),
        )
    for name in ("profiler", "clocks"):
        yield Step(
            name=name,
            command=(sys.executable, "-P", str(_KIT / f"{name}.py")),
            timeout_s=90,
            read=read_items,
            environment=switches.environment,
        )
    if "torch" in switches.backends:
        kernels = REPOSITORY / "examples" / "triton_kernels.py"
        yield rows(
            *("triton", 60),
            *(
                ("--shape", shape, "--precision", "bf16-tc", "--backend", f"native,torch,{kernel}")
                for shape, kernel in (
                    ("relu:mb128ic96ih55", f"{kernels}:relu"),
                    ("4096x4096:4096x4096", f"{kernels}:mm"),
                )
            ),
        )
        yield package(
            *("breakdown alexnet-owt compiled", 300, "breakdown", "alexnet-owt", "--quiet"),
            *("--framework", "torch", "--mode", "compiled", "--precision", "bf16-tc"),
        )
        # Hundreds of kernels: minutes each.
        for model in ("alexnet-owt", "vgg16", "resnet50"):
            yield package(
                *(f"breakdown {model} training", 420, "breakdown", model, "--framework", "torch"),
                *("--mode", "eager", "--phase", "training", "--precision", "bf16-tc", "--quiet"),
            )
    yield rows(
        *("vgg16", 300),
        *(("--shape", ",".join(_VGG), "--pass", "all", "--precision", one) for one in _COMMON),
    )
    checker = "compute-sanitizer"
    found = shutil.which(checker) or shutil.which(checker, path="/usr/local/cuda/bin") or checker
    memory = tests("memcheck", 300, *_MEMCHECK)
    yield dataclasses.replace(memory, command=(found, "--error-exitcode=9", *memory.command))


def _tests(name: str, timeout_s: float, *words: str) -> Step:
    # The repository's own folder of the package has no compiled module: not that one (-P).
    command = (sys.executable, "-P", "-m", "pytest", "-m", "gpu", "-q", "--no-header", "-n0")
    # Warnings of newer libraries do not matter here.
    command += ("--rootdir", str(REPOSITORY), "-c", str(REPOSITORY / "pyproject.toml"))
    command += ("-o", "filterwarnings=default", "-p", "no:cacheprovider", "--tb=short")
    files = tuple(str(REPOSITORY / one) if one.startswith("tests/") else one for one in words)
    return Step(name=name, command=(*command, *files), timeout_s=timeout_s, read=read_tests)


# -----------------------------------------------------------------------------
# Parts of results that are kept.

# Exit codes of the package after which there is a document: 3 is a finding, 4 an undecided one.
_DOCUMENTED = (0, 3, 4)
_OF_DOCUMENT = (
    "steps",
    "estimate",
    "dominant",
    "levels",
    "unexplained",
    "not_measured",
    "alternatives",
)
_LAST_LINES = 12
# pytest's exit code where it had nothing to run.
_NO_TESTS = 5


def read_tests(code: int, said: str) -> dict[str, Any]:
    """Return counts and failures from pytest's output, or the output itself without a summary."""
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
    """Return the kept parts of a document of the package.

    Raises:
        ValueError: it is none.
    """
    found = json.loads(said) if said.strip() else {}
    entry: dict[str, Any] = {}
    if "peaks" in found.get("device", {}):
        entry["device"] = found["device"]
    elif "measurements" in found:
        entry["rows"] = [row_of(one) for one in found["measurements"]]
    for name in _OF_DOCUMENT:
        if name in found:
            entry[name] = found[name]
    if code not in _DOCUMENTED:
        entry["error"] = f"exit code {code}"
    return entry


_KEPT = (
    *("layer", "problem", "pass", "precision", "backend", "mode", "cache", "timing", "status"),
    *("reason", "tflops", "gbps", "clock_hz", "cycles", "algorithm", "library", "warnings"),
    *("ratio", "launch_s", "power_w", "energy_j", "sustained_s", "sustained_hz", "contended"),
    *("flops", "accumulate"),
)
_OF_TIME = ("median", "ci_low", "ci_high", "n")


def row_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return a measurement without fields that matter only beside others of its run."""
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


def read_items(code: int, said: str) -> dict[str, Any]:
    """Return the printed items by name, and the number of failed ones of all."""
    items = {one.pop("item"): one for one in _json_lines(said) if "item" in one}
    failed = [name for name, one in items.items() if "error" in one]
    if failed:
        return {"items": items, "error": f"{len(failed)} of {len(items)} failed", "said": ""}
    return _checked(code, {"items": items})


def _json_lines(said: str) -> Iterator[dict[str, Any]]:
    for line in said.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def _checked(code: int, found: dict[str, Any]) -> dict[str, Any]:
    return found if code == 0 else {**found, "error": f"exit code {code}"}

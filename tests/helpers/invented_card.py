"""A folder that stands for the kit's installed package on a card that is not there.

The package's own modules are the real ones, on an invented ``_cuda`` and an invented PyTorch; its
commands, and pytest, answer from nothing. The variable ``CARD_PLANTED`` names what does not work.
"""

from __future__ import annotations

from pathlib import Path

import fake_cuda

import pydlbench

#: What does not work: cuDNN is missing; the gate never opens; the profiler ends the process; the
#: card has no memory for bf16; a launch fails, and the device is lost.
PLANTED = ("cudnn", "gate", "profiler", "memory", "launch")

_PACKAGE = """
import os, sys
from types import ModuleType
__path__.append({real!r})

class Kernel:
    facts = ModuleType("facts")
    facts.algorithm, facts.timing = "aten::mm", "cuda-graph"

    def sample(self, request):
        from pydlbench.timing.chunk import Chunk
        return Chunk(seconds=(1e-3,) * request.samples)

class Session:
    def __init__(self, options): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def measure(self, cases):
        import time
        from pydlbench.__main__ import row
        for case in cases:
            time.sleep(float(os.environ["CARD_SECONDS"]))
            name = case.layer.name or case.layer.problem
            words = (name, case.pass_, case.precision, case.backend, case.cache)
            made = ModuleType("row")
            made.to_dict = lambda words=words: row(*words)
            yield case, made

def stub(name, **members):
    made = sys.modules[name] = ModuleType(name)
    vars(made).update(members)

def create(device):
    made = ModuleType("torch backend")
    made.prepare = lambda case, preparation: Kernel()
    return made

stub("pydlbench.backends.torch.backend", create=create)
if os.path.basename(sys.argv[0]) == "rows.py":
    stub("pydlbench.runner.session", Session=Session)
"""
_CUDA = """
import os
from fake_cuda import *
from fake_cuda import Device as _Device, Module, Plan
from pydlbench.errors import UnsupportedError

PLANTED = os.environ.get("CARD_PLANTED")
FACTS = {"name": "NVIDIA H200", "capability": "9.0", "driver_version": 13000, "uuid": "GPU-0"}
_module = Module()
built_with = _module.built_with
push_range, pop_range = _module.push_range, _module.pop_range

class Device(_Device):
    def __init__(self, index):
        super().__init__(index)
        self.facts = FACTS

def device_facts(index): return FACTS
def device_properties(device): return "{}"
def reference(*_, **__): return "reference"

def launch_seconds(device):
    if PLANTED == "gate" and os.environ.get("PYDLBENCH_GATE") != "0":
        raise UnsupportedError("starting a kernel waits for the device")
    return {"empty_kernel_s": 2e-6}

NO_CUDNN = "cuDNN cannot be loaded: libcudnn.so.9: no such file"

def libraries():
    found = ("cublaslt",) if PLANTED == "cudnn" else ("cudnn", "cublaslt")
    return {name: {"version": "9.0", "path": f"/lib/lib{name}.so"} for name in found}

def load_libraries(cudnn, cublaslt):
    if PLANTED == "cudnn":
        raise UnsupportedError(NO_CUDNN)

def plans(device, kind, pass_, mode, fields, **words):
    if PLANTED == "gate" and os.environ.get("PYDLBENCH_GATE") != "0":
        raise UnsupportedError("starting a kernel waits for the device")
    if PLANTED == "cudnn" and kind == "conv2d":
        raise UnsupportedError(NO_CUDNN)
    if PLANTED == "memory" and mode == "bf16-tc":
        return [Plan("engine 7", fails="memory")]
    if PLANTED == "launch" and (kind, mode) == ("gemm", "tf32"):
        return [Plan("engine 7", fails="lost")]
    return [Plan("engine 7")]
"""
_COMMANDS = """
import json, os, sys, time

def row(layer, pass_, precision, backend, cache):
    return {
        "layer": layer, "problem": "p", "pass": pass_,
        "precision": precision, "backend": backend, "cache": cache, "status": "ok",
        "tflops": 780.0, "clock_hz": 1.7e9, "algorithm": "engine 7",
        "time_s": {"median": 1e-3 if backend == "native" else 1.25e-3, "n": 9},
        "peak_tflops": {"theoretical": 989.0, "measured": 800.0},
        "roofline": {"bound": "compute", "efficiency": 0.9}, "correct": {"status": "ok"},
    }

def values(option, default):
    if option not in words:
        return default
    return words[words.index(option) + 1].split(",")

if __name__ == "__main__":
    time.sleep(float(os.environ["CARD_SECONDS"]))
    words = sys.argv[1:]
    found = {"run": {"id": "1"}}
    if words[0] == "device":
        found["device"] = {"peaks": [], "bandwidths": [
            {"level": "memory", "pattern": "copy", "bytes_per_s": 4.3e12}]}
    elif words[0] == "layers":
        found["measurements"] = [
            row("layer", "forward", precision, backend, "hot")
            for precision in values("--precision", ["fp32"])
            for backend in values("--backend", ["native"])
        ]
    elif words[0] == "breakdown":
        found["levels"] = {"limit": {"median": 0.01}, "native": None, "step": {"median": 0.02}}
        found["unexplained"] = 0.05
    elif words[0] == "step":
        found["steps"] = [{"mode": "eager", "phase": "forward", "time_s": {"median": 0.02}}]
    print(json.dumps(found))
"""
_TORCH = """
import os, signal
from contextlib import nullcontext
from types import SimpleNamespace

class Tensor:
    def __sub__(self, other): return self
    def __matmul__(self, other): return self
    def copy_(self, other): return self

class Event:
    def __init__(self, enable_timing): pass
    def record(self): pass
    def elapsed_time(self, last): return 1.0

class Profile:
    def __init__(self, activities): pass
    def __enter__(self):
        if os.environ.get("CARD_PLANTED") == "profiler":
            os.kill(os.getpid(), signal.SIGKILL)
        return self
    def __exit__(self, *_): pass
    def events(self):
        return [SimpleNamespace(device_type="CUDA", device_time_total=20_000.0, name="kernel")]

bfloat16 = float16 = "16 bits"
def rand(*_, **__): return Tensor()
def empty_like(other): return Tensor()
def relu(values): return values
def mm(left, right): return left
cuda = SimpleNamespace(
    Event=Event, synchronize=lambda: None, graph=lambda graph: nullcontext(),
    CUDAGraph=lambda: SimpleNamespace(replay=lambda: None),
    current_stream=lambda: None,
)
profiler = SimpleNamespace(profile=Profile, ProfilerActivity=SimpleNamespace(CUDA=1))
"""
# Other clocks: of a call that takes a millisecond.
_TRITON = """
from types import SimpleNamespace

class Driver:
    def clear_cache(self, cache): pass

runtime = SimpleNamespace(driver=SimpleNamespace(active=Driver()))
"""
_TRITON_TESTING = "def do_bench(call, return_mode): return 1.0\n"
_CUPY = """
from contextlib import nullcontext

class Stream:
    @staticmethod
    def from_external(stream): return nullcontext()
"""
_CUPYX = """
from types import SimpleNamespace

def benchmark(call, n_repeat, n_warmup):
    return SimpleNamespace(gpu_times=[[1e-3] * n_repeat])
"""
_PYTEST = """
import os, time
time.sleep(float(os.environ["CARD_SECONDS"]))
print("3 passed in 0.01s")
"""


def make_site(folder: Path) -> Path:
    """Fill a folder, and return it."""
    for name, text in (
        ("pydlbench/__init__.py", _PACKAGE.format(real=str(Path(pydlbench.__file__).parent))),
        ("pydlbench/__main__.py", _COMMANDS),
        ("pydlbench/_cuda.py", _CUDA),
        ("fake_cuda.py", Path(fake_cuda.__file__).read_text()),
        ("torch.py", _TORCH),
        ("triton/__init__.py", _TRITON),
        ("triton/testing.py", _TRITON_TESTING),
        ("cupy/cuda.py", _CUPY),
        ("cupyx/profiler.py", _CUPYX),
        ("pytest/__init__.py", ""),
        ("pytest/__main__.py", _PYTEST),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder

"""What goes wrong on a GPU costs a row: memory that is not there, a context that is lost."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pydlbench
from pydlbench.errors import InsufficientMemoryError, UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner import kernels
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session

pytestmark = pytest.mark.gpu

# At most 256 copies rotate: to exceed a card's memory each has to be large, here 1 GB.
LARGE = build_layer("gemm", m=16, k=16384, n=16384, name="large")
QUICK = RunnerOptions(budget_s=0.05)

# A kernel that stores to an address that nobody has: the context of the process is lost.
_FAULT = """
import ctypes, sys
sys.path[:0] = {path!r}
import pydlbench._cuda as cuda
from pydlbench.errors import DeviceLostError

device = cuda.Device(0)
device.synchronize()
facts = device.facts
target = min(75, 10 * facts["major"] + facts["minor"])
code = b'''.version 6.3
.target sm_%d
.address_size 64
.visible .entry fault()
{{
  .reg .u64 %%address;
  .reg .u32 %%value;
  mov.u64 %%address, 16;
  mov.u32 %%value, 0;
  st.global.u32 [%%address], %%value;
  ret;
}}
''' % target
driver = ctypes.CDLL("libcuda.so.1")
module, function = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoadData(ctypes.byref(module), code) == 0
assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"fault") == 0
one = [ctypes.c_uint(1)] * 6
nothing = ctypes.c_void_p()
assert driver.cuLaunchKernel(function, *one, ctypes.c_uint(0), nothing, nothing, nothing) == 0
for attempt in (device.synchronize, lambda: cuda.bandwidth(device, "read", 1 << 20, 0.01)):
    try:
        attempt()
    except DeviceLostError as error:
        print("lost:", error)
"""


def test_what_does_not_fit_costs_its_kernel_only(gpu):
    case = KernelSpec(layer=LARGE, cache="all-cold", device="cuda:0")
    much = int(1.2 * gpu.device.facts["memory_bytes"])
    plan = gpu.kernel(case).plan
    with pytest.raises(InsufficientMemoryError, match="memory"):
        gpu.kernel(case, plan, cache="all-cold", timing="cuda-graph", cold_bytes=much)
    kernel = gpu.kernel(case, plan)
    kernel.run_poisoned()
    assert np.isfinite(kernel.output()).all()


def test_out_of_memory_is_a_failed_row_and_the_next_one_is_ok(gpu, monkeypatch):
    """Copies that keep a kernel's data cold in a graph are asked to span more than the memory."""
    facts = gpu.device.facts
    monkeypatch.setattr(kernels, "_COLD_L2", int(1.2 * facts["memory_bytes"] / facts["l2_bytes"]))
    cases = [
        KernelSpec(layer=LARGE, device="cuda:0"),
        KernelSpec(layer=LARGE, cache="all-cold", timing="cuda-graph", device="cuda:0"),
        KernelSpec(layer=LARGE, device="cuda:0"),
    ]
    with Session(QUICK) as session:
        rows = [row for _, row in session.measure(cases)]
        generation = session.worker("native", "cuda:0").generation
    assert [row.status for row in rows] == ["ok", "failed", "ok"]
    assert "memory" in (rows[1].reason or "")
    assert generation == 1, "the worker had no reason to end"


def test_an_illegal_access_loses_the_device():
    """In a process of its own. That such an error ends a worker, and that the next row gets a new
    one, is shown without a GPU in tests/workers/test_worker.py."""
    script = _FAULT.format(path=[str(Path(pydlbench.__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("lost: ")]
    assert len(lines) == 2, done.stdout + done.stderr
    assert all("illegal" in line.lower() for line in lines)


@pytest.mark.parametrize("pass_", ["forward", "backward-data", "backward-weights"])
def test_without_workspace_there_are_only_plans_that_need_none(gpu, pass_):
    layer = pydlbench.build_layer(
        "conv", batch=2, in_channels=16, in_size=14, out_channels=32, kernel=3, padding=1
    )
    case = KernelSpec(layer=layer, pass_=pass_, device="cuda:0")
    try:
        none = gpu.plans(case, 0)
    except UnsupportedError:
        none = []
    assert {plan.workspace_bytes for plan in none} <= {0}
    assert len(none) < len(gpu.plans(case))

"""What the compiler has made of the kernels for Hopper: nothing of a probe is optimised away, and
what is timed keeps its values in registers. No GPU is needed, but the module and a disassembler
(``pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm``).
"""

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.deep

_PROBES = Path(__file__).parents[2] / "csrc/cuda/probes/kernels.hpp"
# An instruction behind its address, with the predicate that it may have.
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ +)?([A-Z][A-Z0-9_.]*)")
# Kernels that keep something in local memory, by the reason why they may.
_LOCAL = {
    "the float64 reference, which is never timed": r"conv2d_check_kernel",
    # A dozen loads and stores beside 8 x 16 bytes per window.
    "eight lanes of 16 bits": r"_per_threadI(6__half|13__nv_bfloat16)L.*ELi8E",
}
_MOST_SPILLS = 12


@pytest.fixture(scope="module")
def kernels():
    """Every kernel's instructions for compute capability 9.0, by its mangled name."""
    module = pytest.importorskip("pydlbench._cuda", reason="the CUDA module is not built")
    folders = [Path(one) / "nvidia/cu13/bin" for one in sys.path]
    path = ":".join(map(str, [*folders, "/usr/local/cuda/bin"]))
    tool = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=path)
    if tool is None:
        pytest.skip("cuobjdump is not installed")
    command = [tool, "-sass", "-arch", "sm_90", module.__file__]
    found: dict[str, Counter[str]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Function :" in line:
                counts = found[line.split(":", 1)[1].strip()] = Counter()
            elif instruction := _INSTRUCTION.match(line):
                counts[instruction[1]] += 1
    assert process.returncode == 0
    if not found:
        pytest.skip("the module has no machine code for compute capability 9.0")
    return found


def _one(kernels: dict[str, Counter[str]], part: str) -> Counter[str]:
    (found,) = (counts for name, counts in kernels.items() if part in name)
    return found


def _beginning(counts: Counter[str], prefix: str) -> int:
    return sum(count for name, count in counts.items() if name.startswith(prefix))


def test_the_fma_probes_do_all_their_multiply_adds(kernels):
    constants = dict(re.findall(r"unsigned (kFma\w+) = (\d+)", _PROBES.read_text()))
    expected = 2 * int(constants["kFmaPairs"]) * int(constants["kFmaSteps"])
    single, half = (_one(kernels, f"3fma6rotateI{one}") for one in ("fEE", "7__half2"))
    assert single["FFMA"] == expected
    # Some sums behind the loop are multiply-adds by one.
    assert expected <= _beginning(half, "HFMA2") <= expected + 16


@pytest.mark.parametrize("words", [2, 4, 8])
@pytest.mark.parametrize(("kind", "loads", "stores"), [(0, 1, 0), (1, 0, 1), (2, 1, 1)])
def test_the_bandwidth_probes_move_16_bytes_at_a_time(kernels, words, kind, loads, stores):
    """Read, write and copy, with so many words in flight."""
    counts = _one(kernels, f"sweepILj{words}ELNS0_10StreamKindE{kind}E")
    assert _beginning(counts, "LDG.E.128") == loads * words
    assert _beginning(counts, "STG.E.128") == stores * words


def test_the_gate_looks_at_the_hosts_memory(kernels):
    assert _one(kernels, "gate_kernel")["LDG.E.STRONG.SYS"] == 1


def test_timed_kernels_keep_their_values_in_registers(kernels):
    spilled = {
        name: count
        for name, counts in kernels.items()
        if (count := _beginning(counts, "LDL") + _beginning(counts, "STL"))
    }
    known = re.compile("|".join(_LOCAL.values()))
    assert [name for name in spilled if not known.search(name)] == []
    pooling = re.compile(list(_LOCAL.values())[-1])
    assert all(count <= _MOST_SPILLS for name, count in spilled.items() if pooling.search(name))

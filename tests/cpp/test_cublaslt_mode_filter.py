"""Which algorithms belong to a mode, and how they are named."""

import ctypes
import re
import sysconfig
from pathlib import Path

import pytest

# The library's numerical flags.
FMA, HMMA, IMMA = 1, 2, 4
ACC16, ACC32, ACCINT = 1 << 8, 2 << 8, 8 << 8
IN16, INBF, INTF32, IN32, INFP8 = 1 << 16, 2 << 16, 4 << 16, 8 << 16, 0x40 << 16
IN8 = 0x20 << 16
# Compute types, as mode_filter.hpp counts them.
FLOAT32, PEDANTIC, TF32, FLOAT16, INT32 = range(5)
# Reduction schemes.
IN_PLACE, COMPUTE_TYPE, OUTPUT_TYPE = 1, 2, 4


@pytest.fixture(scope="module")
def library(cpp_library):
    """Return the compiled rules."""
    loaded = cpp_library
    for name in ("refusal", "accumulate", "computes", "names", "check", "tile", "stages"):
        getattr(loaded, f"{name}_of").restype = ctypes.c_char_p
    loaded.cluster_of.restype = ctypes.c_char_p
    loaded.text_of.restype = ctypes.c_char_p
    loaded.implementations_of.restype = ctypes.c_uint64
    return loaded


def _refusal(library: ctypes.CDLL, mode: str, compute: int, flags: int, scheme: int = 0) -> str:
    answer: bytes = library.refusal_of(mode.encode(), compute, ctypes.c_uint64(flags), scheme)
    return answer.decode()


@pytest.mark.parametrize(
    ("mode", "compute", "flags"),
    [
        ("fp32", FLOAT32, FMA | ACC32 | IN32),
        ("fp32", PEDANTIC, FMA | ACC32 | IN32),
        ("tf32", TF32, HMMA | ACC32 | INTF32),
        ("fp16", FLOAT32, FMA | ACC32 | IN16),
        ("fp16", FLOAT32, FMA | ACC32 | IN32),
        ("fp16", FLOAT16, FMA | ACC16 | IN16),
        ("fp16-tc", FLOAT32, HMMA | ACC32 | IN16),
        ("bf16-tc", FLOAT32, HMMA | ACC32 | INBF),
        ("fp8-tc", FLOAT32, HMMA | ACC32 | INFP8),
        # What Hopper's kernels call their inputs.
        ("bf16-tc", FLOAT32, HMMA | ACC32 | IN16),
        ("fp8-tc", FLOAT32, HMMA | ACC32 | IN16),
        ("int8", INT32, IMMA | ACCINT | IN8),
        ("nvfp4-tc", FLOAT32, 0x10 | ACC32),
        # Hopper's kernels for TF32, the fastest there are.
        ("tf32", TF32, FMA | ACC32 | INTF32),
        ("tf32", TF32, HMMA | ACC32 | IN32),
        # Operations that this header has no name for.
        ("bf16-tc", FLOAT32, 0x10 | ACC32 | INBF),
        ("fp8-tc", FLOAT32, 0x10 | ACC32 | INFP8),
    ],
)
def test_algorithms_of_the_mode_are_kept(library, mode, compute, flags):
    """What computes as the mode says is not refused."""
    assert _refusal(library, mode, compute, flags) == ""


@pytest.mark.parametrize(
    ("mode", "compute", "flags", "reason"),
    [
        ("fp32", FLOAT32, HMMA | ACC32 | INTF32, "is not plain FMA"),
        ("fp32", FLOAT32, FMA | HMMA | ACC32 | IN32, "is not plain FMA"),
        ("fp32", FLOAT32, FMA | ACC32 | INTF32, "rounds its inputs"),
        ("fp32", FLOAT32, FMA | ACC32 | INBF, "rounds its inputs"),
        ("fp32", FLOAT32, FMA | ACC32 | IN16, "rounds its inputs"),
        ("fp32", FLOAT32, FMA | ACC16 | IN32, "accumulates in float16"),
        ("fp32", FLOAT32, INTF32, "rounds its inputs"),
        ("fp16", FLOAT32, 0, "does not say whether it uses tensor cores"),
        ("fp16", FLOAT16, ACC16 | IN16, "does not say whether it uses tensor cores"),
        ("tf32", TF32, FMA | ACC32 | IN32, "uses no floating-point tensor cores"),
        ("tf32", TF32, HMMA | ACC32 | IN16, "does not compute in TF32"),
        ("tf32", TF32, INTF32 | INBF, "does not compute in TF32"),
        ("bf16-tc", FLOAT32, FMA | ACC32 | INTF32, "uses no floating-point tensor cores"),
        ("fp16", FLOAT32, HMMA | ACC32 | IN16, "is not plain FMA"),
        ("fp16", FLOAT32, FMA | ACC16 | IN16, "accumulates in float16"),
        ("fp16-tc", FLOAT32, FMA | ACC32 | IN16, "uses no floating-point tensor cores"),
        ("fp16-tc", FLOAT32, IMMA | ACC32 | IN16, "uses no floating-point tensor cores"),
        ("fp16-tc", FLOAT32, HMMA | ACC16 | IN16, "does not accumulate in float32"),
        ("fp16-tc", FLOAT32, HMMA | ACC16 | ACC32 | IN16, "accumulates in float16"),
        ("bf16-tc", FLOAT32, ACC16 | INBF, "does not accumulate in float32"),
        ("fp8-tc", FLOAT32, FMA | ACC32 | INFP8, "uses no tensor cores"),
        ("int8", INT32, FMA | ACCINT | IN8, "uses no tensor cores"),
        ("int8", INT32, IMMA | ACC32 | IN8, "does not accumulate in int32"),
    ],
)
def test_other_algorithms_are_refused_with_a_reason(library, mode, compute, flags, reason):
    """The library's answer is checked, whatever was asked for."""
    assert _refusal(library, mode, compute, flags) == reason


@pytest.mark.parametrize(
    ("mode", "compute"),
    [
        ("fp32", FLOAT32),
        ("fp32", PEDANTIC),
        ("tf32", TF32),
        ("fp16-tc", FLOAT32),
        ("bf16-tc", FLOAT32),
        ("fp8-tc", FLOAT32),
    ],
)
def test_a_library_that_gives_no_flags_is_taken_by_what_was_asked_for(library, mode, compute):
    """The compute type says the rest; a mode must not lose all of its algorithms to silence."""
    assert _refusal(library, mode, compute, 0) == ""
    assert _refusal(library, mode, compute, ACC32) == ""


def test_whether_tensor_cores_are_used_is_only_said_where_it_is_known(library):
    """1, 0, or -1 for nothing."""
    assert library.tensor_cores_of(ctypes.c_uint64(HMMA | ACC32)) == 1
    assert library.tensor_cores_of(ctypes.c_uint64(FMA | ACC32)) == 0
    assert library.tensor_cores_of(ctypes.c_uint64(FMA | ACC32 | INTF32)) == 1
    assert library.tensor_cores_of(ctypes.c_uint64(ACC32 | INBF)) == -1


@pytest.mark.parametrize("scheme", [IN_PLACE, OUTPUT_TYPE])
def test_partial_sums_in_sixteen_bits_are_not_float32_accumulation(library, scheme):
    """A split reduction may pass through the output's type only where that is wide enough."""
    reason = "adds partial sums in the output's type"
    assert _refusal(library, "fp16-tc", FLOAT32, HMMA | ACC32 | IN16, scheme) == reason
    assert _refusal(library, "fp16", FLOAT32, FMA | ACC32 | IN16, scheme) == reason
    assert _refusal(library, "fp16", FLOAT16, FMA | ACC16 | IN16, scheme) == ""
    assert _refusal(library, "fp32", FLOAT32, FMA | ACC32 | IN32, scheme) == ""
    assert _refusal(library, "tf32", TF32, HMMA | ACC32 | INTF32, scheme) == ""


@pytest.mark.parametrize("mode", ["fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc"])
def test_partial_sums_in_the_compute_type_are_fine(library, mode):
    """The wide reduction is allowed everywhere."""
    flags = {"fp32": FMA | ACC32 | IN32, "fp16": FMA | ACC32 | IN16}.get(mode, HMMA | ACC32)
    flags |= INTF32 if mode == "tf32" else 0
    assert _refusal(library, mode, FLOAT32, flags, COMPUTE_TYPE) == ""


@pytest.mark.parametrize(
    ("mode", "operations"),
    [("fp32", FMA), ("fp16", FMA), ("tf32", 0xFE), ("bf16-tc", 0xFE), ("fp8-tc", 0xFE)],
)
def test_the_library_is_asked_for_nothing_else(library, mode, operations):
    """The mask restricts the operations and leaves accumulators and inputs open."""
    mask = library.implementations_of(mode.encode())
    assert mask & 0xFF == operations
    assert mask | 0xFF == 2**64 - 1


def test_fp16_is_asked_for_with_both_accumulators(library):
    """Both are listed, each with its accumulator, whatever the flags name where it is float16."""
    assert [int(word) for word in library.computes_of(b"fp16").split()] == [FLOAT32, FLOAT16]
    assert library.accumulate_of(FLOAT16, ctypes.c_uint64(FMA | ACC16)) == b"float16"
    assert library.accumulate_of(FLOAT16, ctypes.c_uint64(FMA | ACC32)) == b"float16"
    assert library.accumulate_of(FLOAT16, ctypes.c_uint64(FMA)) == b"float16"
    assert library.accumulate_of(FLOAT32, ctypes.c_uint64(FMA)) == b"float32"


def test_tf32_is_only_asked_for_in_its_mode(library):
    """No other mode lets the library round float32 inputs."""
    for mode in ("fp32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc"):
        assert str(TF32).encode() not in library.computes_of(mode.encode()).split()
    assert library.computes_of(b"tf32").split() == [str(TF32).encode()]


def test_flags_are_listed_by_the_library_s_names(library):
    """They become the plan's notes."""
    listed = library.names_of(ctypes.c_uint64(HMMA | ACC32 | INTF32))
    assert listed.split() == [b"HMMA", b"ACCUMULATOR_32F", b"INPUT_TF32"]


@pytest.mark.parametrize(
    ("mode", "capability", "message"),
    [
        ("bf16-tc", 75, "this GPU (compute capability 7.5) has no bf16-tc: it needs 8.0"),
        ("tf32", 75, "this GPU (compute capability 7.5) has no tf32: it needs 8.0"),
        ("fp16-tc", 61, "this GPU (compute capability 6.1) has no fp16-tc: it needs 7.0"),
        ("fp8-tc", 86, "this GPU (compute capability 8.6) has no fp8-tc: it needs 8.9"),
        ("fp8-tc", 120, ""),
        ("tf32", 80, ""),
    ],
)
def test_a_mode_the_gpu_lacks_is_said_so(library, mode, capability, message):
    """One sentence with what there is and what is needed."""
    sizes = [ctypes.c_int64(16)] * 3
    assert library.check_of(mode.encode(), *sizes, capability).decode() == message


@pytest.mark.parametrize(("sizes", "letter"), [((8, 16, 16), "m"), ((16, 17, 16), "k")])
def test_fp8_needs_multiples_of_sixteen(library, sizes, letter):
    """The first size that does not fit is named; no other mode minds."""
    arguments = [ctypes.c_int64(size) for size in sizes]
    value = sizes["mkn".index(letter)]
    assert library.check_of(b"fp8-tc", *arguments, 90).decode() == (
        f"fp8-tc needs sizes that are multiples of 16, and {letter} is {value}"
    )
    assert library.check_of(b"bf16-tc", *arguments, 90) == b""


def test_algorithm_text(library):
    """What is undefined or the default is left out."""
    assert library.text_of(66, 23, 16, 2, COMPUTE_TYPE, 1, 3, 0, 3) == (
        b"algo 66 tile 128x256 stages 64x4 split-k 2 (compute type) swizzle 1 option 3"
        b" cluster 2x1x1"
    )
    assert library.text_of(0, 0, 0, 1, 0, 0, 0, 0, 0) == b"algo 0"
    assert library.text_of(9, 700, 99, 1, 0, 0, 0, 2, 200) == (
        b"algo 9 tile #700 stages #99 inner 2 cluster #200"
    )


def _header() -> str | None:
    """Return the library's header where one of NVIDIA's packages is installed."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    for path in sorted(packages.glob("*/include/cublasLt.h")):
        return path.read_text()
    return None


@pytest.mark.skipif(_header() is None, reason="no cublasLt.h in this environment")
@pytest.mark.parametrize(
    ("prefix", "function", "separator"),
    [
        ("CUBLASLT_MATMUL_TILE_", "tile_of", "x"),
        ("CUBLASLT_MATMUL_STAGES_", "stages_of", "x"),
        ("CUBLASLT_CLUSTER_SHAPE_", "cluster_of", "x"),
    ],
)
def test_names_agree_with_the_header(library, prefix, function, separator):
    """Every identifier of the header has the name that the header gives it."""
    header = _header() or ""
    found = re.findall(prefix + r"(\d+" + separator + r"\w+)\s*=\s*(\d+)", header)
    assert len(found) >= 30
    for name, number in found:
        answer = getattr(library, function)(int(number)).decode()
        assert answer == name.lower()

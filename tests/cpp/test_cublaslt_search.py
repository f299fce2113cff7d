"""Search and plans of matrix products on an invented cuBLASLt.

Needs the library's header and the CUDA toolkit's, but neither a GPU nor the library itself.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from numpy.typing import NDArray

FMA, HMMA, IMMA = 1, 2, 4
ACC16, ACC32, ACCINT = 1 << 8, 2 << 8, 8 << 8
IN16, INBF, INTF32, IN32, INFP8 = 1 << 16, 2 << 16, 4 << 16, 8 << 16, 0x40 << 16
IN8 = 0x20 << 16
NATIVE = {
    "fp32": FMA | ACC32 | IN32,
    "tf32": HMMA | ACC32 | INTF32,
    "fp16": FMA | ACC32 | IN16,
    "fp16-tc": HMMA | ACC32 | IN16,
    "bf16-tc": HMMA | ACC32 | INBF,
    "fp8-tc": HMMA | ACC32 | INFP8,
    "fp8-tc-fast": HMMA | ACC32 | INFP8,
    "int8": IMMA | ACCINT | IN8,
    "mxfp8-tc": HMMA | ACC32 | INFP8,
    "nvfp4-tc": 0x10 | ACC32,
}
# cublasStatus_t.
SUCCESS, ALLOC_FAILED, INVALID_VALUE, EXECUTION_FAILED, NOT_SUPPORTED = 0, 3, 7, 13, 15
INTERNAL_ERROR = 14
# cublasComputeType_t and cudaDataType_t.
COMPUTE_32F, COMPUTE_32F_PEDANTIC, COMPUTE_TF32, COMPUTE_16F = 68, 69, 77, 64
COMPUTE_32I = 72
R_32F, R_16F, R_16BF, R_8F_E4M3 = 0, 2, 14, 28
R_8I, R_32I, R_4F_E2M1 = 3, 10, 33
# Preferences.
WORKSPACE, REDUCTIONS, IMPLEMENTATIONS = 1, 3, 12


@dataclass(frozen=True)
class Plan:
    """What a plan says about itself."""

    primitive: str
    variant: str
    layout: str
    algorithm: str
    accumulate: str
    tensor_cores: bool | None
    notes: list[str]
    workspace: int
    roles: list[str]


class Library:
    """The compiled search and its invented library."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        """Take the compiled functions."""
        self.c = loaded
        for name in ("recorded_calls", "gemm_plans_of", "run_gemm_plan"):
            getattr(loaded, name).restype = ctypes.c_char_p
        self.reset()

    def reset(self, heuristic: int = SUCCESS, matmul: int = SUCCESS) -> None:
        """Forget all offers, plans and records."""
        self.c.reset_library(heuristic, matmul)

    def behave(self, *, gives_flags: bool = True, restricts: bool = False) -> None:
        """Let the library keep its flags to itself, or heed the restriction that it is given."""
        self.c.set_behaviour(int(gives_flags), int(restricts))

    def offer(
        self,
        identifier: int,
        flags: int,
        *,
        tile: int = 0,
        split_k: int = 1,
        scheme: int = 0,
        option: int = 0,
        workspace: int = 0,
        state: int = SUCCESS,
    ) -> None:
        """Let the library have an algorithm."""
        numbers = (identifier, tile, split_k, scheme, option, flags, workspace)
        self.c.offer_algorithm(*(ctypes.c_uint64(number) for number in numbers), state)

    def plans(
        self,
        mode: str = "fp32",
        pass_: str = "forward-inference",
        sizes: tuple[int, int, int, int] = (1, 16, 32, 48),
        *,
        capability: int = 90,
        limit: int = 1 << 20,
        fused: bool = False,
    ) -> list[Plan]:
        """Search; an exception of the code comes back as RuntimeError."""
        text = self.c.gemm_plans_of(
            pass_.encode(),
            mode.encode(),
            *(ctypes.c_int64(size) for size in sizes),
            capability,
            ctypes.c_size_t(limit),
            int(fused),
        ).decode()
        if text.startswith("!"):
            raise RuntimeError(text[1:])
        plans = []
        for line in text.splitlines():
            primitive, variant, layout, algorithm, accumulate, cores, notes, size, roles = (
                line.split("|")
            )
            plans.append(
                Plan(
                    primitive,
                    variant,
                    layout,
                    algorithm,
                    accumulate,
                    tensor_cores={"1": True, "0": False}.get(cores),
                    notes=notes.split(),
                    workspace=int(size),
                    roles=roles.split(),
                )
            )
        return plans

    def run(self, plan: int, pointers: list[Any], workspace: int = 0) -> None:
        """Enqueue a plan."""
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        text = self.c.run_gemm_plan(plan, array, len(pointers), ctypes.c_void_p(workspace)).decode()
        if text:
            raise RuntimeError(text[1:])

    @property
    def record(self) -> list[str]:
        """What the library was told."""
        lines: list[str] = self.c.recorded_calls().decode().splitlines()
        return lines


@pytest.fixture(scope="module")
def compiled(cpp_library):
    """The invented library, where CMake found the headers that it is compiled with."""
    if not hasattr(cpp_library, "gemm_plans_of"):
        pytest.skip("no headers of cuBLASLt and the CUDA toolkit")
    return Library(cpp_library)


@pytest.fixture
def library(compiled):
    """Return the library without any memory of other tests."""
    compiled.reset()
    return compiled


@pytest.mark.parametrize("sizes", [(1, 3, 5, 7), (1, 1, 6, 1), (3, 4, 2, 5)])
@pytest.mark.parametrize(
    ("pass_", "fused"),
    [
        ("forward-training", False),
        ("forward-training", True),
        ("backward-data", False),
        ("backward-weights", False),
    ],
)
def test_plans_compute_the_product(library, pass_, sizes, fused):
    """From the caller's matrices to the library's call and back, in every storage."""
    library.offer(1, NATIVE["fp32"])
    batch, m, k, n = sizes
    shapes = {"src": (batch, m, k), "weights": (batch, k, n), "dst": (batch, m, n)}
    shapes["bias"] = (1, 1, n)
    rng = np.random.default_rng(7)
    arrays = {role: rng.uniform(-1, 1, shape).astype(np.float32) for role, shape in shapes.items()}
    src, weights, dst = (arrays[role].astype(np.float64) for role in ("src", "weights", "dst"))
    expected: NDArray[Any] = {
        "forward-training": src @ weights,
        "backward-data": dst @ weights.transpose(0, 2, 1),
        "backward-weights": src.transpose(0, 2, 1) @ dst,
    }[pass_]
    if fused:
        expected = np.maximum(expected + arrays["bias"], 0)

    plans = library.plans("fp32", pass_, sizes, fused=fused)
    assert [plan.variant for plan in plans] == ["plain", "transposed"]
    for index, plan in enumerate(plans):
        assert plan.primitive.endswith("with bias and ReLU") == fused
        views, memory = [], []
        for i, role in enumerate(plan.roles):
            strides = (ctypes.c_int64 * 3)()
            library.c.gemm_strides_of(index, i, strides)
            memory.append(np.full(arrays[role].size, np.nan, np.float32))
            views.append(as_strided(memory[-1], shapes[role], [4 * s for s in strides]))
            if i + 1 < len(plan.roles):
                views[-1][...] = arrays[role]
        library.run(index, [array.ctypes.data for array in memory])
        np.testing.assert_allclose(views[-1], expected, rtol=1e-5, atol=1e-6)


def test_nothing_is_left_behind(library):
    """Handle, descriptions and preferences are given back with the plans."""
    library.offer(1, NATIVE["fp32"])
    library.plans()
    assert library.c.live_library_objects() > 0
    library.reset()
    assert library.c.live_library_objects() == 0
    with pytest.raises(RuntimeError):
        library.plans()
    assert library.c.live_library_objects() == 0


def test_tf32_never_passes_for_fp32(library):
    """The library is asked for FMA only, and what it answers is checked again."""
    library.offer(1, NATIVE["tf32"])
    library.offer(2, NATIVE["fp32"])
    library.offer(3, HMMA | ACC32 | INBF)  # emulation in bfloat16 parts
    plans = library.plans("fp32")
    assert {plan.algorithm for plan in plans} == {"algo 2"}
    assert not any(plan.tensor_cores for plan in plans)
    assert plans[0].notes == ["FMA", "ACCUMULATOR_32F", "INPUT_32F"]
    masks = [line for line in library.record if line.startswith(f"preference {IMPLEMENTATIONS}")]
    assert masks
    assert all(int(line.split()[-1]) & 0xFF == FMA for line in masks)
    assert _computes(library) == {COMPUTE_32F}


def test_the_pedantic_compute_type_is_for_products_without_other_algorithms(library):
    """Asked for both, each kernel would be tried twice."""
    library.offer(1, NATIVE["fp32"])
    assert len(library.plans("fp32")) == 2  # one for each storage
    assert _computes(library) == {COMPUTE_32F}
    library.reset()
    library.offer(1, NATIVE["tf32"])
    with pytest.raises(RuntimeError, match="is not plain FMA"):
        library.plans("fp32")
    assert _computes(library) == {COMPUTE_32F, COMPUTE_32F_PEDANTIC}


def _computes(library: Library) -> set[int]:
    """Return the compute types that the library was told."""
    return {int(line.split()[2]) for line in library.record if line.startswith("operation")}


@pytest.mark.parametrize("mode", ["fp32", "tf32", "fp16-tc", "bf16-tc", "fp8-tc", "fp8-tc-fast"])
def test_a_library_that_gives_no_flags_leaves_the_modes_their_algorithms(library, mode):
    """They are of the compute type that was asked for; nothing is claimed of tensor cores."""
    library.behave(gives_flags=False)
    library.offer(1, NATIVE[mode])
    plans = library.plans(mode)
    assert plans
    assert {plan.tensor_cores for plan in plans} == {None}
    assert {plan.accumulate for plan in plans} == {"float32"}
    assert all("the library names no operations" in " ".join(plan.notes) for plan in plans)


def test_without_flags_nothing_is_of_the_mode_that_avoids_tensor_cores(library):
    """CUBLAS_COMPUTE_32F on float16 may be either."""
    library.behave(gives_flags=False)
    library.offer(1, NATIVE["fp16"])
    with pytest.raises(RuntimeError, match=r"does not say whether it uses tensor cores \(no flags"):
        library.plans("fp16")


def test_a_restriction_that_leaves_nothing_is_lifted(library):
    """A library may count a kernel's flags otherwise; what it then answers is checked as ever."""
    library.behave(restricts=True)
    odd = FMA | HMMA | ACC32 | INBF
    library.offer(1, odd)
    (plan, *_) = library.plans("bf16-tc")
    assert (plan.algorithm, plan.tensor_cores) == ("algo 1", True)
    with pytest.raises(RuntimeError, match="algo 1 is not plain FMA"):
        library.plans("fp32")


def test_both_questions_together_list_an_algorithm_once(library):
    """Tensor modes ask with and without the restriction."""
    library.behave(restricts=True)
    library.offer(1, NATIVE["fp16"])
    library.offer(2, NATIVE["bf16-tc"])
    plans = library.plans("bf16-tc")
    assert [(plan.algorithm, plan.variant) for plan in plans] == [
        ("algo 2", "plain"),
        ("algo 2", "transposed"),
    ]
    masks = [line for line in library.record if line.startswith(f"preference {IMPLEMENTATIONS}")]
    assert {int(line.split()[-1]) & 0xFF for line in masks} == {0xFE, 0xFF}


@pytest.mark.parametrize(
    ("mode", "compute", "storage"),
    [
        ("tf32", {COMPUTE_TF32}, R_32F),
        ("fp16", {COMPUTE_32F, COMPUTE_16F}, R_16F),
        ("fp16-tc", {COMPUTE_32F}, R_16F),
        ("bf16-tc", {COMPUTE_32F}, R_16BF),
    ],
)
def test_modes_in_the_library_s_terms(library, mode, compute, storage):
    """Compute types and storage are those of the mode."""
    library.offer(1, NATIVE[mode])
    plans = library.plans(mode)
    assert all(plan.tensor_cores == (mode != "fp16") for plan in plans)
    words = [line.split() for line in library.record]
    assert {int(line[2]) for line in words if line[0] == "operation"} == compute
    assert {int(line[1]) for line in words if line[0] == "matrix"} == {storage}


def test_fp16_lists_both_accumulators(library):
    """float16 accumulation goes with float16 scalars, and says so."""
    library.offer(1, FMA | ACC32 | IN16)
    library.offer(2, FMA | ACC16 | IN16)
    plans = library.plans("fp16")
    plain = [(p.algorithm, p.accumulate) for p in plans if p.variant == "plain"]
    # Asked for float32 accumulation, algorithm 2 is not of the mode; asked for float16, both are.
    assert plain == [("algo 1", "float32"), ("algo 1", "float16"), ("algo 2", "float16")]
    library.run(0, [1, 2, 3])
    library.run(1, [1, 2, 3])
    calls = [line for line in library.record if line.startswith("matmul")]
    assert calls[0].endswith("alpha 1 beta 0")
    assert calls[1].endswith("half alpha 15360 beta 0")  # 0x3c00 is one


@pytest.mark.parametrize(("mode", "fast"), [("fp8-tc", 0), ("fp8-tc-fast", 1)])
def test_fp8(library, mode, fast):
    """TN, scales of one, fast accumulation by the mode, a 16-bit C that nothing reads."""
    library.offer(1, NATIVE[mode])
    (plan,) = library.plans(mode)
    assert plan.layout.endswith("TN")
    assert plan.variant == "transposed"
    record = library.record
    assert f"fast accumulation {fast}" in record
    assert ("FAST_ACCUM on:" in " ".join(plan.notes)) is bool(fast)
    assert [line for line in record if line.startswith("scale")] == [
        f"scale {attribute} is 1" for attribute in (17, 18, 20)
    ]
    matrices = [int(line.split()[1]) for line in record if line.startswith("matrix")]
    assert matrices == [R_8F_E4M3, R_8F_E4M3, R_16BF, R_8F_E4M3]
    library.run(0, [1, 2, 3])
    assert f"c type {R_16BF} none" in library.record[-1]
    assert library.plans(mode, "backward-data")[0].variant == "plain"
    with pytest.raises(RuntimeError, match="multiples of 16, and k is 24"):
        library.plans(mode, sizes=(1, 16, 24, 32))


def test_int8_gives_exact_sums(library):
    """TN, integers throughout, also the factors of the product and of C."""
    library.offer(1, NATIVE["int8"])
    library.offer(2, HMMA | ACC32 | IN8)
    (plan,) = library.plans("int8", sizes=(1, 12, 20, 8))
    assert (plan.algorithm, plan.accumulate, plan.tensor_cores) == ("algo 1", "int32", True)
    assert plan.layout.endswith("TN")
    assert _computes(library) == {COMPUTE_32I}
    matrices = [int(line.split()[1]) for line in library.record if line.startswith("matrix")]
    assert matrices == [R_8I, R_8I, R_32I, R_32I]
    library.run(0, [1, 2, 3])
    assert library.record[-1].endswith("whole alpha 1 beta 0")
    for words in ({"fused": True}, {"pass_": "backward-data"}):
        with pytest.raises(RuntimeError, match="int8 products have a forward pass"):
            library.plans("int8", **words)
    with pytest.raises(RuntimeError, match="multiples of 4, and k is 18"):
        library.plans("int8", sizes=(1, 16, 18, 32))
    with pytest.raises(RuntimeError, match=r"7\.0\) has no int8: it needs 7\.5"):
        library.plans("int8", capability=70)


@pytest.mark.parametrize(
    ("mode", "scales", "stored"), [("mxfp8-tc", 2, R_8F_E4M3), ("nvfp4-tc", 1, R_4F_E2M1)]
)
def test_products_with_block_scales(library, mode, scales, stored):
    """Scales of both operands, none of the result, which is bfloat16."""
    library.offer(1, NATIVE[mode])
    (plan,) = library.plans(mode, sizes=(1, 32, 64, 96), capability=100)
    assert (plan.variant, plan.accumulate) == ("transposed", "float32")
    assert "block scales" in " ".join(plan.notes)
    record = library.record
    assert record.count(f"scale mode {scales}") == 2
    # The weights are the library's first matrix.
    of_operands = [line for line in record if line.startswith("scale ")][2:]
    assert of_operands == ["scale 17 is 3", "scale 18 is 2"]
    matrices = [int(line.split()[1]) for line in record if line.startswith("matrix")]
    assert matrices == [stored, stored, R_16BF, R_16BF]
    with pytest.raises(RuntimeError, match="multiples of 32, and k is 48"):
        library.plans(mode, sizes=(1, 32, 48, 32), capability=100)
    with pytest.raises(RuntimeError, match=rf"9\.0\) has no {mode}: it needs 10\.0"):
        library.plans(mode)


def test_a_fused_fp8_product_has_a_bfloat16_bias(library):
    """The library takes no FP8 bias."""
    library.offer(1, NATIVE["fp8-tc"])
    (plan,) = library.plans("fp8-tc", fused=True)
    assert plan.roles == ["src", "weights", "bias", "dst"]
    assert f"bias type {R_16BF}" in library.record


def test_only_what_fits_the_limit_is_kept(library):
    """The limit is told to the library, checked, and each plan passes its own workspace."""
    library.offer(1, NATIVE["fp32"], workspace=1000)
    library.offer(2, NATIVE["fp32"], workspace=1001)
    library.offer(3, NATIVE["fp32"], state=NOT_SUPPORTED)
    plans = library.plans(limit=1000)
    assert {(plan.algorithm, plan.workspace) for plan in plans} == {("algo 1", 1000)}
    assert f"preference {WORKSPACE} is 1000" in library.record
    with pytest.raises(RuntimeError, match="more workspace than is allowed"):
        library.plans(limit=999)


def test_narrow_partial_sums_are_not_asked_for(library):
    """Split reductions of 16-bit results add in the compute type."""
    library.offer(1, NATIVE["bf16-tc"], split_k=4, scheme=2)
    library.offer(2, NATIVE["bf16-tc"], split_k=4, scheme=4)
    plans = library.plans("bf16-tc")
    assert {plan.algorithm for plan in plans} == {"algo 1 split-k 4 (compute type)"}
    assert f"preference {REDUCTIONS} is 2" in library.record


def test_a_reduction_scheme_without_a_split_means_nothing(library):
    """Some algorithms carry one although there are no partial sums."""
    library.offer(1, NATIVE["bf16-tc"], split_k=1, scheme=4)
    assert {plan.algorithm for plan in library.plans("bf16-tc")} == {"algo 1"}


def test_twins(library):
    """The same algorithm is listed once; different ones with one text are numbered."""
    library.offer(1, NATIVE["fp32"], tile=20)
    library.offer(1, NATIVE["fp32"], tile=20)
    library.offer(1, NATIVE["fp32"] | 1 << 40, tile=20)  # differs where the text does not look
    plain = [plan.algorithm for plan in library.plans() if plan.variant == "plain"]
    assert plain == ["algo 1 tile 128x128", "algo 1 tile 128x128 (2)"]


@pytest.mark.parametrize("status", [NOT_SUPPORTED, INVALID_VALUE, INTERNAL_ERROR])
def test_no_algorithm_is_one_sentence(library, status):
    """The library's own reason is part of it."""
    library.reset(heuristic=status)
    with pytest.raises(RuntimeError, match=r"unsupported cuBLASLt 0\.0\.0 has no fp32 algorithm"):
        library.plans()
    library.reset()
    library.offer(9, NATIVE["tf32"])
    with pytest.raises(RuntimeError) as caught:
        library.plans()
    assert "none of 4 offered is of the mode; algo 9 is not plain FMA" in str(caught.value)
    assert "(HMMA ACCUMULATOR_32F INPUT_TF32)" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (NOT_SUPPORTED, "unsupported"),
        (ALLOC_FAILED, "memory"),
        (EXECUTION_FAILED, "matrix product"),
    ],
)
def test_failures_keep_the_library_s_reason(library, status, kind):
    """A refused run is a skipped or failed row, by its status."""
    library.reset(matmul=status)
    library.offer(1, NATIVE["bf16-tc"])
    library.plans("bf16-tc")
    with pytest.raises(RuntimeError, match=f"^{kind}.*cublasLtMatmul: an invented reason"):
        library.run(0, [1, 2, 3])


def test_a_mode_that_the_gpu_lacks(library):
    """Said before the library is asked."""
    with pytest.raises(RuntimeError, match=r"\(compute capability 7.5\) has no bf16-tc"):
        library.plans("bf16-tc", capability=75)
    assert library.record == []


def test_gradients_have_no_bias(library):
    """Fused products exist in the forward pass only."""
    with pytest.raises(RuntimeError, match="forward pass only"):
        library.plans(pass_="backward-data", fused=True)

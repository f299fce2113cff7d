"""Kernels of users: cheats are refused, honest ones accepted, and impossible times get no row."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from invented_rows import measurement

pytest.importorskip("torch")

from pydlbench.backends.base import Preparation
from pydlbench.backends.frameworks.device_clock import DeviceClock
from pydlbench.backends.frameworks.shared_kernel import SharedKernel, memory_transfer
from pydlbench.errors import PydlbenchError, RefusedKernelError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec, Roofline
from pydlbench.runner.audited import AuditedKernel, impossible, prepare_audited
from pydlbench.runner.claimed_times import ClaimedTimes
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.verification.shared import SharedOperands
from pydlbench.workers.host import Worker

HERE = Path(__file__).parent
CPU = tuple(sorted(os.sched_getaffinity(0)))[:1]
RELU = build_layer("relu", batch=2, channels=4, height=5, width=6)
#: Large enough that inputs of later samples are cut from two draws.
LARGE = build_layer("relu", batch=2, channels=8, height=80, width=80)
PRODUCT = build_layer("gemm", m=32, k=48, n=16)
CONV = build_layer("conv", batch=2, in_channels=4, in_size=6, out_channels=8, kernel=3, padding=1)
SOFTMAX = build_layer("softmax", batch=2, channels=3, height=4, width=33)
POOL = build_layer("pool", batch=2, channels=3, in_size=6, kernel=2, stride=2, mode="max")
LAYERS = {"relu": RELU, "product": PRODUCT, "conv": CONV, "softmax": SOFTMAX, "maximum": POOL}


@pytest.fixture(scope="module")
def worker():
    """A process for all kernels that leave it as it is."""
    worker = Worker("torch", "cpu", CPU)
    yield worker
    worker.discard()


def audited(worker, path, layer, **words):
    spec = KernelSpec(layer=layer, mode=str(path), backend="torch", **words)
    kernel = prepare_audited(worker, spec, Preparation(), CPU)
    chunks = [kernel.sample(ChunkRequest(samples=6, untimed=2)) for _ in range(4)]
    kernel.release()
    return kernel, [seconds for chunk in chunks for seconds in chunk.seconds]


CHEATS = {
    RELU: (
        "only_where_the_output_is_nan only_the_first_calls every_other_call kept_by_pointer "
        "kept_by_shape half_of_the_batch all_but_an_element random_rows on_a_thread "
        "on_a_thread_unless_verified result_of_the_call_before changes_the_input_to_zero "
        "makes_the_input_easy changes_the_input_after_its_result only_where_garbage_is_collected "
        "only_where_the_caller_verifies only_after_a_pause another_storage lazy_class zero "
        "from_the_shared_memory ahead_in_the_first_sample "
        "after_the_clock after_the_clock_by_a_trace of_an_earlier_process "
        "in_a_child when_python_ends when_garbage_is_collected by_a_signal "
        "rows_that_a_seed_draws another_storage_by_set the_input_as_output "
        "of_every_tenth_value by_a_lazy_view in_a_child_that_goes_on "
        "by_attributes_of_a_function with_its_own_judge fills_nan fills_infinity "
        "resizes_the_output gives_strides_of_zero half_by_symmetry of_the_expected_distribution "
        "where_the_judge_has_looked with_a_larger_tolerance when_the_process_pauses "
        "in_the_copy_of_its_result on_a_thread_that_waits"
    ),
    LARGE: "all_but_an_element kept_by_value random_rows result_of_the_call_before kept_by_shape",
    PRODUCT: (
        "in_half_precision in_bfloat16_products winograd without_some_terms "
        "without_small_weights kept_products kept_weights in_autocast "
        "kept_by_a_rounded_mean with_half_of_the_terms_doubled with_rounded_weights "
        "with_sums_in_half of_low_rank"
    ),
    SOFTMAX: "mean_of_some_rows",
}


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        pytest.param(layer, name, id=f"{layer.op} {name}")
        for layer, names in CHEATS.items()
        for name in names.split()
    ],
)
def test_a_cheat_is_refused(worker, layer, name):
    with pytest.raises(PydlbenchError) as caught:
        audited(worker, f"{HERE / 'planted_cheats.py'}:{name}", layer)
    assert "worker" not in type(caught.value).__name__.lower()


@pytest.mark.deep
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is no other CPU")
@pytest.mark.parametrize("name", ["on_other_cpus", "in_a_daemon_on_other_cpus"])
def test_threads_on_other_cpus_are_refused(name):
    worker = Worker("torch", "cpu", CPU)
    try:
        with pytest.raises(RefusedKernelError, match="CPU"):
            audited(worker, f"{HERE / 'planted_cheats.py'}:{name}", RELU)
    finally:
        worker.discard()


@pytest.mark.parametrize(
    ("slots", "samples", "slow", "requests"),
    [
        (16, 16, 1, [16, 3, 16]),
        (16, 16, 99, [16, 3, *(11 * [16])]),
        (3, 3, 1, [3, 3]),
        (16, 1, 0, [3]),
        (1, 3, 0, [1, 1, 1]),
    ],
)
def test_a_request_with_a_slow_sample_is_repeated(slots, samples, slow, requests):
    """Requests of other sizes, which a remainder makes, do not say whether samples are even."""
    kernel, taken = object.__new__(AuditedKernel), []
    kernel._claimed, kernel._shared = ClaimedTimes(), SimpleNamespace(slots=slots)
    kernel._spec, kernel._cut, kernel._cold = SimpleNamespace(on_gpu=True), False, False

    def take(request):
        taken.append(request.samples)
        assert len(taken) < 20
        first = 0.02 if len(taken) <= slow else 1e-3
        seconds = (first, *((request.samples - 1) * [1e-3]))
        kernel._claimed.check_even(seconds)
        return Chunk(seconds=seconds, enqueue_s=seconds)

    kernel._take = take
    if len(requests) > 10:
        with pytest.raises(RefusedKernelError, match="their median"):
            kernel.sample(ChunkRequest(samples=samples, untimed=1))
    else:
        whole = kernel.sample(ChunkRequest(samples=samples, untimed=1))
        assert whole.seconds == tuple(samples * [1e-3])
    assert taken == requests


@pytest.mark.parametrize(("on_gpu", "inner"), [(False, 1), (True, 50)])
def test_each_timed_call_on_a_cpu_has_inputs_of_its_own(monkeypatch, on_gpu, inner):
    """A call on the same inputs as the one before could return its result."""
    kernel, taken = object.__new__(AuditedKernel), []
    kernel._claimed, kernel._shared = ClaimedTimes(), SimpleNamespace(slots=16)
    kernel._spec, kernel._cut = SimpleNamespace(on_gpu=on_gpu), False
    kernel._cold, kernel._bytes, kernel._elapsed_s, kernel.worker = False, 0, 0.0, None
    monkeypatch.setattr(kernel._claimed, "check_loop", lambda *_: None)

    def take(request):
        taken.append(request)
        return Chunk(seconds=request.samples * (1e-3,), enqueue_s=request.samples * (0.0,))

    kernel._take = take
    kernel.sample(ChunkRequest(samples=6, inner=50, untimed=1))
    assert {request.inner for request in taken} == {inner}


def test_a_kernel_that_is_even_at_times_gains_nothing_by_looking_ahead():
    kernel, taken = object.__new__(AuditedKernel), []
    kernel._claimed, kernel._shared = ClaimedTimes(), SimpleNamespace(slots=16)
    kernel._spec, kernel._cut, kernel._cold = SimpleNamespace(on_gpu=True), False, False

    def take(request):
        taken.append(request.samples)
        ahead = len(taken) % 4 > 0
        first, other = (16e-3, 0) if ahead else (1e-3, 1e-3)
        seconds = (first, *((request.samples - 1) * [other]))
        kernel._claimed.check_even(seconds)
        return Chunk(seconds=seconds, enqueue_s=seconds)

    kernel._take = take
    for _ in range(8):
        whole = kernel.sample(ChunkRequest(samples=15, untimed=1))
        assert min(whole.seconds) == pytest.approx(1e-3)
    assert len(taken) > 8


@pytest.mark.parametrize(
    ("kind", "harmless"),
    [
        pytest.param("clock_module", True, marks=pytest.mark.deep),
        pytest.param("clock_of_an_object", True, marks=pytest.mark.deep),
        ("clock_of_the_judge", False),
        ("clock_in_c", False),
        pytest.param("cuda_functions", True, marks=pytest.mark.deep),
        ("clock_method", False),
        pytest.param("function_mode", False, marks=pytest.mark.deep),
        pytest.param("lazy_operands", False, marks=pytest.mark.deep),
        pytest.param("reference", False, marks=pytest.mark.deep),
        pytest.param("torch_function", False, marks=pytest.mark.deep),
        ("memmove", False),
        pytest.param("copies_late", False, marks=pytest.mark.deep),
        pytest.param("allclose", False, marks=pytest.mark.deep),
        ("seed", False),
    ],
)
def test_replaced_functions_change_no_verdict_and_no_time(tmp_path, kind, harmless):
    path = shutil.copy(HERE / "planted_patches.py", tmp_path / f"{kind}.py")
    worker = Worker("torch", "cpu", CPU)
    try:
        if harmless:
            assert min(audited(worker, f"{path}:launch", RELU)[1]) > 0.004
        else:
            with pytest.raises(PydlbenchError):
                audited(worker, f"{path}:launch", RELU)
    finally:
        worker.discard()


HONEST = {
    "forward": (
        "relu_out relu_copied relu_in_place_on_the_output relu_numpy relu_chunked relu_backwards "
        "relu_own_threads relu_pool relu_scratch relu_channels_last relu_in_double "
        "relu_kept_by_all_values relu_by_words relu_numba relu_numba_parallel "
        "relu_autograd_function relu_of_a_generator_of_modules relu_other_number_of_threads "
        "relu_strided relu_where relu_jit relu_thread_with_a_queue relu_numpy_parts relu_by_bits "
        "relu_with_a_growing_log product_padded product_by_columns product_as_convolution "
        "product_of_batches product product_numpy "
        "product_transposed product_in_blocks product_einsum product_in_double conv "
        "conv_channels_last conv_unfolded softmax maximum "
        "relu_compiled relu_in_place_on_a_view relu_by_a_generator relu_in_c "
        "relu_in_a_process_of_its_own product_numba product_of_packed_weights product_by_strassen "
        "conv_by_fft conv_of_the_library softmax_in_place maximum_by_windows"
    ),
    "backward-data": (
        "product_gradient conv_gradient softmax_gradient maximum_gradient relu_gradient"
    ),
    "backward-weights": "conv_weights_gradient",
}


@pytest.mark.parametrize(
    ("pass_", "name"), [(pass_, name) for pass_, names in HONEST.items() for name in names.split()]
)
def test_an_honest_kernel_is_accepted(worker, pass_, name):
    layer = LAYERS[name.partition("_")[0]]
    kernel, seconds = audited(worker, f"{HERE / 'honest_kernels.py'}:{name}", layer, pass_=pass_)
    assert kernel.facts.correct.status == "ok"
    assert len(seconds) == 24
    assert min(seconds) > 0


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_precision_of_the_mode_is_accepted(worker, precision):
    path = f"{HERE / 'honest_kernels.py'}:product_in_float32"
    kernel, _ = audited(worker, path, PRODUCT, precision=precision)
    assert kernel.facts.correct.status == "ok"


@pytest.mark.parametrize("name", ["relu_out", "relu_numpy"])
def test_inputs_that_are_cut_from_two_draws_are_accepted(worker, name):
    kernel, _ = audited(worker, f"{HERE / 'honest_kernels.py'}:{name}", LARGE)
    assert kernel.facts.correct.status == "ok"


@pytest.mark.parametrize(
    ("kind", "bound", "times", "refused"),
    [
        ("pointwise", "memory", 31, "31 times the roof"),
        ("pointwise", "memory", 1.3, None),
        ("gemm", "compute", 3, "impossible: 3.0 times the roof"),
        ("gemm", "compute", 1.7, None),
        ("conv2d", "compute", 4, None),  # Winograd
        ("conv2d", "memory", 4, "impossible: 4.0 times the roof"),
        ("conv2d", "compute", 20, "20 times the roof"),
        ("pointwise", "memory", None, None),
    ],
)
def test_a_time_that_no_kernel_can_have_is_refused(kind, bound, times, refused):
    roof = times and Roofline(bound=bound, time_s=1.01 * times, efficiency=times)
    words = impossible(measurement(median=1.0, kind=kind, roofline=roof))
    assert words is None if refused is None else refused in words


@pytest.mark.deep
def test_a_cheat_is_a_failed_row_and_the_others_are_ranked():
    path = HERE / "planted_cheats.py"
    specs = [
        KernelSpec(layer=RELU, backend="torch", mode=mode)
        for mode in ("eager", f"{path}:relu", f"{path}:only_where_the_output_is_nan")
    ]
    with Session(RunnerOptions(budget_s=0.02, repetitions=1, keep_probes=False)) as session:
        rows = dict(last for last in session.measure(specs))
    assert [rows[spec].status for spec in specs] == ["ok", "ok", "failed"]
    assert "timed sample" in rows[specs[2]].reason
    assert rows[specs[2]].time is None
    assert {rows[spec].ratio["to"] for spec in specs[:2]} <= {f"torch {s.mode}" for s in specs[:2]}


def test_on_a_gpu_each_sample_has_inputs_and_a_result_of_its_own():
    shared = SharedOperands(RELU, "forward", "fp32", 2)
    shared.unlink()
    src, dst = np.zeros(240, np.float32), np.zeros(240, np.float32)

    def sample(request):
        np.maximum(src, 0, out=dst)
        return Chunk(seconds=(1e-3 * request.inner,))

    kernel = SimpleNamespace(facts=None, clock=object.__new__(DeviceClock), sample=sample)
    transfers = [memory_transfer(array.ctypes.data) for array in (src, dst)]
    given = [np.linspace(-1, end, 240, dtype=np.float32) for end in (1, 2)]
    for slot, values in enumerate(given):
        shared.memory(slot, "src")[:] = values.view(np.uint8)
    spec = KernelSpec(layer=RELU, backend="torch")
    chunk = SharedKernel(kernel, transfers, shared, spec).sample(ChunkRequest(samples=2, inner=3))
    assert chunk.seconds == (3e-3, 3e-3)
    for slot, values in enumerate(given):
        result = shared.values("dst", shared.memory(slot, "dst"))
        assert np.array_equal(result.ravel(), np.maximum(values, 0))

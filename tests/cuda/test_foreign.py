"""PyTorch's work under the native sampler, on a GPU: what it enqueues, and what it has captured."""

import statistics

import pytest

pytestmark = pytest.mark.gpu

SIDE = 2048


@pytest.fixture(scope="module")
def torch():
    """PyTorch with CUDA."""
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return found


@pytest.fixture(scope="module")
def runtime(torch):
    """What the product times PyTorch with."""
    from pydlbench.backends.torch.backend import TorchRuntime

    assert torch.cuda.current_device() == 0
    return TorchRuntime(0)


def median(work, inner=1):
    return statistics.median(work.sample(9, inner, 2 * inner)["seconds"].tolist())


def test_a_product_takes_as_long_between_events_as_in_a_graph_and_by_pytorchs_own(torch, runtime):
    left, right = (torch.rand(SIDE, SIDE, device="cuda", dtype=torch.float16) for _ in range(2))

    def multiply():
        return left @ right

    called, graph = runtime.call_work(multiply), runtime.graph_work(multiply, 20)
    between, in_graph = median(called, 20), median(graph, 20)
    assert in_graph == pytest.approx(between, rel=0.1)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(20):
        multiply()
    last.record()
    torch.cuda.synchronize()
    assert between < 1.2e-3 * first.elapsed_time(last) / 20
    kernels = graph.kernels()
    assert len(kernels) >= 20
    assert all(one["name"] and one["registers"] > 0 for one in kernels)


def test_what_is_read_again_is_slower_from_a_cold_cache(torch, runtime):
    numbers = torch.rand(1 << 20, device="cuda")  # 4 MB, which the cache holds
    hot, cold = (runtime.call_work(lambda: torch.relu(numbers), one) for one in ("hot", "all-cold"))
    assert median(cold) > median(hot)


def test_pytorchs_work_keeps_the_device_busy(torch, runtime):
    numbers = torch.rand(1 << 20, device="cuda")
    for work in (
        runtime.call_work(lambda: torch.relu(numbers)),
        runtime.graph_work(lambda: torch.relu(numbers), 10),
    ):
        load = work.run_for(0.05)
        assert load["seconds"] >= 0.05
        assert load["executions"] > 100


@pytest.mark.parametrize("kernel", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"])
def test_a_kernel_of_attention_is_right_and_captured(torch, runtime, kernel):
    from pydlbench.backends.torch.layers.forward import FORWARD, TorchForwardOptions
    from pydlbench.backends.torch.layers.gradients import forward_program
    from pydlbench.ops.table import build_layer

    layer = build_layer("attention", batch=2, heads=4, queries=64, size=64, causal=True)
    tensors = [
        torch.rand(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16) - 0.5 for _ in range(3)
    ]
    exact = torch.nn.functional.scaled_dot_product_attention(
        *(one.double() for one in tensors), is_causal=True
    )
    attend = FORWARD["attention"](layer, TorchForwardOptions(on_gpu=True, kernel=kernel))
    program = forward_program(attend, tensors)
    (found,) = program.finish(program.function(*program.arguments))
    assert (found.double() - exact).abs().max() < 0.02
    assert median(runtime.graph_work(lambda: program.function(*program.arguments), 4), 4) > 0

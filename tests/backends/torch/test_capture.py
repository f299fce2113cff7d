"""A call that cannot be captured leaves PyTorch's stream and its random numbers as they were."""

import contextlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.torch import backend  # noqa: E402 - below importorskip


class Generator:
    """PyTorch's generator: while a graph is captured, numbers are drawn in graphs only."""

    def __init__(self, offset=0):
        self.offset, self.captured = offset, False

    def clone_state(self):
        return Generator(self.offset)

    def graphsafe_set_state(self, state):
        self.offset, self.captured = state.offset, state.captured

    def draw(self, capturing):
        if self.captured and not capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        self.offset += 4


class Cuda:
    """PyTorch's CUDA runtime, with the order of events at the end of a capture of PyTorch 2.13."""

    def __init__(self):
        self.default_generators = (Generator(), Generator())
        self.streams = ["default"]
        self.capturing = self.invalid = False

    def Stream(self):  # noqa: N802 - PyTorch's name
        return SimpleNamespace(wait_stream=lambda _: None)

    def current_stream(self):
        return SimpleNamespace(name=self.streams[-1], wait_stream=lambda _: None)

    @contextlib.contextmanager
    def stream(self, stream):
        depth = len(self.streams)
        self.streams.append(getattr(stream, "name", "side"))
        try:
            yield
        finally:
            del self.streams[depth:]

    def CUDAGraph(self, keep_graph):  # noqa: N802 - PyTorch's name
        assert keep_graph
        return SimpleNamespace(raw_cuda_graph=lambda: 1)

    def graph(self, _):
        return self

    def __enter__(self):
        self.streams.append("capture")
        self.default_generators[1].captured = self.capturing = True

    def __exit__(self, *_):
        self.capturing = False
        if self.invalid:  # neither the generator nor the stream is restored
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        self.default_generators[1].captured = False
        self.streams.pop()

    def synchronize(self):
        """There is nothing to wait for."""


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    monkeypatch.setattr(backend, "_cuda", made)
    work = SimpleNamespace(sample=None, launch_times=None, run_for=None, kernels=None)
    sampler = SimpleNamespace(graph_work=lambda *_: work)
    monkeypatch.setattr(backend.TorchRuntime, "_sampler", sampler)
    return made


def test_random_numbers_are_drawn_after_a_failed_capture(cuda):
    runtime = backend.TorchRuntime(1)

    def draw():
        cuda.default_generators[1].draw(cuda.capturing)

    def waiting():
        cuda.invalid = cuda.capturing
        if cuda.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    runtime.graph_work(draw, 2)
    offset = cuda.default_generators[1].offset
    with pytest.raises(RuntimeError, match="during capture"):
        runtime.graph_work(waiting, 1)
    assert cuda.streams == ["default"]
    assert cuda.default_generators[1].offset == offset
    draw()
    cuda.invalid = False
    runtime.graph_work(draw, 1)

"""Calls as a GPU's worker times them: in which order, settings and state; no GPU is needed."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from invented_gpu import Gpu  # noqa: E402 - not without PyTorch

from pydlbench.backends.steps import requests  # noqa: E402 - below importorskip
from pydlbench.backends.torch import settings, worker  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps import calls_alone  # noqa: E402 - below importorskip
from pydlbench.errors import PrimitiveError, UnsupportedError  # noqa: E402 - below importorskip
from pydlbench.records.step import StepSpec  # noqa: E402 - below importorskip
from pydlbench.timing.chunk import ChunkRequest  # noqa: E402 - below importorskip

ADD = "aten.add_.Tensor(float32[4](1,), float32[4](1,))"


@pytest.fixture
def backend(monkeypatch):
    """A GPU's backend, whose tensors live on the CPU and whose time is invented."""
    made = calls_alone.prepare_calls

    def on_the_cpu(signatures, _device, seed, *_):
        return made(signatures, "cpu", seed)

    monkeypatch.setattr(calls_alone, "prepare_calls", on_the_cpu)
    gpu = Gpu({})
    return SimpleNamespace(runtime=gpu, watcher=gpu, library="torch 2", cpus=(0,), name="torch")


def case(**words):
    return StepSpec(model="mnist", device="cuda:0", **words)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_calls_are_made_below_autograd_and_in_the_precision_of_the_step(backend, precision):
    settings.choose(torch.get_num_threads())
    kernel = worker.serve_calls(backend, case(precision=precision), [ADD])
    seen = []

    def call(_):
        switches = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        seen.append((*switches, torch.is_grad_enabled()))
        backend.runtime.launch(1e-5, 1e-6)

    for timer in kernel._timers:
        timer._call = lambda: call(None)
    chunk = kernel.sample(ChunkRequest(samples=2))
    allowed = precision == "tf32"
    assert set(seen) == {(allowed, allowed, False)}
    assert not torch.backends.cudnn.allow_tf32
    assert chunk.seconds == pytest.approx((1e-6, 1e-6))
    assert chunk.enqueue_s == pytest.approx((1e-5, 1e-5))
    assert len(chunk.clock_hz) == 1


def test_kernels_of_calls_are_named_or_it_is_said_why_not(backend):
    assert worker.serve_calls(backend, case(), [ADD]).facts.kernels == {ADD: ("invented",)}
    backend.runtime.uncapturable = True
    facts = worker.serve_calls(backend, case(), [ADD]).facts
    assert facts.kernels == {}
    (note,) = facts.notes
    assert note.startswith("aten.add_.Tensor")
    assert "capturing" in note
    # One that computes nothing has no kernels to be named.
    view = "aten.view.default(float32[4](1,), [2, 2])"
    assert worker.serve_calls(backend, case(), [view]).facts.notes == ()


@pytest.mark.parametrize(
    ("framework", "way"), [("torch", "compiled"), ("tensorflow", "graph"), ("tensorflow", "xla")]
)
def test_other_modes_have_no_operators_on_a_gpu(framework, way):
    step = case(framework=framework, mode=way)
    with pytest.raises(UnsupportedError, match="--mode eager"):
        requests.request_calls(SimpleNamespace(), step.to_dict(), ["{}"])


def test_the_order_of_a_step_is_that_of_its_calls(odd):
    recording = odd().record()
    distinct, order = recording.distinct(), recording.order()
    own = [one for one in recording.calls if not one.implied]
    assert [distinct[place].signature for place in order] == [one.signature for one in own]
    assert [distinct[place].direction for place in order] == [one.direction for one in own]
    assert [order.count(place) for place in range(len(distinct))] == [one.count for one in distinct]


def test_a_call_that_waits_for_the_device_is_refused_alone(backend, monkeypatch):
    waits = ADD.replace("add_", "mul_")
    made = backend.runtime.call_work
    works = []

    def call_work(call, *more):
        work = made(call, *more)
        works.append(work)
        if len(works) == 1:  # the first call's

            def sample(*_):
                raise PrimitiveError("launch gate: timed out 4 times: it waits for the device")

            work.sample = sample
        return work

    monkeypatch.setattr(backend.runtime, "call_work", call_work)
    kernel = worker.serve_calls(backend, case(), [waits, ADD])
    assert kernel.facts.names == (ADD,)
    assert "waits for the device" in kernel.facts.refused[waits]
    chunk = kernel.sample(ChunkRequest(samples=2))
    assert len(chunk.seconds) == 2

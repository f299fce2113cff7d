"""PyTorch's side of the GPU comparison, as far as a CPU can run it."""

from __future__ import annotations

import dataclasses
import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pydlbench.errors import WorkerError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d
from pydlbench.records.specs import Case
from pydlbench.runner.session import Options
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.guards import GpuReadings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONV = Conv2d.of(batch=2, in_channels=4, in_size=6, out_channels=8, kernel=3, padding=1)
UNEVEN = Conv2d.of(
    batch=2, in_channels=4, in_size=6, out_channels=8, kernel=3, padding=(0, 1, 0, 1)
)
MAX = Pool2d.of(batch=2, channels=3, in_size=7, kernel=3, stride=2)
MEAN = Pool2d.of(batch=2, channels=3, in_size=7, kernel=3, stride=2, padding=1, mode="avg")
UNEVEN_POOL = Pool2d.of(batch=2, channels=3, in_size=7, kernel=2, padding=(0, 1, 0, 1))
GEMM = Gemm(m=4, k=6, n=5)


@pytest.mark.parametrize(
    ("layer", "precision", "known"),
    [
        (CONV, "fp32", True),
        (CONV, "tf32", True),
        (CONV, "fp16-tc", True),
        (CONV, "bf16-tc", True),
        (CONV, "fp16", False),
        (GEMM, "fp8-tc", False),
        (UNEVEN, "fp32", True),
        (MAX, "fp32", True),
        (UNEVEN_POOL, "fp32", False),
        (GEMM, "fp32", True),
        (Gemm(m=4, k=6, n=5, batch_count=2), "fp32", False),
        (Pointwise(op="relu", channels=3), "fp32", False),
    ],
)
def test_what_pytorch_has_as_one_operator(script, layer, precision, known):
    rows = script("acceptance.torch_rows").TorchRows(0.1)
    assert rows.knows(Case(layer=layer, precision=precision, device="cuda:0")) is known


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("memory_format", ["nchw", "nhwc"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16-tc"])
@pytest.mark.parametrize("layer", [CONV, UNEVEN, MAX, MEAN, GEMM])
def test_operators_run_on_the_device_that_is_asked_for(script, layer, precision, memory_format):
    torch = pytest.importorskip("torch")
    peer = script("torch_gpu_peer")
    fields = {"kind": layer.kind, **dataclasses.asdict(layer)}
    for pass_ in layer.passes:
        words = {"layer": fields, "pass": pass_, "precision": precision, "format": memory_format}
        ask = json.loads(json.dumps(words))
        with torch.inference_mode():
            operator = peer.prepare(ask, torch.device("cpu"))
            operator.call()
            assert torch.backends.cudnn.allow_tf32 is (precision == "tf32")
            assert torch.backends.cuda.matmul.allow_tf32 is (precision == "tf32")
            # Without data there: whatever is made by hand must be on the device as well.
            elsewhere = peer.prepare(ask, torch.device("meta"))
            elsewhere.call()
            operands = [one for one in elsewhere._arguments if isinstance(one, torch.Tensor)]
            assert {one.device.type for one in operands} == {"meta"}
            expected = {"bf16-tc": torch.bfloat16}.get(precision, torch.float32)
            assert {one.dtype for one in operands} == {expected}


def test_a_sample_is_one_replay_between_two_events(script, monkeypatch):
    torch = pytest.importorskip("torch")
    peer = script("torch_gpu_peer")
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at = 0.0

        def record(self) -> None:
            log.append("event")
            self.at = 10.0 * log.count("replay")

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    operator = peer.Operator({"stmt": "f(x)", "f": log.append, "x": "call"})
    asked = []
    replay = SimpleNamespace(replay=lambda: log.append("replay"))
    monkeypatch.setattr(operator, "graph", lambda inner: asked.append(inner) or replay)
    # 10 ms per replay of four executions.
    assert operator.seconds(3, 4, 9) == pytest.approx([0.0025] * 3)
    assert asked == [4]
    pairs = ["replay", "event"] * 3
    assert log == [*["replay"] * 3, "event", *pairs, "wait"]
    operator.call()
    assert log[-1] == "call"


# A peer without PyTorch: constant times, and deeds by the layer's name.
_PEER = """
import json, os, sys
assert sys.argv[1] == "cuda:3"
for line in sys.stdin:
    ask = json.loads(line)
    reply = {}
    if ask["op"] == "prepare":
        name, formats = ask["layer"]["name"], ask["format"]
        if name == "dies":
            os._exit(9)
        if name == "fails":
            reply = {"error": "RuntimeError: no kernel"}
    elif ask["op"] == "sample":
        one = 2e-3 if ask["id"] == 0 else 1e-3
        reply = {"seconds": [one] * ask["samples"], "wall_s": one * ask["samples"] * ask["inner"]}
    elif ask["op"] == "describe":
        reply = {"torch": "0"}
    print(json.dumps(reply), flush=True)
"""


class Kernel:
    """A native kernel of 0.9 ms; ``others`` computed on the GPU meanwhile."""

    facts = {"algorithm": "engine 7", "timing": "cuda-graph"}  # noqa: RUF012 - never written

    def __init__(self, others: Callable[[], tuple[int, ...]]) -> None:
        self.released = 0
        self._others = others

    def sample(self, request: Any) -> Chunk:
        pids = self._others()
        return Chunk(
            seconds=(0.9e-3,) * request.samples,
            wall_s=0.9e-3 * request.samples,
            disturbance="another process computed on the GPU" if pids else None,
            gpu=GpuReadings(others=pids, readings=1),
        )

    def release(self) -> None:
        self.released += 1


def case(name: str = "works") -> Case:
    return Case(layer=dataclasses.replace(CONV, name=name), device="cuda:3")


@pytest.fixture
def rows(script: Callable[[str], Any], tmp_path: Path) -> Any:
    """Comparisons with the invented peer."""
    path = tmp_path / "peer.py"
    path.write_text(_PEER)
    with script("acceptance.torch_rows").TorchRows(0.05, (sys.executable, str(path))) as found:
        yield found


def session(kernel: Kernel) -> Any:
    return SimpleNamespace(prepare=lambda _: kernel, options=Options())


def test_the_better_format_counts_and_the_peer_is_no_stranger(rows):
    kernel = Kernel(lambda: (rows._process.pid,))
    found = rows.compare(session(kernel), case())
    assert found["status"] == "ok"
    assert found["torch_format"] == "nhwc"
    assert found["ratio"] == pytest.approx(0.9)
    assert (found["low"], found["high"]) == pytest.approx((0.9, 0.9))
    assert found["rounds"] >= 6
    assert found["contended"] is False
    assert kernel.released == 1
    json.dumps(found, allow_nan=False)


def test_strangers_are_still_reported(rows):
    found = rows.compare(session(Kernel(lambda: (1,))), case())
    assert found["contended"] is True


@pytest.mark.parametrize(
    ("name", "message"),
    [("dies", "the torch process ended with exit code 9"), ("fails", "torch: RuntimeError: no")],
)
def test_a_peer_that_fails_costs_one_comparison(rows, name, message):
    kernel = Kernel(tuple)
    with pytest.raises(WorkerError, match=message):
        rows.compare(session(kernel), case(name))
    assert kernel.released == 1
    assert rows.compare(session(kernel), case())["status"] == "ok"
    assert kernel.released == 2
    assert rows.about("cuda:3") == {"torch": "0"}


def test_the_peer_ends_with_the_comparisons(rows):
    rows.about("cuda:3")
    process = rows._process
    rows.close()
    assert process.poll() is not None
    rows.close()

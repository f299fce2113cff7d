"""JAX through the backend: every kind and pass on the CPU, and what it would do on a GPU."""

import problems
import pytest

from pydlbench.backends.base import Preparation
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.verification.inputs import make_inputs

pytest.importorskip("jax")

CONV = build_layer("conv", batch=1, in_channels=2, in_size=5, out_channels=3, kernel=3, padding=1)
# XLA compiles each: these are of every kind, and use every field of a shape.
_DEFAULT = ("groups, dilation", "matrices for several", "max", "avg, padding counted")


@pytest.fixture(scope="module")
def backend():
    from pydlbench.backends.jax.backend import create

    return create("cpu")


@pytest.mark.parametrize(("name", "pass_"), problems.each_pass(_DEFAULT))
def test_every_variant_of_every_pass_is_right(backend, name, pass_):
    case = KernelSpec(layer=problems.LAYERS[name], pass_=pass_, backend="jax", mode="xla")
    facts = backend.prepare(case, Preparation(seed=3, all_candidates=True)).facts
    assert [one["status"] for one in facts.candidates] == ["ok", "ok"]
    assert all(one["correct"]["unwritten"] == 0 for one in facts.candidates)
    assert len({one["layout"] for one in facts.candidates}) == 2
    assert facts.library.startswith("JAX ")


# Of a layer, without a loss.
_OF_LAYERS = set(problems.POINTWISE) - {*problems.LOSSES, "nll", "dropout", "cumprod"}
_OF_LAYERS -= {"softmax-xent", "l2", "sgd", "momentum", *problems.TORCH_ONLY}


# XLA compiles each: these have sums, windows, parameters or several sources.
_QUICK = ("bias", "batchnorm", "layernorm", "lrn", "concat", "elu")


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(*one.values, marks=() if one.values[0][0].op in _QUICK else pytest.mark.deep)
        for one in problems.STEPS
        if one.values[0][0].op in _OF_LAYERS
    ],
    ids=problems.step_name,
)
def test_memory_bound_layers_are_right(backend, step):
    layer, pass_, propagation = step
    case = KernelSpec(layer=layer, pass_=pass_, propagation=propagation, backend="jax", mode="xla")
    facts = backend.prepare(case, Preparation(seed=3, all_candidates=True)).facts
    assert {one["correct"]["status"] for one in facts.candidates} == {"ok"}
    assert "not compared" not in facts.correct.detail


def test_a_row_is_named_after_what_xla_made_of_it(backend):
    facts = backend.prepare(KernelSpec(layer=CONV, backend="jax"), Preparation()).facts
    function, _, behind = facts.algorithm.partition(": ")
    assert function == "lax.conv_general_dilated"
    assert "f32" in behind
    assert facts.evidence["kernel"] == f"XLA {behind}"
    (chosen,) = [one for one in facts.candidates if one["chosen"]]
    assert chosen["algorithm"] == facts.algorithm


def test_a_gradient_computes_nothing_of_the_forward_pass(backend):
    """One convolution each, and a maximum's gradient reads what the forward pass read."""
    for pass_ in ("backward-data", "backward-weights"):
        case = KernelSpec(layer=CONV, pass_=pass_, layout="nhwc")
        (variant,) = [one for one in backend.variants(case) if one.variant == "nhwc"]
        operator = variant.build(make_inputs(CONV, pass_, "fp32", 1))
        assert operator.program().count(" convolution(") == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "bf16"}, "XLA converts narrower operands to float32"),
        ({"mode": "eager"}, "no mode eager"),
        ({"timing": "events"}, "for GPUs"),
        ({"fuse": "bias"}, "no function for --fuse bias"),
        ({"cache": "all-cold"}, "there is: hot"),
        ({"layout": "blocked"}, "no operator with --layout blocked"),
        ({"layer": build_layer("l2", channels=2)}, "no l2 layers"),
    ],
)
def test_what_it_lacks_is_one_sentence(backend, changes, sentence):
    case = KernelSpec(**{"layer": CONV, **changes})
    with pytest.raises(UnsupportedError, match=sentence):
        backend.prepare(case, Preparation())


# -----------------------------------------------------------------------------
# A GPU that is none: the platform is the CPU's, and all else is as it would be on a card.


@pytest.fixture
def invented(backend, monkeypatch):
    """The backend of a GPU, which JAX takes for its CPU; of it come numbers in every precision."""
    from pydlbench.backends.jax import settings
    from pydlbench.backends.jax.backend import JaxBackend

    device = settings.choose("cpu")
    for module in ("settings", "backend"):
        monkeypatch.setattr(f"pydlbench.backends.jax.{module}.choose", lambda _: device)
    return JaxBackend("cuda:0", backend.cpus)


@pytest.mark.product
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16-tc", "bf16-tc"])
@pytest.mark.parametrize(
    ("name", "pass_"),
    [
        ("groups, dilation", "backward-weights"),
        ("batched product", "backward-data"),
        ("avg, padding counted", "backward-data"),
        ("max", "backward-data"),
    ],
)
def test_a_gpus_row_is_right_and_says_how_it_is_timed(invented, name, pass_, precision):
    layer = problems.LAYERS[name]
    case = KernelSpec(layer=layer, pass_=pass_, precision=precision, device="cuda:0")
    kernel = invented.prepare(case, Preparation(seed=3))
    assert kernel.facts.correct.status == "ok"
    assert kernel.facts.timing == "host-sync"
    assert set(kernel.facts.launch_s) == {"host", "enqueue"}
    assert all(one > 0 for one in kernel.facts.launch_s.values())
    sums_in_storage = layer.kind == "pool2d" and precision in ("fp16-tc", "bf16-tc")
    narrow = {"fp16-tc": "float16", "bf16-tc": "bfloat16"}.get(precision)
    assert kernel.facts.accumulate == (narrow if sums_in_storage else "float32")
    said = [one for one in kernel.facts.notes if one.startswith("TF32")]
    wanted = {"fp32": ["TF32 switched off"], "tf32": ["TF32 switched on"]}.get(precision, [])
    assert said == (wanted if layer.weight_elements else [])
    assert len(kernel.sample(ChunkRequest(samples=2, inner=3)).seconds) == 2


@pytest.mark.parametrize(
    ("precision", "words"),
    [("fp32", "HIGHEST"), ("tf32", "HIGH"), ("fp16-tc", "DEFAULT"), ("bf16-tc", "DEFAULT")],
)
@pytest.mark.parametrize("pass_", CONV.passes)
def test_the_precision_is_in_the_program(precision, words, pass_, monkeypatch):
    """Of gradients too: without a word XLA takes TF32 wherever a GPU has it."""
    from pydlbench.backends.jax import settings
    from pydlbench.backends.jax.backend import variants_of

    lowered = []
    device = settings.choose("cpu")
    place = settings.JaxDevice(device, settings.arithmetic(precision, on_gpu=True), queues=True)

    def compiled(self, function, operands):
        with self.exact():
            lowered.append(settings.jax.jit(function).lower(*operands).as_text())
        return lambda *_: settings.jax.numpy.zeros(1)

    monkeypatch.setattr(settings.JaxDevice, "compile", compiled)
    inputs = make_inputs(CONV, pass_, "fp32", 1)
    for variant in variants_of(CONV, KernelSpec(layer=CONV, pass_=pass_), place):
        variant.build(inputs)
    for text in lowered:
        (line,) = [one for one in text.splitlines() if "stablehlo.convolution" in one]
        assert f"precision_config = [#stablehlo<precision {words}>" in line
        assert line.endswith({"fp16-tc": "xf16>", "bf16-tc": "xbf16>"}.get(precision, "xf32>"))


def test_a_gpus_calls_wait_in_the_queue(invented):
    """Only the last one is waited for, and it is the last that was called."""
    (variant, _) = invented.variants(KernelSpec(layer=CONV, device="cuda:0"))
    operator = variant.build(make_inputs(CONV, "forward", "fp32", 1))
    waited = []

    class Pending:
        def __init__(self, number):
            self.number = number

        def block_until_ready(self):
            waited.append(self.number)

    numbers = iter(range(9))
    operator._compiled = lambda *_: Pending(next(numbers))
    for _ in range(3):
        operator.call()
    assert waited == []
    operator.wait()
    assert waited == [2]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "fp16"}, "see fp16-tc"),
        ({"precision": "fp8-tc"}, "no fp8-tc here; nearest: bf16-tc"),
        ({"timing": "cuda-graph"}, "no --timing cuda-graph"),
    ],
)
def test_what_it_lacks_on_a_gpu_is_one_sentence(invented, changes, sentence):
    case = KernelSpec(**{"layer": CONV, "device": "cuda:0", **changes})
    with pytest.raises(UnsupportedError, match=sentence):
        invented.prepare(case, Preparation())


def test_one_of_the_gpus_is_chosen(monkeypatch):
    """The others are not seen, memory is taken as it is needed, and none is one line."""
    import os

    from pydlbench.backends.jax import settings

    told, there = {}, {"cuda": ["the second card"]}
    monkeypatch.setattr(settings.jax.config, "update", told.__setitem__)
    monkeypatch.setattr(settings.jax, "devices", lambda platform: there[platform])
    choose = settings.choose.__wrapped__  # without its memory
    assert choose("cuda:1") == "the second card"
    assert told["jax_platforms"] == "cuda,cpu"
    assert told["jax_cuda_visible_devices"] == "1"
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"

    def none(_):
        raise RuntimeError("Unable to initialize backend 'cuda':\nno driver")

    monkeypatch.setattr(settings.jax, "devices", none)
    with pytest.raises(UnsupportedError, match=r"cuda:1: Unable .* no driver; CUDA comes"):
        choose("cuda:1")
    there["cuda"] = []
    monkeypatch.setattr(settings.jax, "devices", lambda platform: there[platform])
    with pytest.raises(UnsupportedError, match="cuda:1: "):
        choose("cuda:1")


def test_an_environment_with_two_cudnn_is_refused_on_a_gpu_alone(monkeypatch, backend):
    from pydlbench.backends.jax.backend import JaxBackend

    monkeypatch.setattr("importlib.metadata.version", lambda _: "9.20")
    with pytest.raises(UnsupportedError, match="in one environment"):
        JaxBackend("cuda:0", backend.cpus)
    assert not JaxBackend("cpu", backend.cpus).on_gpu

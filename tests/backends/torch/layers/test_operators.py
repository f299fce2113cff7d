"""Every layer, pass, layout and mode gives the reference's result."""

import problems
import pytest
from this_cpu import HAS_BF16

from pydlbench.backends.base import Preparation
from pydlbench.backends.frameworks.operands import axes_of
from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer, ops_of_kind
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import make_inputs
from pydlbench.verification.verify import verify

CONV = problems.LAYERS["even padding"]
UNEVEN = build_layer(
    "conv",
    batch=2,
    in_channels=3,
    in_size=(8, 6),
    out_channels=5,
    kernel=3,
    stride=2,
    padding=(0, 1, 0, 1),
)
UP = build_layer(
    "deconv", batch=2, in_channels=4, in_size=(5, 4), out_channels=6, kernel=3, stride=2, padding=1
)
UP_FURTHER = UP.replace(out_size=(UP.out_size[0] + 1, UP.out_size[1]))
GEMM = problems.LAYERS["product"]
MAX = build_layer("pool", batch=2, channels=3, in_size=(7, 5), kernel=3, stride=2, padding=1)
MEAN = MAX.replace(mode="avg")
MEAN_OF_ALL = MEAN.replace(count_include_pad=True)
UNEVEN_MAX = build_layer(
    "pool", batch=2, channels=3, in_size=(6, 5), kernel=3, stride=2, padding=(0, 1, 0, 2)
)
UNEVEN_MEAN = build_layer(
    "pool",
    batch=2,
    channels=3,
    in_size=(6, 5),
    kernel=3,
    padding=(2, 0, 2, 1),
    mode="avg",
    count_include_pad=True,
)
LAYERS = (
    *(one for one in problems.LAYERS.values() if one.kind in ("conv2d", "gemm")),
    UNEVEN,
    UP,
    UP_FURTHER,
    MAX,
    MEAN,
    MEAN_OF_ALL,
    UNEVEN_MAX,
    UNEVEN_MEAN,
    *(
        parse_problem(f"resize:{mode}:mb2ic3{sizes}")
        for mode in ("nearest", "linear")
        for sizes in ("iw5ow9", "ih7oh5iw5ow9", "id3od4ih7oh5iw5ow9")
    ),
)


def variants(layer):
    if layer.kind == "gemm":
        return "plain", "transposed"
    return ("nchw", "nhwc")[: 1 if layer.sides == 1 else 2]


def prepared(backend, monkeypatch, variant, **words):
    """Prepare a case with one of its variants only: no race, so that it takes no time."""
    case = KernelSpec(**words)
    found = [one for one in backend.variants(case) if one.variant == variant]
    assert len(found) == 1
    monkeypatch.setattr(backend, "variants", lambda _: found)
    return backend.prepare(case, Preparation(seed=3)).facts


@pytest.mark.product
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.problem)
def test_eager(backend, monkeypatch, layer, precision):
    if precision == "bf16" and not HAS_BF16:
        pytest.skip("PyTorch sums in bf16 on this CPU")
    for pass_ in layer.passes:
        for variant in variants(layer):
            with monkeypatch.context() as patch:
                patch.setattr("pydlbench.backends.torch.settings.emulated", lambda _: ())
                words = {"layer": layer, "pass_": pass_, "precision": precision}
                facts = prepared(backend, patch, variant, mode="eager", **words)
            assert facts.correct.status == "ok", (pass_, variant, facts.correct)
            assert facts.library.startswith("torch ")
            if layer.kind == "gemm":
                assert ("nk" if variant == "transposed" else "kn") in facts.layout
            else:
                assert f"src {axes_of(variant, layer.sides)}" in facts.layout


def test_layers_on_tensors_of_any_shape(backend):
    operands = ("6x5", "1x5", "1x1")
    texts = [
        *(
            f"elementwise:{op}:{':'.join(operands[: one.operand_count])}"
            for op, one in ops_of_kind("elementwise").items()
        ),
        *(f"reduction:{op}:4x6x5:4x1x5" for op in ops_of_kind("reduction")),
        *("move:copy:30", "move:fill:6x5", "move:permute:4x6x5by201"),
        *("move:flip:6x5by1", "move:roll:6x5by01", "move:tile:1x6x5:3x6x10", "move:tril:6x5"),
        *("move:reflect:1x2x6x5:1x2x8x6", "move:triu:6x5", "move:replicate:1x2x6x5:1x2x9x9"),
        *("elementwise:prelu-gradient:2x6x5:2x6x5:1x6x1", "elementwise:select:6x5:1x5:6x1"),
        *("gather:rows:6x5:9", "gather:add-rows:6x5:9"),
    ]
    for text in texts:
        layer = parse_problem(text)
        # Nothing is converted in fp32.
        precision = "bf16" if ":cast" in text else "fp32"
        case = KernelSpec(layer=layer, mode="eager", precision=precision)
        (variant,) = backend.variants(case)
        inputs = make_inputs(layer, "forward", precision, seed=5)
        written = variant.build(inputs).outputs()
        main = written.pop(layer.result("forward"))
        verdict = verify(layer, "forward", precision, inputs, main, seed=7, extra=written)
        assert verdict.status == "ok", (text, verdict)
        assert layer.kind == "reduction" or 1 + len(written) == len(layer.writes("forward"))
    with pytest.raises(UnsupportedError, match="nearest: --precision bf16"):
        backend.variants(KernelSpec(layer=parse_problem("elementwise:cast-to-fp32:9")))


@pytest.mark.parametrize(
    "problem",
    [
        *(
            f"{cell}:{sizes}"
            for cell in ("lstm", "gru", "rnn-tanh", "rnn-relu")
            for sizes in ("t3mb2slc5dhc4", "l2d2t3mb2slc8dhc4")
        ),
        "lstm:l2d2t3mb2slc6dhc4dic3",
    ],
)
def test_recurrent_layers(backend, problem):
    layer = parse_problem(problem)
    for pass_, propagation in (
        ("forward", "inference"),
        ("forward", "training"),
        ("backward-data", "training"),
    ):
        case = KernelSpec(layer=layer, pass_=pass_, propagation=propagation, mode="eager")
        (variant,) = backend.variants(case)
        inputs = make_inputs(layer, pass_, "fp32", seed=5)
        operator = variant.build(inputs)
        for _ in range(2):  # the graph behind gradients is there for each call
            results = operator.outputs()
            main = results[layer.writes(pass_)[0]]
            verdict = verify(layer, pass_, "fp32", inputs, main, seed=7, extra=results)
            assert verdict.status == "ok", (pass_, verdict)
            assert set(results) == set(layer.writes(pass_))
    with pytest.raises(UnsupportedError, match="--mode eager"):
        backend.variants(KernelSpec(layer=layer, mode="compiled"))


@pytest.mark.parametrize(
    "problem",
    ["vanilla-gru:t3slc5dhc4", "lstm:t3slc5dhc4peephole1", "lstm:t3slc5dhc4projected1"],
)
def test_cells_that_pytorch_lacks(backend, problem):
    with pytest.raises(UnsupportedError, match="nearest: --backend native"):
        backend.variants(KernelSpec(layer=parse_problem(problem), mode="eager"))


@pytest.mark.deep
@pytest.mark.filterwarnings("default")  # of the compiler's
@pytest.mark.parametrize("layer", [CONV, GEMM, MAX], ids=lambda layer: layer.problem)
def test_compiled(backend, monkeypatch, layer):
    for pass_ in layer.passes:
        for variant in variants(layer):
            with monkeypatch.context() as patch:
                facts = prepared(backend, patch, variant, layer=layer, pass_=pass_, mode="compiled")
            assert facts.correct.status == "ok", (pass_, variant, facts.correct)
            assert facts.setup_s > 0


@pytest.mark.deep
@pytest.mark.filterwarnings("default")  # of the compiler's
def test_compiled_with_uneven_padding(backend, monkeypatch):
    facts = prepared(backend, monkeypatch, "nhwc", layer=UNEVEN, mode="compiled")
    assert facts.correct.status == "ok"
    assert facts.algorithm.startswith("aten::constant_pad_nd + aten::convolution")


@pytest.mark.parametrize("layer", [CONV, MAX, UNEVEN_MAX, MEAN], ids=lambda layer: layer.problem)
def test_forward_of_a_training(backend, monkeypatch, layer):
    facts = prepared(backend, monkeypatch, "nhwc", layer=layer, propagation="training")
    assert facts.correct.status == "ok"
    if layer.kind == "pool2d" and layer.mode == "max":
        assert "aten::max_pool2d_with_indices" in facts.algorithm


def test_uneven_padding_is_part_of_the_call_and_named(backend, monkeypatch):
    names = {}
    for pass_ in UNEVEN.passes:
        with monkeypatch.context() as patch:
            facts = prepared(backend, patch, "nchw", layer=UNEVEN, pass_=pass_)
        names[pass_] = facts.algorithm.partition(" (")[0]
        assert any("top 0, bottom 1, left 0, right 1" in note for note in facts.notes)
    assert names == {
        "forward": "aten::constant_pad_nd + aten::convolution",
        "backward-data": "aten::convolution_backward + aten::constant_pad_nd",
        "backward-weights": "aten::convolution_backward",
    }


def test_padding_beyond_half_a_window_is_made_beforehand(backend):
    layer = build_layer("pool", batch=1, channels=2, in_size=6, kernel=3, padding=2)
    names = {one.algorithm for one in backend.variants(KernelSpec(layer=layer))}
    assert names == {"aten::constant_pad_nd + aten::max_pool2d_with_indices"}
    left_out = build_layer("pool", batch=1, channels=2, in_size=6, kernel=3, padding=2, mode="avg")
    with pytest.raises(UnsupportedError, match="average"):
        backend.variants(KernelSpec(layer=left_out))

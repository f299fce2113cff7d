"""Every op, pass and precision: right results pass, one wrong or unwritten element does not."""

import numpy as np
import pytest
from right_results import drawn, judged, right_results

from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import OPS
from pydlbench.ops.windows import RESIZE_MODES
from pydlbench.verification.inputs import round_to

_ELEMENTWISE = [name for name, op in OPS.items() if op.elementwise and op.kind == "pointwise"]
_REDUCTIONS = [op.name for op in OPS.values() if op.kind == "reduction"]
PROBLEMS = (
    *(f"{op}:mb2ic3ih2iw3" for op in _ELEMENTWISE),
    *("bias:mb2ic3ih2iw3", "scale:mb2ic3ih2iw3", "concat:mb2ic2+3+1ih2"),
    *("softmax:mb2ic2ih2iw5", "log-softmax:mb2ic2ih2iw5", "softmax-xent:mb4ic7"),
    *("layernorm:mb2ic2ih2iw5eps0.1", "rmsnorm:mb2ic2ih2iw5eps0.1", "rmsnorm:mb1ic2ih1iw33"),
    *("add-rmsnorm:mb2ic2ih2iw5eps0.1", "rope:mb2ic2ih3iw4", "rope:mb3ic1ih1iw6"),
    *("softmax:mb2ic5ih2iw2axis1", "log-softmax:mb2ic2ih5iw2axis2", "cumsum:mb2ic2ih2iw5"),
    *(
        "cumsum:mb2ic5ih2iw2axis1",
        "groupnorm:mb3ic4ih2iw3g2eps0.1",
        "groupnorm:mb2ic3ih3g3factors0eps0.1",
    ),
    *("prelu:mb2ic3ih2iw3", "prelu:mb2ic3ih2iw3shared1", "hardtanh:mb2ic3ih4alpha0.5beta2"),
    *("lrn:mb2ic7ih2iw2ls5alpha2k1", "lrn:mb2ic3ih2iw2ls11alpha0.5beta0.5"),
    *("batchnorm:mb3ic3ih2iw3eps0.1mom0.3", "batchnorm:mb2ic5eps0.1", "dropout:mb2ic3ih4keep0.8"),
    *("l2:ic61decay0.25", "sgd:ic61lr0.3", "momentum:ic61lr0.3mu0.75"),
    *("g2mb2ic4ih4iw3oc4kh3kw2ph1sw2dw1", "mb2ic2iw5oc3kw3", "mb1ic2id3ih3iw2oc2kd2kh2kw2"),
    *("deconv:g2mb2ic4ih2iw3oc4kh2kw3sh2sw2", "deconv:mb1ic2iw3oc2kw2sw3"),
    *("deconv:mb1ic2ih3oc2oh6kh3sh2ph1", "deconv:mb1ic2ih3oc2kh2dh1ph1"),
    *("3x4:4x2", "2x1x3x4:1x3x4x2"),
    *("attention:mb1h2q3k4d2dv3", "attention:mb1h4kvh2q3d2causal1"),
    *("lstm:l2d2t2mb2slc4dhc2", "gru:l2d2t2mb2slc4dhc2", "vanilla-gru:l2d2t2mb2slc4dhc2"),
    *("lstm:l2d2t2mb2slc4dhc3dic2peephole1", "lstm:l2t2mb2slc3dhc3projected1"),
    *("rnn-tanh:l2d2t2mb2slc4dhc2", "rnn-relu:l2d2t2mb2slc4dhc2"),
    *(f"resize:{mode}:mb1ic2ih3oh5iw4ow2" for mode in RESIZE_MODES),
    *(
        "unfold:mb2ic2ih5iw4kh3kw2ph1sh2sw1",
        "unfold:mb1ic3iw9kw3dw1",
        "unfold:mb2ic2id2ih3iw4kd1kh2",
    ),
    *("grid-sample:mb2ic3ih4oh5iw6ow3", "fft:real:3x4x5", "fft:complex:2x4x6by2"),
    *("fft:inverse-real:3x4x5by2", "fft:inverse-real:6", "distance:euclidean:2x3x4:2x5x4"),
    *("glu:mb2ic2ih3iw5", "sort:mb2ic2ih3iw5", "sort:mb2ic5ih3iw2axis1k2"),
    *("cummax:mb2ic2ih3iw5", "cummin:mb2ic5ih3iw2axis1"),
    *(
        f"elementwise:{op}{end}:4x6{':4x1' * (operands - 1)}{by}"
        for operands, by, ops in (
            (1, "", ("abs", "neg", "square", "sqrt", "rsqrt", "exp", "log", "log1p", "expm1")),
            (1, "", ("erf", "sin", "cos", "sign", "floor", "ceil", "rint", "log2", "log10")),
            (1, "", ("xlogx", "hardshrink", "softshrink")),
            (1, "by0.5", ("power",)),
            (2, "", ("mul", "div", "max", "min", "leaky-relu", "xlogy")),
            (2, "by-0.5", ("add", "add-square", "threshold")),
            (3, "", ("lerp", "sum3", "clamp", "leaky-relu-gradient", "select")),
            (3, "by2", ("addcmul", "addcdiv")),
        )
        for op in ops
        for end in ("", "-in-place")
    ),
    *(f"elementwise:{op}:4x6:4x1" for op in ("eq", "ne", "lt", "le", "gt", "ge")),
    *("elementwise:prelu-gradient:4x3x5:4x3x5:3x1", "elementwise:cast-from-fp32:4x6"),
    *(
        f"elementwise:cast-{way}-{word}:4x6"
        for way in ("from", "to")
        for word in ("int64", "int32", "uint8", "bool")
    ),
    *(
        "elementwise:cast-to-fp32:4x6",
        "move:replicate:2x5x4:2x8x9",
        "cumprod:mb2ic3ih2iw4axis2",
    ),
    *("mse:ic61", "l1:ic61", "smooth-l1:ic61beta0.25", "bce-logits:ic61"),
    "nll:mb5ic7",
    *(f"reduction:{op}:4x3x5:4x1x5" for op in _REDUCTIONS),
    *("move:copy:8", "move:fill:3x4", "move:permute:4x2x3by201"),
    *(
        "move:flip:4x5by01",
        "move:roll:4x5x3by02",
        "move:tile:1x5x2:3x5x4",
        "elu:mb2ic3ih4alpha2by3",
    ),
    *("move:reflect:2x5x4:2x8x6", "move:tril:2x3x5", "move:triu:2x5x3"),
    *("gather:rows:9x4:5", "gather:add-rows:9x4:30", "gather:bags:9x4:5x6"),
    *("gather:rows:3x9x4:1x5", "gather:rows:3x9x4:3x5", "gather:rows:3x9x4:1x5x4"),
    *("gather:add-rows:3x9x4:3x30x4", "gather:add-rows-in-place:9x4:30"),
    *("gather:add-rows-in-place:3x9x4:1x7", "gather:put-rows-in-place:9x4:5"),
    "gather:put-rows-in-place:3x9x4:3x7x4",
)
POOLS = (
    "mb1ic2ih5iw4kh3kw2ph1sh2",
    "mb1ic2ih6kh3sh3",
    "mb1ic2iw9kw3dw1",
    "mb1ic2id3ih3iw4kd2kh2kw2",
)
LAYERS = [parse_problem(text) for text in PROBLEMS]
LAYERS += [parse_problem(text, pool=mode) for text in POOLS for mode in ("max", "avg", "avg_p")]
STEPS = [
    pytest.param(layer, pass_, propagation, id=f"{layer.problem}-{pass_}-{propagation}")
    for layer in LAYERS
    for pass_ in layer.passes
    for propagation in ("inference", "training")
    if propagation == "inference" or (pass_ == "forward" and layer.entry.training)
]


def test_every_op_is_among_them():
    assert {layer.entry.key for layer in LAYERS} == set(OPS)


@pytest.mark.product
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("layer", "pass_", "propagation"), STEPS)
def test_right_results_pass_and_wrong_ones_fail(layer, pass_, propagation, precision):
    # Rounded probabilities are not quite those of their own logarithms.
    of_result = layer.op.endswith(("softmax", "softmax-xent")) and pass_ != "forward"
    inputs = drawn(layer, pass_, "fp32" if of_result else precision, propagation)
    assert set(inputs) == set(layer.reads(pass_, propagation))
    right = right_results(layer, pass_, inputs, propagation)
    stored = {
        role: round_to("fp32" if layer.in_float32(role) else precision, array)
        for role, array in right.items()
    }

    def judge(**changes):
        return judged(layer, pass_, precision, inputs, stored | changes, propagation)

    verdict = judge()
    assert verdict.status == "ok", verdict
    if layer.entry.memory_bound:
        assert verdict.points == sum(array.size for array in stored.values())
    for role, array in stored.items():
        at = tuple(size - 1 for size in array.shape)
        wrong = array.copy()
        wrong[at] += 0.25 * abs(wrong[at]) + 0.25
        verdict = judge(**{role: wrong})
        assert verdict.status == "failed"
        assert verdict.detail.startswith(f"{role}[")
        assert f"is {wrong[at]:.7g}, expected " in verdict.detail
        wrong[at] = np.nan
        verdict = judge(**{role: wrong})
        assert (verdict.status, verdict.unwritten, verdict.rel_error) == ("failed", 1, None)
        assert f"1 of {array.size} elements of {role} never written" in verdict.detail

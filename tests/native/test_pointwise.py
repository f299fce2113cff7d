"""Memory-bound layers: every candidate of every operation, pass, precision and layout is right."""

import numpy as np
import problems
import pytest

from pydlbench import _cpu
from pydlbench.backends.native.cpu import candidates
from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import OPS, build_layer, ops_of_kind
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import make_inputs
from pydlbench.verification.verify import verify

_SIZES = {
    "small": {"batch": 2, "channels": 5, "height": 3, "width": 7},
    "blocks": {"batch": 3, "channels": 32, "height": 4, "width": 8},
    "odd": {"batch": 2, "channels": 17, "height": 5, "width": 13},
    "one channel": {"batch": 2, "channels": 1, "height": 7, "width": 9},
    "one pixel": {"batch": 33, "channels": 17},
    "one image": {"batch": 1, "channels": 19, "height": 23, "width": 29},
    "one of all": {"batch": 1, "channels": 1},
    "many channels": {"batch": 2, "channels": 300, "height": 2, "width": 3},
}
_FLAT = {"few": {"batch": 3, "channels": 5}, "many": {"batch": 9, "channels": 1001}}
_FLAT |= {"one": {"batch": 1, "channels": 1}}
_WEIGHTS = {"small": {"channels": 37}, "one": {"channels": 1}, "large": {"channels": 40_003}}


# What has functions of frameworks, and no native kernel.
_OF_FRAMEWORKS = (*problems.LOSSES, "nll", "cumprod", "rope", "add-rmsnorm")
_OF_FRAMEWORKS += problems.OF_PYTORCH


def _layers():
    for op, operation in ops_of_kind("pointwise").items():
        if op in _OF_FRAMEWORKS:
            continue
        sizes = (
            _WEIGHTS
            if operation.form == "weights"
            else _FLAT
            if operation.form == "flat"
            else _SIZES
        )
        for size in sizes.values():
            if op == "concat":
                sources = (size["channels"], 1, 16)
                yield build_layer(op, **{**size, "channels": sum(sources)}, sources=sources)
            else:
                yield build_layer(op, **size)
    for text in (
        *("lrn:mb2ic9ih3iw5ls3k1", "lrn:mb1ic16ih4ls11alpha0.5beta0.5", "lrn:mb3ic7ls1"),
        *("lrn:mb2ic3ih5ls7", "lrn:mb1ic64ih7ls9alpha0.001k1", "batchnorm:mb3ic16ih8eps0.1mom0.3"),
        *("dropout:mb3ic16ih4keep0.9", "dropout:mb3ic9keep1", "dropout:mb2ic8ih5keep1e-12"),
        *("groupnorm:mb2ic16ih4g4", "groupnorm:mb1ic12ih120g3", "groupnorm:mb3ic33ih1iw7g33"),
        *("groupnorm:mb40ic12ih5g3factors0", "elu:mb2ic5ih9alpha0.5by2"),
        "glu:mb3ic2ih3iw5000",
        *("prelu:mb2ic5ih3shared1", "hardtanh:mb2ic5ih9alpha0.25beta2", "prelu:mb1ic3ih120"),
        *("softmax:mb2ic33ih3iw5axis1", "log-softmax:mb2ic3ih17iw5axis2"),
        *("cumsum:mb2ic33ih3iw300axis1", "cumsum:mb2ic3ih17iw5axis2", "cumsum:mb3ic9ih5iw33"),
        *("sgd:ic2049lr0.3", "momentum:ic2049lr0.3mu0.5", "l2:ic9001decay0.1"),
        # More than a thread's share, so that threads meet within an image or a plane.
        *("bias:mb1ic3ih120", "batchnorm:mb1ic3ih120", "dropout:mb1ic3ih120", "relu:mb1ic3ih120"),
        *(
            "lrn:mb1ic20ih31",
            "concat:mb1ic7+12ih29",
            "softmax-xent:mb40ic300",
            "scale:mb1ic3ih120",
            "scale:mb9ic70ih11",
        ),
    ):
        yield parse_problem(text)


LAYERS = {layer.problem: layer for layer in _layers()}
# Of the sizes of each operation these stand for the others in the default set.
_DEFAULT = [_SIZES["small"], _SIZES["odd"], _FLAT["few"], _WEIGHTS["small"]]
_DEFAULT_OPS = ("relu6", "gelu", "log-softmax", "layernorm", "rmsnorm")


def _marks(layer):
    size = {"batch": layer.batch, "channels": layer.channels}
    size |= {"height": layer.height, "width": layer.width}
    default = layer.op == "concat" or any(one.items() <= size.items() for one in _DEFAULT)
    if OPS[layer.op].spread or OPS[layer.op].form == "rows":  # few stand for others like them
        default = layer.op in _DEFAULT_OPS and _SIZES["small"].items() <= size.items()
    return () if default else pytest.mark.deep


# Operations with a forward pass of training.
_TRAINED = ("batchnorm", "layernorm", "groupnorm", "lrn")
STEPS = [
    pytest.param(
        layer, pass_, propagation, id=f"{problem}-{pass_}-{propagation}", marks=_marks(layer)
    )
    for problem, layer in LAYERS.items()
    for pass_ in layer.passes
    for propagation in ("inference", "training")
    if propagation == "inference" or (pass_ == "forward" and layer.op in _TRAINED)
]


def results(layer, kernel):
    return {role: array.reshape(layer.shapes()[role]) for role, array in kernel.outputs().items()}


def judge(case, candidate, inputs, written):
    extra = dict(written)
    output = extra.pop(case.layer.writes(case.pass_, case.propagation)[0])
    return verify(
        case.layer,
        case.pass_,
        case.precision,
        inputs,
        output,
        seed=7,
        algorithm=candidate.implementation,
        extra=extra,
        propagation=case.propagation,
    )


@pytest.fixture(params=["fp32", "bf16"])
def precision(request):
    return request.param


@pytest.mark.product
@pytest.mark.parametrize(("pointwise", "pass_", "propagation"), STEPS)
def test_every_candidate_is_right(pointwise, pass_, propagation, precision):
    layer = pointwise
    case = KernelSpec(layer=layer, pass_=pass_, propagation=propagation, precision=precision)
    inputs = make_inputs(layer, pass_, precision, seed=5, propagation=propagation)
    arena = _cpu.Arena(inputs)
    own = 0
    for candidate in candidates(case, thorough=True):
        if candidate.is_reference:
            continue
        own += candidate.implementation.startswith("own:")
        kernel = _cpu.Kernel(candidate, arena)
        # Twice: what is updated starts from its first values again.
        for _ in range(2):
            kernel.run_poisoned()
            written = results(layer, kernel)
            assert set(written) == set(layer.writes(pass_, propagation)), candidate
            verdict = judge(case, candidate, inputs, written)
            assert verdict.status == "ok", (candidate, verdict)
            assert "not compared" not in verdict.detail
            assert verdict.points == sum(array.size for array in written.values())
    of_library = OPS[layer.op].spread or OPS[layer.op].form == "rows" or layer.op == "prelu"
    if of_library and layer.op not in ("rmsnorm", "cumsum", "swiglu", "glu"):  # oneDNN's alone
        assert not own
    else:
        assert own >= 2 if "avx2" in _cpu.isa() else 1


@pytest.mark.parametrize(
    ("text", "updates"),
    # A velocity grows for as long as it is updated; running statistics forget, 0.9 a time.
    [("momentum:ic4096", 6000), pytest.param("batchnorm:mb2ic16ih5", 300, marks=pytest.mark.deep)],
)
@pytest.mark.parametrize("cache", ["hot", "all_cold", "weights_cold"])
def test_many_updates_leave_a_right_kernel(text, updates, cache):
    layer = parse_problem(text)
    case = KernelSpec(layer=layer, propagation="training")
    inputs = make_inputs(layer, "forward", "fp32", seed=5, propagation="training")
    for candidate in candidates(case):
        kernel = _cpu.Kernel(candidate, _cpu.Arena(inputs), _cpu.CacheState[cache], 200_000)
        kernel.sample(3, inner=updates // 3)
        written = results(layer, kernel)
        assert all(np.isfinite(array).all() for array in written.values()), candidate
        kernel.run_poisoned()
        assert judge(case, candidate, inputs, results(layer, kernel)).status == "ok"


def test_a_velocity_without_a_gradient_ends_at_zero_not_among_denormals():
    layer = parse_problem("momentum:ic64mu0.5")
    inputs = make_inputs(layer, "forward", "fp32", seed=5)
    inputs["gradient"][:] = 0
    for candidate in candidates(KernelSpec(layer=layer), thorough=True):
        kernel = _cpu.Kernel(candidate, _cpu.Arena(inputs))
        kernel.sample(1, inner=400)
        assert (kernel.outputs()["velocity"] == 0).all(), candidate


FIELDS = {"batch": 1, "channels": 2, "height": 1, "width": 1}
FIELDS |= {"passes": ["forward"], "in_one_order": False}
FORWARD = _cpu.Pass.forward_inference


@pytest.mark.parametrize(
    ("op", "pass_", "precision", "message"),
    [
        ("sinh", FORWARD, "fp32", "no pointwise kernel named sinh; there is: bias, relu"),
        ("add", _cpu.Pass.backward_data, "fp32", "add has no backward-data pass"),
        ("relu", FORWARD, "fp16", "relu has no fp16 kernels on a CPU"),
    ],
)
def test_what_there_is_not_is_unsupported(op, pass_, precision, message):
    with pytest.raises(UnsupportedError, match=message):
        _cpu.candidates("pointwise", pass_, _cpu.Precision[precision], {"op": op, **FIELDS})


@pytest.mark.parametrize("parameters", [{}, {"rate": 1.0}, {"keep": "half"}])
def test_parameters_of_the_operation_are_needed_as_numbers(parameters):
    fields = {"op": "dropout", **FIELDS, **parameters}
    with pytest.raises(ValueError, match=r"parameter|keep is no number"):
        _cpu.candidates("pointwise", FORWARD, _cpu.Precision.fp32, fields)

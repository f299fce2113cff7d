import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.layers.base import PASSES
from pydlbench.layers.descriptor import parse_problem
from pydlbench.layers.layer import result_role
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pointwise_ops import OPERATIONS
from pydlbench.models.catalog import find_layers


@given(st.from_type(Pointwise))
def test_layers_survive_being_written_and_read(layer):
    assert parse_problem(layer.problem) == layer


@given(st.from_type(Pointwise))
def test_lists_in_place_of_tuples_are_the_same_layer(layer):
    fields = dataclasses.asdict(layer)
    assert Pointwise(**{**fields, "sources": list(layer.sources)}) == layer


@given(st.from_type(Pointwise), st.sampled_from([1, 2, 4]))
def test_bytes_are_those_of_what_is_read_and_written(layer, itemsize):
    for pass_ in layer.passes:
        assert result_role(layer, pass_) == layer.writes(pass_)[0]
        whole = layer.operands(pass_)
        roles = [*layer.reads(pass_), *layer.writes(pass_)]
        assert set(whole) == set(roles)
        fixed = [role for role in roles if role == "labels" or layer.in_float32(role)]
        varying = [role for role in roles if role not in fixed]
        expected = 4 * sum(whole[role] for role in fixed)
        expected += itemsize * sum(whole[role] for role in varying)
        assert layer.bytes(pass_, itemsize) == expected


@given(st.from_type(Pointwise))
def test_neighbours_beyond_the_channels_are_not_executed(layer):
    half = layer.local_size // 2
    real = sum(
        0 <= channel + distance < layer.channels
        for channel in range(layer.channels if layer.op == "lrn" else 0)
        for distance in range(-half, half + 1)
    )
    pixels = layer.batch * layer.height * layer.width
    elements = pixels * layer.channels
    per_tap = {"forward": 2, "backward-data": 3}
    for pass_ in layer.passes:
        beyond = (elements * layer.local_size - pixels * real) if layer.op == "lrn" else 0
        assert layer.flops(pass_) - layer.flops_executed(pass_) == per_tap.get(pass_, 0) * beyond


@pytest.mark.parametrize(
    ("text", "pass_", "flops", "size"),
    [
        # 2 * 3 * 4 * 5 = 120 elements, two bytes each.
        ("bias:mb2ic3ih4iw5", "forward", 120, 2 * (120 + 3 + 120)),
        ("bias:mb2ic3ih4iw5", "backward-weights", 120, 2 * (120 + 3)),
        ("relu:mb2ic3ih4iw5", "forward", 120, 2 * 240),
        ("relu:mb2ic3ih4iw5", "backward-data", 120, 2 * 360),
        ("relu6:mb2ic3ih4iw5", "forward", 240, 2 * 240),
        ("relu6:mb2ic3ih4iw5", "backward-data", 240, 2 * 360),
        ("hardswish:mb2ic3ih4iw5", "forward", 600, 2 * 240),
        ("hardswish:mb2ic3ih4iw5", "backward-data", 600, 2 * 360),
        ("hardsigmoid:mb2ic3ih4iw5", "forward", 480, 2 * 240),
        ("hardsigmoid:mb2ic3ih4iw5", "backward-data", 360, 2 * 360),
        ("sigmoid:mb2ic3ih4iw5", "forward", 480, 2 * 240),
        ("sigmoid:mb2ic3ih4iw5", "backward-data", 360, 2 * 360),
        ("tanh:mb2ic3ih4iw5", "forward", 120, 2 * 240),
        ("tanh:mb2ic3ih4iw5", "backward-data", 360, 2 * 360),
        ("softplus:mb2ic3ih4iw5", "forward", 360, 2 * 240),
        ("softplus:mb2ic3ih4iw5", "backward-data", 600, 2 * 360),
        ("elu:mb2ic3ih4iw5", "forward", 360, 2 * 240),
        ("elu:mb2ic3ih4iw5", "backward-data", 360, 2 * 360),
        ("silu:mb2ic3ih4iw5", "forward", 600, 2 * 240),
        ("silu:mb2ic3ih4iw5", "backward-data", 1080, 2 * 360),
        ("mish:mb2ic3ih4iw5", "forward", 600, 2 * 240),
        ("mish:mb2ic3ih4iw5", "backward-data", 1320, 2 * 360),
        ("gelu:mb2ic3ih4iw5", "forward", 600, 2 * 240),
        ("gelu:mb2ic3ih4iw5", "backward-data", 1320, 2 * 360),
        ("gelu-tanh:mb2ic3ih4iw5", "forward", 1080, 2 * 240),
        ("gelu-tanh:mb2ic3ih4iw5", "backward-data", 2160, 2 * 360),
        ("softmax:mb2ic3ih4iw5", "forward", 600, 2 * 240),
        ("softmax:mb2ic3ih4iw5", "backward-data", 480, 2 * 360),
        ("log-softmax:mb2ic3ih4iw5", "forward", 600, 2 * 240),
        ("log-softmax:mb2ic3ih4iw5", "backward-data", 480, 2 * 360),
        # 24 rows of five elements.
        ("layernorm:mb2ic3ih4iw5", "forward", 840, 2 * 240 + 4 * 10),
        ("layernorm:mb2ic3ih4iw5", "backward-data", 1680, 2 * 360 + 4 * (5 + 48 + 10)),
        # Six factors, one for each channel of each image.
        ("scale:mb2ic3ih4iw5", "forward", 120, 2 * (240 + 6)),
        ("scale:mb2ic3ih4iw5", "backward-data", 360, 2 * (360 + 6 + 6)),
        ("lrn:mb2ic3ih4iw5", "forward", 120 * 14, 2 * 240),
        ("lrn:mb2ic3ih4iw5ls3", "backward-data", 120 * 18, 2 * 360),
        ("batchnorm:mb2ic3ih4iw5", "forward", 240, 2 * 240 + 4 * 12),
        ("batchnorm:mb2ic3ih4iw5", "backward-data", 960, 2 * 360 + 4 * 15),
        ("add:mb2ic3ih4iw5", "forward", 120, 2 * 360),
        ("concat:mb2ic1+2ih4iw5", "forward", 0, 2 * 240),
        ("concat:mb2ic1+2ih4iw5", "backward-data", 0, 2 * 240),
        ("softmax-xent:mb8ic15", "forward", 600, 2 * 240 + 4 * 8 + 4),
        ("softmax-xent:mb8ic15", "backward-data", 120, 2 * 240 + 4 * 8),
        ("dropout:mb2ic3ih4iw5", "forward", 120, 2 * 240),
        ("dropout:mb2ic3ih4iw5", "backward-data", 120, 2 * 240),
        ("l2:ic120", "forward", 240, 2 * 120 + 4),
        ("l2:ic120", "backward-weights", 240, 2 * 360),
        ("sgd:ic120", "forward", 240, 2 * 360),
        ("momentum:ic120", "forward", 480, 2 * 600),
    ],
)
def test_work_and_bytes_by_hand(text, pass_, flops, size):
    layer = parse_problem(text)
    assert layer.flops(pass_) == flops
    assert layer.bytes(pass_, 2) == size


def test_every_pass_of_every_operation_has_an_example_above():
    (examples,) = (mark.args[1] for mark in test_work_and_bytes_by_hand.pytestmark if mark.args[1:])
    shown = {(text.partition(":")[0], pass_) for text, pass_, _, _ in examples}
    assert shown == {(op, pass_) for op, one in OPERATIONS.items() for pass_ in one.steps}


def test_alexnets_normalisation_in_tensorflows_tutorial():
    layer = Pointwise(
        op="lrn", batch=128, channels=64, height=56, width=56, local_size=11, alpha=1.1e-3
    )
    assert layer.problem == "lrn:mb128ic64ih56ls11alpha0.0011"
    assert layer.parameters == {"local_size": 11, "alpha": 1.1e-3, "beta": 0.75, "k": 2.0}
    assert layer.flops("forward") == 128 * 64 * 56 * 56 * 26
    # Five channels on either side lack 5 + 4 + 3 + 2 + 1 neighbours.
    assert layer.flops_executed("forward") == 128 * 56 * 56 * (64 * 26 - 2 * 30)


def test_what_is_read_and_written():
    norm = Pointwise(op="batchnorm", channels=3)
    assert norm.reads("forward") == ("src", "weights", "bias", "mean", "variance")
    assert norm.writes("forward") == ("dst",)
    assert norm.writes("forward", "training")[:3] == ("dst", "mean", "variance")
    assert norm.reads("backward-data", "training") == norm.reads("backward-data")
    joined = Pointwise(op="concat", channels=6, sources=(1, 2, 3))
    assert joined.reads("forward") == joined.writes("backward-data") == ("src", "src2", "src3")
    assert [joined.dims(role)[1] for role in joined.reads("forward")] == [1, 2, 3]
    assert result_role(Pointwise(op="bias", channels=3), "backward-weights") == "bias"


def test_weight_elements():
    counts = {"bias": 7, "batchnorm": 14, "l2": 7, "sgd": 7, "momentum": 7, "layernorm": 2}
    for op in OPERATIONS:
        sources = (3, 4) if op == "concat" else ()
        layer = Pointwise(op=op, channels=7, sources=sources)
        assert layer.weight_elements == counts.get(op, 0)


def test_weights_have_no_batch():
    weights = Pointwise(op="momentum", channels=37_748_736)
    assert weights.problem == "momentum:ic37748736"
    assert weights.with_batch(32) == weights
    assert Pointwise(op="relu", channels=5).with_batch(32).batch == 32
    found = find_layers(["relu:mb2ic5", "l2:ic5"], batch=7)
    assert [layer.batch for layer in found] == [7, 1]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("relu:mb128ic96ih55iw55", "relu:mb128ic96ih55"),
        ("relu:_ih55_ic96_mb128", "relu:mb128ic96ih55"),
        ("add:mb1ic4iw3", "add:mb1ic4ih1iw3"),
        ("lrn:mb1ic4ls5alpha0.0001beta.75k2.", "lrn:mb1ic4"),
        ("lrn:ic4k1alpha1e-3", "lrn:mb1ic4alpha0.001k1"),
        ("dropout:ic4keep1", "dropout:mb1ic4keep1"),
        ("momentum:ic9lr1e-9mu0", "momentum:ic9lr1e-09mu0"),
        ("batchnorm:mb2ic9mom0.01eps1e-3", "batchnorm:mb2ic9eps0.001mom0.01"),
    ],
)
def test_the_same_problem_in_other_words(text, canonical):
    assert parse_problem(text).problem == canonical


def test_names():
    (layer,) = find_layers(['concat:mb2ic64+32ih7n"dense 1"'])
    assert layer.name == "dense 1"
    assert parse_problem("relu:ic3nfirst").name == "first"
    assert parse_problem('ic3ih8oc4kh3n"relu:ic3"').kind == "conv2d"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rleu:ic3", "column 1: expected an operation; nearest: relu, relu6, elu; got 'rleu'"),
        ("relu:ic3oc4", "column 9: expected a field (mb ic ih iw n); got 'oc4'"),
        ("relu:ic3ls4", "column 9: expected a field (mb ic ih iw n); got 'ls4'"),
        ("relu:", "column 6: expected ic (channels), which is missing; got the end"),
        ("relu:mb2", "column 9: expected ic (channels), which is missing; got the end"),
        ("relu:ic3ic4", "column 9: expected ic only once; got 'ic4'"),
        ("relu:ic0", "column 8: expected ic of at least 1; got '0'"),
        ("lrn:ic3alpha-1", "column 13: expected a number for alpha, at least 0; got '-1'"),
        ("lrn:ic3k1e999", "column 9: expected a finite number for k; got '1e999'"),
        ("lrn:ic3ls4", "local_size=4: has no middle; nearest: 5"),
        ("lrn:ic3k0", "k=0.0: too small; above 0"),
        ("dropout:ic3keep0", "keep=0.0: too small; above 0"),
        ("dropout:ic3keep1.5", "keep=1.5: too large; at most 1"),
        (
            "concat:mb1ic64",
            "column 15: expected + and the channels of another source; got the end",
        ),
        ("concat:ic64+x", "column 13: expected a whole number for ic, at least 1; got 'x'"),
        ("relu:ic1+2", "column 9: expected a field (mb ic ih iw n); got '+2'"),
        ("softmax-xent:mb2ic3ih4", "height=4: softmax-xent has none; nearest: 1"),
        ("sgd:mb2ic3", "batch=2: sgd has none; nearest: 1"),
        ("l2:ic3iw2", "width=2: l2 has none; nearest: 1"),
        ('relu:ic3n"x', "column 12: expected the closing quote of the name; got the end"),
    ],
)
def test_malformed_descriptors_name_the_position(text, message):
    with pytest.raises(UsageError) as caught:
        parse_problem(text)
    assert str(caught.value) == f"{text}: {message}"


@given(
    op=st.sampled_from(sorted(OPERATIONS)),
    fields=st.text(alphabet='mbicohwlskaepty+._0123456789-e"n ', max_size=20),
)
def test_any_text_is_a_layer_or_one_line_of_help(op, fields):
    text = f"{op}:{fields}"
    layer, message = None, ""
    try:
        layer = parse_problem(text)
    except UsageError as error:
        message = str(error)
    if layer is None:
        assert message.startswith(f"{text}: ")
        assert "\n" not in message
    else:
        assert parse_problem(layer.problem) == dataclasses.replace(layer, name=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "rleu"}, "op='rleu': no such operation; nearest: relu, relu6, elu"),
        ({"alpha": 0.5}, "alpha=0.5: relu has no such parameter; it has none"),
        ({"op": "sgd", "mu": 0.5}, "mu=0.5: sgd has no such parameter; it has rate"),
        ({"sources": (1, 1)}, "sources=(1, 1): relu has no such parameter; it has none"),
        ({"op": "dropout", "keep": "half"}, "keep='half': not a number; above 0"),
        ({"op": "dropout", "keep": True}, "keep=True: not a number; above 0"),
        ({"op": "sgd", "rate": float("nan")}, "rate=nan: not finite; at least 0"),
        ({"op": "batchnorm", "momentum": 2}, "momentum=2.0: too large; at most 1"),
        ({"op": "concat"}, "sources=(): at least two, each of at least 1 channel"),
        (
            {"op": "concat", "sources": (2, 3)},
            "channels=2: not the sum of the sources; nearest: 5",
        ),
        ({"height": 0}, "height=0: too small; at least 1"),
        ({"channels": 2.0}, "channels=2.0: not a whole number; at least 1"),
    ],
)
def test_impossible_layers_are_refused(changes, message):
    with pytest.raises(UsageError) as caught:
        Pointwise(**{"op": "relu", "channels": 2, **changes})
    assert str(caught.value) == message


def test_layers_beyond_63_bits_are_refused():
    with pytest.raises(UsageError, match=r"sizes overflow: .* most of them in"):
        Pointwise(op="relu", channels=2**31, batch=2**30)


def test_passes_that_an_operation_lacks():
    layer = Pointwise(op="add", channels=2)
    for pass_ in set(PASSES) - {"forward"}:
        with pytest.raises(
            UnsupportedError, match=f"{pass_}: add has no such pass; it has forward"
        ):
            layer.flops(pass_)
    with pytest.raises(UsageError, match="forwards: no such pass; nearest: forward"):
        layer.bytes("forwards", 4)

"""Descriptors: written and parsed text agree, also with benchdnn; errors have a position."""

import dataclasses
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydlbench.errors import UsageError
from pydlbench.models.catalog import find_layers
from pydlbench.ops.descriptor import looks_like_problem, parse_problem
from pydlbench.ops.op import Layer
from pydlbench.ops.table import OPS, build_layer, read_layer

from .conftest import convolutions, every, poolings


def pool_of(layer: Layer) -> str | None:
    if layer.op != "pool":
        return None
    return "avg_p" if layer.count_include_pad else str(layer.mode)


@given(every)
@example(parse_problem("ic1ih9oc1kh1sh4"))
@example(parse_problem("ic1ih9oc1oh10kh3ph0"))
def test_layers_survive_being_written_and_read(layer):
    assert looks_like_problem(layer.problem)
    assert parse_problem(layer.problem, pool=pool_of(layer)) == layer
    assert read_layer(layer.to_dict()) == layer
    assert layer.replace(name="mine").replace(name=None) == layer


def benchdnn_reading(text: str) -> dict[str, int]:
    """Parse a descriptor by benchdnn's rules for missing fields (written from its manual).

    A side without any field has the values of the side before; other sides have the defaults stride
    1 and no dilation. A missing pad is half of the total that the output size needs, rounded to
    zero, and may be negative.
    """
    fields = {name: int(value) for name, value in re.findall(r"([a-z]+)(\d+)", text)}
    read = {name: fields.get(name, 1) for name in ("mb", "ic", "oc", "g")}
    before = None
    for side in "dhw":
        if not any(f"{letter}{side}" in fields for letter in "ioksdp"):
            if before is not None:
                read |= {f"{letter}{side}": read[f"{letter}{before}"] for letter in "ioksdp"}
            continue
        i, o, k = (fields[f"{letter}{side}"] for letter in "iok")
        s, d = fields.get(f"s{side}", 1), fields.get(f"d{side}", 0)
        total = (o - 1) * s - i + (k - 1) * (d + 1) + 1
        p = fields.get(f"p{side}", int(total / 2))
        pairs = zip("ioksdp", (i, o, k, s, d, p), strict=True)
        read |= {f"{letter}{side}": value for letter, value in pairs}
        before = side
    return read


@given(st.one_of(convolutions(), poolings()))
def test_benchdnn_reads_the_same_layer(layer):
    read = benchdnn_reading(layer.problem)
    assert read["mb"] == layer.batch
    columns = {"i": "in_size", "o": "out_size", "k": "kernel", "s": "stride", "p": "pad_before"}
    for number, side in enumerate("dhw"[-layer.sides :]):
        for letter, field in columns.items():
            assert read[f"{letter}{side}"] == getattr(layer, field)[number], (letter, side)
        assert read[f"d{side}"] == layer.dilation[number] - 1
    if layer.op == "conv":
        channels = (layer.in_channels, layer.out_channels, layer.groups)
        assert (read["ic"], read["oc"], read["g"]) == channels


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("mb128ic192ih13oc384kh3ph1", "mb128ic192ih13oc384oh13kh3ph1"),
        (
            "g1mb128ic192ih13iw13oc384oh13ow13kh3kw3sh1sw1ph1pw1dh0dw0",
            "mb128ic192ih13oc384oh13kh3ph1",
        ),
        ("mb128_ic192ih13_oc384oh13_kh3ph1", "mb128ic192ih13oc384oh13kh3ph1"),
        ("kh3ph1oc384ih13ic192mb0128", "mb128ic192ih13oc384oh13kh3ph1"),
        # The pad follows from the output.
        ("mb128ic192ih13oc384oh13kh3", "mb128ic192ih13oc384oh13kh3ph1"),
        ("mb128ic3ih224oc64oh56kh11sh4", "mb128ic3ih224oc64oh56kh11sh4ph3"),
        # Widths follow heights except the output of another width.
        ("ic3ih20iw33oc8oh20kh3ph1", "mb1ic3ih20iw33oc8oh20ow33kh3kw3ph1pw1"),
        (
            "ic3ih20iw33oc8kh3kw1sh2sw1ph1pw0dh1dw0",
            "mb1ic3ih20iw33oc8oh9ow33kh3kw1sh2sw1ph1pw0dh1dw0",
        ),
        ("ic3ih20oc8kh3dh1", "mb1ic3ih20oc8oh16kh3dh1"),
        # Other numbers of sides.
        ("mb16ic64_iw32oc8ow16_kw3sw2", "mb16ic64iw32oc8ow16kw3sw2"),
        ("mb2ic3id8oc4kd3", "mb2ic3id8oc4od6kd3"),
        ("ic3id4ih8oc4kd1kh3ph1", "mb1ic3id4ih8iw8oc4od4oh8ow8kd1kh3kw3pd0ph1pw1"),
        # A side with a kernel of its own takes no stride, pad or dilation from the side before.
        (
            "g16ic16oc16_ih15oh7kh6sh2ph3_iw10ow10kw3",
            "g16mb1ic16ih15iw10oc16oh7ow10kh6kw3sh2sw1ph3pw1",
        ),
        (
            "ic65oc65_id5od5kd3pd1_ih1oh1kh1_iw1ow1kw1",
            "mb1ic65id5ih1iw1oc65od5oh1ow1kd3kh1kw1pd1ph0pw0",
        ),
        ("ic3ih20iw33oc8kh3kw1sh2ph1dh1", "mb1ic3ih20iw33oc8oh9ow33kh3kw1sh2sw1ph1pw0dh1dw0"),
        # Of the first side what a later one has is 1 where it is missing.
        ("ic3ih1iw33oc8kw3", "mb1ic3ih1iw33oc8oh1ow31kh1kw3"),
        # benchdnn's own shape, inputs/deconv: the output's size is what gives the padding.
        ("deconv:ic64ih14oc32kh2sh2", "deconv:mb1ic64ih14oc32oh28kh2sh2"),
        ("deconv:mb2ic8ih5oc6oh10kh3sh2ph1", "deconv:mb2ic8ih5oc6oh10kh3sh2ph1"),
        ("deconv:g2ic4ih5iw7oc6kh3kw2", "deconv:g2mb1ic4ih5iw7oc6oh7ow8kh3kw2"),
        ("deconv:ic4iw5oc6kw3dw1", "deconv:mb1ic4iw5oc6ow9kw3dw1"),
        ("relu:_ih55_ic96_mb128", "relu:mb128ic96ih55"),
        ("relu:mb128ic96ih55iw55", "relu:mb128ic96ih55"),
        ("add:mb1ic4iw3", "add:mb1ic4ih1iw3"),
        ("lrn:mb1ic4ls5alpha0.0001beta.75k2.", "lrn:mb1ic4"),
        ("lrn:ic4k1alpha1e-3", "lrn:mb1ic4alpha0.001k1"),
        ("momentum:ic9lr1e-9mu0", "momentum:ic9lr1e-09mu0"),
        ("batchnorm:mb2ic9mom0.01eps1e-3", "batchnorm:mb2ic9eps0.001mom0.01"),
        ("concat:ih7ic1+2", "concat:mb1ic1+2ih7"),
        ("lstm:t25slc512dhc512", "lstm:l1t25mb1slc512dhc512"),
        ("lstm:t25slc512dhc512dic512peephole0", "lstm:l1t25mb1slc512dhc512"),
        ("lstm:t2sic3slc5dhc4dic3peephole1", "lstm:l1t2mb1slc5dhc4dic3peephole1"),
        ("lstm:t2slc5dhc4dic4projected1", "lstm:l1t2mb1slc5dhc4projected1"),
        ("lstm:t2slc5dhc4dic3projected1", "lstm:l1t2mb1slc5dhc4dic3"),
        ("resize:linear:mb2ic3ih7oh14iw7ow5", "resize:linear:mb2ic3ih7oh14iw7ow5"),
        ("resize:linear:ic3id7od14", "resize:linear:mb1ic3id7od14"),
        ("attention:h8kvh2q128k256d64", "attention:mb1h8kvh2q128k256d64"),
        ("attention:h8q128d64dv32causal1", "attention:mb1h8q128d64dv32causal1"),
        ("2x3:3x4:2x4", "2x3:3x4"),
        ("1x2x3:1x3x4", "2x3:3x4"),
        ("2x3:3x4wtagany", "2x3:3x4"),
        ("2x1x5x16:1x4x16x8", "2x1x5x16:1x4x16x8"),
        ("2x1x5x16:1x4x16x8:2x4x5x8", "2x1x5x16:1x4x16x8"),
        ("elementwise:addcdiv:7:7:1by.5", "elementwise:addcdiv:7:7:1by0.5"),
        ("move:permute:8x128x12x64by0213", "move:permute:8x128x12x64by0213"),
        ("gather:add-rows:9x4:17", "gather:add-rows:9x4:17"),
    ],
)
def test_the_same_problem_in_other_words(text, canonical):
    assert looks_like_problem(text)
    assert parse_problem(text).problem == canonical
    assert parse_problem(canonical).problem == canonical


@pytest.mark.parametrize(
    ("pool", "mode", "counted"),
    [
        ("max", "max", False),
        ("avg", "avg", False),
        ("avg_np", "avg", False),
        ("avg_p", "avg", True),
    ],
)
def test_what_a_pooling_does_is_said_beside_it(pool, mode, counted):
    layer = parse_problem("ic3ih8kh3ph1dh1", pool=pool)
    assert (layer.kind, layer.mode, layer.count_include_pad) == ("pool2d", mode, counted)
    assert layer.dilation == (2, 2)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('ic3ih8oc4kh3n"alexnet:conv1"', "alexnet:conv1"),
        ('ic3ih8oc4kh3_n"two words, #1"', "two words, #1"),
        ("ic3ih8oc4kh3nconv", "conv"),
        ("ic3ih8oc4kh3nnet:conv", "net:conv"),
        ('ic3ih8oc4kh3n"relu:ic3"', "relu:ic3"),
        ('128x64:64x32n"fc"', "fc"),
        ('12x128x64:12x64x128_n"QK"', "QK"),
        ('concat:mb2ic64+32ih7n"dense 1"', "dense 1"),
        ("move:copy:8nmine", "mine"),
        ("ic3ih8oc4kh3", None),
    ],
)
def test_names(text, name):
    assert parse_problem(text).name == name
    assert find_layers([text])[0].name == name


@pytest.mark.parametrize(
    ("text", "column", "part"),
    [
        ("mb128ic192zz13", 11, "ih iw"),
        ("ic3ih8 oc4kh3", 7, "a field"),
        ("MB1ic3ih8oc4kh3", 1, "a field"),
        ("", 1, "kh|ic"),
        ("mbic3", 3, "whole number for mb"),
        ("ic3ih-4", 6, "whole number for ih"),
        ("ic3ih8oc4kh3ph-1", 15, "at least 0"),
        ("ic3ih0", 6, "at least 1"),
        ("ic3ih8.5oc4kh3", 7, "a field"),
        ("ic3ih٣oc4", 6, "whole number"),
        ("mb1ic3oc4kh3", 13, "ih"),
        ("ih3oc4kh3", 10, "ic"),
        ("ic3ih8oc4", 10, "kh"),
        ("ic3ih8kh3", 10, "--pool max"),
        ("ic" + "9" * 5000, 3, "below 2"),
        ('ic3ih8oc4kh3n"x', 16, "closing quote"),
        ('ic3ih8oc4kh3n"x"ph1', 17, "after the name"),
        ("deconv:", 8, "ih|ic"),
        ("deconv:ic3ih4kh2", 17, "oc"),
        ("deconv:ic3ih4oc2kh2rh1", 20, "a field"),
        ("1x2:3x4", 5, "expected 2"),
        ("2x3:3x4:2x5", 11, "expected 4"),
        ("2x3x4:3x4x5", 7, "expected 2"),
        ("2x3x4:4x5", 7, "2x4x5"),
        ("128x9216", 9, "expected :"),
        ("128:9216x1", 4, "expected x"),
        ("2x:3x4", 3, "whole number"),
        ("2x0:0x4", 3, "at least 1"),
        ("2x3:3x4:2x4:1", 12, "wtag"),
        ("2x3:3x4 ", 8, "wtag"),
        ("2x3:3x4wtagba", 12, "any, kn, nk"),
        ("rleu:ic3", 1, "relu"),
        ("relu:ic3oc4", 9, "a field"),
        ("relu:ic3ls4", 9, "a field"),
        ("relu:mb2", 9, "ic"),
        ("lrn:ic3alpha-1", 13, "at least 0"),
        ("lrn:ic3k1e999", 9, "finite"),
        ("concat:mb1ic64", 15, "of another"),
        ("concat:ic64+x", 13, "whole number"),
        ("softmax-xent:mb2ic3ih4", 20, "a field"),
        ("sgd:mb2ic3", 5, "a field"),
        ("elementwise:ad:8", 13, "add"),
        ("elementwise:add", 16, "expected :"),
        ("elementwise:add:8x", 19, "whole number"),
        ("elementwise:add:8:8by", 22, "a number"),
        ("reduction:sum:8", 16, "shape 2"),
        ("reduction:median:8:1", 11, "mean"),
        ("move:permute:8x4by-1", 19, "an order"),
        ("move:copy:8:8", 12, "x, :"),
        ("gather:rows:8", 14, "shape 2"),
        ("lstm:l1t25mb64slc512", 21, "dhc"),
        ("lstm:t25slc512oc512", 15, "a field"),
        ("gru:t0mb1slc2dhc2", 6, "at least 1"),
        ("resize:cubed:mb1ic3ih7oh14", 8, "cubic"),
        ("resize:linear", 14, "expected :"),
        ("resize:linear:mb1ic3ih7", 24, "oh"),
        ("resize:linear:mb1ic3ih7oh14iw9", 31, "ow"),
    ],
)
def test_malformed_descriptors_name_the_position(text, column, part):
    with pytest.raises(UsageError) as caught:
        parse_problem(text)
    message = str(caught.value)
    assert message.startswith(f"{text}: column {column}: ")
    assert re.search(part, message)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("fft:real:8by2", "by2: .*only 1; nearest: by1"),
        ("fft:complex:4x8by3", "by3: .*only 2; nearest: by2"),
        ("gather:rows:2x5x4:3x3", "index_tables=3: neither 1 nor 2"),
        ("gather:rows:2x5x4:2x3x3", "index_width=3: neither 1 nor 4"),
        ("lstm:t2slc5dhc4peephole2", "peephole=2: neither 0 nor 1"),
        ("groupnorm:ic4factors2", "factors=2: neither 0 nor 1"),
    ],
)
def test_values_that_do_not_fit_each_other_name_the_nearest(text, part):
    with pytest.raises(UsageError, match=part):
        parse_problem(text)


@given(
    start=st.sampled_from(["", *(op.prefix for op in OPS.values())]),
    fields=st.text(alphabet='gmbicohwlskaepdty+._0123456789-x:e"n@ ', max_size=24),
)
@example("", 'ic1ih1kh1n"x"')
@example("", "1x1:1x1nx")
def test_any_text_is_a_layer_or_one_line_of_help(start, fields):
    text = start + fields
    layer, message = None, ""
    try:
        layer = parse_problem(text, pool="max")
    except UsageError as error:
        message = str(error)
    if layer is None:
        assert message.startswith(f"{text}: ")
        assert "\n" not in message
    else:
        assert parse_problem(layer.problem, pool="max") == dataclasses.replace(layer, name=None)


def test_windows_may_end_before_the_images_do_where_the_pad_is_given():
    layer = parse_problem("ic1_iw4ow2kw1sw1pw0", pool="max")
    assert (layer.pad_before, layer.pad_after, layer.out_size) == ((0,), (-2,), (2,))
    assert layer.problem == "mb1ic1iw4ow2kw1pw0"
    assert parse_problem(layer.problem, pool="max") == layer == read_layer(layer.to_dict())
    assert layer.replace(batch=3).out_size == (2,)


def test_a_pooling_with_a_name_is_one_that_an_option_speaks_of():
    (layer,) = find_layers(['mb2ic3_ih27kh3sh2n"net:pool"'], pool="max")
    assert (layer.kind, layer.name) == ("pool2d", "net:pool")
    with pytest.raises(UsageError, match=r"^--pool max: "):
        find_layers(["alexnet/pool1", "ic3ih8oc4kh3"], pool="max")


def test_lists_in_place_of_tuples_are_the_same_layer():
    joined = build_layer("concat", batch=2, height=3, width=3, sources=[1, 2])
    assert joined == build_layer("concat", batch=2, height=3, width=3, sources=(1, 2))
    assert {joined: 1}[read_layer(joined.to_dict())] == 1

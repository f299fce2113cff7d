import dataclasses
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydlbench.errors import UsageError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.descriptor import parse_problem
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pool import Pool2d


@given(st.from_type(Conv2d))
@example(Conv2d.of(batch=1, in_channels=1, in_size=9, out_channels=1, kernel=1, stride=4))
@example(Conv2d.of(batch=1, in_channels=1, in_size=9, out_channels=1, kernel=3, padding=(0, 2)))
@example(
    Conv2d.of(batch=1, in_channels=1, in_size=9, out_channels=1, kernel=3, padding=(1, 1, 1, 0))
)
def test_convolutions_survive_being_written_and_read(layer):
    assert parse_problem(layer.problem) == layer


@given(st.from_type(Pool2d))
def test_poolings_survive_being_written_and_read(layer):
    pool = "avg_p" if layer.count_include_pad else layer.mode
    assert parse_problem(layer.problem, pool=pool) == layer


@given(st.from_type(Gemm))
def test_products_survive_being_written_and_read(layer):
    assert parse_problem(layer.problem) == layer


def benchdnn_reading(text: str) -> dict[str, int]:
    """Read a descriptor by benchdnn's own rules for what is missing (written from its manual).

    Without any width field the widths are the heights; otherwise each width stands for itself, with
    stride 1 and no dilation where it has none. A missing pad is half of what the output size needs,
    rounded towards zero, which may be negative.
    """
    fields = {name: int(value) for name, value in re.findall(r"([a-z]+)(\d+)", text)}
    sides = ["h"] if not fields.keys() & {"iw", "ow", "kw", "sw", "pw", "dw"} else ["h", "w"]
    read = {name: fields[name] for name in ("mb", "ic")}
    read |= {"oc": fields.get("oc", 0), "g": fields.get("g", 1)}
    for side in sides:
        i, o, k = (fields[f"{letter}{side}"] for letter in "iok")
        s, d = fields.get(f"s{side}", 1), fields.get(f"d{side}", 0)
        total = (o - 1) * s - i + (k - 1) * (d + 1) + 1
        p = fields.get(f"p{side}", int(total / 2))
        for other in "hw" if len(sides) == 1 else side:
            pairs = zip("ioksdp", (i, o, k, s, d, p), strict=True)
            read |= {f"{letter}{other}": value for letter, value in pairs}
    return read


@given(st.one_of(st.from_type(Conv2d), st.from_type(Pool2d)))
def test_benchdnn_reads_the_same_layer(layer):
    read = benchdnn_reading(layer.problem)
    assert read["mb"] == layer.batch
    assert (read["ih"], read["oh"], read["kh"]) == (
        *(layer.in_height, layer.out_height),
        layer.kernel_height,
    )
    assert (read["iw"], read["ow"], read["kw"]) == (
        *(layer.in_width, layer.out_width),
        layer.kernel_width,
    )
    assert (read["sh"], read["sw"]) == (layer.stride_height, layer.stride_width)
    assert (read["ph"], read["pw"]) == (layer.pad_top, layer.pad_left)
    if isinstance(layer, Conv2d):
        assert (read["ic"], read["oc"], read["g"]) == (
            *(layer.in_channels, layer.out_channels),
            layer.groups,
        )
        assert (read["dh"], read["dw"]) == (layer.dilation_height - 1, layer.dilation_width - 1)


CONV3 = Conv2d.of(batch=128, in_channels=192, in_size=13, out_channels=384, kernel=3, padding=1)


@pytest.mark.parametrize(
    "text",
    [
        "mb128ic192ih13oc384oh13kh3ph1",
        "mb128ic192ih13oc384kh3ph1",
        "g1mb128ic192ih13iw13oc384oh13ow13kh3kw3sh1sw1ph1pw1dh0dw0",
        "mb128_ic192ih13_oc384oh13_kh3ph1",
        "kh3ph1oc384ih13ic192mb128",
        "mb0128ic192ih013oc384kh3ph1",
        "mb128ic192ih13oc384oh13kh3",  # the pad follows from the output
    ],
)
def test_the_same_problem_in_other_words(text):
    assert parse_problem(text) == CONV3


def test_the_output_size_decides_the_trailing_pad():
    conv1 = parse_problem("mb128ic3ih224oc64oh56kh11sh4ph3")
    assert isinstance(conv1, Conv2d)
    assert (conv1.pad_top, conv1.pad_bottom, conv1.pad_left, conv1.pad_right) == (3, 4, 3, 4)
    assert parse_problem("mb128ic3ih224oc64oh56kh11sh4") == conv1
    pool = parse_problem("mb1ic64ih24oh12kh3sh2", pool="max")
    assert isinstance(pool, Pool2d)
    assert (pool.pad_top, pool.pad_bottom) == (0, 1)


def test_widths_follow_heights_except_the_output_of_another_width():
    layer = parse_problem("ic3ih20iw33oc8oh20kh3ph1")
    assert isinstance(layer, Conv2d)
    assert (layer.out_height, layer.out_width) == (20, 33)
    assert (layer.kernel_width, layer.pad_left, layer.pad_right) == (3, 1, 1)
    flat = parse_problem("ic3ih20iw33oc8kh3kw1sh2sw1ph1pw0dh1dw0")
    assert flat.problem == "mb1ic3ih20iw33oc8oh9ow33kh3kw1sh2sw1ph1pw0dh1dw0"


def test_dilation_counts_from_zero():
    layer = parse_problem("ic3ih20oc8kh3dh1")
    assert isinstance(layer, Conv2d)
    assert (layer.dilation_height, layer.dilation_width) == (2, 2)


def test_without_mb_the_batch_is_one():
    assert parse_problem("ic3ih8oc4kh3").batch == 1


@pytest.mark.parametrize(
    ("pool", "mode", "include"),
    [
        ("max", "max", False),
        ("avg", "avg", False),
        ("avg_np", "avg", False),
        ("avg_p", "avg", True),
    ],
)
def test_pooling_modes(pool, mode, include):
    layer = parse_problem("ic3ih8kh3ph1", pool=pool)
    assert isinstance(layer, Pool2d)
    assert (layer.mode, layer.count_include_pad) == (mode, include)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('ic3ih8oc4kh3n"alexnet:conv1"', "alexnet:conv1"),
        ('ic3ih8oc4kh3_n"two words, #1"', "two words, #1"),
        ("ic3ih8oc4kh3nconv", "conv"),
        ('128x64:64x32n"fc"', "fc"),
        ("ic3ih8oc4kh3", None),
    ],
)
def test_names(text, name):
    assert parse_problem(text).name == name


def test_products():
    assert parse_problem("128x9216:9216x4096") == Gemm(m=128, k=9216, n=4096)
    assert parse_problem("3x128x64:3x64x32") == Gemm(m=128, k=64, n=32, batch_count=3)
    assert parse_problem("2x3:3x4:2x4") == Gemm(m=2, k=3, n=4)
    assert parse_problem("1x2x3:1x3x4").problem == "2x3:3x4"
    turned = Gemm(m=2, k=3, n=4, batch_count=5, weights_order="nk", name="scores")
    assert parse_problem('5x2x3:5x3x4wtagnkn"scores"') == turned
    assert parse_problem("2x3:3x4wtagany").problem == "2x3:3x4"


FIELDS = "expected a field (g mb ic ih iw oc oh ow kh kw sh sw ph pw dh dw n)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mb128ic192zz13", f"column 11: {FIELDS}; got 'zz13'"),
        ("mb128xx", f"column 6: {FIELDS}; got 'xx'"),
        ("ic3ih8 oc4kh3", f"column 7: {FIELDS}; got ' oc4kh3'"),
        ("MB1ic3ih8oc4kh3", f"column 1: {FIELDS}; got 'MB1ic3ih8oc4...'"),
        ("", "column 1: expected ic (channels), which is missing; got the end"),
        ("mbic3", "column 3: expected a whole number for mb, at least 1; got 'ic3'"),
        ("mb", "column 3: expected a whole number for mb, at least 1; got the end"),
        ("ic3ih-4", "column 6: expected a whole number for ih, at least 1; got '-4'"),
        ("ic3ih8oc4kh3ph-1", "column 15: expected a whole number for ph, at least 0; got '-1'"),
        ("ic3ih0", "column 6: expected ih of at least 1; got '0'"),
        ("ic3ih8.5oc4kh3", f"column 7: {FIELDS}; got '.5oc4kh3'"),
        ("ic3ih٣oc4", "column 6: expected a whole number for ih, at least 1; got '٣oc4'"),
        ("ic3ih8ih9", "column 7: expected ih only once; got 'ih9'"),
        ("ic3id8", "column 4: expected a two-dimensional problem; got 'id'"),
        ("mb1ic3oc4kh3", "column 13: expected ih (height), which is missing; got the end"),
        ("ih3oc4kh3", "column 10: expected ic (channels), which is missing; got the end"),
        ("ic3ih8oc4", "column 10: expected kh (kernel height), which is missing; got the end"),
        (
            "ic3ih8kh3",
            "column 10: expected oc (convolution), or --pool max or --pool avg; got the end",
        ),
        ("ic" + "9" * 5000, "column 3: expected ic below 2**63; got '999999999999...'"),
        ('ic3ih8oc4kh3n"x', "column 16: expected the closing quote of the name; got the end"),
        ('ic3ih8oc4kh3n""', "column 15: expected a name; got '\"'"),
        ("ic3ih8oc4kh3n", "column 14: expected a name; got the end"),
        ('ic3ih8oc4kh3n"x"ph1', "column 17: expected nothing behind the name; got 'ph1'"),
        (
            "ic3ih8oc4oh5kh3",
            "oh5: does not follow from ih8, kh3, sh1 and ph0; nearest: oh6",
        ),
        (
            "ic3ih3oc4kh5",
            "kernel height 5 (dilation included): larger than the padded input height 3; at most 3",
        ),
        ("g2ic3ih8oc4kh3", "groups=2: does not divide in_channels=3; nearest: 1"),
        ("1x2:3x4", "column 5: expected 2; got '3'"),
        ("2x3:3x4:2x5", "column 11: expected 4; got '5'"),
        ("2x3x4:3x4x5", "column 7: expected 2; got '3'"),
        ("2x3x4:4x5", "column 7: expected dimensions as in 2x4x5; got '4x5'"),
        ("128x9216", "column 9: expected : and the weights, KxN; got the end"),
        ("128:9216x1", "column 4: expected x and a dimension of src; got ':9216x1'"),
        (
            "2x:3x4",
            "column 3: expected a whole number for a dimension of src, at least 1; got ':3x4'",
        ),
        ("2x0:0x4", "column 3: expected a dimension of src of at least 1; got '0'"),
        ("2x3:3x4:2x4:1", "column 12: expected the end, wtag or a name; got ':1'"),
        ("2x3:3x4 ", "column 8: expected the end, wtag or a name; got ' '"),
        ("2x3:3x4wtagab", "column 12: expected one of any, kn, nk; got 'ab'"),
    ],
)
def test_malformed_descriptors_name_the_position(text, message):
    with pytest.raises(UsageError) as caught:
        parse_problem(text)
    assert str(caught.value) == f"{text}: {message}"


def test_what_pooling_cannot_have():
    with pytest.raises(UsageError, match=r"pooling \(no oc\) has neither groups nor dilation"):
        parse_problem("g2ic4ih8kh3", pool="max")
    with pytest.raises(UsageError, match=r"pooling \(no oc\) has neither groups nor dilation"):
        parse_problem("ic4ih8kh3dh1", pool="avg")
    with pytest.raises(UsageError, match=r"^--pool maxi: no such pooling; nearest: max"):
        parse_problem("ic4ih8kh3", pool="maxi")


@given(st.text(alphabet='gmbicohwkspdn_x:0123456789-"@ ', max_size=24))
@example('ic1ih1kh1n"x"')
@example("1x1:1x1nx")
def test_any_text_is_a_layer_or_one_line_of_help(text):
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

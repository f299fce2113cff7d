"""Layers by name, pattern and descriptor."""

from __future__ import annotations

import pytest
from said import says

from pydlbench.errors import UsageError
from pydlbench.models.catalog import entry_names, find_layers, load_entry
from pydlbench.ops.table import build_layer


def names(*patterns: str) -> list[str | None]:
    return [layer.name for layer in find_layers(patterns)]


def test_an_ambiguous_bare_name_lists_its_meanings():
    with pytest.raises(UsageError) as caught:
        find_layers(["fc7"])
    choices = ["alexnet-owt/fc7 (128x4096:4096x4096)", "vgg16/fc7 (64x4096:4096x4096)"]
    assert says(str(caught.value), "--shape fc7", *choices)
    # With one batch for all they are the same problem.
    assert find_layers(["fc7"], batch=32) == [
        build_layer("gemm", m=32, k=4096, n=4096, name="alexnet-owt/fc7")
    ]


def test_a_models_name_is_all_its_layers_in_order():
    assert find_layers(["vgg16"]) == list(load_entry("vgg16").layers)
    assert find_layers(["vgg16/*"]) == find_layers(["vgg16"])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("conv3", ["alexnet/conv3"]),  # a bare name is AlexNet's
        # Else it is the first model's, where all agree.
        ("L1", ["convnet/L1"]),
        ("conv3_3", ["vgg16/conv3_3"]),
        ("pool3", ["vgg11/pool3"]),
        ("alexnet/conv[45]", ["alexnet/conv4", "alexnet/conv5"]),
        ("conv?", [f"alexnet/conv{number}" for number in range(1, 6)]),
        ("vgg1[16]/fc8", ["vgg11/fc8", "vgg16/fc8"]),
        ("convnet/*", [f"convnet/L{number}" for number in range(1, 6)]),
        ("local*", ["cifar10/local3", "cifar10/local4"]),
        ("*owt/fc*", ["alexnet-owt/fc6", "alexnet-owt/fc7", "alexnet-owt/fc8"]),
    ],
)
def test_names_and_globs(pattern, expected):
    assert names(pattern) == expected


def test_everything():
    assert len(find_layers(["*/*"])) == sum(len(load_entry(name).layers) for name in entry_names())


def test_patterns_keep_their_order_and_repeat_nothing():
    assert names("conv5", "alexnet/conv*", "conv5") == [
        f"alexnet/conv{number}" for number in (5, 1, 2, 3, 4)
    ]
    assert find_layers([]) == []


def test_descriptors():
    conv, product = find_layers(["mb2ic3ih8oc4kh3", '2x3:3x4n"mine"'])
    assert conv == build_layer("conv", batch=2, in_channels=3, in_size=8, out_channels=4, kernel=3)
    assert product == build_layer("gemm", m=2, k=3, n=4, name="mine")
    assert find_layers(["mb2ic3ih8kh3"], pool="avg") == [
        build_layer("pool", batch=2, channels=3, in_size=8, kernel=3, mode="avg")
    ]


def test_the_batch_holds_for_all_layers():
    layers = find_layers(["vgg16", "mb2ic3ih8oc4kh3", "ic3ih8oc4kh3", "2x3:3x4"], batch=7)
    assert {layer.batch for layer in layers} == {7}


def test_files_hold_one_layer_per_line(tmp_path):
    file = tmp_path / "mine.txt"
    text = '\ufeff# my layers\n\nconv3   # the third\n  vgg16/fc*\nmb1ic3ih8oc4kh3n"no #1"\r\n'
    file.write_text(text, encoding="utf-8")
    found = names("conv1", f"@{file}")
    expected = ["alexnet/conv1", "alexnet/conv3", "vgg16/fc6", "vgg16/fc7", "vgg16/fc8"]
    assert found == [*expected, "no #1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("conv3\n\nconv33\n", "{path}:3: conv33: "),
        ("# one\nmb1ic3zz\n", "{path}:2: mb1ic3zz: column 7: "),
        ("conv3\n@other\n", "{path}:2: @other: "),
        ("\n# nothing\n", "--shape @{path}: "),
        ("x" * (1 << 24) + "y", "--shape @{path}: "),
        (b"\xff\xfe\x00", "--shape @{path}: not UTF-8"),
    ],
)
def test_mistakes_in_a_file_name_the_line(tmp_path, content, message):
    path = tmp_path / "mine.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        find_layers([f"@{path}"])
    assert str(caught.value).startswith(message.format(path=path))


def test_files_that_cannot_be_read(tmp_path):
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=rf"^--shape @{path}: {reason}"):
            find_layers([f"@{path}"])


@pytest.mark.parametrize(
    ("pattern", "remedy"),
    [
        ("conv33", "nearest: vgg16/conv3_3, conv3, vgg16/conv5_3"),
        ("Conv3", "nearest: conv3, vgg16/conv5_3, vgg16/conv4_3"),
        ("alexnt", "nearest: alexnet/*, alexnet-owt/*, alexnet-tfcnn/*"),
        ("vgg16/conv33", "nearest: vgg16/conv3_3, vgg16/conv5_3, vgg16/conv4_3"),
        ("alexnet-owd/fc6", "nearest: alexnet-owt/fc6, alexnet-tfcnn/fc6"),
        ("vgg16/", "nearest: vgg16/*"),
        ("/", "pydlbench shapes"),
        ("zzzqq", "pydlbench shapes"),
        ("vgg16/x*", "pydlbench shapes"),
        ("[", "pydlbench shapes"),
        ("mb", "column 3: expected a whole number for mb, at least 1; got the end"),
        ("1x2:3x4", "column 5: expected 2; got '3'"),
        ("  ", "such as conv3"),
    ],
)
@pytest.mark.parametrize("option", ["", "--shape "])
def test_near_misses_are_answered(pattern, remedy, option):
    with pytest.raises(UsageError) as caught:
        find_layers(["conv1", pattern], option=option.strip())
    assert str(caught.value).startswith(
        f"{option}{pattern if pattern.strip() else repr(pattern)}: "
    )
    assert str(caught.value).endswith(remedy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "^--batch 0: .*at least 1$"),
        ({"batch": 2**60}, "^--shape alexnet/conv3: .*overflow"),
        ({"pool": "mux"}, "^--pool mux: .*nearest: max$"),
        ({"pool": "max"}, "^--pool max: "),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(UsageError, match=message):
        find_layers(["conv3"], **options)

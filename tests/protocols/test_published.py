"""Settings, names, quirks: what is refused and what the answer is."""

import subprocess
import sys
from datetime import datetime
from string import Formatter

import pytest
from said import says

from pydlbench.errors import UsageError
from pydlbench.protocols.data.datasets import generate
from pydlbench.protocols.protocol import (
    FIELDS,
    PROTOCOLS,
    LogStream,
    ProtocolSubject,
    find_protocol,
)


def test_names_in_their_order():
    assert list(PROTOCOLS) == [
        "alexnet-tutorial",
        "mnist-tutorial",
        "cifar10-tutorial",
        "tf-cnn-benchmarks",
        "deep-learning-benchmark",
        "convnet-benchmarks",
        "convnet-benchmarks-tf",
    ]
    assert all(find_protocol(name).name == name for name in PROTOCOLS)


@pytest.mark.parametrize(
    ("protocol", "counts"),
    [
        ("alexnet-tutorial", (128, 10, 100, 10, None)),
        ("mnist-tutorial", (64, 0, None, 100, 10.0)),
        ("cifar10-tutorial", (128, 0, 101, 10, None)),
        ("tf-cnn-benchmarks", (32, 10, 100, 10, None)),
        ("deep-learning-benchmark", (16, 20, 20, 1, None)),
        ("convnet-benchmarks", (128, 10, 10, 1, None)),
        ("convnet-benchmarks-tf", (128, 10, 100, 10, None)),
    ],
)
def test_defaults_are_the_scripts(protocol, counts):
    made = find_protocol(protocol).settings()
    assert (made.batch, made.warmup, made.steps, made.every, made.epochs) == counts


def test_some_models_have_a_batch_of_their_own():
    protocol = find_protocol("tf-cnn-benchmarks")
    assert protocol.settings("alexnet-tfcnn").batch == 512
    assert protocol.settings("alexnet-tfcnn", batch=8).batch == 8
    assert protocol.settings("googlenet").batch == 32
    assert find_protocol("convnet-benchmarks").settings("vgg11").batch == 64


@pytest.mark.parametrize(
    ("protocol", "options", "values"),
    [
        ("alexnet-tutorial", {"batch": 0}, ["--batch 0", "alexnet-tutorial", "nearest: 1"]),
        ("alexnet-tutorial", {"warmup": -1}, ["--warmup -1", "alexnet-tutorial", "nearest: 0"]),
        ("alexnet-tutorial", {"steps": 0}, ["--steps 0", "nearest: 1"]),
        ("alexnet-tutorial", {"every": 0}, ["--every 0", "nearest: 1"]),
        ("alexnet-tutorial", {"epochs": 2}, ["--epochs 2", "alexnet-tutorial", "--steps"]),
        ("alexnet-tutorial", {"quirks": ["x"]}, ["--quirk x", "alexnet-tutorial"]),
        ("mnist-tutorial", {"epochs": 0}, ["--epochs 0", "nearest: 10"]),
        (
            "convnet-benchmarks-tf",
            {"without": ["burn-in-of-by-one"]},
            ["burn-in-of-by-one", "nearest: burn-in-off-by-one"],
        ),
        ("alexnet", {}, ["alexnet", "nearest: alexnet-tutorial"]),
    ],
)
def test_refusals(protocol, options, values):
    with pytest.raises(UsageError) as caught:
        find_protocol(protocol).settings(**options)
    assert says(str(caught.value), *values)


def test_quirks_are_on_as_the_script_has_them():
    protocol = find_protocol("deep-learning-benchmark")
    assert protocol.settings().quirks == {"zero-fill"}
    assert protocol.settings(quirks=["wrapper-csv"]).quirks == {"zero-fill", "wrapper-csv"}
    assert protocol.settings(without=["zero-fill"]).quirks == set()


def test_images_are_asked_for(world):
    subject = ProtocolSubject(model="mnist", image=(1, 28, 28))
    with pytest.raises(UsageError, match=r"mnist-tutorial: .*--data"):
        world().run("mnist-tutorial", subject)
    with pytest.raises(UsageError, match=r"cifar10 .*nearest: mnist"):
        world().run("mnist-tutorial", subject, generate("cifar10", train=2, test=2))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_step_says_what_it_includes(protocol):
    for definition in PROTOCOLS[protocol].definitions:
        words = definition.includes()
        assert words.startswith(definition.phase)
        assert ("nothing fetched" in words) == (not definition.fetch)


def templates(protocol: str) -> list[str]:
    """All templates of a protocol, those that quirks bring among them."""
    found = PROTOCOLS[protocol]
    loops = [
        found.loop_with(found.settings(quirks=on, without=off))
        for on, off in (((), ()), ([one.name for one in found.quirks], ()))
    ]
    texts: list[str] = []
    for loop in loops:
        for name in ("heading", "warming", "ready", "stage", "lines"):
            texts += getattr(loop, name, ())
        texts += [getattr(loop, name, "") for name in ("activation", "line", "validation", "test")]
        texts += [one.name for one in getattr(loop, "figures", ())]
    return texts


def test_lines_name_known_fields_and_all_of_them():
    named = {
        field
        for protocol in PROTOCOLS
        for text in templates(protocol)
        for _, field, _, _ in Formatter().parse(text)
        if field is not None
    }
    # Figures are in terms of these too.
    loops = [one.loop for one in PROTOCOLS.values()]
    values = {one.value for loop in loops for one in getattr(loop, "figures", ())}
    assert named | values == set(FIELDS)


def test_stamps_keep_their_microseconds():
    made = LogStream(write=print, note=print, today=lambda: datetime(2019, 1, 8, 10, 1, 15))
    assert made.stamp() == "2019-01-08 10:01:15.000000"


def test_protocols_and_data_load_without_a_framework():
    code = (
        "import sys; import pydlbench.protocols.protocol; "
        "import pydlbench.protocols.interpreter, pydlbench.protocols.data.datasets; "
        "sys.exit(bool({'torch', 'tensorflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

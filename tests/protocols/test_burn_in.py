"""The AlexNet tutorial and its cousin in convnet-benchmarks: lines, sums, the dropped step."""

import math
import re

import pytest

from pydlbench.errors import UsageError
from pydlbench.models.graph import GraphNode, Model
from pydlbench.protocols.protocol import ALEXNET_TUTORIAL, ProtocolSubject
from pydlbench.protocols.runner import activations

# As a GTX 1050 Ti printed them.
PUBLISHED = """\
conv1   [128, 56, 56, 64]
pool1   [128, 27, 27, 64]
conv2   [128, 27, 27, 192]
pool2   [128, 13, 13, 192]
conv3   [128, 13, 13, 384]
conv4   [128, 13, 13, 256]
conv5   [128, 13, 13, 256]
pool5   [128, 6, 6, 256]
2019-01-08 10:01:15.496202: step 0, duration = 0.131
2019-01-08 10:01:16.811481: step 10, duration = 0.133
2019-01-08 10:01:18.122998: step 20, duration = 0.131
2019-01-08 10:01:19.435479: step 30, duration = 0.131
2019-01-08 10:01:20.746376: step 40, duration = 0.132
2019-01-08 10:01:22.055767: step 50, duration = 0.130
2019-01-08 10:01:23.373633: step 60, duration = 0.132
2019-01-08 10:01:24.684571: step 70, duration = 0.131
2019-01-08 10:01:25.996646: step 80, duration = 0.131
2019-01-08 10:01:27.310601: step 90, duration = 0.131
2019-01-08 10:01:28.494875: Forward across 100 steps, 0.131 +/- 0.001 sec / batch
2019-01-08 10:01:33.045798: step 0, duration = 0.316
2019-01-08 10:01:36.194006: step 10, duration = 0.314
2019-01-08 10:01:39.339279: step 20, duration = 0.314
2019-01-08 10:01:42.485914: step 30, duration = 0.315
2019-01-08 10:01:45.638622: step 40, duration = 0.315
2019-01-08 10:01:48.793497: step 50, duration = 0.315
2019-01-08 10:01:51.939761: step 60, duration = 0.315
2019-01-08 10:01:55.085868: step 70, duration = 0.315
2019-01-08 10:01:58.233939: step 80, duration = 0.315
2019-01-08 10:02:01.388645: step 90, duration = 0.317
2019-01-08 10:02:04.218553: Forward-backward across 100 steps, 0.315 +/- 0.001 sec / batch
""".splitlines()

SHAPES = (
    ("conv1", (128, 56, 56, 64)),
    ("pool1", (128, 27, 27, 64)),
    ("conv2", (128, 27, 27, 192)),
    ("pool2", (128, 13, 13, 192)),
    ("conv3", (128, 13, 13, 384)),
    ("conv4", (128, 13, 13, 256)),
    ("conv5", (128, 13, 13, 256)),
    ("pool5", (128, 6, 6, 256)),
)


def form(line: str) -> str:
    """A line with each run of digits as long as it is, but no particular digits."""
    return re.sub(r"\d", "9", line)


def untimed(line: str) -> str:
    return re.sub(r"^[-\d]+ [\d:.]+: ", "", line)


def seconds(name: str, _count: int) -> float:
    return 0.131 if name == "Forward" else 0.315


def test_all_lines_have_the_form_of_the_published_ones(world):
    this = world(seconds=seconds)
    this.run(
        "alexnet-tutorial",
        ProtocolSubject(model="alexnet", image=(3, 224, 224), activations=SHAPES),
    )
    assert [form(line) for line in this.lines] == [form(line) for line in PUBLISHED]


def test_lines_to_the_last_digit(world):
    # The published times themselves, those of the steps between the lines as the mean says.
    printed = [0.131, 0.133, 0.131, 0.131, 0.132, 0.130, 0.132, 0.131, 0.131, 0.131]

    def invented(name: str, count: int) -> float:
        step = count - 10
        if name != "Forward":
            return 0.315
        return printed[step // 10] if step >= 0 and step % 10 == 0 else 0.131

    this = world(seconds=invented)
    this.run(
        "alexnet-tutorial",
        ProtocolSubject(model="alexnet", image=(3, 224, 224), activations=SHAPES),
    )
    assert [untimed(line) for line in this.lines[:18]] == [untimed(one) for one in PUBLISHED[:18]]
    assert untimed(this.lines[18]) == "Forward across 100 steps, 0.131 +/- 0.000 sec / batch"
    # The clock of the first line: 11 steps of 0.131 s after 10:01:11 + 100 s.
    assert this.lines[8].startswith("2019-01-08 10:02:52.441000: step 0, ")


def test_ten_steps_burn_in_whatever_they_take(world):
    this = world(seconds=lambda _name, count: 9.0 if count < 10 else 0.2)
    forward, backward = this.run("alexnet-tutorial")
    assert forward.value == pytest.approx(0.2)
    assert len(forward.times) == len(backward.times) == 100
    assert this.ran == ["Forward"] * 110 + ["Forward-backward"] * 110


def test_spread_is_the_populations(world):
    # Half the steps take 0.1 s, half 0.3 s: mean 0.2, population's deviation 0.1 exactly.
    this = world(seconds=lambda _name, count: 0.1 if count % 2 else 0.3)
    forward, _ = this.run("alexnet-tutorial")
    assert forward.spread == pytest.approx(0.1, rel=1e-9)
    assert untimed(this.lines[10]) == "Forward across 100 steps, 0.200 +/- 0.100 sec / batch"


def test_the_fetch_is_inside_the_time(world):
    # A device that has only been launched when the step returns unless something is fetched.
    this = world(seconds=lambda _name, _count: 0.5, launches=True)
    assert this.run("alexnet-tutorial", steps=3)[0].value == pytest.approx(0.5)
    forward, backward = ALEXNET_TUTORIAL.definitions
    assert this.definitions == [forward, backward]
    assert forward.fetch == ("output",)
    assert (backward.loss, backward.fetch) == ("l2", ("gradients",))
    assert not backward.input_gradient
    assert backward.optimizer == "none"


def test_the_dropped_step_makes_the_mean_one_percent_low(world):
    this = world(seconds=lambda _name, _count: 0.1)
    forward, _ = this.run("convnet-benchmarks-tf")
    assert len(forward.times) == 99
    assert forward.value == pytest.approx(0.099)
    assert forward.spread == pytest.approx(0.1 * math.sqrt(0.99 - 0.99**2))
    assert [untimed(line) for line in this.lines[:10]] == [
        *(f"step {step}, duration = 0.100" for step in range(10, 100, 10)),
        "Forward across 100 steps, 0.099 +/- 0.010 sec / batch",
    ]


def test_the_dropped_step_can_be_kept(world):
    this = world(seconds=lambda _name, _count: 0.1)
    forward, _ = this.run("convnet-benchmarks-tf", without=["burn-in-off-by-one"])
    assert (len(forward.times), forward.value) == (100, pytest.approx(0.1))
    assert untimed(this.lines[0]) == "step 0, duration = 0.100"


def test_without_a_fetch_the_device_is_waited_for(world):
    this = world(seconds=lambda _name, _count: 0.5, launches=True)
    numbers = this.run("convnet-benchmarks-tf", without=["burn-in-off-by-one"], steps=4)
    assert [number.value for number in numbers] == pytest.approx([0.5, 0.5])
    assert all(spec.fetch == () for spec in this.definitions)


def test_activations_of_a_graph_are_listed_channels_last():
    nodes = (
        GraphNode(name="conv1", op="conv", inputs=("input",), shape=(5, 8, 4), bias=True),
        GraphNode(name="relu1", op="relu", inputs=("conv1",), shape=(5, 8, 4)),
        GraphNode(name="pool1", op="pool", inputs=("relu1",), shape=(5, 4, 2)),
        GraphNode(name="fc", op="linear", inputs=("pool1",), shape=(10,)),
    )
    model = Model(
        name="tiny", title="", source="", batch=2, image=(3, 8, 8), classes=10, nodes=nodes
    )
    assert activations(model) == (
        ("conv1", (2, 8, 4, 5)),
        ("pool1", (2, 4, 2, 5)),
        ("fc", (2, 10)),
    )


def test_a_single_step_that_is_dropped_has_no_mean(world):
    this = world(seconds=lambda _name, _count: 0.1)
    with pytest.raises(UsageError, match=r"--steps 1: .*; nearest: --steps 2, or --quirk burn-in"):
        this.run("convnet-benchmarks-tf", steps=1)
    assert this.lines == []
    forward, _ = this.run("convnet-benchmarks-tf", steps=1, without=["burn-in-off-by-one"])
    assert forward.value == pytest.approx(0.1)

import pytest

from pydlbench.compare.published import find_figures, read_figures
from pydlbench.errors import UsageError
from pydlbench.models import model_names
from pydlbench.protocols.protocol import PROTOCOLS


def find(**wanted):
    """The figures with these fields."""
    return [
        one
        for one in read_figures()
        if all(getattr(one, name) == value for name, value in wanted.items())
    ]


@pytest.mark.parametrize(
    ("wanted", "value", "spread", "unit"),
    [
        # Read from the sources by hand.
        ({"model": "alexnet", "hardware": "Titan X (Maxwell)", "stage": "forward"}, 70, 0.1, "ms"),
        (
            {"model": "alexnet", "hardware": "Tesla K40c", "stage": "forward-backward"},
            480,
            48,
            "ms",
        ),
        ({"model": "alexnet", "hardware": "GTX 1050 Ti", "stage": "forward"}, 131, 1, "ms"),
        ({"model": "cifar10", "hardware": "GTX 1060 6GB"}, 7900, None, "examples"),
        ({"model": "mnist"}, 4.0, None, "ms"),
        ({"model": "nasnet-mobile", "batch": 64}, 44, None, "images"),
        ({"model": "inception-v3", "batch": 16}, 34, None, "images"),
        (
            {
                "model": "densenet161",
                "hardware": "Tesla V100",
                "stage": "eval",
                "precision": "fp16",
            },
            35.7,
            None,
            "ms",
        ),
        (
            {
                "model": "googlenet",
                "framework": "TensorFlow",
                "stage": "backward",
                "precision": "fp32",
            },
            310,
            None,
            "ms",
        ),
        (
            {
                "model": "vgg16",
                "framework": "TensorFlow 1.5.0",
                "stage": "train",
                "precision": "fp32",
            },
            71.7,
            None,
            "ms",
        ),
    ],
)
def test_figures_are_those_of_their_sources(wanted, value, spread, unit):
    (figure,) = find(**wanted)
    assert (figure.value, figure.spread) == (value, spread)
    assert figure.unit.startswith(unit)


def test_every_figure_has_a_model_and_a_protocol_that_can_be_run_and_a_source():
    for figure in read_figures():
        assert "/" in figure.citation
        assert figure.protocol in PROTOCOLS
        assert figure.model in model_names()
        assert figure.unit in ("ms/batch", "ms/step", "images/s", "examples/s")
        assert figure.includes
        assert 2010 <= figure.year <= 2026
        assert figure.seconds > 0


def test_a_card_that_came_later_is_cited_from_the_revision_that_has_it():
    for figure in find(hardware="RTX 2080 Ti"):
        assert "@02ef743669e9" in figure.citation
    cited = [figure for figure in read_figures() if "@02ef743669e9" in figure.citation]
    assert len(cited) == 80


@pytest.mark.parametrize(
    "family", ["alexnet", "vgg", "resnet", "densenet", "inception", "nasnet", "mnist", "cifar10"]
)
def test_every_family_has_figures(family):
    assert find_figures(family)


def test_a_whole_name_is_that_model_only():
    assert {figure.model for figure in find_figures("resnet152")} == {"resnet152"}
    assert {figure.model for figure in find_figures("alexnet")} == {"alexnet"}


def test_an_unknown_model_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match=r"vgg17: .*nearest: .*vgg1"):
        find_figures("vgg17")


def test_rates_and_times_convert_into_each_other():
    (rate,) = find(model="resnet50-v1", precision="fp32")
    assert rate.seconds == pytest.approx(32 / 51.66)
    assert rate.in_unit(2.0, 64) == 32
    (time,) = find(model="mnist")
    assert time.seconds == pytest.approx(4e-3)
    # Of another batch: image for image.
    assert time.in_unit(2e-3, 32) == pytest.approx(4.0)

"""Names and options as typed, and the answers to near misses."""

import subprocess
import sys

import pytest

from pydlbench.errors import UsageError
from pydlbench.models import build_model, model_names


@pytest.mark.parametrize(
    ("name", "batch", "options", "message"),
    [
        ("alexnt", None, {}, "alexnt: no such model; nearest: alexnet, alexnet-owt"),
        ("resnet51", None, {}, "resnet51: no such model; nearest: resnet5"),
        ("zzzqq", None, {}, "zzzqq: no such model; nearest: alexnet, alexnet-owt, "),
        ("vgg16", 0, {}, "--batch 0: too small; at least 1"),
        ("vgg16", None, {"clases": 3}, "vgg16: no option 'clases'; nearest: classes"),
        ("vgg16", None, {"lrn": "on"}, "vgg16: no option 'lrn'; nearest: "),
        ("vgg16", None, {"classes": "many"}, "classes=many: not a whole number; at least 1"),
        ("vgg16", None, {"classes": True}, "classes=True: not a whole number; at least 1"),
        ("vgg16", None, {"classes": 0}, "classes=0: too small; at least 1"),
        ("vgg16", None, {"classes": 1.5}, "classes=1.5: not a whole number; at least 1"),
        ("vgg16", None, {"decay": -1}, "decay=-1: too small; at least 0"),
        ("vgg16", None, {"decay": "nan"}, "decay=nan: not a number; at least 0"),
        ("vgg16", None, {"loss": "l1"}, "loss=l1: not a valid choice; nearest: l2"),
        ("vgg16", None, {"optimizer": "adam"}, "optimizer=adam: not a valid choice; nearest: "),
        ("alexnet", None, {"lrn": "of"}, "lrn=of: not a valid choice; nearest: off"),
        ("alexnet", None, {"conv1": "both"}, "conv1=both: not a valid choice; nearest: SAME, V"),
        ("alexnet", None, {"classes": 5}, "classes=5: alexnet ends before them; nearest: "),
        ("alexnet", None, {"loss": "cross-entropy"}, "loss=cross-entropy: alexnet ends in maps; "),
        ("alexnet-owt", None, {"lrn": "off"}, "alexnet-owt: no option lrn or conv1; nearest: "),
        ("googlenet", None, {"form": "cafe"}, "form=cafe: not a valid choice; nearest: convnet"),
    ],
)
def test_near_misses(name, batch, options, message):
    with pytest.raises(UsageError) as caught:
        build_model(name, batch, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_options_of_any_model():
    model = build_model(
        "resnet18",
        2,
        loss="SUM",
        optimizer="none",
        decay="0",
        input_gradient="on",
    )
    assert (model.loss.kind, model.classes, model.optimizer.kind) == ("sum", 0, "none")
    assert model.decays == ()
    assert model.input_gradient
    decayed = build_model("vgg11", 2, decay="5e-4", input_gradient=False, optimizer="momentum")
    assert len(decayed.decays) == 2 * 11
    assert {decay.factor for decay in decayed.decays} == {5e-4}
    assert decayed.optimizer.kind == "momentum"
    assert decayed.optimizer.rate == build_model("vgg11").optimizer.rate
    assert not decayed.input_gradient


def test_options_may_be_text_or_values():
    assert build_model("mnist", 2, classes="12") == build_model("mnist", 2, classes=12)
    assert build_model("alexnet", 2, lrn="off") == build_model("alexnet", 2, lrn=False)
    assert build_model("alexnet", 2, lrn="on") == build_model("alexnet", 2)


def test_only_the_family_asked_for_is_imported():
    code = (
        "import sys; from pydlbench.models import build_model; build_model('vgg11', 1);"
        "print(sorted(name for name in sys.modules if name.startswith('pydlbench.models.')));"
        "assert 'numpy' not in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pydlbench.models.families.vgg" in found.stdout
    assert "pydlbench.models.families.resnet" not in found.stdout


def test_alexnet_is_the_default():
    assert model_names()[0] == "alexnet"
    assert len(set(model_names())) == len(model_names())

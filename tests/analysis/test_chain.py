"""A native chain is held against a framework before anybody may time it."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pydlbench.analysis.chain import choices_of, prepare_native_chain
from pydlbench.backends.steps import requests
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.records.chain import ChainFacts, ChainStep
from pydlbench.records.specs import KernelSpec
from pydlbench.records.step import Check, StepSpec
from pydlbench.records.user_model import OwnSpec
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session
from pydlbench.steps import agreement
from pydlbench.timing.chunk import Request

OWN = """
import torch
from torch import nn

def build():
    layers = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    # Of equal inputs a normalisation would make nothing but rounding errors.
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(72, 5)), torch.rand(2, 3, 8, 8)
"""
CASE = StepSpec(model="mnist", batch=4, phase="training")


class Built:
    """A kernel in a worker that has written a chain's output and gradient."""

    def __init__(self, facts: ChainFacts) -> None:
        self.facts = facts
        self.released = False

    def release(self) -> None:
        self.released = True


def world(monkeypatch, *, own, theirs=None, missing=None, checks=()):
    """A session whose native worker writes ``own``, and a framework that writes ``theirs``."""
    kernel = Built(ChainFacts(library="oneDNN 3", layouts="blocked", checks=checks))

    def write(folder: Path, values) -> None:
        folder.mkdir(exist_ok=True)
        np.save(folder / "0.npy", np.ones(3, np.float32))
        np.save(folder / "1.npy", np.asarray(values, np.float32))
        (folder / "names.txt").write_text("output\nfc/weights")

    def build(_, facts, *, save, **__):
        assert facts is ChainFacts
        write(Path(save), own)
        return kernel

    def saved(case, framework, session, folder, disturbance=0.0):  # noqa: ARG001 - as in there
        if missing is not None:
            raise missing
        write(folder, theirs)

    monkeypatch.setattr(agreement, "_saved", saved)
    session = SimpleNamespace(worker=lambda *_: SimpleNamespace(build=build))
    return session, kernel


def test_a_chain_that_agrees_says_with_whom(monkeypatch):
    session, _ = world(monkeypatch, own=[1, 2, 3], theirs=[1, 2, 3.0001])

    found = prepare_native_chain(CASE, session).facts

    (check,) = found.checks
    assert (check.name, check.status) == ("agreement", "ok")
    assert check.detail.startswith("torch")


def test_a_wrong_chain_is_an_error_and_given_back(monkeypatch):
    session, kernel = world(monkeypatch, own=[1, 2, 4], theirs=[1, 2, 3])

    with pytest.raises(PydlbenchError, match="fc/weights"):
        prepare_native_chain(CASE, session)
    assert kernel.released


def test_a_failed_check_of_its_own_is_an_error(monkeypatch):
    wrong = Check(name="update", status="failed", detail="conv1/weights off by 0.1")
    session, kernel = world(monkeypatch, own=[1], theirs=[1], checks=(wrong,))

    with pytest.raises(PydlbenchError, match="conv1/weights off by"):
        prepare_native_chain(CASE, session)
    assert kernel.released


def test_without_the_framework_nobody_has_checked(monkeypatch):
    session, _ = world(monkeypatch, own=[1], missing=BackendMissingError("no torch here"))

    found = prepare_native_chain(CASE, session).facts

    assert found.checks == ()
    assert any("unchecked" in note and "no torch here" in note for note in found.notes)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (StepSpec(model="unet", batch=1, phase="training"), "crop"),
        (StepSpec(model="unet", batch=1, framework="tensorflow"), "crop"),
        (StepSpec(model="mnist", batch=1, device="cuda:0"), "--device cpu"),
    ],
)
def test_what_has_no_chain_is_refused_before_a_worker_is_asked(case, said):
    with pytest.raises(UnsupportedError, match=said):
        prepare_native_chain(case, SimpleNamespace())


@pytest.mark.parametrize(("theirs", "status"), [([1, 2, 3.0001], "ok"), ([1, 2, 4], "failed")])
def test_kernels_of_a_recorded_step_are_held_against_what_it_returned(theirs, status):
    built = []

    def listing(operation, _, *, spec, listed, saved):
        assert operation is requests.list_links
        assert StepSpec.from_dict(spec).own is not None
        Path(saved).mkdir()
        np.save(Path(saved) / "0.npy", np.asarray(theirs, np.float32))
        (Path(saved) / "names.txt").write_text("output")
        built.append(listed)
        return ["3 of 5 kernels"]

    def build(_, facts, *, save, listed, **__):
        assert facts is ChainFacts
        assert built == [listed]
        Path(save).mkdir()
        np.save(Path(save) / "0.npy", np.asarray([1, 2, 3], np.float32))
        (Path(save) / "names.txt").write_text("output")
        return Built(ChainFacts(library="oneDNN 3", layouts="blocked"))

    workers = {"torch": SimpleNamespace(call=listing), "native": SimpleNamespace(build=build)}
    session = SimpleNamespace(worker=lambda name="native", *_: workers[name])
    case = StepSpec(model="mine.py:build", own=OwnSpec())
    if status == "ok":
        facts = prepare_native_chain(case, session).facts
        assert [(one.name, one.status) for one in facts.checks] == [("agreement", "ok")]
        assert facts.notes == ("3 of 5 kernels",)
    else:
        with pytest.raises(PydlbenchError, match=r"output 0\.25"):
            prepare_native_chain(case, session)


def test_choices_are_the_kernels_of_hot_native_rows():
    layer = parse_problem("mb2ic16ih7oc32kh3ph1")
    hot = KernelSpec(layer=layer)
    cold = KernelSpec(layer=layer, cache="all-cold")
    data = KernelSpec(layer=layer, pass_="backward-data")

    def row(algorithm, ok=True):
        return SimpleNamespace(ok=ok, algorithm=algorithm, layout="src nhwc")

    found = choices_of({hot: row("brgconv"), cold: row("jit"), data: row("gemm", ok=False)})

    assert list(found.values()) == ["brgconv src nhwc"]


def test_conversions_are_told_from_kernels():
    facts = ChainFacts(
        library="",
        layouts="",
        steps=(
            ChainStep(name="a", algorithm="jit", layout="", seconds=1.0),
            ChainStep(name="b reorder", tensor="b", algorithm="reorder", layout="", seconds=0.5),
        ),
    )
    assert [one.name for one in facts.kernels] == ["a"]
    assert facts.reorder_s == 0.5


@pytest.mark.deep
@pytest.mark.parametrize(
    ("phase", "own"), [("forward", None), ("training", None), ("training", OwnSpec())]
)
def test_a_real_chain_agrees_with_the_framework_and_can_be_timed(phase, own, tmp_path):
    pytest.importorskip("pydlbench._cpu")
    pytest.importorskip("torch")
    name = "mnist"
    if own is not None:
        name = f"{tmp_path / 'mine.py'}:build"
        (tmp_path / "mine.py").write_text(OWN)
    with Session(Options()) as session:
        case = StepSpec(model=name, batch=None if own else 4, phase=phase, own=own)
        kernel = prepare_native_chain(case, session)
        assert [one.status for one in kernel.facts.checks] == ["ok"] * len(kernel.facts.checks)
        assert "agreement" in [one.name for one in kernel.facts.checks]
        assert len(kernel.sample(Request(samples=3)).seconds) == 3
        kernel.release()

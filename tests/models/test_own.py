"""Finding user models without running them: files, modules, and the nearest names."""

import sys

import pytest
from said import says

from pydlbench import api
from pydlbench.errors import UsageError
from pydlbench.models import model_names
from pydlbench.models.catalog import entry_names
from pydlbench.models.user_model import find_onnx, find_user_model, is_user_model, likely_framework

FILE = """
import os
from torch import nn as layers
if True:
    def build(): raise SystemExit
else:
    def other(): pass
class Net: pass
big, (small, *_) = 1, (2, 3)
import functools as F
with open("x") as opened:
    for one in opened:
        def inner(): hidden = 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(FILE)
    (tmp_path / "open.py").write_text("from os.path import *\n")
    (tmp_path / "broken.py").write_text("a = 1\ndef build(:\n")
    (tmp_path / "nets" / "deep").mkdir(parents=True)
    (tmp_path / "nets" / "__init__.py").write_text("raise SystemExit  # never run\n")
    (tmp_path / "nets" / "deep" / "wide.py").write_text("def build(): pass\n")
    return tmp_path


def test_no_name_of_the_catalogue_is_taken_for_ones_own():
    assert not any(map(is_user_model, {*model_names(), *entry_names()}))
    for name in ("my_model.py:build", "nets.wide:build", "my_model.py", "net.onnx", "a/b"):
        assert is_user_model(name)


@pytest.mark.parametrize(
    "name", ["my_model.py:build", "my_model.py:Net.of", "my_model.py:layers", "my_model.py:opened"]
)
def test_a_file_is_found_and_not_run(folder, name):
    found = find_user_model(name)
    assert (found.module, found.attribute) == ("my_model", name.partition(":")[2])
    assert (found.path, found.folder) == (folder / "my_model.py", folder)
    assert found.is_file


def test_a_module_is_found_and_its_parents_are_not_imported(folder):
    assert find_user_model("my_model:Net.x").module == "my_model"
    found = find_user_model("nets.deep.wide:build")
    assert (found.module, found.path) == ("nets.deep.wide", folder / "nets" / "deep" / "wide.py")
    assert (found.folder, found.is_file) == (folder, False)
    assert "nets" not in sys.modules


def test_what_shows_only_when_it_runs_is_left_to_the_worker(folder):
    assert find_user_model("open.py:whatever").path == folder / "open.py"
    assert find_user_model("math:whatever").path is None  # compiled


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("my_model.py:biuld", ["biuld", "nearest: my_model.py:build"]),
        ("my_model.py:hidden", ["my_model.py", "hidden"]),
        ("my_model.py", ["nearest: my_model.py:build, my_model.py:Net"]),
        ("my_modle.py:build", ["my_modle.py", "nearest: my_model.py"]),
        ("far/my_model.py:build", ["folder", "far"]),
        ("nets/deep:build", ["nets/deep"]),
        ("my_modle:build", ["my_modle", "nearest: my_model.py"]),
        ("nets.deep.wild:build", ["nets.deep.wild", "nearest: nets.deep.wide"]),
        ("nets.deep.wide", ["nearest: nets.deep.wide:build"]),
        ("nets.deep.wide:bild", ["bild", "nearest: nets.deep.wide:build"]),
        ("resnet50:", ["resnet50", "nearest: resnet50"]),
        ("a b:build", ["a b"]),
        ("broken.py:build", ["broken.py:2", "SyntaxError"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_near_miss_is_answered_with_the_nearest(name, values):
    with pytest.raises(UsageError) as raised:
        find_user_model(name)
    assert says(str(raised.value), *values)
    assert "\n" not in str(raised.value)


def test_an_onnx_file_is_found_and_not_read(folder):
    (folder / "net.onnx").write_bytes(b"no ONNX")
    assert find_onnx("net.onnx").name == "net.onnx"
    with pytest.raises(UsageError, match=r"^nett\.onnx: .*nearest: net\.onnx$"):
        find_onnx("nett.onnx")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch.nn", "torch"),
        ("from keras import layers", "tensorflow"),
        ("def build():\n    import tensorflow as tf", "tensorflow"),
        ("import torch\nimport keras", None),
        ("import numpy", None),
    ],
)
def test_the_framework_of_a_model_is_likely_the_one_that_its_file_imports(
    tmp_path, monkeypatch, text, expected
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(f"{text}\nmodel = None\n")
    assert likely_framework("net.py:model") == expected
    assert api.step_spec("net.py:model", {}).framework == (expected or "torch")
    assert api.step_spec("net.py:model", {"framework": "torch"}).framework == "torch"


def test_an_onnx_file_from_python_runs_in_onnxruntime(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(b"no ONNX")
    assert api.step_spec("net.onnx", {}).framework == "onnxruntime"

"""The catalog of named layers and the graphs are one truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydlbench.layers import catalog
from pydlbench.layers.catalog import find_layers, load_model
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pool import Pool2d
from pydlbench.models import build_model, model_names
from pydlbench.models.builder import Builder
from pydlbench.models.catalog import catalog_text, main
from pydlbench.models.graph import Loss


@pytest.mark.parametrize("name", model_names())
def test_the_catalog_has_the_graphs_layers(name: str) -> None:
    model = build_model(name)
    listed = load_model(name)
    expected = [node.layer for node in model if isinstance(node.layer, (Conv2d, Gemm, Pool2d))]
    assert list(listed.layers) == expected
    assert (listed.batch, listed.title, listed.source) == (model.batch, model.title, model.source)


@pytest.mark.parametrize("name", model_names())
def test_files_are_as_they_would_be_written(name: str) -> None:
    path = Path(catalog.__file__).parent / f"{name}.toml"
    assert path.read_text(encoding="utf-8") == catalog_text(build_model(name))


def test_only_the_layer_wise_benchmarks_have_no_graph() -> None:
    assert set(catalog.model_names()) - set(model_names()) == {"convnet"}


def test_layers_of_deep_models_are_found_by_name() -> None:
    assert len(find_layers(["resnet50/*"])) == 53 + 2 + 1
    (layer,) = find_layers(["resnet50/stage2/unit1/conv2"])
    assert layer.problem == "mb64ic64ih56oc64oh56kh3ph1"
    assert len(find_layers(["resnet152/stage4/*/conv2"])) == 36
    assert find_layers(["nasnet-mobile/*depthwise1"])


def test_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(model_names())
    assert "wrote alexnet, " in capsys.readouterr().out
    assert (tmp_path / "mnist.toml").read_text(encoding="utf-8") == catalog_text(
        build_model("mnist")
    )


def test_what_the_catalog_cannot_say_is_refused() -> None:
    net = Builder("m", 1, (3, 4, 4))
    net.pool("p", 3, 1, 1, mode="avg", count_include_pad=True)
    with pytest.raises(ValueError, match=r"^m/p: the catalog has no average that counts padding"):
        catalog_text(net.model(title="t", source="s", loss=Loss(kind="sum")))

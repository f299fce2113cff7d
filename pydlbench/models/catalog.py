"""The catalog's files, written from the graphs: ``python -m pydlbench.models.catalog``.

Layers can then be found by name without building a graph, and by folders that lie below the
models. A test holds files and graphs equal.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydlbench.layers import catalog
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pool import Pool2d
from pydlbench.models import build_model, model_names

if TYPE_CHECKING:
    from pydlbench.models.graph import Model, Node

__all__ = ["catalog_text", "main"]

_HEADER: Final = "# Written from the model's graph by: python -m pydlbench.models.catalog"


def catalog_text(model: Model) -> str:
    """Return a model's file: its convolutions, products and poolings, in execution order."""
    lines = [
        _HEADER,
        f'title = "{model.title}"',
        f"batch = {model.batch}",
        f'source = "{model.source}"',
        "",
        "layers = [",
        *(_line(node) for node in model if node.op in ("conv", "linear", "pool")),
        "]",
    ]
    return "\n".join(lines) + "\n"


def _line(node: Node) -> str:
    layer = node.layer
    if isinstance(layer, Gemm):
        kind, text = "inner_product", f"{layer.k}x{layer.n}"
    else:
        assert layer is not None
        kind, text = "conv", re.sub(r"mb\d+", "", layer.problem)
        if isinstance(layer, Pool2d):
            kind = f"{layer.mode}_pool"
            if layer.count_include_pad:
                raise ValueError(f"{layer.name}: the catalog has no average that counts padding")
    return f'  {{ name = "{node.name}", {kind} = "{text}" }},'


def main(folder: Path = Path(catalog.__file__).parent / "shapes") -> None:
    """Write all files into a folder."""
    for name in model_names():
        text = catalog_text(build_model(name))
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    print(textwrap.fill(f"wrote {', '.join(model_names())}", 100))


if __name__ == "__main__":
    main()

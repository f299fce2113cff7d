"""A model for the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.models import family
from pydlbench.models.graph import Builder, Optimizer

if TYPE_CHECKING:
    from pydlbench.models.graph import Model


@family("perceptron")
def build(name: str, batch: int | None, *, hidden: int = 100) -> Model:
    """Build a perceptron with one hidden layer for images of 28 x 28."""
    net = Builder(name, batch or 32, (1, 28, 28))
    net.flatten()
    net.linear("hidden", hidden, activation="relu")
    net.linear("classes", 10)
    return net.model(
        title="Perceptron with one hidden layer",
        source="an example of pydlbench",
        optimizer=Optimizer(kind="sgd", rate=0.01),
    )

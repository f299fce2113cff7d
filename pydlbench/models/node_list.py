"""A model's nodes while they are being written down: names, shapes, and the finished model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.layers import Pointwise
from pydlbench.models.graph import INPUT, Init, Loss, Model, Node, Optimizer, weight_decays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.layers import Layer
    from pydlbench.models.graph import Decay, Op

__all__ = ["HE", "ZERO", "NodeList"]

ZERO = Init(kind="constant")
HE = Init(kind="he")


class NodeList:
    """The nodes so far.

    Args:
        name: Of the model; layers are called ``<name>/<node>``.
        batch: Images per step.
        image: ``(channels, height, width)`` of an image.
    """

    def __init__(self, name: str, batch: int, image: tuple[int, int, int]) -> None:
        self.name = name
        self.batch = batch
        self.image = image
        self.last = INPUT
        self._nodes: list[Node] = []
        self._shapes: dict[str, tuple[int, ...]] = {INPUT: image}

    def shape(self, node: str | None = None) -> tuple[int, ...]:
        """Return a node's output shape for one image; the last node's if None."""
        return self._shapes[node or self.last]

    def model(
        self,
        *,
        title: str,
        source: str,
        loss: Loss | None = None,
        decays: Sequence[Decay] = (),
        decay: float = 0,
        optimizer: Optimizer | None = None,
    ) -> Model:
        """Return the finished model; its classes are the features of its last node.

        Args:
            title: In words.
            source: Where the graph was read.
            loss: What is differentiated; cross entropy if None.
            decays: L2 terms.
            decay: The factor of an L2 term for each weight and bias, instead of ``decays``.
            optimizer: Of the training phase; plain descent if None.
        """
        loss = loss or Loss()
        return Model(
            name=self.name,
            title=title,
            source=source,
            batch=self.batch,
            image=self.image,
            classes=self.shape()[0] if loss.kind == "cross-entropy" else 0,
            nodes=tuple(self._nodes),
            loss=loss,
            decays=weight_decays(self._nodes, decay) if decay else tuple(decays),
            optimizer=optimizer or Optimizer(),
        )

    def _layer_name(self, node: str) -> str:
        return f"{self.name}/{node}"

    def _map(self, after: str | None) -> tuple[int, int, int]:
        shape = self.shape(after)
        if len(shape) != 3:
            raise ValueError(f"{self.name}/{after or self.last}: features, where maps are needed")
        return shape[0], shape[1], shape[2]

    def _pointwise(self, op: str, name: str, after: str | None) -> Pointwise:
        channels, height, width = (*self.shape(after), 1, 1)[:3]
        return Pointwise(
            op=op,
            batch=self.batch,
            channels=channels,
            height=height,
            width=width,
            name=self._layer_name(name),
        )

    def _add(
        self,
        name: str,
        op: Op,
        after: str | None,
        shape: tuple[int, ...],
        layer: Layer | None,
        *,
        bias: bool = False,
        scale: bool = True,
        weights_init: Init = HE,
        bias_init: Init = ZERO,
    ) -> str:
        return self._append(
            Node(
                name=name,
                op=op,
                inputs=(after or self.last,),
                shape=shape,
                layer=layer,
                bias=bias,
                scale=scale,
                weights_init=weights_init,
                bias_init=bias_init,
            )
        )

    def _append(self, node: Node) -> str:
        self._nodes.append(node)
        self._shapes[node.name] = node.shape
        self.last = node.name
        return node.name

"""The kernels of a step's gradients, from its forward kernels and the table of operators.

A kernel's backward passes read what it has read and written, by role, and the gradient of what it
has written. What the table has no backward pass for is linear or arithmetic, and its gradient is
made of other forward kernels, or needs none: that of a sum is the gradient that has arrived.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pydlbench.backends.native.listing import Link
from pydlbench.calls.meaning import on_images
from pydlbench.errors import UnsupportedError
from pydlbench.models.passes import StepPass
from pydlbench.ops.table import build_layer
from pydlbench.ops.tensors import merged_elementwise, merged_move

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

#: The tensor that holds it, or the number that all of its elements are.
Gradient: TypeAlias = "str | float"


class Differentiation:
    """Goes back through the kernels of a forward step once.

    Args:
        forward: kernels, in the order of execution.
        trained: tensors whose gradients are wanted.

    Attributes:
        links: the kernels of the gradients, in the order of execution.
        constants: tensors that they read and no kernel makes, by name.
    """

    def __init__(self, forward: Sequence[Link], trained: Collection[str]) -> None:
        self._forward = forward
        self._trained = trained
        self._reached = set(trained)
        self._arriving: defaultdict[str, list[Gradient]] = defaultdict(list)
        self.links: list[Link] = []
        self.constants: dict[str, NDArray[np.float32]] = {}
        for link in forward:
            if not self._reached.isdisjoint(link.reads.values()):
                self._reached.update(link.writes.values())

    def run(self, loss: str) -> dict[str, str]:
        """List all kernels of the gradients.

        Args:
            loss: the tensor whose elements' sum is differentiated.

        Returns:
            The tensor of its gradient, by trained tensor; of those that the loss depends on.

        Raises:
            UnsupportedError: a forward kernel of whose gradient there is no native kernel.
        """
        self._arriving[loss].append(1.0)
        readers: dict[str, tuple[Link, tuple[int, ...]]] = {}
        for link in reversed(self._forward):
            shapes = link.step_pass.layer.shapes()
            readers |= {
                tensor: (link, shapes[role])
                for role, tensor in link.reads.items()
                if tensor in self._trained and role in shapes
            }
            if not self._reached.isdisjoint(link.reads.values()):
                self._differentiate(link)
        return {
            tensor: self._tensor(self._summed(reader, tensor, shape), shape)
            for tensor, (reader, shape) in readers.items()
            if self._arriving.get(tensor)
        }

    def _differentiate(self, link: Link) -> None:
        layer, pass_ = link.step_pass.layer, link.step_pass.pass_
        if pass_ != "forward":
            self._join(link)
            return
        role = "loss" if "loss" in link.writes else "dst"
        result = link.writes[role]
        if not self._arriving.get(result):
            return
        gradient = self._summed(link, result, layer.shapes()[role])
        if layer.op == "batchnorm" and link.step_pass.propagation == "inference":
            raise _refused(link, "with fixed statistics")
        passes = [name for name in _GRADIENTS if name in layer.passes and layer.op != "l2"]
        if layer.op == "bias":
            self._arrive(link.reads["src"], gradient)
        elif not passes:
            self._derive(link, gradient)
        for name in passes:
            roles = layer.writes(name)
            if not self._reached.isdisjoint(link.reads[role] for role in roles):
                self._backward(link, name, roles, gradient)

    def _backward(self, link: Link, pass_: str, roles: Sequence[str], gradient: Gradient) -> None:
        """Add a backward pass of the table's."""
        layer = link.step_pass.layer
        reads = {**link.reads, **{role: link.writes[role] for role in _SAVED & link.writes.keys()}}
        reads["result"] = link.writes["dst"]
        if "loss" in link.writes:  # the probabilities are what its gradient is made from
            if gradient != 1.0:
                raise _refused(link, "of a part of a loss")
            reads["dst"] = link.writes["dst"]
        else:
            reads["dst"] = self._tensor(gradient, layer.shapes()["dst"])
        main = link.writes["dst"]
        writes = {role: f"{main}/{role}/gradient" for role in roles}
        self._add(link, layer, reads, writes, pass_=pass_, name=_stem(link))
        for role in roles:
            self._arrive(link.reads[role], writes[role])

    def _derive(self, link: Link, gradient: Gradient) -> None:
        """Add what the table has no backward pass for.

        Raises:
            UnsupportedError: there are no such kernels.
        """
        layer, reads = link.step_pass.layer, link.reads
        shapes = layer.shapes()
        wanted = [role for role in layer.reads("forward") if reads[role] in self._reached]
        elements = math.prod(shapes["dst"])
        if layer.op not in _RESHAPING and any(math.prod(shapes[r]) != elements for r in wanted):
            raise _refused(link, "of operands that are repeated")
        for role in wanted:
            part = self._part(link, role, gradient)
            if part is None:
                raise _refused(link, f"of {layer.op}")
            self._arrive(reads[role], part)

    def _part(self, link: Link, role: str, gradient: Gradient) -> Gradient | None:
        """Return an operand's gradient; None where no kernels make it."""
        layer = link.step_pass.layer
        shapes = layer.shapes()
        match layer.op, role:
            case ("copy", _) | ("add", "src"):
                return gradient
            case "add", _:
                number = layer.fields.get("number", 1.0)
                return self._scaled(link, gradient, number, shapes["dst"])
            case "neg", _:
                return self._scaled(link, gradient, -1.0, shapes["dst"])
            case "l2", _:
                return link.reads[role] if gradient == 1.0 else None
            case "mul", _:
                other = "src2" if role == "src" else "src"
                return self._product(link, role, gradient, other)
            case "square", _:
                twice = self._scaled(link, gradient, 2.0, shapes["dst"])
                return self._product(link, role, twice, role)
            case (("sum" | "mean"), _) if isinstance(gradient, float):
                each = math.prod(shapes["dst"]) / math.prod(shapes["src"])
                return gradient * (each if layer.op == "mean" else 1.0)
            case (("div" | "leaky-relu" | "permute" | "rows"), "src"):
                return self._replaced(link, self._tensor(gradient, shapes["dst"]))
        return None

    def _replaced(self, link: Link, gradient: str) -> Gradient:
        """Add a kernel that makes of a gradient what the forward one made of its first operand."""
        layer, reads, shapes = link.step_pass.layer, link.reads, link.step_pass.layer.shapes()
        operands = {"src": gradient, "src2": reads.get("src2", "")}
        if layer.op == "leaky-relu":
            operands |= {"src2": reads["src"], "src3": reads["src2"]}
            layer = merged_elementwise(
                "leaky-relu-gradient", shapes["dst"], shapes["src"], shapes["src2"]
            )
        elif layer.op == "permute":
            order, shape = layer.fields["order"], shapes["dst"]
            back = [order.index(axis) for axis in range(len(order))]
            strides = [math.prod(shape[axis + 1 :]) for axis in back]
            layer = merged_move([shape[axis] for axis in back], strides)
        elif layer.op == "rows":
            operands["indices"] = reads["indices"]
            sizes = {name: layer.fields[name] for name in ("rows", "width", "count")}
            layer = build_layer("gather:add-rows", **sizes)
        return self._made(link, "src", layer, operands)

    def _join(self, link: Link) -> None:
        """Add what joins the gradients of the parts that a tensor was cut into."""
        layer = link.step_pass.layer
        if layer.op != "concat":
            raise _refused(link, "of a gradient")
        shapes = layer.shapes()
        parts = {
            role: self._tensor(
                self._summed(link, tensor, shapes[role]) if self._arriving.get(tensor) else 0.0,
                shapes[role],
            )
            for role, tensor in link.writes.items()
        }
        self._arrive(link.reads["dst"], self._made(link, "dst", layer, parts))

    def _product(self, link: Link, role: str, gradient: Gradient, factor: str) -> Gradient:
        """Return a gradient times an operand."""
        shapes = link.step_pass.layer.shapes()
        held = self._tensor(gradient, shapes["dst"])
        layer = merged_elementwise("mul", shapes["dst"], shapes[factor])
        return self._made(link, role, layer, {"src": held, "src2": link.reads[factor]})

    def _scaled(
        self, link: Link, gradient: Gradient, factor: float, shape: Sequence[int]
    ) -> Gradient:
        if isinstance(gradient, float):
            return gradient * factor
        if factor == 1:
            return gradient
        layer = merged_elementwise("mul", shape, ())
        number = self._tensor(factor, (1,))
        return self._made(link, "scaled", layer, {"src": gradient, "src2": number})

    def _arrive(self, tensor: str, gradient: Gradient) -> None:
        if tensor in self._reached:
            self._arriving[tensor].append(gradient)

    def _summed(self, link: Link, tensor: str, shape: Sequence[int]) -> Gradient:
        """Return a tensor's gradient, all that has arrived being added up."""
        first, *others = self._arriving[tensor]
        for number, other in enumerate(others, start=1):
            reads = {"src": self._tensor(first, shape), "src2": self._tensor(other, shape)}
            first = f"{tensor}/gradient-sum{number}"
            layer = on_images("add", shape)
            self._add(link, layer, reads, {"dst": first}, name=f"{tensor}/gradient-sum")
        self._arriving[tensor] = [first]
        return first

    def _tensor(self, gradient: Gradient, shape: Sequence[int]) -> str:
        if isinstance(gradient, str):
            return gradient
        name = f"{gradient!r} x {math.prod(shape)}"
        self.constants[name] = np.full(shape, gradient, np.float32)
        return name

    def _made(self, link: Link, role: str, layer: Layer, reads: dict[str, str]) -> str:
        """Add a forward kernel of a gradient; return what it writes."""
        name = f"{_stem(link)}/{role}/gradient"
        if any(name in made.writes.values() for made in self.links):
            name += f" {len(self.links)}"
        self._add(link, layer, reads, {"dst": name}, name=name)
        return name

    def _add(
        self,
        link: Link,
        layer: Layer,
        reads: dict[str, str],
        writes: dict[str, str],
        *,
        name: str,
        pass_: str = "forward",
    ) -> None:
        step_pass = StepPass(
            node=link.step_pass.node, layer=layer, pass_=pass_, propagation="training"
        )
        workspace = link.workspace if pass_ != "forward" else ""
        self.links.append(
            Link(
                name=f"{name} {pass_}",
                step_pass=step_pass,
                reads=reads,
                writes=writes,
                workspace=workspace,
            )
        )


#: What a forward pass in training writes for the backward one.
_SAVED = frozenset(("mean", "variance"))
#: Passes of the table that make gradients, in the order of a step.
_GRADIENTS = ("backward-weights", "backward-data")
#: Whose operands have another number of elements than its result.
_RESHAPING = frozenset(("rows", "sum", "mean", "l2"))


def _stem(link: Link) -> str:
    return link.name.rpartition(" ")[0]


def _refused(link: Link, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{_stem(link)}: there is no native kernel of the gradient {what}, so there is no native "
        "chain"
    )

"""A recorded step as a list of native kernels that read each other's results.

Of a step with a backward pass, the calls of the network and of the loss are listed; the kernels of
the gradients follow from theirs (``backends.native.gradients``), and those of the optimizer from
what it calls.

A tensor of the list is what a tensor of the step holds, element by element in the order of its
dimensions: its memory, how often that was overwritten, its first element, and the way from one
element to the next. Two views that go the same way are one tensor, so that a flattening has no
kernel. Nor has a copy, which changes only where elements lie: a chain lays its tensors out itself.
A way through a result in another order is a permutation, and one through a part of it cuts it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
import torch

from pydlbench.backends.native.gradients import Differentiation
from pydlbench.backends.native.listing import LEAVING, Link, Listing
from pydlbench.backends.torch.steps.recording import StorageSlot
from pydlbench.backends.torch.steps.replayed_step import below_autograd
from pydlbench.calls.meaning import LayerPass, Value, on_images
from pydlbench.calls.seen.aten import leaves, mapped, meaning_of
from pydlbench.errors import UnsupportedError
from pydlbench.models.passes import StepPass
from pydlbench.ops.op import INTEGERS
from pydlbench.ops.table import build_layer, out_of_place
from pydlbench.ops.tensors import merged_elementwise, merged_move
from pydlbench.records.operator import RecordedCall

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.torch.steps.recording import DispatchedCall, Recording
    from pydlbench.calls.meaning import Binding
    from pydlbench.ops.op import Layer

#: Sizes with their strides, in elements; the last one changes fastest.
Walk: TypeAlias = "tuple[tuple[int, int], ...]"
#: Of whose operand only shape and type are read.
_FILLED_ALIKE: Final = ("aten.ones_like", "aten.zeros_like", "aten.full_like")
#: PyTorch's number of a loss that is the mean over all labels.
_MEAN: Final = 1
#: A copy: its result holds what its operand does.
_COPIES: Final = ("copy", "permute")
#: Up to so many parts of one size are cut out together: queries, keys and values.
_EQUAL: Final = 4

_NOTHING: Final = "the step returns no result of a call, so there is no native chain"


@dataclass(frozen=True, slots=True)
class _Content:
    """What a tensor holds: its memory, how often that was overwritten, and a way through it."""

    storage: Any
    version: int
    offset: int
    walk: Walk

    @property
    def elements(self) -> int:
        return math.prod(size for size, _ in self.walk)

    def view(self, tensor: torch.Tensor, offset: int) -> torch.Tensor:
        """Return the elements of a tensor's memory that lie on the way, from an element on."""
        sizes, strides = zip(*self.walk, strict=True) if self.walk else ((), ())
        return tensor.as_strided(sizes, strides, offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedListing:
    """The kernels of a recorded step.

    Attributes:
        listing: of these, with the values of what is given.
        notes: on the kernels.
        views: how trained tensors are read, by name: the tensor, and the view of its memory.
    """

    listing: Listing
    notes: tuple[str, ...]
    views: Mapping[str, tuple[torch.Tensor, _Content]]

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield what PyTorch has left as gradients, in the order in which weights are read."""
        for name in self.listing.gradients:
            weights, content = self.views[name]
            assert weights.grad is not None, "the loss depends on it"
            held = torch.empty_strided(weights.shape, weights.stride())
            held.copy_(weights.grad)
            offset = content.offset - weights.storage_offset()
            yield name, np.array(content.view(held, offset).numpy())


def list_recording(
    recording: Recording,
    names: Mapping[torch.Tensor, str],
    trained: Collection[torch.Tensor] | None = None,
) -> RecordedListing:
    """Return the kernels of a recorded step.

    Args:
        recording: of a step, whose loss is the last of its results.
        names: of weights and inputs.
        trained: tensors whose gradients the step computes; None of a forward step.

    Raises:
        UnsupportedError: a call of which there is no native kernel, or that reads what no kernel
            has written; it is named.
    """
    if recording.opaque is not None:
        raise UnsupportedError(f"the recorded calls have no native chain: {recording.opaque}")
    lister = _Lister(recording, names, trained)
    for call in recording.calls:
        if call.direction in ("forward", "loss"):
            lister.add(call)
    return RecordedListing(listing=lister.listing(), notes=lister.notes(), views=lister.views)


class _Lister:
    """Goes through the calls once, in their order."""

    def __init__(
        self,
        recording: Recording,
        names: Mapping[torch.Tensor, str],
        trained: Collection[torch.Tensor] | None,
    ) -> None:
        self._recording = recording
        self._trained = None if trained is None else {_storage(each): each for each in trained}
        self._propagation = "inference" if trained is None else "training"
        self.views: dict[str, tuple[torch.Tensor, _Content]] = {}
        self._links: list[Link] = []
        #: How many of these are layers of calls.
        self._layers = 0
        self._given: dict[str, NDArray[np.float32]] = {}
        #: How often each memory was overwritten; what the step was given lies there untouched.
        self._versions: Counter[Any] = Counter()
        self._known: dict[_Content, str] = {}
        named = {_storage(tensor): name for tensor, name in names.items()}
        self._from_outside = {
            _storage(tensor): (tensor, named.get(_storage(tensor), f"given {slot}"))
            for slot, tensor in recording.given.items()
        }
        # What the step makes from nothing, by memory and by value.
        self._made_here: dict[Any, tuple[torch.Tensor, str]] = {}
        self._constants: dict[int, torch.Tensor] = {}
        self._used: Counter[str] = Counter()

    def add(self, call: DispatchedCall) -> None:
        """Add the kernels of a call."""
        if call.implied:
            return
        recorded = RecordedCall.from_owners(
            [call.names],
            signature=call.signature,
            operator=call.operator,
            direction=call.direction,
            bytes=call.bytes,
        )
        slots = [each.number for each in leaves([call.arguments, call.keywords], StorageSlot)]
        alike = call.operator in _FILLED_ALIKE
        if alike or (self._constants.keys() >= set(slots) and _draws_nothing(call)):
            self._evaluate(call)
            return
        if call.operator == "aten.add_" and not self._computes(slots):
            self._overwrite(call)  # a counter of steps
        elif call.operator == "aten.nll_loss_forward":
            self._add_cross_entropy(call)
        else:
            self._add_layers(call, recorded, slots)

    def _computes(self, slots: Sequence[int]) -> bool:
        """Whether there are floating-point numbers among values."""
        return any(self._recording.places[slot][4].is_floating_point for slot in slots)

    def _add_layers(
        self, call: DispatchedCall, recorded: RecordedCall, slots: Sequence[int]
    ) -> None:
        """Add the kernels of the layers that compute what a call does."""
        try:
            meaning = meaning_of(recorded)
        except UnsupportedError as error:
            raise _refused(call, str(error)) from error
        if meaning.kind == "view":  # in place, it changes shape and strides only
            return
        if meaning.layers_missing is not None or not meaning.layers:
            raise _refused(call, meaning.layers_missing or "it has no layer")
        operands = _Operands(self, call, slots)
        if all(each.layer.kind == "move" for each in meaning.layers):
            name = operands.handed_on(meaning.layers)
        else:
            name = self._chained(call, meaning.layers, operands)
        for storage in self._overwrite(call):
            self._made_here.pop(storage, None)
            self._constants = {
                slot: tensor
                for slot, tensor in self._constants.items()
                if self._recording.places[slot][0] != storage
            }
        result = next(leaves([call.results], StorageSlot), None)
        if result is None:
            raise _refused(call, "it returns nothing")
        self._known[self.content_of(result.number)] = name

    def listing(self) -> Listing:
        """Return all kernels."""
        read = {content.storage for content in self._known} & self._from_outside.keys()
        if any(self._versions[storage] for storage in read):
            raise UnsupportedError(
                "the step overwrites what it was given, so there is no native chain"
            )
        result = next(leaves([self._recording.results], StorageSlot), None)
        if result is None or not self._recording.calls:
            raise UnsupportedError(_NOTHING)
        output = result.number
        name = self.name_of(self.content_of(output), self._recording.calls[-1])
        if name in self._given:
            raise UnsupportedError(_NOTHING)
        gradients, rate = ({}, None) if self._trained is None else self._differentiate()
        return Listing(
            links=tuple(self._links),
            output=name,
            output_shape=tuple(self._recording.places[output][2]),
            given=self._given,
            gradients=gradients,
            rate=rate,
        )

    def _differentiate(self) -> tuple[dict[str, str], float | None]:
        """Add the kernels of gradients and updates; return the gradients, and the rate."""
        *_, last = leaves([self._recording.results], StorageSlot)
        loss = self.name_of(self.content_of(last.number), self._recording.calls[-1])
        owners: dict[int, str] = {}
        for name, (tensor, content) in self.views.items():
            first = owners.setdefault(content.storage, name)
            if first != name or content.elements != tensor.numel():
                raise UnsupportedError(
                    f"{first}: it is read in several ways, so there is no native chain with its "
                    "gradient"
                )
        derived = Differentiation(self._links, owners.values())
        gradients = derived.run(loss)
        self._given |= derived.constants
        self._links += derived.links
        self._layers += len(derived.links)
        optimizer = _Optimizer.from_recording(self._recording)
        if optimizer is None:
            return gradients, None
        for name, gradient in gradients.items():
            reads = {"weights": name, "gradient": gradient}
            writes = {"weights": name}
            layer = optimizer.layer(self._given[name].size)
            if "velocity" in layer.writes("forward"):
                reads["velocity"] = writes["velocity"] = f"{name}/velocity"
                self._given[f"{name}/velocity"] = np.zeros_like(self._given[name])
            step_pass = StepPass(node=name, layer=layer, pass_="forward", propagation="training")
            self._links.append(
                Link(name=f"{name}/update", step_pass=step_pass, reads=reads, writes=writes)
            )
            self._layers += 1
        return gradients, optimizer.rate

    def notes(self) -> tuple[str, ...]:
        """Say how many kernels are no layers of calls."""
        count = len(self._links) - self._layers
        why = "turn, cut, scale or mask what layers of the step's calls read"
        return (f"{count} of {len(self._links)} kernels {why}",) if count else ()

    def _chained(
        self, call: DispatchedCall, layers: Sequence[LayerPass], operands: _Operands
    ) -> str:
        """Add layers that read each other's results; return the last one's."""
        before = ""
        for each in layers:
            if each.training and self._trained is None:
                raise _refused(call, "in training it has no place in a forward chain")
            if each.roles is None:
                raise _refused(call, "its native layers take its time and compute something else")
            layer = out_of_place(each.layer)  # gradients read what was there before
            if each.number is not None:
                layer = layer.replace(number=each.number)
            shapes = layer.shapes()
            reads = {}
            for role in each.roles:
                elements = math.prod(shapes[role.role])
                name = before if role.operand is None else operands.named(role, elements)
                if role.causal:
                    name = self._masked(call, name, shapes[role.role])
                reads[role.role] = name
            if (layer.op, layer.fields.get("weights_tag")) == ("gemm", "nk") and (
                reads["weights"] not in self._given or self._trained is not None
            ):
                # What a kernel has just written lies as it was written.
                layer = layer.replace(weights_tag="kn")
            before = self.link(call, replace(each, layer=layer), reads)
            self._layers += 1
        return before

    def link(self, call: DispatchedCall, step: LayerPass, reads: dict[str, str]) -> str:
        """Add a kernel; return the main tensor that it writes."""
        # A normalisation with fixed statistics computes the same in every step.
        fixed = step.layer.op == "batchnorm" and not step.training
        propagation = step.propagation if fixed else self._propagation
        roles = step.layer.writes(step.pass_, propagation)
        return self._linked(call, step, reads, roles, propagation)[0]

    def _linked(
        self,
        call: DispatchedCall,
        step: LayerPass,
        reads: dict[str, str],
        roles: Sequence[str],
        propagation: str,
    ) -> list[str]:
        """Add a kernel; return the tensors that it writes as some roles."""
        node = call.names[0] if call.names else call.operator.rpartition(".")[2]
        plain = f"{node}/{step.layer.op}"
        self._used[plain] += 1
        name = plain if self._used[plain] == 1 else f"{plain} {self._used[plain]}"
        step_pass = StepPass(node=node, layer=step.layer, pass_=step.pass_, propagation=propagation)
        writes = {role: name if role == "dst" else f"{name}/{role}" for role in roles}
        # Running statistics are moved where they lie.
        writes |= {role: reads[role] for role in roles if role.startswith("running")}
        leaves_something = propagation == "training" and step.layer.op in LEAVING
        link = Link(
            name=f"{name} {step.pass_}",
            step_pass=step_pass,
            reads=reads,
            writes=writes,
            workspace=f"{name}/workspace" if leaves_something else "",
        )
        self._links.append(link)
        return [*writes.values()]

    def _add_cross_entropy(self, call: DispatchedCall) -> None:
        """Put a loss with its softmax in the place of the softmax alone."""
        scores, labels, weights, reduction = call.arguments[:4]
        name = self.name_of(self.content_of(scores.number), call)
        place = next((n for n, link in enumerate(self._links) if link.writes["dst"] == name), None)
        alone = not any(name in link.reads.values() for link in self._links)
        if place is None or not alone or self._links[place].step_pass.layer.op != "log-softmax":
            raise _refused(call, "a loss without its softmax has no layer")
        target = self.name_of(self.content_of(labels.number), call)
        if weights is not None or reduction != _MEAN or self._given[target].min(initial=0) < 0:
            raise _refused(call, "it is not the mean over all labels")
        rows, classes = self._recording.places[scores.number][2]
        softmax = self._links[place]
        layer = build_layer("softmax-xent", batch=rows, channels=classes)
        self._links[place] = replace(
            softmax,
            step_pass=replace(softmax.step_pass, layer=layer),
            reads={**softmax.reads, "labels": target},
            writes={"dst": f"{name}/probabilities", "loss": f"{name}/loss"},
        )
        self._known = {made: held for made, held in self._known.items() if held != name}
        (result, _) = call.results
        self._known[self.content_of(result.number)] = f"{name}/loss"

    def _masked(self, call: DispatchedCall, scores: str, shape: Sequence[int]) -> str:
        """Add what keeps a query from seeing keys beyond its own place."""
        *_, queries, keys = shape
        mask = f"causal {queries} x {keys}"
        hidden = np.triu(np.ones((queries, keys), bool), 1)
        self._given[mask] = np.where(hidden, np.float32(-np.inf), np.float32(0))
        layer = merged_elementwise("add", shape, (queries, keys))
        return self.link(call, LayerPass(layer), {"src": scores, "src2": mask})

    def number(self, value: float, elements: int) -> str:
        """Return the tensor of a number."""
        name = f"{value!r} x {elements}"
        self._given[name] = np.full(elements, value, np.float32)
        return name

    def content_of(self, slot: int, value: Value | None = None) -> _Content:
        """Return what a tensor of the step holds now, or what another view of it does."""
        storage, offset, shape, strides = self._recording.places[slot][:4]
        if value is not None:
            shape, strides = value.shape, value.strides
        return _Content(storage, self._versions[storage], offset, _walk(shape, strides))

    def is_given(self, content: _Content) -> bool:
        """Whether no kernel makes it."""
        untouched = content.storage in self._from_outside and not content.version
        return untouched or content.storage in self._made_here

    def name_of(self, content: _Content, call: DispatchedCall) -> str:
        """Return the tensor that holds something, in the order in which a call reads it."""
        name = self._known.get(content)
        if name is not None:
            return name
        if self.is_given(content):
            name = self._known[content] = self._given_as(content)
            return name
        for other, made in self._known.items():
            order = _reordered(other, content)
            if order is not None:
                layer = merged_move(*zip(*order, strict=True))
                turns = layer.op != "copy"
                name = self.link(call, LayerPass(layer), {"src": made}) if turns else made
                self._known[content] = name
                return name
        for other, made in reversed(self._known.items()):  # parts stand behind what they are of
            part = _part(other, content)
            if part is not None:
                self._cut(call, other, made, part)
                return self.name_of(content, call)
        raise _refused(call, "it reads what no native kernel has written")

    def _cut(self, call: DispatchedCall, whole: _Content, name: str, part: _Part) -> None:
        """Add what cuts a tensor along one of its dimensions, and name all parts.

        That is what the gradient of a concatenation does.
        """
        layer = on_images("concat", (part.outer, part.size, part.inner), sources=part.sizes)
        roles = layer.writes("backward-data")
        step = LayerPass(layer, "backward-data")
        names = self._linked(call, step, {"dst": name}, roles, step.propagation)
        begin = whole.offset
        for size, cut in zip(part.sizes, names, strict=True):
            self._known[replace(whole, offset=begin, walk=part.walk(size))] = cut
            begin += size * part.stride

    def _given_as(self, content: _Content) -> str:
        """Keep what the step was given, in the order in which it is read."""
        storage = content.storage
        tensor, name = self._from_outside.get(storage) or self._made_here[storage]
        view = content.view(tensor, content.offset).detach()
        self._used[name] += 1
        name = name if self._used[name] == 1 else f"{name} {self._used[name]}"
        self._given[name] = np.array(view.to("cpu", torch.float32).numpy())
        if self._trained is not None and storage in self._trained:
            self.views[name] = self._trained[storage], content
        return name

    def _evaluate(self, call: DispatchedCall) -> None:
        """Compute what depends neither on inputs nor on weights: it is given, too."""

        def value(argument: Any) -> Any:
            if not isinstance(argument, StorageSlot):
                return argument
            if argument.number in self._constants:
                return self._constants[argument.number]
            _, _, shape, strides, kind = self._recording.places[argument.number][:5]
            return torch.empty_strided(shape, strides, dtype=kind)

        with below_autograd():
            made = call.function(*mapped(call.arguments, value), **mapped(call.keywords, value))
        self._overwrite(call)
        tensors = leaves([made], torch.Tensor)
        for slot, tensor in zip(leaves([call.results], StorageSlot), tensors, strict=True):
            self._constants[slot.number] = tensor
            storage = self._recording.places[slot.number][0]
            self._made_here.setdefault(storage, (tensor, f"constant {slot.number}"))

    def _overwrite(self, call: DispatchedCall) -> list[Any]:
        """Forget what the memory held that a call writes into; return which that is."""
        written = []
        for place, declared in enumerate(call.function._schema.arguments):
            if declared.alias_info is not None and declared.alias_info.is_write:
                given = [*call.arguments[place : place + 1], call.keywords.get(declared.name)]
                written += [
                    self._recording.places[each.number][0] for each in leaves(given, StorageSlot)
                ]
        self._versions.update(written)
        return written


class _Operands:
    """What a call reads, before it overwrites anything.

    Args:
        lister: knows the tensors.
        call: that reads them.
        slots: of its tensors, in their order.
    """

    def __init__(self, lister: _Lister, call: DispatchedCall, slots: Sequence[int]) -> None:
        self._lister, self._call, self._slots = lister, call, slots

    def named(self, role: Binding, elements: int) -> str:
        """Return the tensor that a layer reads, of so many elements."""
        call, operand = self._call, role.operand
        if not isinstance(operand, Value):
            assert operand is not None, "a result has a name"
            return self._lister.number(float(operand), elements)
        if not operand.floating and role.role not in INTEGERS:
            raise _refused(call, f"{operand.dtype} operands")
        content = self._lister.content_of(self._slots[operand.number], operand)
        if content.elements != elements:
            whole = replace(content, walk=_merged(zip(operand.shape, operand.strides, strict=True)))
            if whole.elements != elements or not self._lister.is_given(content):
                raise _refused(call, "elements that are repeated")
            content = whole
        name = self._lister.name_of(content, call)
        if role.factor != 1:
            layer = merged_elementwise("mul", (elements,), ())
            reads = {"src": name, "src2": self._lister.number(role.factor, 1)}
            name = self._lister.link(call, LayerPass(layer), reads)
        return name

    def handed_on(self, layers: Sequence[LayerPass]) -> str:
        """Return the tensor that a copy reads, and that its result is, too."""
        for each in layers:
            if each.layer.op not in _COPIES or not each.roles:
                raise _refused(self._call, "it does not copy the whole of a tensor")
        (role,) = layers[0].roles or ()
        return self.named(role, math.prod(layers[0].layer.shapes()["src"]))


@dataclass(frozen=True, slots=True)
class _Optimizer:
    """Descent, or with a momentum: the calls that an optimizer makes for each weight."""

    rate: float
    mu: float | None

    @classmethod
    def from_recording(cls, recording: Recording) -> Self | None:
        """Read it from what it calls; None where nothing is updated.

        Raises:
            UnsupportedError: it is another one.
        """
        calls = [call for call in recording.calls if call.direction == "optimizer"]
        if not calls:
            return None
        others = {call.operator for call in calls} - {"aten.add_", "aten.mul_"}
        rates = {call.keywords["alpha"] for call in calls if "alpha" in call.keywords}
        factors = {call.arguments[1] for call in calls if call.operator == "aten.mul_"}
        if others or len(rates) != 1 or len(factors) > 1:
            raise UnsupportedError(
                f"the optimizer calls {', '.join(sorted(others)) or 'several rates'}: native "
                "updates are those of sgd and momentum, so there is no native chain"
            )
        return cls(-rates.pop(), factors.pop() if factors else None)

    def layer(self, elements: int) -> Layer:
        """Return the update of so many weights."""
        if self.mu is None:
            return build_layer("sgd", channels=elements, rate=self.rate)
        return build_layer("momentum", channels=elements, rate=self.rate, mu=self.mu)


def _draws_nothing(call: DispatchedCall) -> bool:
    """Whether a call returns the same every time."""
    return torch.Tag.nondeterministic_seeded not in call.function.tags


def _refused(call: DispatchedCall, why: str) -> UnsupportedError:
    where = f" of {call.names[0]}" if call.names else ""
    return UnsupportedError(f"{call.operator}{where}: {why}, so there is no native chain")


def _storage(tensor: torch.Tensor) -> Any:
    """Return a tensor's memory, as the places of a recording name it."""
    return tensor.untyped_storage()._cdata


# -----------------------------------------------------------------------------
# Ways through memory.


def _walk(shape: Sequence[int], strides: Sequence[int]) -> Walk:
    """Return the fewest sizes and strides that go the same way; what is repeated counts once."""
    return _merged(each for each in zip(shape, strides, strict=True) if each[1])


def _merged(walk: Iterable[tuple[int, int]]) -> Walk:
    merged: list[tuple[int, int]] = []
    for size, stride in walk:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = merged[-1][0] * size, stride
        else:
            merged.append((size, stride))
    return tuple(merged)


def _reordered(made: _Content, read: _Content) -> list[tuple[int, int]] | None:
    """Return the way through a tensor, dense in its own order, that reads all of it in another one.

    Args:
        made: the tensor.
        read: what is read.

    Returns:
        Sizes and strides; None where it is another tensor, or not all of it.
    """
    if (made.storage, made.version, made.offset) != (read.storage, read.version, read.offset):
        return None
    pieces = _split(made.walk, _bounds(read.walk))
    wanted = _split(read.walk, _bounds(made.walk))
    if sorted(pieces) != sorted(wanted):
        return None
    dense, step = {}, 1
    for size, stride in reversed(pieces):
        dense[stride] = step
        step *= size
    return [(size, dense[stride]) for size, stride in wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a tensor between two places along one of its dimensions.

    Attributes:
        before: dimensions in front, by size and stride.
        size: of the dimension.
        stride: likewise.
        behind: dimensions behind.
        sizes: of all parts along the dimension, this one's among them.
    """

    before: Walk
    size: int
    stride: int
    behind: Walk
    sizes: tuple[int, ...]

    @property
    def outer(self) -> int:
        return math.prod(size for size, _ in self.before)

    @property
    def inner(self) -> int:
        return math.prod(size for size, _ in self.behind)

    def walk(self, size: int) -> Walk:
        """Return the way through a part of some size."""
        return _merged([*self.before, (size, self.stride), *self.behind])


def _part(made: _Content, read: _Content) -> _Part | None:
    """Return the part of a tensor that all of what is read lies in, along its outermost side.

    It may be a part of that part again. None where it is no part of the tensor.
    """
    if (made.storage, made.version) != (read.storage, read.version):
        return None
    pieces = _split(made.walk, {stride for _, stride in read.walk})
    wanted = {stride: size for size, stride in _split(read.walk, {each for _, each in pieces})}
    cuts = [(size, stride) for size, stride in pieces if wanted.get(stride, 1) != size]
    if not cuts or not wanted.keys() <= {stride for _, stride in pieces}:
        return None
    size, stride = max(cuts, key=lambda each: each[1])
    place = pieces.index((size, stride))
    own = wanted.get(stride, 1)
    begin = (read.offset - made.offset) // stride
    if begin < 0 or begin + own > size:
        return None
    sizes: tuple[int, ...] = begin, own, size - begin - own
    if size % own == begin % own == 0 and size // own <= _EQUAL:
        sizes = (own,) * (size // own)
    unit = math.gcd(*sizes)  # what is kept together is a dimension behind
    part = _Part(
        before=tuple(pieces[:place]),
        size=size // unit,
        stride=stride * unit,
        behind=((unit, stride), *pieces[place + 1 :]),
        sizes=tuple(each // unit for each in sizes if each),
    )
    alone = replace(made, offset=made.offset + begin * stride, walk=part.walk(own // unit))
    reaches = _reordered(alone, read) is not None or _part(alone, read) is not None
    return part if reaches else None


def _bounds(walk: Walk) -> set[int]:
    """Return at how many elements the dimensions of a walk begin and end."""
    return {bound for size, stride in walk for bound in (stride, size * stride)}


def _split(walk: Walk, bounds: Collection[int]) -> list[tuple[int, int]]:
    """Return a walk whose dimensions are divided at some strides, where they can be."""
    pieces = []
    for size, stride in walk:
        within = sorted(each for each in bounds if stride < each < size * stride)
        edges = [stride, *within, size * stride]
        kept = [edges.pop()]
        while edges:  # from the largest; the smallest divides all
            if kept[-1] % edges[-1] == 0 and edges[-1] % stride == 0:
                kept.append(edges[-1])
            edges.pop()
        pieces += [(high // low, low) for high, low in itertools.pairwise(kept)]
    return pieces

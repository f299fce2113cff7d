"""What a step allocates and frees, put together from what its parts do and how the graph is read.

Values are counted as their owners count them: the step's own variables, which go with the last
reader; what autograd saved, which goes with the backward pass that saved it; a gradient, until its
node's backward pass is done. Weight gradients are new in each step and live until the next begins.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydlbench.models.graph import INPUT
from pydlbench.models.tensors import trained_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.crosscheck.pieces import Piece
    from pydlbench.models.graph import Model

__all__ = ["sequence"]

_FLOAT32 = 4


class _Block:
    """Memory with its owners; without a slot it was there before the step."""

    def __init__(self, slot: int | None, size: int) -> None:
        self.slot = slot
        self.size = size
        self.owners = 1


class _Tape:
    """Writes down events; frees a block with its last owner."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        self._next = 0

    def allocate(self, size: int) -> _Block:
        block = _Block(self._next, size)
        self._next += 1
        self.events.append((self._next - 1, size))
        return block

    def drop(self, block: _Block | None) -> None:
        if block is None:
            return
        block.owners -= 1
        if block.owners == 0 and block.slot is not None:
            self.events.append((block.slot, 0))


class _Run:
    """One occurrence of a part: its blocks by number, from forward to backward."""

    def __init__(self, trace: Mapping[str, Any], inputs: Sequence[_Block]) -> None:
        self.trace = trace
        self.inputs = tuple(inputs)
        self.blocks: dict[int, _Block] = {}
        self.outputs: list[_Block | None] = []
        self.saved: list[_Block] = []

    def play(self, tape: _Tape, events: Sequence[Sequence[int]]) -> None:
        for number, size in events:
            if size > 0:
                self.blocks[number] = tape.allocate(size)
            else:
                tape.drop(self.blocks.pop(number, None))

    def block(self, reference: Sequence[Any] | None, upstream: Sequence[_Block]) -> _Block | None:
        """Return what a reference of the trace names."""
        if reference is None:
            return None
        kind, number = reference
        if kind == "block":
            return self.blocks.get(number)
        known = self.inputs if kind == "in" else upstream
        return known[number] if number < len(known) else None


def sequence(
    model: Model,
    order: Sequence[tuple[str, ...]],
    found: Sequence[Piece],
    traces: Mapping[str, Any],
) -> list[tuple[int, int]]:
    """Return a step's events: ``(slot, bytes)`` allocates, ``(slot, 0)`` frees.

    What is left at the end, weight gradients, is freed by the events that come first, so that the
    sequence can be played again and again. What the optimizer keeps is never freed: it is allocated
    when it is played for the first time, and a block that is there is not allocated again.

    Args:
        model: the graph.
        order: all groups of nodes as they are run.
        found: the distinct parts.
        traces: of each, by name, as the framework's worker recorded them.
    """
    tape = _Tape()
    own = [one for one in found if one.kind in ("layer", "pointwise")]
    by_nodes = {nodes: one.name for one in own for nodes in one.occurrences}
    names = {kind: one.name for one in found for kind in (one.kind,)}
    state = _State(model, order, tape, backward="loss" in names)
    for group in order:
        state.forward(group, traces[by_nodes[group]])
    if "loss" in names:
        state.backward(traces[names["loss"]], lambda group: traces[by_nodes[group]])
    else:
        tape.drop(state.values[model.output.name])
    if "optimizer" in names:
        _alone(tape, traces[names["optimizer"]])
        if model.optimizer.kind == "momentum":
            # Made by the first update, above what the first step has left free: they pin the heap.
            for size in _velocities(model):
                tape.allocate(size)
    left = [one for one in state.left if one.slot is not None and one.owners > 0]
    return [(one.slot, 0) for one in left if one.slot is not None] + tape.events


def _velocities(model: Model) -> list[int]:
    return [
        _FLOAT32 * math.prod(shape) for node in model for shape in trained_tensors(node).values()
    ]


class _State:
    """The values and gradients of a step on its way."""

    def __init__(
        self, model: Model, order: Sequence[tuple[str, ...]], tape: _Tape, *, backward: bool
    ) -> None:
        self._model = model
        self._keeps = backward
        self._order = tuple(order)
        self._tape = tape
        self.values: dict[str, _Block] = {INPUT: _Block(None, 0)}
        #: Weight gradients.
        self.left: list[_Block] = []
        self._runs: dict[tuple[str, ...], _Run] = {}
        self._last: dict[str, tuple[str, ...]] = {}
        for group in self._order:
            for name in _inputs(model, group):
                self._last[name] = group

    def forward(self, group: tuple[str, ...], trace: Mapping[str, Any]) -> None:
        """Run a group forwards, and let go of what nobody reads any more."""
        inputs = _inputs(self._model, group)
        run = _Run(trace, [self.values[name] for name in inputs])
        run.play(self._tape, trace["forward"])
        outputs = _read_outside(self._model, group)
        for name, reference in zip(outputs, trace["outputs"], strict=True):
            block = run.block(reference, ())
            if block is None:
                block = _Block(None, 0)
            elif reference[0] == "in":
                block.owners += 1
            else:
                run.blocks.pop(reference[1], None)
            run.outputs.append(block)
            self.values[name] = block
        # Its own blocks that are not outputs are kept for its backward pass, and freed there.
        kept = {id(one) for one in run.blocks.values()}
        if not self._keeps:
            for block in run.blocks.values():
                self._tape.drop(block)
            run.blocks.clear()
        for reference in trace["saved"] if self._keeps else ():
            saved = run.outputs[_index(trace, reference)] if _index(trace, reference) >= 0 else None
            saved = saved or run.block(reference, ())
            if saved is not None and id(saved) not in kept:
                saved.owners += 1
                run.saved.append(saved)
        self._runs[group] = run
        for name in inputs:
            if self._last[name] == group and name != INPUT:
                self._tape.drop(self.values[name])

    def backward(self, loss: Mapping[str, Any], trace_of: Any) -> None:
        """Run the loss, then the groups from the last to the first."""
        tape, gradients = self._tape, {}
        output = self._model.output.name
        run = _Run(loss, [self.values[output]])
        run.play(tape, loss["forward"])
        run.play(tape, loss["backward"])
        (reference,) = loss["input_gradients"] or (None,)
        gradient = run.block(reference, ())
        if gradient is not None and reference is not None:
            gradients[output] = gradient
            run.blocks.pop(reference[1], None)
        tape.drop(self.values[output])
        late = list(run.blocks.values())
        for group in reversed(self._order):
            self._backward_of(group, trace_of(group), gradients)
        for block in late:  # L2 terms' gradients, added to others' at last
            tape.drop(block)

    def _backward_of(
        self, group: tuple[str, ...], trace: Mapping[str, Any], gradients: dict[str, _Block]
    ) -> None:
        tape, run = self._tape, self._runs[group]
        upstream = [gradients.pop(name, None) for name in _read_outside(self._model, group)]
        known = [one or _Block(None, 0) for one in upstream]
        run.play(tape, trace["backward"])
        results: list[tuple[str | None, _Block]] = []
        names = [*_inputs(self._model, group)]
        for name, reference in zip(names, trace["input_gradients"], strict=True):
            self._take(run, name, reference, known, results)
        for reference in trace["parameter_gradients"]:
            self._take(run, None, reference, known, results)
        for block in (*run.saved, *run.blocks.values()):
            tape.drop(block)
        for one in upstream:
            tape.drop(one)
        for target, block in results:
            if target is None:
                self.left.append(block)
            elif target == INPUT:
                tape.drop(block)
            else:
                gradients[target] = self._sum(gradients.get(target), block)

    def _take(
        self,
        run: _Run,
        name: str | None,
        reference: Sequence[Any] | None,
        upstream: Sequence[_Block],
        results: list[tuple[str | None, _Block]],
    ) -> None:
        block = run.block(reference, upstream)
        if block is None or reference is None:
            return
        if reference[0] == "block":
            run.blocks.pop(reference[1], None)
            if any(block is one for _, one in results):
                block.owners += 1
        else:
            block.owners += 1
        results.append((name, block))

    def _sum(self, old: _Block | None, new: _Block) -> _Block:
        """Add a gradient to another: in place, unless that one has another owner."""
        if old is None:
            return new
        tape = self._tape
        if old.owners > 1:
            total = tape.allocate(old.size)
            tape.drop(old)
            tape.drop(new)
            return total
        tape.drop(new)
        return old


def _index(trace: Mapping[str, Any], reference: Sequence[Any]) -> int:
    """Return which output a saved block is; -1 if it is none."""
    outputs = [list(one) if one else None for one in trace["outputs"]]
    return outputs.index(list(reference)) if list(reference) in outputs else -1


def _alone(tape: _Tape, trace: Mapping[str, Any]) -> None:
    """Play a part that hands nothing on; what it keeps was there before."""
    run = _Run(trace, ())
    run.play(tape, trace["forward"])
    for block in run.blocks.values():
        tape.drop(block)


def _inputs(model: Model, group: Sequence[str]) -> list[str]:
    inside = set(group)
    read = (name for one in group for name in model[one].inputs if name not in inside)
    return list(dict.fromkeys(read))


def _read_outside(model: Model, group: Sequence[str]) -> list[str]:
    inside = set(group)
    taken = {name for node in model if node.name not in inside for name in node.inputs}
    taken.add(model.output.name)
    return [name for name in group if name in taken]

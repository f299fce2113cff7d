from __future__ import annotations

import dataclasses

import pytest

from pydlbench.crosscheck.pieces import groups, pieces
from pydlbench.crosscheck.replay import sequence
from pydlbench.models.builder import Builder
from pydlbench.models.counts import parameters
from pydlbench.models.graph import Optimizer

MB = 1 << 20


@pytest.fixture
def model():
    made = Builder("chain", 1, (3, 8, 8))
    made.conv("conv1", 4, 3, 1, 1)
    made.relu("relu1")
    made.conv("conv2", 4, 3, 1, 1)
    made.flatten()
    made.linear("fc", 5)
    return made.model(title="a chain", source="this test")


def conv(*, saves=True, size=MB, gradients=1, parameters=2):
    """One output, a scratch block each way; new gradients."""
    blocks = [[2 + number, size] for number in range(gradients + parameters)]
    references = [["block", 2 + number] for number in range(gradients + parameters)]
    return {
        "forward": [[0, size], [1, 100], [1, -100]],
        "outputs": [["block", 0]],
        "saved": [["in", 0]] if saves else [],
        "backward": blocks,
        "input_gradients": references[:gradients] or [None],
        "parameter_gradients": references[gradients:],
    }


def in_place():
    """What a ReLU does that works in place: it saves its output, and makes a gradient."""
    return {
        "forward": [],
        "outputs": [["in", 0]],
        "saved": [["in", 0]],
        "backward": [[0, MB]],
        "input_gradients": [["block", 0]],
        "parameter_gradients": [],
    }


def view():
    return {
        "forward": [],
        "outputs": [["in", 0]],
        "saved": [],
        "backward": [],
        "input_gradients": [["gradient", 0]],
        "parameter_gradients": [],
    }


LOSS = {
    "forward": [[0, 16]],
    "outputs": [["block", 0]],
    "saved": [],
    "backward": [[1, 64], [0, -16]],
    "input_gradients": [["block", 1]],
    "parameter_gradients": [],
}
UPDATE = {"forward": [[0, 32], [0, -32]], "outputs": [], "saved": [], "backward": []}


def made(model, phase, traces):
    found = pieces(model, phase, "torch", "eager")
    return sequence(model, groups(model, "training", "torch", "eager"), found, traces)


def traces(model):
    found = {"conv1": conv(gradients=0), "relu1": in_place(), "conv2": conv(), "fc": conv(size=64)}
    flat = next(node.name for node in model if node.op == "flatten")
    return {**found, flat: view(), "loss": LOSS, "optimizer": UPDATE}


def peak(events):
    live, most, sizes = 0, 0, {}
    for slot, size in events:
        if size:
            sizes[slot] = size
            live += size
        else:
            live -= sizes.pop(slot, 0)
        most = max(most, live)
    return most, sizes


def test_forward_frees_each_output_after_its_last_reader(model):
    forward = {name: {**one, "saved": []} for name, one in traces(model).items()}
    events = made(model, "forward", forward)
    most, left = peak(events)
    assert left == {}
    assert most == 2 * MB + 100  # conv2's two sides and its scratch
    assert sum(size for _, size in events) == 2 * MB + 64 + 300


def test_training_keeps_what_is_saved_and_frees_it_on_the_way_back(model):
    events = made(model, "training", traces(model))
    _, left = peak(events)
    gradients = [slot for slot, size in left.items()]
    assert len(gradients) == 6  # weights and biases of three layers
    assert sorted(events[: len(gradients)]) == sorted((slot, 0) for slot in gradients)
    # While conv2 goes back: relu1's map, conv2's gradient that came in, and three new ones.
    assert peak(events)[0] >= 5 * MB


def test_played_twice_nothing_accumulates(model):
    events = made(model, "training", traces(model))
    _, once = peak(events)
    _, twice = peak(events + events)
    assert once == twice


def test_nothing_is_freed_twice(model):
    live = set()
    events = made(model, "training", traces(model))
    for slot, size in events[6:] + events:
        if size:
            assert slot not in live
            live.add(slot)
        else:
            assert slot in live
            live.discard(slot)


def test_gradients_that_meet_are_summed_in_place_or_not():
    made_ = Builder("fork", 1, (4, 8, 8))
    made_.conv("stem", 4, 3, 1, 1)
    made_.conv("left", 4, 3, 1, 1, after="stem")
    made_.conv("right", 4, 3, 1, 1, after="stem")
    made_.add("both", "left", "right")
    model = made_.model(title="a fork", source="this test")
    add = {
        "forward": [],
        "outputs": [["in", 0]],
        "saved": [],
        "backward": [],
        "input_gradients": [["gradient", 0], ["gradient", 0]],
        "parameter_gradients": [],
    }
    traces = {"stem": conv(gradients=0), "left": conv(), "both": add, "loss": LOSS}
    traces["optimizer"] = UPDATE
    found = pieces(model, "training", "torch", "eager")
    events = sequence(model, groups(model, "training", "torch", "eager"), found, traces)
    _, left = peak(events)
    assert len(left) == 6


def test_what_the_optimizer_keeps_is_allocated_once(model):
    momentum = dataclasses.replace(model, optimizer=Optimizer(kind="momentum"))
    plain, kept = (made(one, "training", traces(one)) for one in (model, momentum))
    more = kept[len(plain) :]
    assert kept[: len(plain)] == plain
    assert sum(size for _, size in more) == 4 * parameters(model)
    slots = {slot for slot, _ in more}
    assert all(size > 0 for slot, size in kept if slot in slots)

"""The replay of a step's allocations, which tells what a page fault costs."""

from __future__ import annotations

import pytest

from pydlbench.ladder.operators import StepOperator, blocks
from pydlbench.steps.operators import Lifetimes, Replay, lifetimes, replay
from pydlbench.timing.chunk import Request
from pydlbench.workers.environment import FRESH_FROM, FRESH_PAGES

MB = 1 << 20
FOUND = (
    StepOperator(name="conv", kind="layer", nodes=("conv",), count=2),
    StepOperator(name="relu", kind="pointwise", nodes=("relu",)),
    StepOperator(name="conv/gradient-sum", kind="gradient sum", nodes=("conv",)),
)


def test_a_part_allocates_its_blocks_as_often_as_it_occurs():
    traces = {"conv": [4 * MB, 3 * MB], "relu": [2 * MB]}
    assert blocks(FOUND, traces) == [4 * MB, 3 * MB, 4 * MB, 3 * MB, 2 * MB]


def test_blocks_whose_pages_the_allocator_keeps_are_left_out():
    traces = {"conv": [FRESH_FROM - 1], "relu": [FRESH_FROM]}
    assert blocks(FOUND, traces) == [FRESH_FROM]
    assert FRESH_PAGES["GLIBC_TUNABLES"].endswith(f"={FRESH_FROM}")


def test_a_step_of_small_blocks_has_a_cost_of_faults_all_the_same():
    assert blocks(FOUND, {"conv": [64]}) == [MB]
    assert blocks(FOUND, {}) == [MB]


class Memory:
    """Stands for the C library's allocator; says what is held."""

    def __init__(self, played):
        self.played, self.sizes, self.most = played, {}, 0
        self.allocate, self.free = played._allocate, played._free
        played._allocate, played._free = self.take, self.give

    def take(self, place, alignment, size):
        code = self.allocate(place, alignment, size)
        self.sizes[place._obj.value] = size
        self.most = max(self.most, sum(self.sizes.values()))
        return code

    def give(self, address):
        del self.sizes[address]
        self.free(address)


@pytest.mark.parametrize("live", [0, 2 * MB, 5 * MB])
def test_blocks_are_held_up_to_a_limit_and_nothing_accumulates(live):
    sizes = [MB, 2 * MB, MB // 2, 3 * MB]
    played = Replay(sizes, live, (0,))
    memory = Memory(played)
    held = []
    for _ in range(3):
        assert played.run() >= 0
        held.append(sum(memory.sizes.values()))
    assert held[1] == held[2]
    assert memory.most <= live + max(sizes) + 3 * MB  # besides: the block before, until it is freed
    assert sum(memory.sizes.values()) <= max(live, *sizes)


def test_its_kernel_says_how_many_faults_there_were():
    kernel = replay([64 * MB] * 2, 0)
    chunk = kernel.sample(Request(samples=2, untimed=1))
    assert len(chunk.seconds) == 2
    # Each block's pages are new: of more than 32 MB the C library keeps none, whatever came before.
    assert chunk.faults > 2 * 64 * MB / 4096 / 600  # huge pages have 512 times fewer


def test_a_step_s_blocks_are_played_in_its_order_and_given_back():
    large = 1 << 26  # the allocator always gives such a block back to the system
    made = Lifetimes((large, 64, -1, large, -3, 4096), cpus=(0,))
    allocate, free = made._allocate, made._free
    asked, given = [], []

    def asks(place, alignment, size):
        asked.append(size)
        return allocate(place, alignment, size)

    def gives(address):
        given.append(address)
        free(address)

    made._allocate, made._free = asks, gives
    assert made.run() > 0
    assert asked == [large, 64, large, 4096]
    # The first and third are given back within the step, the others behind it.
    assert len(given) == len(asked)
    assert lifetimes((large, -1)).sample(Request(samples=2)).faults > 16

"""A step's blocks played again, which tells what its page faults cost."""

from pydlbench.backends.steps.operators import Lifetimes, lifetimes
from pydlbench.timing.chunk import Request


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

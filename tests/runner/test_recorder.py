"""What waits while the store cannot be written."""

import pytest

from pydlbench.errors import StoreError
from pydlbench.runner.recorder import Waiting
from pydlbench.store.entry import Entry


class Refusing:
    """A store that refuses everything until it is mended."""

    def __init__(self):
        self.kept, self.broken = [], True

    def add(self, _run, entry):
        if self.broken:
            raise StoreError("no space left on the device")
        self.kept.append((entry.key, entry.document))


def test_of_a_row_that_waits_the_newest_is_kept_once():
    waiting, store = Waiting(), Refusing()
    for visit in range(6):
        for key in ("conv1", "conv2", None):
            waiting.put(Entry("layer", {"visits": visit}, key=key))
        with pytest.raises(StoreError):
            waiting.write(store, "run")
    assert (len(waiting), waiting.written) == (2 + 6, 0)  # what has no key is nobody's successor
    store.broken = False
    waiting.write(store, "run")
    assert (len(waiting), waiting.written) == (0, 8)
    kept = [(key, document["visits"]) for key, document in store.kept]
    assert [one for one in kept if one[0]] == [("conv1", 5), ("conv2", 5)]

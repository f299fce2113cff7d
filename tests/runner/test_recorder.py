"""What waits while the store cannot be written."""

from pydlbench.errors import StoreError
from pydlbench.runner.recorder import RowRecorder


class Refusing:
    """A store that refuses all entries until it is mended."""

    def __init__(self):
        self.kept, self.broken = [], True

    def begin(self, run, kind, *, request=None):
        pass

    def add(self, _run, entry):
        if self.broken:
            raise StoreError("no space left on the device")
        self.kept.append((entry.key, entry.document["visits"]))


def test_of_a_row_that_waits_the_newest_is_kept_once(run_record):
    store = Refusing()
    recorder = RowRecorder(store, "layers")
    recorder.start(run_record)
    for visit in range(6):
        for key in ("conv1", "conv2", None):
            recorder.add("layer", {"visits": visit}, key=key)
    assert store.kept == []
    store.broken = False
    recorder.add("layer", {"visits": 6}, key="conv2")
    # What has no key is nobody's successor.
    assert store.kept[:2] == [("conv1", 5), ("conv2", 6)]
    assert store.kept[2:] == [(None, visit) for visit in range(6)]
    recorder.add("layer", {"visits": 7}, key="conv1")
    assert store.kept[8:] == [("conv1", 7)]

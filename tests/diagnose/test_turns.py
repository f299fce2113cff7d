"""Two kernels in turn, and what the second one takes beside the first."""

import pytest

from pydlbench.diagnose.ablation import StepChange, how_compared, in_turn, saving_of
from pydlbench.errors import WorkerError
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.policy import Policy


class Kernel:
    """Takes so long; every so many chunks other work disturbs it and makes it slower."""

    def __init__(self, seconds, every=0, dies_at=0):
        self.seconds, self.every, self.dies_at, self.count = seconds, every, dies_at, 0

    def sample(self, request):
        self.count += 1
        if self.count == self.dies_at:
            raise WorkerError("killed by SIGKILL")
        disturbed = self.every > 0 and self.count % self.every == 0
        seconds = self.seconds * (5 if disturbed else 1)
        return Chunk(
            seconds=(seconds,) * request.samples,
            wall_s=seconds * request.samples,
            disturbance="invented work" if disturbed else None,
        )


def compare(own, changed):
    return in_turn([own, changed], [Policy(budget_s=0.1)] * 2, 1)


def test_ratio_and_base():
    ratio, base = compare(Kernel(0.5), Kernel(0.4))
    assert ratio.median == pytest.approx(0.8)
    assert ratio.rounds == 9
    assert (base, ratio.contended) == (pytest.approx(0.5), False)


def test_of_twice_as_many_images_times_are_compared_per_image():
    ratio, base = compare(Kernel(0.5), Kernel(0.8))
    saving = saving_of(ratio, base, base, "step", "in turn", images=2)
    assert saving.seconds == pytest.approx(0.1)
    assert (saving.low, saving.high) == pytest.approx((0.1, 0.1))
    words = how_compared("the whole step", StepChange(what="more", images=2), ratio, base, 4)
    assert "500 ms as it is, 400 ms with more, per 4 images" in words


def test_few_disturbed_rounds_do_not_move_it():
    ratio, base = compare(Kernel(0.5, every=5), Kernel(0.4, every=6))
    assert ratio.median == pytest.approx(0.8)
    assert (base, ratio.contended) == (pytest.approx(0.5), False)


def test_where_most_rounds_were_disturbed_there_is_no_finding():
    ratio, base = compare(Kernel(0.5, every=1), Kernel(0.4))
    saving = saving_of(ratio, base, base, "step", "in turn")
    assert saving.low > 0
    assert not saving.real
    assert saving.otherwise == "other work disturbed it: invented work"


def test_whoever_dies_ends_it():
    with pytest.raises(WorkerError, match="SIGKILL"):
        compare(Kernel(0.5), Kernel(0.4, dies_at=4))

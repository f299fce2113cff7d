"""Two kernels in turn: disturbed rounds are left out, and made up for."""

import pytest

from pydlbench.diagnose.ablation import LEAST, in_turn, with_rounds
from pydlbench.errors import PrimitiveError
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.policy import Policy


class Kernel:
    """Takes so long; every so many chunks other work disturbs it and makes it slower."""

    def __init__(self, seconds, every=0):
        self.seconds, self.every, self.count = seconds, every, 0

    def sample(self, request):
        self.count += 1
        disturbed = self.every > 0 and self.count % self.every == 0
        seconds = self.seconds * (5 if disturbed else 1)
        return Chunk(
            seconds=(seconds,) * request.samples,
            wall_s=seconds * request.samples,
            disturbance="invented work" if disturbed else None,
        )


def compare(own, changed, images=1):
    policies = [with_rounds(Policy(budget_s=0.1), LEAST)] * 2
    return in_turn([own, changed], policies, 1, images)


def test_ratio_and_base():
    ratio, base, warning = compare(Kernel(0.5), Kernel(0.4))
    assert ratio.median == pytest.approx(0.8)
    assert ratio.n >= LEAST
    assert (base, warning) == (pytest.approx(0.5), "")
    twice, _, _ = compare(Kernel(0.5), Kernel(0.8), images=2)
    assert twice.median == pytest.approx(0.8)


def test_disturbed_rounds_are_made_up_for():
    ratio, base, _ = compare(Kernel(0.5, every=3), Kernel(0.4, every=4))
    assert ratio.n >= LEAST
    assert ratio.interval is not None
    assert ratio.median == pytest.approx(0.8)
    assert base == pytest.approx(0.5)


def test_without_a_quiet_round_there_is_a_warning_or_no_result():
    try:
        _, _, warning = compare(Kernel(0.5, every=1), Kernel(0.4, every=1))
    except PrimitiveError as error:
        warning = str(error)
    assert "other work disturbed" in warning

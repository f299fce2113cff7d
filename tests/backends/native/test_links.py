"""Which tensors each kernel of a step works on."""

from collections import Counter

import pytest
import tiny

from pydlbench.backends.native.links import list_step
from pydlbench.backends.native.listing import problem_text
from pydlbench.errors import UnsupportedError
from pydlbench.models import build_model
from pydlbench.models.builder import Builder
from pydlbench.models.passes import step_passes


def fork():
    """An output that three nodes read, one of them twice."""
    made = Builder("fork", 2, (3, 6, 6))
    stem = made.conv("stem", 4, 3, 1, 1)
    left = made.conv("left", 4, 1, after=stem)
    twice = made.add("twice", left, left)
    made.add("sum", twice, stem)
    made.concat("joined", ["sum", stem])
    made.flatten()
    made.linear("fc", 3)
    return made.model(title="fork", source="this test")


@pytest.mark.parametrize("phase", ["forward", "forward-backward", "training"])
@pytest.mark.parametrize("model", [tiny.chain(), fork(), tiny.maps("sum")], ids=lambda m: m.name)
def test_a_step_has_the_kernels_of_the_native_sum_and_reads_nothing_before_it_is_there(
    model, phase
):
    listing = list_step(model, phase)

    def problems(items):
        return Counter(problem_text(item.layer, item.pass_, item.propagation) for item in items)

    works = [link.step_pass for link in listing.links]
    assert problems(works) == problems(step_passes(model, phase))
    held = set(listing.given)
    made: set[str] = set()
    for link in listing.links:
        one = link.step_pass
        asked = one.layer.reads(one.pass_, one.propagation)
        missing = {link.reads[role] for role in asked} - held - made
        assert not missing, (link.name, missing)
        made |= set(link.writes.values())
    assert listing.output in made
    assert set(listing.gradients.values()) <= made


def test_gradients_of_all_readers_are_added_up():
    links = list_step(fork(), "forward-backward").links

    sums = [link for link in links if link.name == "stem/biased/gradient-sum forward"]
    assert len(sums) == 2
    added = {name for link in sums for name in link.reads.values()}
    # A concatenation sends each source its part; an addition sends on what it has received.
    assert {"left/src/gradient", "joined/src2/gradient", "joined/src/gradient"} <= added
    # What is read twice by one node gets the same gradient twice.
    (twice,) = [link for link in links if link.name == "left/biased/gradient-sum forward"]
    assert twice.reads["src"] == twice.reads["src2"]


def test_nodes_that_move_nothing_are_other_names():
    listing = list_step(tiny.chain(), "forward")

    by_name = {link.name: link for link in listing.links}
    assert by_name["fc1 forward"].reads["src"] == "pool2"
    assert by_name["fc2 forward"].reads["src"] == "fc1/relu"


def test_without_dropout_all_is_kept():
    (link,) = [
        one
        for one in list_step(tiny.chain(), "forward-backward", dropout=False).links
        if one.name == "drop1 backward-data"
    ]
    assert link.step_pass.layer.keep == 1.0


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (tiny.branches(), "branches/moved: there is no native kernel of shift"),
        (build_model("unet", 1), "there is no native kernel of crop"),
    ],
    ids=["shift", "crop"],
)
def test_what_has_no_native_kernel_is_named(model, said):
    with pytest.raises(UnsupportedError, match=said):
        list_step(model, "forward")

"""Groups of calls that run as one: their boundaries, names and signatures."""

import pytest

from pydlbench.calls.groups import (
    CallGroup,
    StepCall,
    distinct_groups,
    is_feed,
    is_group,
    partition,
)


def call(operator, *reads, direction="forward", name="a"):
    return StepCall(
        signature=f"{operator}()",
        operator=operator,
        direction=direction,
        names=(name,) if name else (),
        reads=tuple(None if one is None else (one, 0) for one in reads),
        bytes=8,
    )


@pytest.mark.parametrize(
    ("sources", "layers", "sides", "groups"),
    [
        # From one layer to the next.
        ([[], [0], [1], [2]], "LpLp", "ffff", [[0, 1], [2, 3]]),
        # An addition belongs to the last layer that it depends on.
        ([[], [0], [0], [1, 2]], "LLLp", "ffff", [[0], [1], [2, 3]]),
        # What depends on no layer is where it is read first, whatever its side.
        ([[], [], [1, 0], [2]], "pLpp", "ffff", [[0, 1, 2, 3]]),
        # Sides are never joined; what follows on one side is.
        ([[], [0], [1], [2], [2]], "Lpppp", "flbbb", [[0], [1], [2, 3, 4]]),
        # Without any layer each side is one.
        ([[], [], [1]], "ppp", "fff", [[1, 2], [0]]),
    ],
)
def test_a_step_is_cut_from_one_layer_to_the_next(sources, layers, sides, groups):
    found = partition(sources, [one == "L" for one in layers], sides)
    assert sorted(found) == sorted(groups)


def test_groups_have_links_results_and_the_names_of_their_ends():
    calls = [
        call("aten.convolution", None, None, name="conv1"),
        call("aten.relu_", 0, name="relu1"),
        call("aten.convolution", 1, None, name="conv2"),
        call("aten.relu_", 2, name="relu2"),
        call("aten.threshold_backward", 3, 1, direction="backward", name="relu2"),
    ]
    first, back = distinct_groups(calls, outputs=[(3, 0), (4, 0)])
    # What comes from elsewhere is an operand, so that both groups are one.
    assert (first.operator, first.count) == ("convolution+relu_", 2)
    assert (first.names, first.direction) == (("conv1..relu1", "conv2..relu2"), "forward")
    assert first.bytes == 16
    group = CallGroup.read(first.signature)
    assert group.calls == ("aten.convolution()", "aten.relu_()")
    assert group.links == ((1, 0, 0, 0),)
    # The result of the convolution is nobody else's.
    assert group.results == ((1, 0),)
    assert (back.names, back.direction) == (("relu2",), "backward")
    assert CallGroup.read(back.signature).links == ()


def test_equal_groups_are_one_with_their_number():
    calls = []
    for number in range(3):
        calls.append(call("mm", None if not number else 2 * number - 1, name=f"fc{number}"))
        calls.append(call("relu", 2 * number, name=f"fc{number}"))
    (found,) = distinct_groups(calls, outputs=[(5, 0)])
    assert found.count == 3
    assert found.names == ("fc0", "fc1", "fc2")


def test_the_name_of_a_large_group_is_that_of_its_layer():
    free = [call("rand", name="drop"), *(call("mul", one, name="drop") for one in range(3))]
    layer = call("addmm", None, name="fc")
    use = call("mul", 4, 3, name="fc")
    (found,) = distinct_groups([*free, layer, use], outputs=[(5, 0)])
    assert found.operator == "addmm+5 more"


def test_signatures_tell_groups_calls_and_feeds_apart():
    group = CallGroup(calls=("a", "b"), links=((1, 0, 0, 0),), results=((1, 0),))
    assert CallGroup.read(group.text) == group
    assert is_group(group.text)
    assert not is_group('{"attributes":{}}')
    assert is_feed("feed nhwc 2x3x8x8")
    assert not is_feed("aten.relu(float32[1](1))")

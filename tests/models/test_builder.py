"""Padding arithmetic against brute force, and shapes against what TensorFlow and torch document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.models.graph import INPUT, Builder, Loss, pad_sides

sizes = st.integers(1, 40)
kernels = st.integers(1, 11)
strides = st.integers(1, 5)


def outputs(size: int, kernel: int, stride: int, leading: int, trailing: int) -> int:
    """Count the windows that fit, one by one."""
    starts = range(-leading, size + trailing - kernel + 1, stride)
    return len(starts)


@given(st.tuples(sizes, sizes), st.tuples(kernels, kernels), strides)
def test_same_gives_a_stride_th_of_the_input_and_pads_least(size, kernel, stride):
    top, bottom, left, right = pad_sides("SAME", size, kernel, stride)
    for one, taps, before, after in zip(size, kernel, (top, left), (bottom, right), strict=True):
        wanted = -(-one // stride)
        assert outputs(one, taps, stride, before, after) == wanted
        assert after - before in (0, 1)
        if after:
            assert outputs(one, taps, stride, before, after - 1) < wanted


@given(sizes, kernels, strides, st.integers(0, 5))
def test_rounding_up_lets_the_last_window_begin_on_an_element(size, kernel, stride, pad):
    pad = min(pad, kernel // 2)
    if size + 2 * pad < kernel:
        size = kernel
    top, bottom, left, right = pad_sides(pad, (size, size), (kernel, kernel), stride, ceil=True)
    assert (top, bottom) == (left, right)
    assert top == pad
    # All windows that begin inside, up to the first that reaches the end of the padding.
    starts = list(range(-pad, size, stride))
    reaching = [start for start in starts if start + kernel >= size + pad]
    wanted = starts.index(reaching[0]) + 1 if reaching else len(starts)
    assert outputs(size, kernel, stride, pad, bottom) == wanted


def test_explicit_paddings():
    assert pad_sides("VALID", (9, 9), (3, 3), 2) == (0, 0, 0, 0)
    assert pad_sides(2, (9, 9), (3, 3), 2) == (2, 2, 2, 2)
    assert pad_sides((0, 3), (9, 9), (1, 7), 1) == (0, 0, 3, 3)
    assert pad_sides((1, 2, 3, 4), (9, 9), (7, 7), 1) == (1, 2, 3, 4)


def test_names_of_what_follows_a_node():
    net = Builder("m", 1, (3, 8, 8))
    assert net.conv_bn("a", 4, 3, 1, 1) == "a/relu"
    b = net.conv_bn("b", 4, 3, 1, 1, activation=None)
    assert b == "b/bn"
    net.add("u/add", "a/relu", b)
    assert net.relu() == "u/relu"
    assert net.conv("c", 4, 1, activation="hardswish") == "c/hardswish"
    net.flatten()
    assert net.linear("d", 5, activation="relu") == "d/relu"
    model = net.model(title="t", source="s", loss=Loss(kind="sum"))
    assert model["u/add"].inputs == ("a/relu", "b/bn")
    assert model["a"].inputs == (INPUT,)
    assert model["c/hardswish"].inputs == ("c",)
    assert model["d/relu"].inputs == ("d",)
    assert not model["a"].bias
    assert model.classes == 0


@pytest.mark.parametrize(
    ("mistake", "node"),
    [
        (lambda net: net.linear("fc", 5), "fc"),
        (lambda net: net.global_pool("g", after=INPUT), "g"),
        (lambda net: net.add("add", INPUT, "half"), "add"),
        (lambda net: net.concat("cat", [INPUT, "half"]), "cat"),
        (lambda net: net.conv("late", 3, 1, after=net.flatten()), "flatten"),
        (lambda net: net.relu("half") and net.model(title="t", source="s"), "half"),
    ],
    ids=["not flattened", "not square", "shapes", "sides", "flattened", "twice"],
)
def test_mistakes_in_a_definition_name_the_node(mistake, node):
    net = Builder("m", 1, (3, 8, 6))
    net.conv("half", 3, 1, 2)
    with pytest.raises(ValueError, match=rf"^m/{node}: "):
        mistake(net)


def test_pools_are_what_was_asked_for():
    net = Builder("m", 2, (3, 7, 7))
    net.pool("same", 3, 2, "SAME", mode="avg", count_include_pad=True)
    net.pool("up", 3, 2, ceil=True, after=INPUT)
    net.pool("up2", 2, 2, ceil=True, after=INPUT)
    model = net.model(title="t", source="s", loss=Loss(kind="sum"))
    same = model["same"].layer
    assert (same.mode, same.count_include_pad, same.pad_before[0], same.out_size[0]) == (
        "avg",
        True,
        1,
        4,
    )
    assert model["up"].shape == (3, 3, 3)
    assert model["up2"].shape == (3, 4, 4)

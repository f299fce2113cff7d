"""Modules that repeat are one part of the tree."""

from pydlbench.models.tree import fold


def shape(parts):
    return [(part.name, part.repeats, shape(part.inner)) for part in parts]


def test_instances_of_a_class_are_one_part_at_every_level():
    items = [
        (("Net_0", f"Layer_{layer}", name), "mm", 1.0)
        for layer in range(3)
        for name in (f"Linear_{2 * layer}", f"Linear_{2 * layer + 1}", f"Norm_{layer}")
    ]
    (net,) = fold(items)
    assert shape([net]) == [
        ("Net", 1, [("Layer", 3, [("Linear", 6, []), ("Norm", 3, [])])]),
    ]
    assert [sum(each) for each in net.inner[0].instances] == [3.0, 3.0, 3.0]
    assert len(net.items) == 9


def test_numbered_modules_are_one_part_if_their_calls_are_the_same():
    calls = {0: "conv 3", 1: "conv 64", 2: "conv 64", 3: "conv 64", 5: "conv 64", 6: "pool"}
    found = fold((("features", str(number)), key, number) for number, key in calls.items())
    assert shape(found) == [("features", 1, [("0", 1, []), ("1-3,5", 4, []), ("6", 1, [])])]


def test_items_of_a_module_itself_are_apart_from_those_inside():
    (net,) = fold([(("Net_0",), "add", 1), (("Net_0", "Linear_0"), "mm", 2)])
    assert net.own == (1,)
    assert net.items == (1, 2)


def test_items_without_a_module_are_in_no_part():
    assert fold([((), "mm", 1)]) == ()


def test_names_of_any_depth_and_any_number_are_taken():
    (part,) = fold([(["layer"] * 3000, "mm", 1)])
    assert part.items == (1,)
    (part,) = fold([(("9" * 5000,), "mm", 1), (("\N{ARABIC-INDIC DIGIT THREE}",), "mm", 2)])[:1]
    assert part.items == (1,)


def test_modules_with_the_same_calls_in_another_order_are_one_part():
    calls = [("0", "a"), ("0", "b"), ("1", "b"), ("1", "a")]
    (layers,) = fold((("layers", number, name), "mm", 1.0) for number, name in calls)
    assert shape(layers.inner) == [("0-1", 2, [("a", 2, []), ("b", 2, [])])]

"""Grouping items, and summing amounts, by keys."""

from pydlbench.grouping import group_by, sum_by


def test_groups_and_their_items_keep_their_order():
    words = ["pear", "fig", "plum", "apple", "kiwi", "nut"]
    groups = group_by(words, len)
    assert list(groups) == [4, 3, 5]
    assert groups == {4: ["pear", "plum", "kiwi"], 3: ["fig", "nut"], 5: ["apple"]}


def test_amounts_are_summed_in_the_order_of_their_keys():
    sums = sum_by([("b", 1.0), ("a", 2.0), ("b", 0.5)])
    assert list(sums.items()) == [("b", 1.5), ("a", 2.0)]

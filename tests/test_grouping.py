"""Items by what they have in common."""

from pydlbench.grouping import grouped


def test_groups_and_their_items_keep_their_order():
    words = ["pear", "fig", "plum", "apple", "kiwi", "nut"]
    groups = grouped(words, len)
    assert list(groups) == [4, 3, 5]
    assert groups == {4: ["pear", "plum", "kiwi"], 3: ["fig", "nut"], 5: ["apple"]}


def test_nothing_has_no_groups():
    assert grouped([], len) == {}

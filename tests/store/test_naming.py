"""The names by which a run is found: id, tag, ``last~N``."""

import pytest

from pydlbench.errors import UsageError
from pydlbench.store.entry import Entry
from pydlbench.store.store import check_tag, short_id


@pytest.fixture
def filled(store, run_of):
    for number, name in enumerate(("20300101-aaaa1111", "20300102-aaab2222", "20300102-cccc3333")):
        store.begin(run_of(number, id=name), "layers")
    store.tag("20300101-aaaa1111", "base")
    store.tag("20300102-aaab2222", "base")
    return store


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("20300101-aaaa1111", "20300101-aaaa1111"),
        ("20300101", "20300101-aaaa1111"),
        ("aaab", "20300102-aaab2222"),
        ("c", "20300102-cccc3333"),
        ("base", "20300102-aaab2222"),
        ("last", "20300102-cccc3333"),
        ("last~2", "20300101-aaaa1111"),
    ],
)
def test_runs_are_found(filled, text, name):
    assert filled.find(text).id == name


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("aaa", "20300102-aaab2222, 20300101-aaaa1111"),
        ("last~3", "last~2"),
        ("bsae", "base"),
        ("20300102-cccc3334", "20300102-cccc3333"),
        ("", "last"),
    ],
)
def test_what_is_not_found_is_answered_with_the_nearest(filled, text, nearest):
    with pytest.raises(UsageError, match=f"^run {text or chr(39) * 2}: .*: {nearest}"):
        filled.find(text)


def test_a_clock_that_was_once_set_ahead_does_not_keep_its_run_the_last(store, run_of):
    store.begin(run_of(id="20991231-aaaa1111", created_utc="2099-12-31T00:00:00+00:00"), "layers")
    store.begin(run_of(id="20300102-bbbb2222"), "layers")
    store.vacuum()  # numbers the runs anew
    assert store.find("last").id == "20300102-bbbb2222"
    assert [info.id for info in store.runs()] == ["20300102-bbbb2222", "20991231-aaaa1111"]


@pytest.mark.parametrize("table", ["layer", "step", "breakdown"])
@pytest.mark.parametrize("status", ["done", "failed"])
def test_a_run_in_which_nothing_was_measured_is_not_the_last(store, run_of, table, status):
    for name, row in (("20300102-aaaa0000", "ok"), ("20300103-bbbb0000", "skipped")):
        store.begin(run_of(id=name), "layers")
        store.add(name, Entry(table, {"status": row}))
        store.finish(run_of(id=name), status)
    assert store.find("last").id == "20300102-aaaa0000"
    assert store.find("bbbb").id == "20300103-bbbb0000"
    with pytest.raises(UsageError, match="nearest: last~0"):
        store.find("last~1")


@pytest.mark.parametrize("status", [None, "interrupted", "done"])
def test_a_run_without_a_result_is_the_last_only_to_go_on_with_it(store, run_of, status):
    store.begin(run_of(id="20300102-aaaa0000"), "step")
    store.add("20300102-aaaa0000", Entry("step", {"status": "ok"}))
    store.begin(run_of(id="20300103-bbbb0000"), "step")
    store.add("20300103-bbbb0000", Entry("agreement", {"status": "ok"}))
    if status is not None:
        store.finish(run_of(id="20300103-bbbb0000"), status)
    assert store.find("last").id == "20300102-aaaa0000"
    resumed = "20300102-aaaa0000" if status == "done" else "20300103-bbbb0000"
    assert store.find("last", unfinished=True).id == resumed


def test_an_empty_store_says_how_to_begin(store):
    with pytest.raises(UsageError, match="pydlbench layers"):
        store.find("last")


def test_short_ids_mean_one_run():
    ids = ["20300101-aaaa1111", "20300101-aaaa1122", "20300101-bbbb1111"]
    assert short_id("20300101-aaaa1111", ids) == "aaaa111"
    assert short_id("20300101-bbbb1111", ids) == "bbbb"
    assert short_id("a-b", ["a-b", "c-b"]) == "a-b"


@pytest.mark.parametrize(
    "tag", ["", "two words", "-x", "last", "last~1", "x" * 65, "a/b", "v1.json"]
)
def test_tags_that_would_be_something_else_are_refused(tag):
    with pytest.raises(UsageError, match="nearest:"):
        check_tag(tag)


@pytest.mark.parametrize("tag", ["base", "v1.2", "üb", "host:a", "2030"])
def test_tags_are_words(tag):
    check_tag(tag)

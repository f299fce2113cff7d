import json

import msgspec
import pytest
import raw_store
from said import says

from pydlbench.cli import main
from pydlbench.cli import runs as command
from pydlbench.cli.parser import read
from pydlbench.errors import UsageError
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store


def parse(*words):
    return read(["runs", *words])[0]


@pytest.fixture
def filled(store_path, run_record, measurement):
    """A store with three runs; the second one is tagged, the third was killed."""
    with Store.open(store_path) as store:
        for number, name in enumerate(("aaaa1111", "bbbb2222", "cccc3333")):
            run = msgspec.structs.replace(
                run_record,
                id=f"20300102-{name}",
                created_utc=f"2030-01-02T03:04:0{number}+00:00",
                command=("/usr/bin/pydlbench", "layers", "--shape", "vgg16/*"),
            )
            store.begin(run, "layers")
            for row in range(number):
                store.add(
                    run.id,
                    Entry.from_document(
                        "layer", measurement(layer=f"alexnet/conv{row + 2}").to_dict()
                    ),
                )
            if number < 2:
                store.finish(run, "done")
        store.tag("20300102-bbbb2222", "base")
    raw_store.execute(
        store_path,
        "UPDATE runs SET writer = json_set(writer, '$.start', '1') WHERE writer IS NOT NULL",
    )
    return store_path


def ids(path):
    with Store.open(path, readonly=True) as store:
        return [info.id for info in store.runs()]


@pytest.mark.usefixtures("filled")
def test_the_list_has_newest_runs_first(capsys):
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    assert lines[0].split() == ["run", "when", "command", "machine", "rows", "status", "tags"]
    assert [line.split()[0] for line in lines[1:]] == [
        "20300102-cccc3333",
        "20300102-bbbb2222",
        "20300102-aaaa1111",
    ]
    assert "layers --shape 'vgg16/*'" in lines[1]
    assert lines[1].split()[-3:] == ["2", "killed", "-"]
    assert lines[2].split()[-3:] == ["1", "done", "base"]


@pytest.mark.usefixtures("filled")
def test_the_list_as_json(capsys):
    assert main(["runs", "--json", "-", "--limit", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["runs"][1] == {
        "id": "20300102-bbbb2222",
        "created_utc": "2030-01-02T03:04:01+00:00",
        "kind": "layers",
        "status": "done",
        "machine": "Invented 9000",
        "measurements": 1,
        "tags": ["base"],
        "command": ["/usr/bin/pydlbench", "layers", "--shape", "vgg16/*"],
    }
    assert len(document["runs"]) == 2


@pytest.mark.usefixtures("filled")
def test_the_list_by_tag(capsys):
    assert main(["runs", "--tag", "base"]) == 0
    headline, following, _, _, *rows = capsys.readouterr().out.splitlines()
    assert says(headline, "1 run", "done", "layers --shape")
    assert following == f"next: pydlbench runs show {rows[0].split()[0]}"
    assert len(rows) == 1
    assert main(["runs", "--tag", "bsae"]) == 2
    assert says(capsys.readouterr().err, "--tag bsae", "nearest: base")


def test_without_any_run_it_says_how_to_begin(store_path, capsys):
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert says(err, "pydlbench layers")
    assert main(["runs", "--json", "-", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "runs": []}
    assert not store_path.exists()  # reading makes no file


@pytest.mark.usefixtures("filled")
def test_layers_are_shown_as_they_were_printed(capsys):
    assert main(["runs", "show", "last"]) == 0
    out = capsys.readouterr().out
    assert says(out, "20300102-cccc3333", "2030-01-02T03:04:02+00:00", "killed")
    assert "\npydlbench layers --shape 'vgg16/*'\n" in out
    assert says(out, "alexnet", "2 layers")
    assert "\nconv2 " in out
    assert "\nconv3 " in out
    assert main(["runs", "show", "base"]) == 0
    assert "tags base" in capsys.readouterr().out
    assert main(["runs", "show", "aaaa"]) == 0
    out, err = capsys.readouterr()
    assert says(out, "20300102-aaaa1111", "done")
    assert err.count("\n") == 1


def test_an_interrupted_model_shows_the_kernels_that_were_finished(
    store_path, run_record, measurement, capsys
):
    with Store.open(store_path) as store:
        store.begin(run_record, "estimate")
        store.add(
            run_record.id,
            Entry.from_document("layer", measurement(layer="alexnet/conv3").to_dict()),
        )
        store.finish(run_record, "interrupted")
    assert main(["runs", "show", "last"]) == 0
    assert "alexnet/conv3" in capsys.readouterr().out


@pytest.mark.usefixtures("filled")
def test_tags_are_given_and_taken(capsys):
    assert main(["runs", "tag", "aaaa", "first"]) == 0
    assert says(capsys.readouterr().err, "20300102-aaaa1111", "first")
    assert main(["runs", "untag", "first", "first"]) == 0
    assert not says(capsys.readouterr().err, "20300102-aaaa1111", "first")
    assert main(["runs", "tag", "aaaa", "two words"]) == 2
    assert "nearest: two-words" in capsys.readouterr().err


def test_runs_are_deleted_with_yes_or_after_asking(filled, capsys):
    assert main(["runs", "delete", "aaaa"]) == 2
    assert says(capsys.readouterr().err, "20300102-aaaa1111", "--yes")
    assert len(ids(filled)) == 3
    asked = []

    def answer(text):
        def ask(question):
            asked.append(question)
            return text

        return ask

    assert command.delete_runs(parse("delete", "aaaa"), answer("")) == 1
    assert "20300102-aaaa1111" in capsys.readouterr().err  # it is shown what would go
    assert len(ids(filled)) == 3
    assert command.delete_runs(parse("delete", "aaaa", "last"), answer("y")) == 0
    assert ids(filled) == ["20300102-bbbb2222"]
    assert len(asked) == 2
    assert main(["runs", "delete", "base", "bbbb", "--yes"]) == 0
    assert ids(filled) == []


def test_nothing_is_deleted_if_one_of_several_is_not_there(filled):
    with pytest.raises(UsageError, match="zzzz"):
        command.delete_runs(parse("delete", "aaaa", "zzzz", "--yes"))
    assert len(ids(filled)) == 3


def test_a_run_that_is_being_written_is_not_deleted(store_path, run_record):
    with Store.open(store_path) as store:
        store.begin(run_record, "layers")
    with pytest.raises(UsageError, match=run_record.id):
        command.delete_runs(parse("delete", "last", "--yes"))


def test_a_run_of_a_process_that_cannot_be_seen_is_ended_by_hand(store_path, run_record, capsys):
    with Store.open(store_path) as store:
        store.begin(run_record, "layers")
    raw_store.execute(store_path, "UPDATE runs SET writer = json_set(writer, '$.host', 'other')")
    assert main(["runs", "delete", "last", "--yes"]) == 2
    assert f"pydlbench runs end {run_record.id}" in capsys.readouterr().err
    assert main(["runs", "end", "last"]) == 0
    assert says(capsys.readouterr().err, run_record.id, "interrupted")
    assert main(["runs", "end", "last"]) == 2
    assert says(capsys.readouterr().err, "interrupted")
    assert main(["runs", "delete", "last", "--yes"]) == 0
    assert ids(store_path) == []


@pytest.mark.usefixtures("filled")
def test_room_is_given_back(capsys):
    assert main(["runs", "vacuum"]) == 0
    assert "bytes before" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["tag last x", "end last", "delete last --yes"])
def test_an_empty_file_is_not_made_a_store_for_a_run_that_is_not_there(words, store_path):
    store_path.touch()
    assert main(["runs", *words.split()]) == 2
    assert store_path.stat().st_size == 0

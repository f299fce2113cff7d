import pytest

from pydlbench import errors


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.UsageError, ValueError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.PrimitiveError, RuntimeError),
        (errors.InsufficientMemoryError, MemoryError),
        (errors.ModelError, RuntimeError),
        (errors.BackendMissingError, ImportError),
        (errors.WorkerError, RuntimeError),
    ],
)
def test_each_error_can_be_caught_as_ours_and_as_a_builtin(kind, builtin):
    for caught in (errors.PydlbenchError, builtin):
        with pytest.raises(caught, match=r"^what and why$"):
            raise kind("what and why")


def test_nearest_is_what_looks_alike_best_first():
    names = ("conv1", "conv3", "conv3_3", "fc6", "pool5")
    assert errors.nearest("conv33", names) == ["conv3_3", "conv3", "conv1"]
    assert errors.nearest("conv33", names, count=1) == ["conv3_3"]


def test_nearest_does_not_mind_case_and_returns_the_choices_spelling():
    assert errors.nearest("FP32", ("fp32", "bf16")) == ["fp32"]
    assert errors.nearest("l1", ("L1", "L2")) == ["L1", "L2"]


def test_nearest_goes_by_sound():
    assert errors.nearest("--faze", ("--feed", "--phase"))[0] == "--phase"


def test_nearest_finds_nothing_in_what_is_unlike():
    assert errors.nearest("zzz", ("conv1", "fc6")) == []
    assert errors.nearest("conv1", ()) == []


def test_a_file_that_is_not_there_has_those_beside_it(tmp_path):
    for name in ("onednn.log", "profile.json"):
        (tmp_path / name).touch()
    missing = tmp_path / "onedn.log"
    assert errors.nearest_file(missing) == f"; nearest: {tmp_path / 'onednn.log'}"
    assert errors.nearest_file(missing, ".json") == ""
    assert errors.nearest_file(tmp_path / "nowhere" / "onednn.log") == ""

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


LAYERS = ("conv1", "conv3", "conv3_3", "fc6", "pool5")


@pytest.mark.parametrize(
    ("word", "choices", "count", "similar"),
    [
        ("conv33", LAYERS, 3, ["conv3_3", "conv3", "conv1"]),
        ("conv33", LAYERS, 1, ["conv3_3"]),
        ("FP32", ("fp32", "bf16"), 3, ["fp32"]),
        ("l1", ("L1", "L2"), 3, ["L1", "L2"]),
        ("--faze", ("--feed", "--phase"), 1, ["--phase"]),  # by sound
        ("zzz", ("conv1", "fc6"), 3, []),
        ("conv1", (), 3, []),
    ],
)
def test_nearest_choices_come_best_first(word, choices, count, similar):
    assert errors.nearest(word, choices, count) == similar


def test_a_file_that_is_not_there_has_those_beside_it(tmp_path):
    for name in ("onednn.log", "profile.json"):
        (tmp_path / name).touch()
    missing = tmp_path / "onedn.log"
    assert errors.nearest_file(missing) == f"; nearest: {tmp_path / 'onednn.log'}"
    assert errors.nearest_file(missing, ".json") == ""
    assert errors.nearest_file(tmp_path / "nowhere" / "onednn.log") == ""

"""MNIST: scale, split, and folders that are not MNIST."""

from __future__ import annotations

import numpy as np
import pytest
from said import says

from pydlbench.errors import UsageError
from pydlbench.protocols.data.datasets import load, load_mnist, read_idx, scale


def test_bytes_become_half_and_half():
    scaled = scale(np.array([0, 255, 127, 128], np.uint8))
    assert scaled.dtype == np.float32
    assert scaled == pytest.approx(np.array([-0.5, 0.5, -0.5 / 255, 0.5 / 255]), abs=1e-7)


def test_the_first_training_images_are_for_validation(mnist_folder):
    lines: list[str] = []
    read = load_mnist(mnist_folder, lines.append, validation=5)
    stored = read_idx(mnist_folder / "train-images-idx3-ubyte.gz", 3)
    assert [len(part.labels) for part in (read.train, read.validation, read.test)] == [15, 5, 7]
    assert read.train.images.shape == (15, 1, 28, 28)
    np.testing.assert_array_equal(read.validation.images[:, 0], scale(stored[:5]))
    np.testing.assert_array_equal(read.train.images[:, 0], scale(stored[5:]))
    assert read.train.labels.tolist()[:6] == [5, 6, 7, 8, 9, 0]
    assert read.train.labels.dtype == np.int64
    assert not read.generated
    assert read.remark == ""
    # As the script says it while it reads.
    assert lines == [
        f"Extracting {mnist_folder}/{name}"
        for name in (
            "train-images-idx3-ubyte.gz",
            "train-labels-idx1-ubyte",
            "t10k-images-idx3-ubyte.gz",
            "t10k-labels-idx1-ubyte",
        )
    ]


def test_of_60000_images_5000_are_kept(tmp_path, idx):
    for prefix, count in (("train", 5003), ("t10k", 2)):
        (tmp_path / f"{prefix}-images.idx3-ubyte").write_bytes(idx(np.zeros((count, 28, 28))))
        (tmp_path / f"{prefix}-labels.idx1-ubyte").write_bytes(idx(np.zeros(count)))
    read = load("mnist", str(tmp_path), lambda _line: None)
    assert (len(read.validation.labels), len(read.train.labels)) == (5000, 3)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (lambda idx: ("t10k-labels-idx1-ubyte", idx(np.arange(6))), ["6 labels", "7 images"]),
        (lambda idx: ("t10k-labels-idx1-ubyte", idx(np.arange(5, 12))), ["label 11", "9"]),
        (lambda idx: ("t10k-images-idx3-ubyte", idx(np.zeros((7, 32, 32)))), ["32x32", "28x28"]),
    ],
    ids=["count", "label", "size"],
)
def test_files_that_are_not_mnists(mnist_folder, idx, change, values):
    name, content = change(idx)
    (mnist_folder / name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_mnist(mnist_folder, lambda _line: None, validation=5)
    assert says(str(caught.value), name, *values)


def test_too_few_images_for_validation(mnist_folder):
    with pytest.raises(UsageError, match=r"20 .*nearest: 21$"):
        load_mnist(mnist_folder, lambda _line: None, validation=20)


@pytest.mark.parametrize(
    ("folder", "value"), [("", "t10k-labels"), ("a/b", "nearest: {}"), ("~nobody-here/x", "x")]
)
def test_a_missing_file_or_folder_is_named(mnist_folder, folder, value):
    (mnist_folder / "t10k-labels-idx1-ubyte").unlink()
    given = folder if folder.startswith("~") else str(mnist_folder / folder)
    with pytest.raises(UsageError, match=f"^--data .*{value.format(mnist_folder)}"):
        load("mnist", given, lambda _line: None)

"""MNIST: scale, split, and folders that are not MNIST."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pydlbench.errors import UsageError
from pydlbench.protocols.data.datasets import load, load_mnist, read_idx, scale

if TYPE_CHECKING:
    from pathlib import Path


def test_bytes_become_half_and_half():
    scaled = scale(np.array([0, 255, 127, 128], np.uint8))
    assert scaled.dtype == np.float32
    assert scaled == pytest.approx(np.array([-0.5, 0.5, -0.5 / 255, 0.5 / 255]), abs=1e-7)


def test_the_first_training_images_are_for_validation(mnist_folder):
    lines: list[str] = []
    found = load_mnist(mnist_folder, lines.append, validation=5)
    stored = read_idx(mnist_folder / "train-images-idx3-ubyte.gz", 3)
    assert [len(part.labels) for part in (found.train, found.validation, found.test)] == [15, 5, 7]
    assert found.train.images.shape == (15, 1, 28, 28)
    np.testing.assert_array_equal(found.validation.images[:, 0], scale(stored[:5]))
    np.testing.assert_array_equal(found.train.images[:, 0], scale(stored[5:]))
    assert found.train.labels.tolist()[:6] == [5, 6, 7, 8, 9, 0]
    assert found.train.labels.dtype == np.int64
    assert not found.generated
    assert found.remark == ""
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
    found = load("mnist", str(tmp_path), lambda _line: None)
    assert (len(found.validation.labels), len(found.train.labels)) == (5000, 3)


def refusal(folder: Path, validation: int = 5) -> str:
    with pytest.raises(UsageError) as caught:
        load_mnist(folder, lambda _line: None, validation=validation)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refusals(mnist_folder, idx):
    assert "20 training images, of which 20 would be for validation; nearest: 21" in refusal(
        mnist_folder, validation=20
    )
    labels = mnist_folder / "t10k-labels-idx1-ubyte"
    labels.write_bytes(idx(np.arange(6)))
    assert "6 labels for 7 images of t10k-images-idx3-ubyte.gz" in refusal(mnist_folder)
    labels.write_bytes(idx(np.arange(5, 12)))
    assert "label 11; nearest: 9" in refusal(mnist_folder)
    (mnist_folder / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((7, 32, 32))))
    assert "images of 32x32; nearest: MNIST's 28x28" in refusal(mnist_folder)
    labels.unlink()
    assert (
        "no t10k-labels-idx1-ubyte there, compressed or not; nearest: leave --data out"
        in refusal(mnist_folder)
    )


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=re.escape(f"no such directory; nearest: {tmp_path}")):
        load("mnist", str(tmp_path / "a" / "b"), lambda _line: None)


def test_the_home_of_nobody_is_a_folder_that_is_not_there():
    with pytest.raises(UsageError, match="--data ~nobody-here/x: no such directory"):
        load("mnist", "~nobody-here/x", lambda _line: None)

"""CIFAR-10: files, folder, archive, and what is wrong with them."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from said import says

from pydlbench.errors import UsageError
from pydlbench.protocols.data.datasets import decode, load, load_cifar10, standardized_crops

if TYPE_CHECKING:
    from pathlib import Path

Contents = dict[str, bytes]


def write(folder: Path, contents: Contents) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def pack(archive: Path, contents: Contents) -> None:
    with tarfile.open(archive, "w:gz") as opened:
        for name, content in {**contents, "readme.html": b"x"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("place", ["here", "subfolder", "archive"])
def test_all_three_forms(tmp_path, cifar10_contents, place):
    if place == "archive":
        pack(tmp_path / "cifar-10-binary.tar.gz", cifar10_contents)
    else:
        write(tmp_path / ("cifar-10-batches-bin" * (place == "subfolder")), cifar10_contents)
    read = load("cifar10", str(tmp_path), lambda _line: None)
    assert read.train.images.shape == (10, 3, 24, 24)
    # Planes in the order red, green, blue: each image's are a shade apart.
    shades = np.broadcast_to(np.array([-(1.5**0.5), 0, 1.5**0.5])[:, None, None], (3, 24, 24))
    np.testing.assert_allclose(read.train.images[2], shades, rtol=1e-5)
    # Batches 1 to 5 in order.
    assert read.train.labels.tolist() == [0, 1] * 5
    assert read.test.labels.tolist() == [0, 1, 2]
    assert read.validation.images.shape == (0, 3, 24, 24)
    assert not (tmp_path / "readme.html").exists()


def test_rows_are_rows(cifar10_contents):
    plane = bytes(range(32)) * 32  # each pixel is its column
    images, labels = decode(b"\x07" + plane * 3, "x.bin")
    assert images[0, 1, 5].tolist() == list(range(32))
    assert set(images[0, 2, :, 5].tolist()) == {5}
    assert labels.tolist() == [7]
    assert len(cifar10_contents) == 6


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (bytes(2 * 3073 - 1), ["data_batch_3.bin", "6145", "3073"]),
        (b"", ["data_batch_3.bin", "0 bytes"]),
        (bytes(3073) + b"\x0a" + bytes(3072), ["data_batch_3.bin", "10", "record 1", "9"]),
        (None, ["data_batch_3.bin", "No such file"]),
    ],
    ids=["partial", "empty", "label", "missing"],
)
def test_damaged_files(tmp_path, cifar10_contents, content, values):
    write(tmp_path, cifar10_contents)
    third = tmp_path / "data_batch_3.bin"
    third.unlink() if content is None else third.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_cifar10(tmp_path)
    assert says(str(caught.value), *values)


def elsewhere(archive: Path) -> None:
    """Write an archive whose file is a link to another one."""
    (archive.parent / "secret").write_bytes(bytes(3073))
    with tarfile.open(archive, "w:gz") as opened:
        member = tarfile.TarInfo("test_batch.bin")
        member.type, member.linkname = tarfile.SYMTYPE, str(archive.parent / "secret")
        opened.addfile(member)


@pytest.mark.parametrize(
    ("damage", "value"),
    [
        (lambda archive: archive.write_bytes(archive.read_bytes()[:-2000]), "unpacked"),
        (lambda archive: archive.write_bytes(b"no archive"), "unpacked"),
        (lambda archive: pack(archive, {"test_batch.bin": bytes(3073)}), "data_batch_1.bin"),
        (elsewhere, "test_batch.bin"),
        (lambda archive: archive.unlink(), "cifar-10-binary.tar.gz"),
    ],
    ids=["cut", "no archive", "incomplete", "link", "missing"],
)
def test_damaged_archives(tmp_path, cifar10_contents, damage, value):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    pack(archive, cifar10_contents)
    damage(archive)
    with pytest.raises(UsageError, match=rf"{value}.*nearest: "):
        load_cifar10(tmp_path)


def test_crops_are_the_middles_standardised(monkeypatch):
    monkeypatch.setattr("pydlbench.protocols.data.datasets._CHUNK_IMAGES", 4)
    images = np.random.default_rng(3).integers(256, size=(6, 3, 32, 32), dtype=np.uint8)
    crops = standardized_crops(images)
    middles = images[:, :, 4:28, 4:28].astype(np.float64)
    for crop, middle in zip(crops, middles, strict=True):
        np.testing.assert_allclose(crop, (middle - middle.mean()) / middle.std(), atol=1e-5)


def test_an_image_of_one_colour_becomes_zero_and_faint_ones_stay_faint():
    flat = np.full((1, 3, 32, 32), 7, np.uint8)
    np.testing.assert_array_equal(standardized_crops(flat), np.zeros((1, 3, 24, 24), np.float32))
    # One pixel of 1728 that is a shade brighter: a deviation of 1 / sqrt(1728) is the least.
    flat[0, 0, 16, 16] = 8
    faint = standardized_crops(flat)
    assert faint.max() == pytest.approx((1 - 1 / 1728) * 1728**0.5, rel=1e-5)

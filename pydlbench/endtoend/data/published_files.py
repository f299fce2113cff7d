"""The files of MNIST and CIFAR-10 as their authors published them: names, sizes, checksums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["FILES", "PublishedFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file that can be downloaded.

    Attributes:
        name: below the base URL and in the data folder.
        size: bytes.
        sha256: in hexadecimal.
    """

    name: str
    size: int
    sha256: str


#: By data set. The sizes are those that the tutorials print after a download.
FILES: Final[dict[str, tuple[PublishedFile, ...]]] = {
    "mnist": (
        PublishedFile(
            name="train-images-idx3-ubyte.gz",
            size=9_912_422,
            sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        PublishedFile(
            name="train-labels-idx1-ubyte.gz",
            size=28_881,
            sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        PublishedFile(
            name="t10k-images-idx3-ubyte.gz",
            size=1_648_877,
            sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        PublishedFile(
            name="t10k-labels-idx1-ubyte.gz",
            size=4_542,
            sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "cifar10": (
        PublishedFile(
            name="cifar-10-binary.tar.gz",
            size=170_052_171,
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
}

"""Fashion-MNIST: 70,000 grey pictures of clothes in 10 classes, divided among made-up people.

Layout of `root`: the four IDX files as published, `train-images-idx3-ubyte.gz`,
`train-labels-idx1-ubyte.gz`, `t10k-images-idx3-ubyte.gz`, `t10k-labels-idx1-ubyte.gz`.

Licence: MIT, Zalando SE; not packaged. Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image
dataset for benchmarking machine learning algorithms", arXiv:1708.07747, 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from vergence.core.federation import Dataset, Federation
from vergence.data.images.idx import IdxFiles
from vergence.data.images.partition import Dealt
from vergence.data.io.checks import Check, data_folder

FILES = IdxFiles(
    stems={"train": "train", "test": "t10k"},
    counts={"train": 60_000, "test": 10_000},
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    where="root must hold the four files of github.com/zalandoresearch/fashion-mnist "
    "(train-images-idx3-ubyte.gz and so on; Debian has them as dataset-fashion-mnist)",
)
ABOUT = {
    "licence": "MIT, Zalando SE",
    "citation": "Xiao, Rasul, Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
}


@dataclass(frozen=True)
class FashionMnist(Dealt, Dataset):
    """Pictures of clothes, divided among as many people as wanted, by default 1000.

    The options are those of `Dealt`. There can be at most 10,000 people, or 5,000 with split
    `shards`.
    """

    people: Annotated[int, Ge(1)] = 1000

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the ten kinds of clothes, in the order of their labels."""
        return FILES.classes

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the images `[n, 1, 28, 28]`, and divide them among people.

        Raises:
            DataError: a file is missing, truncated or of another kind.
            ConfigError: there are too many people for each to get images.
        """
        return self.deal(FILES.parts(data_folder(root, "fashion_mnist", FILES.where)), ABOUT)


def check(root: Path) -> list[Check]:
    """Compare a folder with Fashion-MNIST's counts; return the lines of `vergence data check`."""
    return FILES.check(root)

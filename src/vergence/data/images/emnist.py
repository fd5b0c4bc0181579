"""EMNIST: grey pictures of handwritten letters and digits, divided among made-up people.

Layout of `root`: the folder `gzip` of the published archive. It has four IDX files for each
selection of classes, such as `emnist-letters-train-images-idx3-ubyte.gz`, and the same with
`-train-labels-idx1-`, `-test-images-idx3-` and `-test-labels-idx1-`. The files store images column
by column; they are turned upright.

Licence: none stated; not packaged. Source: Cohen, Afshar, Tapson, van Schaik, "EMNIST: an extension
of MNIST to handwritten letters", arXiv:1702.05373, 2017; the numbers of images are those of the
files, not of the paper's first version.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase, digits
from typing import Literal

from vergence.core.federation import Dataset, Federation
from vergence.data.images.idx import IdxFiles
from vergence.data.images.partition import Dealt
from vergence.data.io.checks import Check, data_folder

WHERE = (
    "root must hold the four files of a selection from the archive gzip.zip of "
    "nist.gov/itl/products-and-services/emnist-dataset (emnist-letters-train-images-idx3-ubyte.gz "
    "and so on)"
)
ABOUT = {
    "licence": "none stated",
    "citation": "Cohen, Afshar, Tapson, van Schaik, EMNIST, arXiv:1702.05373, 2017",
}


def _files(kind: str, train: int, test: int, classes: str, first: int = 0) -> IdxFiles:
    return IdxFiles(
        stems={part: f"emnist-{kind}-{part}" for part in ("train", "test")},
        counts={"train": train, "test": test},
        classes=tuple(classes),
        where=WHERE,
        first=first,
        turned=True,
    )


FILES = {
    # Labels of the letters begin at 1.
    "letters": _files("letters", 124_800, 20_800, ascii_uppercase, first=1),
    # Small letters that look like their capitals are merged with them: 47 classes.
    "balanced": _files("balanced", 112_800, 18_800, digits + ascii_uppercase + "abdefghnqrt"),
    "digits": _files("digits", 240_000, 40_000, digits),
}


@dataclass(frozen=True)
class Emnist(Dealt, Dataset):
    """Pictures of handwriting, divided among as many people as wanted.

    Attributes:
        kind: the published selection of classes. `letters`: 26 classes, capital and small letters
            together. `balanced`: 47 classes, where small letters that look like their capitals
            share a class with them. `digits`: 10 classes.

    The other options are those of `Dealt`.
    """

    kind: Literal["letters", "balanced", "digits"] = "letters"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        return FILES[self.kind].classes

    def load(self, root: str | None = None) -> Federation:
        """Read, verify and turn upright the images `[n, 1, 28, 28]`, and divide them among people.

        Raises:
            DataError: a file is missing, truncated or of another kind.
            ConfigError: there are too many people for each to get images.
        """
        return self.deal(FILES[self.kind].parts(data_folder(root, "emnist", WHERE)), ABOUT)


def check(root: Path) -> list[Check]:
    """Compare a folder with EMNIST's counts; return the lines of `vergence data check`.

    The selection `letters` must be there; other selections are checked if they are there.
    """
    there = [
        kind
        for kind, files in FILES.items()
        if kind == "letters" or any(root.glob(f"{files.stems['train']}-*"))
    ]
    return [line for kind in there for line in FILES[kind].check(root)]

"""EMNIST: grey pictures of handwritten letters and digits, dealt to made-up people.

Layout of `root`: the folder `gzip` of the published archive, four IDX files for each selection,
`emnist-letters-train-images-idx3-ubyte.gz`, `-train-labels-idx1-`, `-test-images-idx3-`,
`-test-labels-idx1-`. Images lie there by columns; they are turned upright.

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
    """Pictures of handwriting, dealt to as many people as wanted.

    Attributes:
        kind: which selection: `letters` has 26 classes, capitals and small letters as one;
            `balanced` 47, small letters that look like their capitals as one; `digits` 10.

    The other options are those of `Dealt`.
    """

    kind: Literal["letters", "balanced", "digits"] = "letters"

    @property
    def classes(self) -> tuple[str, ...]:
        """Letters or digits."""
        return FILES[self.kind].classes

    def load(self, root: str | None = None) -> Federation:
        """Read, verify, turn upright and deal images `[n, 1, 28, 28]`.

        Raises:
            DataError: a file is missing, truncated or of another kind.
            ConfigError: there are more people than can get images.
        """
        files = FILES[self.kind]
        return self.deal(files.parts(data_folder(root, "emnist", WHERE)), ABOUT)


def check(root: Path) -> list[Check]:
    """Compare every selection that is there with what it must hold; letters must be."""
    there = [
        kind
        for kind, files in FILES.items()
        if kind == "letters" or any(root.glob(f"{files.stems['train']}-*"))
    ]
    return [line for kind in there for line in FILES[kind].check(root)]

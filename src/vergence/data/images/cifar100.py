"""CIFAR-100: 60,000 colour pictures in 100 classes of 20 groups, divided among made-up people.

`root` has one of two layouts. The binary version has `train.bin` and `test.bin`, in `root` or in
its folder `cifar-100-binary`. The Python version has `train` and `test`, in `root` or in its folder
`cifar-100-python`.

Licence: none stated; not packaged. Source: Krizhevsky, "Learning multiple layers of features from
tiny images", technical report, University of Toronto, 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from vergence.core.federation import Dataset, Federation
from vergence.data.images.cifar10 import ABOUT, COUNTS
from vergence.data.images.cifar_files import Labels, part_of
from vergence.data.images.partition import Dealt, PartitionPart, check_counts
from vergence.data.io.checks import Check, data_folder
from vergence.errors import DataError

GROUPS = {
    "aquatic mammals": "beaver, dolphin, otter, seal, whale",
    "fish": "aquarium fish, flatfish, ray, shark, trout",
    "flowers": "orchid, poppy, rose, sunflower, tulip",
    "food containers": "bottle, bowl, can, cup, plate",
    "fruit and vegetables": "apple, mushroom, orange, pear, sweet pepper",
    "household electrical devices": "clock, keyboard, lamp, telephone, television",
    "household furniture": "bed, chair, couch, table, wardrobe",
    "insects": "bee, beetle, butterfly, caterpillar, cockroach",
    "large carnivores": "bear, leopard, lion, tiger, wolf",
    "large man-made outdoor things": "bridge, castle, house, road, skyscraper",
    "large natural outdoor scenes": "cloud, forest, mountain, plain, sea",
    "large omnivores and herbivores": "camel, cattle, chimpanzee, elephant, kangaroo",
    "medium-sized mammals": "fox, porcupine, possum, raccoon, skunk",
    "non-insect invertebrates": "crab, lobster, snail, spider, worm",
    "people": "baby, boy, girl, man, woman",
    "reptiles": "crocodile, dinosaur, lizard, snake, turtle",
    "small mammals": "hamster, mouse, rabbit, shrew, squirrel",
    "trees": "maple tree, oak tree, palm tree, pine tree, willow tree",
    "vehicles 1": "bicycle, bus, motorcycle, pickup truck, train",
    "vehicles 2": "lawn mower, rocket, streetcar, tank, tractor",
}
"""The 20 coarse classes in the order of their labels, each with its fine classes.

Labels of fine classes follow the alphabetical order of all 100 names.
"""
FINE = tuple(sorted(name for group in GROUPS.values() for name in group.split(", ")))
CLASSES = {"fine": FINE, "coarse": tuple(GROUPS)}
LABELS = {
    "fine": Labels(byte=1, head=2, key="fine_labels"),
    "coarse": Labels(byte=0, head=2, key="coarse_labels"),
}
FOLDERS = {".bin": "cifar-100-binary", "": "cifar-100-python"}
WHERE = "root must hold cifar-100-binary or cifar-100-python of cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class Cifar100(Dealt, Dataset):
    """Colour pictures of many things, divided among as many people as wanted.

    Attributes:
        labels: the 100 `fine` classes or the 20 `coarse` ones.

    The other options are those of `Dealt`.
    """

    labels: Literal["fine", "coarse"] = "fine"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the fine or coarse classes, in the order of their labels."""
        return CLASSES[self.labels]

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the images `[n, 3, 32, 32]`, and divide them among people.

        Raises:
            DataError: a file is missing, truncated or of another kind.
            ConfigError: there are too many people for each to get images.
        """
        read = find_reader(data_folder(root, "cifar100", WHERE), self.labels)
        return self.deal({part: read(part) for part in COUNTS}, ABOUT)


def find_reader(folder: Path, labels: str) -> Callable[[str], PartitionPart]:
    """Return a function that reads a part, "train" or "test", with fine or coarse labels.

    Raises:
        DataError: the folder has neither layout.
    """
    for suffix, name in FOLDERS.items():
        for home in (folder, folder / name):
            if (home / f"train{suffix}").is_file():
                return partial(_published, home, suffix, labels)
    raise DataError(f"{folder} holds neither version of CIFAR-100: {WHERE}")


def _published(home: Path, suffix: str, labels: str, part: str) -> PartitionPart:
    return part_of([home / f"{part}{suffix}"], LABELS[labels], len(CLASSES[labels]), WHERE)


def check(root: Path) -> list[Check]:
    """Compare a folder with CIFAR-100's counts; return the lines of `vergence data check`.

    Images with fine labels and with coarse labels are counted.
    """
    return [
        line
        for labels, classes in CLASSES.items()
        for line in check_counts(find_reader(root, labels), COUNTS, len(classes), WHERE)
    ]

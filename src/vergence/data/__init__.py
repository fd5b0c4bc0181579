"""People's recordings, imported into one gaze record and split per person."""

from typing import Any

from vergence.core.exports import exported, public_names

KIND = "Dataset"
"""The class whose descendants the package shows."""

SPELLINGS = {
    "CIFAR10": "Cifar10",
    "CIFAR100": "Cifar100",
    "CIFAR10Unseen": "Cifar10Unseen",
    "EGTEA": "Egtea",
    "EMNIST": "Emnist",
    "FashionMNIST": "FashionMnist",
    "GazeCapture": "Gazecapture",
    "GazeCom": "Gazecom",
    "MPIIFaceGaze": "Mpiifacegaze",
    "MPIIGaze": "Mpiigaze",
    "MPIIGazeCrops": "MpiigazeCrops",
    "OSIE": "Osie",
    "XLSA17": "Xlsa17",
}
"""Public names of classes that are spelled otherwise in their modules."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    return exported(__name__, name)


def __dir__() -> list[str]:
    return public_names(__name__)

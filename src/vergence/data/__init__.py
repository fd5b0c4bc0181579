"""Data sets of people's gaze, eye images, pictures and videos, split per person."""

from vergence.core.exports import lazy

KIND = "Dataset"
"""Name of the base class of what this package lists: data sets."""

SPELLINGS = {
    "CIFAR10": "Cifar10",
    "CIFAR100": "Cifar100",
    "CIFAR10Unseen": "Cifar10Unseen",
    "EGTEA": "Egtea",
    "EMNIST": "Emnist",
    "EyeCrowd": "Eyecrowd",
    "FashionMNIST": "FashionMnist",
    "GazeCapture": "Gazecapture",
    "GazeCom": "Gazecom",
    "HEVCVideo": "HevcVideo",
    "MPIIFaceGaze": "Mpiifacegaze",
    "MPIIGaze": "Mpiigaze",
    "MPIIGazeCrops": "MpiigazeCrops",
    "OSIE": "Osie",
    "PSM": "Psm",
    "XLSA17": "Xlsa17",
}
"""Public names of classes whose modules spell the same name in another way."""

__getattr__, __dir__ = lazy(__name__)

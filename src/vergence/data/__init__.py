"""People's recordings, imported into one gaze record and split per person."""

from vergence.core.exports import lazy

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

__getattr__, __dir__ = lazy(__name__)

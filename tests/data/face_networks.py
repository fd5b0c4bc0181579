"""The face networks of the installed package, and a portrait to try them on."""

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from unittest.mock import patch

import pytest

from vergence.data.eye_images.face_networks import PACKAGE, FaceNetworks, face_networks

PORTRAIT = Path(__file__).parent / "eye_images" / "astronaut.jpg"


def installed_networks(cache: Path) -> FaceNetworks:
    """Convert the networks into a cache folder; skip the test if a package is missing."""
    for module in ("tflite", "onnx", "onnxruntime"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module} (extra landmarks)")
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        pytest.skip(f"needs {PACKAGE}: docs/how-to/patches.md says how to install it")
    with patch.dict(os.environ, VERGENCE_CACHE=str(cache)):
        return face_networks()

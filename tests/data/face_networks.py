"""The face networks of the installed package, and a portrait to try them on."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from vergence.data.eye_images.face_networks import FaceNetworks, face_networks
from vergence.errors import ConfigError

PORTRAIT = Path(__file__).parent / "eye_images" / "astronaut.jpg"


def installed_networks(cache: Path) -> FaceNetworks:
    """Return the networks of a cache folder, or convert them; skip the test if they cannot be had.

    A package is missing then: `docs/how-to/patches.md` says how to install it.
    """
    with patch.dict(os.environ, VERGENCE_CACHE=str(cache)):
        try:
            return face_networks()
        except ConfigError as error:
            pytest.skip(str(error))

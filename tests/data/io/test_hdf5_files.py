"""How many bytes of arrays an HDF5 file may hold: some, and more with the file's size."""

from types import SimpleNamespace

import pytest

from vergence.data.io.hdf5_files import Hdf5Reader


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_the_budget_grows_with_the_file(size, tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(bytes(size))
    reader = Hdf5Reader(SimpleNamespace(), SimpleNamespace(), path, "")
    assert reader.byte_budget == 64 * 1024**2 + 100 * size

"""A state in a file that names one array again and again is refused, not copied each time."""

import json

import pytest
import torch

from vergence.core import serialization
from vergence.core.serialization import pack, unpack, unpack_file
from vergence.engine.storage.run_directory import load_progress
from vergence.engine.storage.state_journal import StateJournal
from vergence.errors import StateError

SIZE = 1 << 16
"""Bytes of the one array."""


def bomb(times: int, kind: str = "tensor") -> bytes:
    """A state of a list that names its one array so often."""
    tree = {"list": [{kind: "s", "layout": 0}] * times}
    said = json.dumps({"tree": tree, "layouts": [[["w"], [[8 * SIZE]]]]})
    head = {
        "__metadata__": {"vergence": said},
        "s": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]},
    }
    raw = json.dumps(head).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(SIZE)


@pytest.fixture
def little(monkeypatch):
    """What parts share is less here than a gigabyte, so that a test takes no more."""
    monkeypatch.setattr(serialization, "SHARED", 1 << 20, raising=False)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("kind", ["tensor", "bytes", "mask"])
def test_a_file_that_names_an_array_too_often_is_refused(tmp_path, kind):
    path = tmp_path / "state.safetensors"
    path.write_bytes(bomb(2000, kind))
    with pytest.raises(StateError, match="it holds more than it may"):
        unpack_file(path)


@pytest.mark.usefixtures("little")
def test_so_is_the_server_s_of_a_checkpoint(tmp_path):
    (tmp_path / "state").mkdir()
    data = bomb(2000)
    (tmp_path / "state" / "seed0.server.1.safetensors").write_bytes(data)
    journal = StateJournal(tmp_path / "state", 0).add({}, {})
    named = ["seed0.server.1.safetensors", serialization.digest(data)]
    files = {"server": named, "clients": list(journal.mark)}
    with pytest.raises(StateError, match="it holds more than it may"):
        load_progress(tmp_path, files, 1, [tuple])


def test_parts_that_share_an_array_are_read(tmp_path):
    """A model of 100 kB that a thousand clients are at work with."""
    model = torch.arange(25_000.0)
    path = tmp_path / "state.safetensors"
    path.write_bytes(pack((model,) * 1000))
    assert path.stat().st_size < 200_000
    found = unpack_file(path)
    assert len({each.data_ptr() for each in found}) == 1000
    assert all(torch.equal(each, model) for each in found)
    assert len(unpack(path.read_bytes())) == 1000

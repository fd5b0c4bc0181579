"""Private inference through SPU's processes: answers of the network, in every mode.

Needs a Python that has SPU, named by VERGENCE_SPU or lying in .venv-spu; see
docs/private_inference.md.
"""

import dataclasses
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import ROOT
from vergence.bench.mpc import CASES, Case, Subject, arithmetic, work
from vergence.errors import ConfigError, StateError
from vergence.models.lenet import LeNet
from vergence.privacy import private_inference
from vergence.privacy.parties import free_ports
from vergence.privacy.private_inference import Question, check_python, infer
from vergence.privacy.protocols import PROTOCOLS, protocol

PYTHON = Path(os.environ.get("VERGENCE_SPU", ROOT / ".venv-spu" / "bin" / "python"))
spu = pytest.mark.skipif(not PYTHON.exists(), reason="no SPU: set VERGENCE_SPU to its Python")


def small(images=2):
    torch.manual_seed(0)
    network = LeNet((2, 3)).build().eval()
    for parameter in network.parameters():
        torch.nn.init.uniform_(parameter, -0.2, 0.2)
    return Subject(network, torch.randn(images, 1, 36, 60), torch.randn(images, 2), "small")


def asked(case, batches=1, **changed):
    given = work(case, small(), batches)
    question = Question(given.parts, case.protocol, case.parties, case.public)
    return given, infer(dataclasses.replace(question, **changed), given.inputs, PYTHON)


@pytest.mark.parametrize(
    ("name", "parties", "told"),
    [
        ("aby3", 2, "aby3 takes 3 parties; got 2"),
        ("cheetah", 3, "cheetah takes 2 parties; got 3"),
        ("semi2k", 6, "semi2k takes 2 to 5 parties; got 6"),
        ("aby2", 3, r"no protocol 'aby2' \(did you mean 'aby3'\?\)"),
    ],
)
def test_a_protocol_takes_its_number_of_parties(name, parties, told):
    with pytest.raises(ConfigError, match=told):
        protocol(name, parties)


def test_dealer_protocols_say_so_and_nobody_else_does():
    assert {n for n, p in PROTOCOLS.items() if "DEALER: the first party" in p.model} == {"semi2k"}
    assert all(("malicious" if p.party else "semi-honest") in p.model for p in PROTOCOLS.values())


@pytest.mark.parametrize(
    ("python", "told"), [("/nowhere/python", "no Python at"), (sys.executable, "has no SPU")]
)
def test_without_spu_the_error_says_how_to_get_it(python, told):
    with pytest.raises(ConfigError, match=rf"{told}.*python3.11 -m venv .*/pip install -r .*"):
        check_python(Path(python))


def test_its_requirements_are_pinned():
    lines = (private_inference.HERE / "requirements.txt").read_text().split()
    assert "spu==0.9.5" in lines
    assert all("==" in line for line in lines)


def test_free_ports_differ():
    assert len(set(free_ports(5))) == 5


def test_what_runs_elsewhere_neither_pickles_nor_needs_vergence():
    for file in private_inference.HERE.glob("*.py"):
        text = file.read_text()
        assert "import vergence" not in text
        assert "from vergence" not in text
        assert "allow_pickle=True" not in text
        assert "import pickle" not in text


def test_every_case_is_allowed():
    for case in CASES.values():
        protocol(case.protocol, case.parties)


@pytest.mark.slow
@spu
@pytest.mark.parametrize(
    "changed",
    [{}, {"public": True}, {"pruned": 0.9}, {"halved": True}, {"after": "pool1"}],
    ids=lambda c: next(iter(c), "whole"),
)
def test_jax_in_clear_is_torch_and_aby3_is_near_it(changed):
    given, answer = asked(Case("aby3", 3, images=2, **changed))
    assert np.abs(answer.clear - given.wanted).max() < 1e-5
    assert np.abs(answer.values - given.wanted).max() < 1e-4
    assert np.abs(given.wanted).max() > 0.01  # an answer of zeros would not be near
    assert len(answer.sent) == len(answer.messages) == 3
    assert min(answer.sent) > 0


@pytest.mark.slow
@spu
@pytest.mark.parametrize(("name", "parties"), [("semi2k", 2), ("semi2k", 5), ("cheetah", 2)])
def test_the_other_protocols_answer_the_same(name, parties):
    given, answer = asked(Case(name, parties), batches=2)
    assert np.abs(answer.values - given.wanted).max() < 1e-4
    assert len(answer.seconds) == 2


@pytest.mark.slow
@spu
@pytest.mark.parametrize(("name", "parties"), [("aby3", 3), ("semi2k", 2), ("cheetah", 2)])
def test_100_000_random_products_are_never_far_off(name, parties):
    """Of |x|, |y| <= 4 to 22 bits, a step of truncation, 16 in float32: 2^-20 + 2^-22 + 2^-20."""
    given = arithmetic()
    answer = infer(Question(given.parts, name, parties), given.inputs, PYTHON)
    assert answer.values.size == 100_000
    assert np.abs(answer.values - given.wanted).max() < 2.25 * 2**-20 < 1e-4


@pytest.mark.slow
@spu
def test_no_party_s_folder_holds_an_image_or_a_weight_in_clear(monkeypatch, tmp_path):
    """Their shares' bytes are as even as random ones: each of 256 values, within six deviations."""
    folder = tmp_path / "job"
    folder.mkdir()

    class Kept:
        def __init__(self, **_named):
            pass

        def __enter__(self):
            return str(folder)

        def __exit__(self, *_error):
            pass

    monkeypatch.setattr(private_inference, "TemporaryDirectory", Kept)
    asked(Case("aby3", 3))
    for rank in range(3):
        place = folder / f"party{rank}"
        assert not {"weights.npz", "inputs.npz"} & {p.name for p in folder.glob(f"party{rank}*")}
        with np.load(place / "weights.npz") as shares:
            found = shares["fc1.weight/1"]
        counts = np.bincount(found, minlength=256)
        even = len(found) / 256
        assert np.abs(counts - even).max() < 6 * even**0.5


@pytest.mark.slow
@spu
def test_a_party_that_fails_ends_all_of_them(monkeypatch):
    """Here the same port twice: one cannot listen, the others are not waited for."""
    monkeypatch.setattr(private_inference, "free_ports", lambda count: free_ports(1) * count)
    with pytest.raises(StateError, match=r"party . failed"):
        asked(Case("semi2k", 2))

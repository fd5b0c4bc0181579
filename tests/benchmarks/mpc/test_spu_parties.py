"""Private inference through SPU's processes: answers of the network, in every mode.

Needs a Python that has SPU, named by VERGENCE_SPU or lying in .venv-spu; see
docs/results/private_inference.md.
"""

import ast
import dataclasses
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.bench.mpc import CASES, Case, Subject, arithmetic, work
from benchmarks.mpc import spu_parties
from benchmarks.mpc.processes import free_ports
from benchmarks.mpc.protocols import PROTOCOLS, protocol
from benchmarks.mpc.spu_parties import InferenceQuestion, check_python, infer
from tests.conftest import ROOT
from vergence.errors import ConfigError, StateError
from vergence.models.lenet import LeNet

PYTHON = Path(os.environ.get("VERGENCE_SPU", ROOT / ".venv-spu" / "bin" / "python"))
UNSAFE = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")
spu = pytest.mark.skipif(not PYTHON.exists(), reason="no SPU: set VERGENCE_SPU to its Python")


def small(images=2):
    torch.manual_seed(0)
    network = LeNet((2, 3)).build().eval()
    for parameter in network.parameters():
        torch.nn.init.uniform_(parameter, -0.2, 0.2)
    return Subject(network, torch.randn(images, 1, 36, 60), torch.randn(images, 2), "small")


def asked(case, batches=1, **changed):
    given = work(case, small(), batches)
    question = InferenceQuestion(given.parts, case.protocol, case.parties, case.public)
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
    lines = (spu_parties.HERE / "requirements.txt").read_text().split()
    assert "spu==0.9.5" in lines
    assert all("==" in line for line in lines)


def test_free_ports_differ():
    assert len(set(free_ports(5))) == 5


@pytest.mark.parametrize("folder", ["spu_scripts", "mp_spdz"])
def test_what_runs_elsewhere_neither_pickles_nor_needs_vergence(folder):
    """Whoever can put a file into a party's folder must not run code there."""
    files = [f for f in (spu_parties.HERE.parent / folder).glob("*.py") if f.stat().st_size]
    assert {f.stem for f in files} >= {"network"}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                named = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                named = {node.module or ""}
            else:
                assert not (
                    isinstance(node, ast.keyword)
                    and node.arg == "allow_pickle"
                    and ast.unparse(node.value) != "False"
                ), file
                continue
            assert not {name.split(".")[0] for name in named} & {*UNSAFE, "vergence"}, file


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
    answer = infer(InferenceQuestion(given.parts, name, parties), given.inputs, PYTHON)
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

    monkeypatch.setattr(spu_parties, "TemporaryDirectory", Kept)
    given, _ = asked(Case("aby3", 3))
    clear = [*given.parts.arrays.values(), *given.inputs.values()]
    clear = [np.ascontiguousarray(a, np.float32).tobytes()[:32] for a in clear]
    clear, counted = [part for part in clear if len(set(part)) > 8], 0
    assert len(clear) > 4
    for rank in range(3):
        place = folder / f"party{rank}"
        assert (place / "weights.npz").exists()
        assert (place / "input0.npz").exists()
        for path in (path for path in place.rglob("*") if path.is_file()):
            data = path.read_bytes()  # numpy's archives are not compressed
            assert not any(part in data for part in clear), path.name
            counted += even(path) if path.suffix == ".npz" else 0
    assert counted >= 3 * 4  # weights of two layers, and images, of every party


def even(path):
    """Check that shares of an archive are as even as random bytes; return of how many."""
    with np.load(path) as archive:
        shares = {name: found for name, found in archive.items() if not name.endswith("/0")}
    long = {name: found for name, found in shares.items() if len(found) >= 4096}
    for name, found in long.items():
        counts, each = np.bincount(found, minlength=256), len(found) / 256
        assert np.abs(counts - each).max() < 6 * each**0.5, (path.name, name)
    return len(long)


@pytest.mark.slow
@spu
def test_a_party_that_fails_ends_all_of_them(monkeypatch):
    """Here the same port twice: one cannot listen, the others are not waited for."""
    monkeypatch.setattr(spu_parties, "free_ports", lambda count: free_ports(1) * count)
    with pytest.raises(StateError, match=r"party . failed"):
        asked(Case("semi2k", 2))

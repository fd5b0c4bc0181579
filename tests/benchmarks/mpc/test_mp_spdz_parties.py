"""Private inference by MP-SPDZ: its program on plain numbers, its files, what it says, refusals.

Slow ones need an MP-SPDZ with its parties built, named by VERGENCE_MP_SPDZ; see
docs/results/private_inference.md.
"""

import os
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.bench import mpc
from benchmarks.bench.mpc import CASES, Case, Subject, arithmetic, judged, work
from benchmarks.mpc import mp_spdz_parties
from benchmarks.mpc.mp_spdz_parties import (
    BITS,
    FRACTION,
    _write,
    check_install,
    costs,
    fixed,
    infer,
)
from benchmarks.mpc.protocols import PROTOCOLS
from benchmarks.mpc.spu_parties import InferenceQuestion
from tests.benchmarks.commands import benched
from tests.benchmarks.mpc import plain_compiler
from vergence.errors import ConfigError, StateError
from vergence.models.lenet import LeNet

PLACE = Path(os.environ.get("VERGENCE_MP_SPDZ", "/nowhere"))
MALICIOUS = {name: found for name, found in PROTOCOLS.items() if found.party}
mp_spdz = pytest.mark.skipif(
    not PLACE.is_dir(), reason="no MP-SPDZ: set VERGENCE_MP_SPDZ to its directory"
)
SAID = """Using statistical security parameter 40
Stopped timer 1 at 0.5 (1.25 MB, 20 rounds)
Time = 3.75 seconds
Time1 = {} seconds ({} MB, 20 rounds)
Time2 = 1e-05 seconds (0.5 MB, 30 rounds)
Data sent = 11.5945 MB in ~523 rounds (party 0 only; use '-v' for more details)
"""


def small(images=4):
    torch.manual_seed(0)
    network = LeNet((2, 3)).build().eval()
    for parameter in network.parameters():
        torch.nn.init.uniform_(parameter, -0.2, 0.2)
    return Subject(network, torch.randn(images, 1, 36, 60), torch.randn(images, 2), "small")


def plainly(given):
    """Answer the first batch of a case as the program does, on numbers that are no secret."""
    program = plain_compiler.network()

    def read(array, name):
        return program.SecretTensor(list(array.shape), fixed(array, name).ravel())

    job = {
        "layers": [asdict(each) for each in given.parts.layers],
        "fraction": FRACTION,
        "bits": BITS,
    }
    made = program.Network(job, {n: read(a, n) for n, a in given.parts.arrays.items()})
    inputs = {name: read(array[0], name) for name, array in given.inputs.items()}
    answer = np.asarray(made.answer(inputs["x"], inputs.get("beside")), np.int64)
    return answer.reshape(given.wanted[0].shape) / 2.0**FRACTION


@pytest.mark.parametrize("changed", [{}, {"halved": True}, {"after": "pool1"}, {"images": 3}])
def test_the_program_computes_the_network(changed):
    given = work(Case("malicious_sy", 3, **changed), small(), 1)
    assert np.abs(plainly(given) - given.wanted[0]).max() < 3e-5
    assert np.abs(given.wanted).max() > 0.01


def test_the_program_multiplies():
    given = arithmetic()
    assert np.abs(plainly(given) - given.wanted[0]).max() < 2.25 * 4 * 2**-20


def test_the_program_pools_odd_sizes_without_their_last_row_and_column():
    program = plain_compiler.network()
    made = program.Network({"layers": [], "fraction": FRACTION, "bits": BITS}, {})
    x = np.random.default_rng(0).integers(-9, 9, (2, 3, 5, 7))
    pooled = made.pool(program.SecretTensor(list(x.shape), x.ravel()))
    wanted = torch.nn.functional.max_pool2d(torch.from_numpy(x).double(), 2).numpy()
    assert np.array_equal(pooled.all().reshape(pooled.shape), wanted)


def test_numbers_are_rounded_to_fixed_point_and_large_ones_refused():
    assert fixed(np.array([1.0, -0.75, 0.6 * 2**-20]), "x").tolist() == [2**20, -3 * 2**18, 1]
    with pytest.raises(ConfigError, match=r"x holds 1024; numbers must be below 1024: scale them"):
        fixed(np.array([0.0, -1024.0]), "x")
    with pytest.raises(ConfigError, match="x holds nan"):
        fixed(np.array([np.nan]), "x")


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to make keys with")
def test_every_party_is_given_its_own_alone(tmp_path):
    given = work(Case("malicious_sy", 3), small(), 2)
    _write(tmp_path, InferenceQuestion(given.parts, "malicious_sy", 3), given.inputs)
    places = [tmp_path / f"party{rank}" / "Player-Data" for rank in range(3)]
    weights, images = (np.fromfile(places[i] / f"Input-Binary-P{i}-0", np.int64) for i in (0, 1))
    parameters = np.concatenate([a.ravel() for a in given.parts.arrays.values()])
    assert np.abs(weights / 2**20 - parameters).max() <= 2**-21
    x, beside = given.inputs["x"], given.inputs["beside"]
    batches = np.concatenate([x[0].ravel(), beside[0].ravel(), x[1].ravel(), beside[1].ravel()])
    assert np.abs(images / 2**20 - batches).max() <= 2**-21
    for rank, place in enumerate(places):
        assert [p.name for p in place.glob("*.key")] == [f"P{rank}.key"]
        assert sorted(p.name for p in place.glob("*.pem")) == ["P0.pem", "P1.pem", "P2.pem"]
        assert len(list(place.glob("Input*"))) == (rank < 2)


def test_costs_are_read_batch_by_batch():
    told = [SAID.format("0.5", "1.25"), SAID.format("0.75", "2")]
    assert costs(told, 2) == ((0.75, 1e-5), (1_750_000, 2_500_000), (50, 50))
    with pytest.raises(StateError, match="timed other than 3 batches"):
        costs(told, 3)


def test_a_row_says_whom_it_holds_against():
    for case in CASES.values():
        model = PROTOCOLS[case.protocol].model
        assert ("malicious with abort" in model) == (case.protocol in MALICIOUS)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (None, "needs --mp-spdz DIRECTORY; docs/results/private_inference.md says how"),
        (Path("/nowhere"), "no MP-SPDZ in /nowhere: docs/results/private_inference.md says how"),
    ],
)
def test_without_mp_spdz_the_error_says_how_to_get_it(place, told):
    with pytest.raises(ConfigError, match=told):
        check_install(place, "malicious_sy")


def test_a_party_that_is_not_built_is_named(tmp_path):
    (tmp_path / "Compiler").mkdir()
    (tmp_path / "Compiler" / "compilerLib.py").touch()
    words = ["mpc", "malicious_sy", "--mp-spdz", str(tmp_path)]
    benched(*words).complains(2, f"not built: make -C {tmp_path} sy-rep-ring-party.x")
    (tmp_path / "sy-rep-ring-party.x").touch(mode=0o755)
    assert check_install(tmp_path, "malicious_sy").name == "sy-rep-ring-party.x"


@pytest.mark.parametrize("changed", [{"public": True}, {"pruned": 0.9}])
def test_what_it_cannot_compute_is_refused(changed, monkeypatch):
    monkeypatch.setattr(mp_spdz_parties, "check_install", lambda *_: Path("/party"))
    given = work(Case("malicious_sy", 3, **changed), small(), 1)
    question = InferenceQuestion(given.parts, "malicious_sy", 3, "public" in changed)
    with pytest.raises(ConfigError, match="takes secret weights, none of them pruned"):
        infer(question, given.inputs, None)


def built(name):
    return (PLACE / PROTOCOLS[name].party).exists()


@pytest.mark.slow
@mp_spdz
@pytest.mark.parametrize("name", [name for name in MALICIOUS if name != "mascot"])
def test_answers_are_the_network_s(name):
    if not built(name):
        pytest.skip(f"{PROTOCOLS[name].party} is not built")
    case = Case(name, PROTOCOLS[name].parties[0], images=2)
    given = work(case, small(), 2)
    answer = infer(InferenceQuestion(given.parts, name, case.parties), given.inputs, PLACE)
    assert judged(case, given, answer).error < 3e-5
    assert len(answer.seconds) == 2
    assert min(answer.sent) > 0


@pytest.mark.slow
@mp_spdz
def test_100_000_random_products_are_never_far_off():
    given = arithmetic()
    answer = infer(InferenceQuestion(given.parts, "malicious_sy", 3), given.inputs, PLACE)
    assert np.abs(answer.values - given.wanted).max() < 2.25 * 4 * 2**-20


@pytest.mark.slow
@mp_spdz
def test_mascot_multiplies_at_more_than_two_megabytes_a_product(monkeypatch):
    if not built("mascot"):
        pytest.skip("mascot-party.x is not built")
    monkeypatch.setattr(mpc, "NUMBERS", 100)
    given = arithmetic()
    answer = infer(InferenceQuestion(given.parts, "mascot", 2), given.inputs, PLACE)
    assert np.abs(answer.values - given.wanted).max() < 2.25 * 4 * 2**-20
    assert min(answer.sent) > 100 * 2_000_000


@pytest.mark.slow
@mp_spdz
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("place", [2_000_000, 3_000_000, 5_630_000])
def test_a_bit_flipped_by_a_party_ends_all_without_an_answer(place, tmp_path, monkeypatch):
    """The last party sends one other bit, inside its TLS, after the weights are shared.

    Not every bit matters: others than these leave the answer as it is, to the last bit.
    """
    source = Path(__file__).with_name("flipped_bit.c")
    shim = tmp_path / "flipped_bit.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source], check=True)
    honest = mp_spdz_parties.run_parties

    def lying(commands, places):
        *others, last = commands
        return honest([*others, ["env", f"LD_PRELOAD={shim}", f"FLIP={place}", *last]], places)

    monkeypatch.setattr(mp_spdz_parties, "run_parties", lying)
    given = work(Case("malicious_sy", 3), small(), 1)
    with pytest.raises(StateError, match=r"party . failed: .*check hash mismatch"):
        infer(InferenceQuestion(given.parts, "malicious_sy", 3), given.inputs, PLACE)

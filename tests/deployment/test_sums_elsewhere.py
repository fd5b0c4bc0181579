"""Secure sums with clients elsewhere: their own processes and disks, reached by bytes alone."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from tests.conformance.test_methods import NAMES, build, run
from tests.engine.circle import PADS, STEPS, Circle
from tests.engine.test_secure_sums import MASKED, REFUSED
from tests.engine.toys import mostly_slow, table
from tests.privacy.sums import bytes_in
from vergence.core.serialization import pack, quick_digest, unpack
from vergence.deployment.protocol import ClientRequest, unframed
from vergence.engine import secure_sum_attempts
from vergence.privacy.secure_aggregation.packing import received
from vergence.privacy.secure_aggregation.pairwise import PairwiseClient
from vergence.privacy.secure_aggregation.pairwise_messages import Masked, Unmask
from vergence.privacy.secure_aggregation.session import Invitation

QUICK = ("interpolation", "fedadam", "fedavg", "scaffold")
FITS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in NAMES
    if name not in (*REFUSED, *MASKED, "smashed_average")
]
SLOW = pytest.mark.slow


def here(circle, path, lost=None, **plan):
    """Return the outcome of the simulator, where the replies of `lost` count for nothing."""
    plan = {"rounds": 3, "solver": "sequential", "privacy": PADS, **plan}
    with pytest.MonkeyPatch.context() as patch:
        if lost is not None:
            patch.setattr(
                "vergence.engine.participation.Participation.loses",
                lambda _, client, round, __: client in lost.get(round, ()),
            )
        return run(circle.method, path, circle.federation, **plan)[1]


@pytest.mark.parametrize("name", FITS)
def test_every_method_gives_the_simulators_bits_from_clients_elsewhere(name, tmp_path):
    circle = Circle(build(name), tmp_path, people=3)
    got = circle.run_rounds(rounds=2).fingerprint
    assert got == here(circle, tmp_path / "here", rounds=2).fingerprint
    for told in ("people.csv", "turns.csv"):
        assert table(tmp_path / "server", told) == table(tmp_path / "here", told)


def said(circle, kind=None):
    """Return what clients answered in sums: client, stamp, message."""
    found = []
    for client, request, answer in circle.asked:
        if request.sum_message is not None:
            message = unpack(unframed(answer)[1], *secure_sum_attempts.SumAnswer.__args__)
            if kind is None or isinstance(message, kind):
                found.append((client, request.stamp, message))
    return found


@pytest.mark.parametrize("step", mostly_slow(range(len(STEPS)), 2, 3))
@pytest.mark.parametrize("many", [1, pytest.param(2, marks=SLOW)])
def test_who_vanishes_at_any_step_is_out_unless_its_words_were_there(step, many, tmp_path):
    """Seven people, threshold 5: up to two may vanish. Later than their words, they are in."""
    circle = Circle(build("scaffold"), tmp_path, people=7)
    away = set(circle.names[1 : 1 + many])
    circle.gone = lambda client, at, round: round == 1 and client in away and at >= step
    got = circle.run_rounds(rounds=2)
    lost = {1: away} if step <= 2 else {}
    assert got.fingerprint == here(circle, tmp_path / "here", lost, rounds=2).fingerprint
    rows = [r for r in table(tmp_path / "server", "turns.csv") if r["round"] == "2"]
    status = {r["client"]: r["status"] for r in rows}
    gone = dict.fromkeys(away if step <= 2 else (), "lost: left the sum")
    assert status == {**dict.fromkeys(circle.names, "ok"), **gone}


@pytest.mark.slow
@pytest.mark.parametrize("step", range(len(STEPS) - 1))
def test_below_the_threshold_those_who_are_left_begin_anew_as_nothing_was_unmasked(step, tmp_path):
    """Three of seven vanish: four are below 5. A second attempt, over four, needs three."""
    circle = Circle(build("fedadam"), tmp_path, people=7)
    away = set(circle.names[2:5])
    circle.gone = lambda client, at, round: round == 1 and client in away and at >= step
    got = circle.run_rounds(rounds=2)
    assert got.fingerprint == here(circle, tmp_path / "here", {1: away}, rounds=2).fingerprint
    attempts = {m.terms for _, stamp, m in said(circle, Masked) if stamp.startswith("1.")}
    assert len(attempts) == (2 if step >= 2 else 1)
    masked = [m.words for _, _, m in said(circle, Masked)]
    assert len(set(masked)) == len(masked)  # fresh keys


@pytest.mark.parametrize(
    ("left", "step"),
    [
        (2, 2),
        (0, 4),
        *(pytest.param(*case, marks=SLOW) for case in [(2, 0), (2, 1), (0, 2), (2, 3), (2, 4)]),
    ],
)
def test_a_sum_of_too_few_is_nobodys_reply_and_the_next_round_goes_on(left, step, tmp_path):
    circle = Circle(build("scaffold"), tmp_path, people=4)
    circle.gone = lambda client, at, round: (
        round == 1 and at >= step and client in circle.names[left:]
    )
    got = circle.run_rounds()
    assert got.fingerprint == here(circle, tmp_path / "here", {1: circle.names}).fingerprint
    rows = [r for r in table(tmp_path / "server", "turns.csv") if r["round"] == "2"]
    assert all(r["status"].startswith("lost") for r in rows)
    opened = {stamp for _, stamp, m in said(circle, Unmask)}
    assert ("1.1" in opened) is (step == 4 and left > 0)


@pytest.mark.slow
def test_too_few_answers_after_unmasking_began_open_nothing_in_a_second_attempt(tmp_path):
    """Threshold 5 of 6; two unmask, four are silent: no new attempt is made."""
    circle = Circle(build("fedavg"), tmp_path, people=6)
    circle.gone = lambda client, at, round: at == 4 and round == 1 and client in circle.names[2:]
    circle.run_rounds()
    invitations = [e for _, e, _ in circle.asked if isinstance(e.sum_message, Invitation)]
    assert len([e for e in invitations if e.stamp == "1.1"]) == 6


# --- what the server sees


def test_the_server_sees_no_single_update_and_no_mask(tmp_path):
    """All bytes of all answers: no row, nor any of its words, of any client in any round."""
    circle = Circle(build("fedavg"), tmp_path, people=4)
    rows = []
    honest = PairwiseClient.__init__

    def noted(self, name, terms, words, *rest):
        rows.append((name, np.array(words)))
        honest(self, name, terms, words, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairwiseClient, "__init__", noted)
        circle.run_rounds()
    seen = b"".join(answer for _, _, answer in circle.asked)
    assert len(rows) >= 4 * 3 * 5
    for _, words in rows:
        for word in words:
            assert word.tobytes() not in seen
            assert int(word).to_bytes(8, "big") not in seen
    for client, request, answer in circle.asked:  # nothing beside the sums
        note, body = unframed(answer)
        if request.kind == "turn":
            assert body == b""
            assert not {*note["weight"], *note["metrics"]}
            assert (note["examples"], note["steps"], note["share"]) == (0.0, 0, None), client


def test_masked_words_are_uniform_whatever_the_update_is(tmp_path):
    """Chi-square over the bytes of all masked words: zeros and real updates look the same."""
    for name, frozen in (("fedavg", True), ("fedavg", False)):
        method = build(name)
        if frozen:  # all updates are (almost) zero
            method = replace(method, local=replace(method.local, lr=1e-12))
        circle = Circle(method, tmp_path / str(frozen), inputs=1000)
        circle.run_rounds(rounds=1)
        data = b"".join(m.words for _, _, m in said(circle, Masked))
        counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
        assert counts.sum() > 8000
        assert chisquare(counts).pvalue > 1e-4
        rows = [received(m.words) for _, _, m in said(circle, Masked)]
        assert len({tuple(row) for row in rows}) == len(rows)


@pytest.mark.slow
def test_seeds_and_keys_of_one_client_are_never_both_told(tmp_path):
    circle = Circle(build("fedavg"), tmp_path, people=7)
    circle.gone = lambda client, at, round: client == circle.names[3] and at >= 2 and round == 1
    circle.run_rounds()
    for _, _, message in said(circle, Unmask):
        assert not set(message.seeds) & set(message.keys)
    told = [m for _, stamp, m in said(circle, Unmask) if stamp == "1.1"]
    assert told
    assert all(set(m.keys) == {circle.names[3]} for m in told)


@pytest.mark.slow
def test_training_seeds_play_no_part(tmp_path):
    """Two runs with one seed: the same model, other masks, keys and shares throughout."""
    first, second = (Circle(build("fedavg"), tmp_path / n) for n in "ab")
    assert first.run_rounds().fingerprint == second.run_rounds().fingerprint
    for (_, _, a), (_, _, b) in zip(said(first), said(second), strict=True):
        assert type(a) is type(b)
        assert bytes_in(a)[32:] != bytes_in(b)[32:]


def test_who_was_sent_another_model_is_in_no_sum(tmp_path):
    """A server that sends all but one a model that learns nothing would see that one's update."""
    circle = Circle(build("fedavg"), tmp_path, people=7)
    honest = circle.ask

    def unlike(client, request):
        what = unpack(request, ClientRequest)
        if what.kind == "turn" and what.message.round == 1 and client == circle.names[2]:
            model = what.message["model"] * 1.001
            what = replace(what, message=replace(what.message, trees={"model": model}))
            answer = honest(client, changed := pack(what))
            asked, was = quick_digest(changed), quick_digest(request)
            return answer.replace(asked.encode(), was.encode(), 1)
        return honest(client, request)

    circle.ask = unlike
    got = circle.run_rounds(rounds=2)
    away = {1: circle.names[2:3]}
    assert got.fingerprint == here(circle, tmp_path / "here", away, rounds=2).fingerprint


# --- what lies on a client's disk


def test_secrets_lie_in_files_of_their_own_and_go_when_they_are_used(tmp_path):
    circle = Circle(build("fedavg"), tmp_path)
    modes = Counter()
    honest = circle.ask

    def looked(client, request):
        answer = honest(client, request)
        for path in circle.place(client).glob("sum.*"):
            modes[path.name, path.stat().st_mode & 0o777] += 1
        return answer

    circle.ask = looked
    circle.run_rounds()
    assert {name for name, _ in modes} == {
        "sum.row",
        "sum.attempt",
        "sum.spent",
        "sum.peers",
    }
    assert {mode for _, mode in modes} == {0o600}
    for client in circle.names:
        assert not (circle.place(client) / "sum.attempt").exists()
        spent = (circle.place(client) / "sum.spent").read_text().splitlines()
        assert len([line for line in spent if " row of " in line]) == 3
        assert len(spent) == 9  # and the question, and the sum, of each


def test_a_client_helps_to_open_one_sum_of_a_contribution(tmp_path):
    """The server asks again, over fewer people: nobody unmasks, even in another attempt."""
    circle = Circle(build("fedavg"), tmp_path)
    circle.run_rounds(rounds=1)
    # The server forgot all and begins the run anew; one client is silent from its words on.
    (tmp_path / "server").rename(tmp_path / "gone")
    circle.gone = lambda client, at, _: client == circle.names[0] and at >= 2
    before = len(said(circle, Unmask))
    circle.run_rounds(rounds=1)
    assert len(said(circle, Unmask)) == before
    rows = table(tmp_path / "server", "turns.csv")
    assert all(r["status"].startswith("lost") for r in rows)


@pytest.mark.slow
def test_the_very_same_sum_may_be_opened_again(tmp_path):
    """A server that died before it kept a sum asks for it again, and gets it."""
    circle = Circle(build("fedavg"), tmp_path)
    first = circle.run_rounds(rounds=2).fingerprint
    (tmp_path / "server").rename(tmp_path / "gone")
    assert circle.run_rounds(rounds=2).fingerprint == first


def test_another_stamp_for_the_same_question_opens_no_second_sum(tmp_path):
    """A sum is called by its question, not by the stamp that a server gives a job."""
    circle = Circle(build("fedavg"), tmp_path)
    circle.run_rounds(rounds=1)
    honest = circle.ask

    def renamed(client, request):
        what = unpack(request, ClientRequest)
        return honest(client, pack(replace(what, stamp=what.stamp.replace("0.1", "0.7"))))

    circle.ask = renamed
    (tmp_path / "server").rename(tmp_path / "gone")
    circle.gone = lambda client, at, _: client == circle.names[0] and at >= 2
    before = len(said(circle, Unmask))
    circle.run_rounds(rounds=1)
    assert len(said(circle, Unmask)) == before


class Killed(Exception):
    """Stands for the server's death."""


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("scaffold", 12),
        pytest.param("fedavg", 30, marks=SLOW),
        *(pytest.param("scaffold", at, marks=SLOW) for at in (3, 6, 18, 24, 30, 31, 36, 60)),
    ],
)
def test_a_server_that_died_in_a_sum_goes_on_with_the_same_bits(name, at, tmp_path):
    """It dies when it sends its `at`-th request: 30 a round, 5 turns and 25 messages of a sum."""
    circle = Circle(build(name), tmp_path)
    honest, left = circle.ask, itertools.count(1)

    def dying(client, request):
        if next(left) >= at:
            raise Killed
        return honest(client, request)

    circle.ask = dying
    with pytest.raises(Killed):
        circle.run_rounds(rounds=2)
    circle.ask = honest
    got = circle.run_rounds(rounds=2).fingerprint
    assert got == here(circle, tmp_path / "here", rounds=2).fingerprint


@pytest.mark.slow
def test_a_message_that_comes_twice_gets_the_same_answer(tmp_path):
    circle = Circle(build("fedavg"), tmp_path)
    honest = circle.ask

    def twice(client, request):
        first = honest(client, request)
        assert honest(client, request) == first
        return first

    circle.ask = twice
    assert circle.run_rounds().fingerprint == here(circle, tmp_path / "here").fingerprint

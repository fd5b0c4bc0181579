"""Clients that lie about labels now and then, in a run: whom they accuse, what they leave out."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from benchmarks.attacks.split_parties import watched
from tests.engine.split.test_split import PEOPLE, SMALL, run
from tests.engine.toys import table
from vergence.core.local_training import LocalTraining
from vergence.core.messages import reply
from vergence.core.params import Params
from vergence.core.requests import Step
from vergence.deployment.joined_node import JoinedNode
from vergence.engine import compatibility_check
from vergence.engine.plan import Plan
from vergence.engine.protections.setup import check_privacy
from vergence.engine.protections.split_guard import SplitGuardProtection
from vergence.engine.split_session import ServerSession
from vergence.errors import ConfigError
from vergence.experiment.privacy.schema import build_privacy
from vergence.experiment.privacy.spent import screen_lines, spent_block
from vergence.methods.split.local_loss_split import LocalLossSplit
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.privacy.config import Privacy
from vergence.privacy.hooks import ProtectedRun
from vergence.privacy.release_log import FOLDER, ReleaseLog
from vergence.privacy.split.split_guard import SplitGuardConfig, SplitGuardTest
from vergence.privacy.split.split_guard_client import SplitGuardClient

QUICK = SplitGuardConfig(every=3, expected=0.9, missed=0.2, accused=0.2, act="stop")
"""Accuses or trusts after two blocks or so, of three batches each."""
LOCAL = LocalTraining(epochs=2, batch=4, optimizer="adamw", lr=1e-3, clip=0.0)


@pytest.fixture
def same_secret(monkeypatch):
    """Secrets from the system would make two runs differ, as they should."""
    monkeypatch.setattr("vergence.privacy.release_log.new_seed", lambda: bytes(range(32)))


def deaf(*_):
    """A server whose gradients have nothing to do with labels."""
    rng = torch.Generator().manual_seed(0)

    def change(asked, answer):
        if not isinstance(asked, Step) or answer.gradient is None:
            return answer
        return replace(answer, gradient=torch.randn(answer.gradient.shape, generator=rng))

    return change


def verdicts(path, plan=QUICK):
    told = ProtectedRun(SplitFed(), SMALL, PEOPLE, 4, path / "state")
    return spent_block(Plan(privacy=Privacy(split_guard=plan)), told)["split_guard"]


def test_a_server_that_ignores_labels_loses_its_clients(tmp_path):
    method = watched(SplitFed(local=LOCAL), deaf)
    run(tmp_path / "stop", method, privacy=Privacy(split_guard=QUICK), rounds=4)
    told = verdicts(tmp_path / "stop")
    assert len(told["accused"]) >= 2
    assert not told["trusted"]
    said = [row["status"] for row in table(tmp_path / "stop", "turns.csv")]
    assert any(line.startswith("quarantined: accused: after") for line in said)
    assert "likelihood ratio" in " ".join(said)
    (line,) = screen_lines("splitfed", {"split_guard": told})
    assert line.startswith("server of splitfed: accused by p0")
    going = Privacy(split_guard=replace(QUICK, act="report"))
    run(tmp_path / "report", method, privacy=going, rounds=3)
    assert {row["status"] for row in table(tmp_path / "report", "turns.csv")} == {"ok"}
    assert len(verdicts(tmp_path / "report")["accused"]) >= 2


@pytest.mark.parametrize("method", [SplitFed, SplitFedV2, SplitLearning])
def test_one_batch_of_a_block_has_moved_labels(method, tmp_path, monkeypatch):
    """What the server is told of a client in a round, against its pictures' own labels."""
    plain, heard = ServerSession._accept, []

    def hears(self, served, message, done, like):
        sealed = plain(self, served, message, done, like)
        if "labels" in sealed.trees and "gaze" in sealed.trees["labels"].total:
            heard.append((served.task.client, sealed.trees["labels"].total["gaze"]))
        return sealed

    monkeypatch.setattr(ServerSession, "_accept", hears)
    going = Privacy(split_guard=replace(QUICK, act="report"))
    run(tmp_path, method(local=LOCAL, ahead=1), privacy=going, rounds=1)
    for client in PEOPLE.clients:
        own = PEOPLE.people[client].train.columns["gaze"]
        told = [gaze for who, gaze in heard if who == client]
        false = [not (gaze[:, None] == own).all(2).any(1).all() for gaze in told]
        starts = [*range(0, len(false) - 5, 3), 3 * (len(false) // 3 - 1), len(false)]
        blocks = [sum(false[a:b]) for a, b in pairwise(dict.fromkeys(starts))]
        assert blocks == [1] * (len(false) // 3)


@pytest.mark.slow
@pytest.mark.usefixtures("same_secret")
def test_workers_and_bytes_give_the_same_bits(tmp_path):
    ways = {"one": {}, "two": {"workers": 2}, "bytes": {"engine": "bytes"}}
    privacy = Privacy(split_guard=replace(QUICK, act="report"))
    runs = [
        run(tmp_path / name, SplitFed(local=LOCAL), privacy=privacy, **how)
        for name, how in ways.items()
    ]
    assert len({r.fingerprint for r in runs}) == 1
    books = [
        ReleaseLog(tmp_path / name / "state" / FOLDER / "seed0.guard.p00.csv").entries
        for name in ways
    ]
    assert books[0] == books[1] == books[2]
    assert runs[0].fingerprint != run(tmp_path / "bare", SplitFed(local=LOCAL)).fingerprint


@pytest.mark.usefixtures("same_secret")
def test_verdicts_are_those_of_the_guard_in_memory(tmp_path):
    """The same answers, by the same places, to the class that the benchmark has."""
    plan = SplitGuardConfig(every=4, expected=0.7)
    watch = SplitGuardClient(plan, ("gaze",), tmp_path, 0)
    guard = SplitGuardTest(plan, watch.secret.draws())
    rng = torch.Generator().manual_seed(1)
    for number in range(80):
        if number % 4 == 0:
            guard.place = next(n for n in range(4) if watch.lies("p00", 0, number + n, 80))
        answer = torch.randn(2, 3, generator=rng).float()
        watch.observe("p00", 0, number, 80, answer)
        guard.observe(answer)
    book = ReleaseLog(tmp_path / FOLDER / "seed0.guard.p00.csv")
    verdict, blocks, _ = plan.read(entry.steps for entry in book.entries)
    assert verdict == guard.verdict == "accused"
    assert blocks <= 20
    again = SplitGuardClient(plan, ("gaze",), tmp_path, 0)
    again.observe("p00", 0, 79, 80, answer)  # a turn taken again adds nothing
    assert ReleaseLog(book.path).entries == book.entries


class Hearing:
    """A client, served by somebody who listens or not; answers differ from hearing to hearing."""

    def __init__(self, tmp_path, batches):
        self.told = []
        self.watch = SplitGuardClient(
            SplitGuardConfig(act="report"), ("gaze",), tmp_path, 0, self.told.append
        )
        self.rng = torch.Generator().manual_seed(2)
        self.batches = batches

    def round(self, round, heed, upto=None):
        """Serve a round, or its first batches; `heed` says of which batches labels are heeded."""
        for number in range(self.batches if upto is None else upto):
            lie = self.watch.lies("p00", round, number, self.batches) and heed(number)
            answer = torch.randn(4, 3, generator=self.rng)
            self.watch.observe("p00", round, number, self.batches, answer + 99.0 * lie)

    @property
    def book(self):
        return ReleaseLog(self.watch.folder / "seed0.guard.p00.csv").entries

    @property
    def verdict(self):
        return self.watch.plan.read(entry.steps for entry in self.book)[0]


def heeds(_):
    return True


def ignores(_):
    return False


@pytest.mark.usefixtures("same_secret")
def test_a_round_served_again_counts_again_and_never_in_the_servers_favour(tmp_path):
    served = Hearing(tmp_path, 10)
    for round in range(8):
        served.round(round, heeds)
        served.round(round, ignores)
        served.round(round, heeds)
    steps = [entry.steps for entry in served.book]
    assert steps.count(1) == 8
    assert steps.count(0) + steps.count(2) == 16
    assert steps.count(0) >= 4
    again = Hearing(tmp_path / "same", 10)
    for _ in range(2):  # the same bits, as after a resume
        again.rng.manual_seed(3)
        again.round(0, heeds)
    assert [entry.steps for entry in again.book] == [1]


@pytest.mark.usefixtures("same_secret")
def test_the_batches_behind_the_last_block_are_part_of_it(tmp_path):
    assert [SplitGuardConfig().block(n, 19) for n in (0, 9, 10, 18)] == [(0, 19)] * 4
    assert [SplitGuardConfig().block(n, 25) for n in (9, 10, 24)] == [(0, 10), (10, 15), (10, 15)]
    served = Hearing(tmp_path, 19)
    for round in range(9):
        served.round(round, lambda number: number < 10)
    assert len(served.book) == 9
    assert 0 < sum(entry.steps for entry in served.book) < 9  # lies beyond were not found


@pytest.mark.usefixtures("same_secret")
def test_a_client_is_told_when_its_verdict_turns(tmp_path):
    served = Hearing(tmp_path, 10)
    for round in range(40):
        served.round(round, heeds if round < 3 else ignores)
    trusted, accused = served.told
    assert trusted == "trusted: after 30 batches, the server's answers depend on labels"
    assert accused.startswith("accused: after ")


def test_the_line_of_a_deployments_client_lies_in_its_folder(tmp_path):
    end = object.__new__(JoinedNode)
    end.folder = tmp_path
    end.tell_verdict("accused: after 70 batches")
    assert (tmp_path / "events.log").read_text().endswith("accused: after 70 batches\n")
    guard = SplitGuardProtection(Plan(), SplitGuardConfig())
    (promise,) = guard.forecast(ProtectedRun(SplitFed(), SMALL, PEOPLE, 1))
    assert "in a deployment, the client's own events.log" in promise.text


def test_rounds_cut_short_accuse(tmp_path):
    served = Hearing(tmp_path, 10)
    for round in range(9):
        served.round(round, heeds, upto=9)
    assert [entry.steps for entry in served.book] == [0] * 8
    assert served.verdict == "accused"
    assert len([*served.watch.folder.glob("*.block")]) == 1


def test_who_begins_again_knowing_the_place_gains_nothing(tmp_path):
    served = Hearing(tmp_path, 10)
    for round in range(9):
        served.round(round, ignores, upto=9)
        served.round(round, heeds)
    assert [entry.steps for entry in served.book] == [0, 2] * 9
    assert served.verdict == "accused"


def test_answers_of_another_shape_are_no_answers(tmp_path):
    watch = SplitGuardClient(SplitGuardConfig(), ("gaze",), tmp_path, 0)
    for number in range(10):
        watch.observe("p00", 0, number, 10, torch.ones(4, 3 if number < 9 else 2))
    watch.observe("p00", 1, 0, 10, torch.ones(4, 0))
    steps = [entry.steps for entry in ReleaseLog(watch.folder / "seed0.guard.p00.csv").entries]
    assert set(steps) == {0}


def test_a_lie_moves_labels_alone(tmp_path):
    watch = SplitGuardClient(QUICK, ("gaze",), tmp_path, 0)
    lie = next(n for n in range(3) if watch.lies("p00", 0, n, 3))
    columns = {"gaze": torch.rand(5, 2), "pose": torch.rand(5, 2)}
    told = reply(labels=Params.named(**columns))
    sent = watch.leaving("p00", 0, lie, 3, told).trees["labels"]
    assert torch.equal(sent["pose"], columns["pose"])
    moved = sent["gaze"] - columns["gaze"]
    torch.testing.assert_close(moved.abs(), columns["gaze"].std(0).expand(5, 2))
    assert watch.leaving("p00", 0, (lie + 1) % 3, 3, told) is told


@pytest.mark.parametrize(
    ("method", "table", "said"),
    [
        (SplitFedU(), {}, "'splitfed_u' is sent no labels, or answers none"),
        (LocalLossSplit(), {}, "'local_loss_split' is sent no labels, or answers none"),
        (SplitFed(local=replace(LOCAL, batch=64)), {}, "a block is of 10 batches of one round"),
        (SplitFed(), {"act": "shout"}, "act"),
        (SplitFed(), {"every": 2}, "every"),
    ],
)
def test_what_cannot_be_watched_is_refused(method, table, said):
    def checked():
        plan = Plan(privacy=build_privacy({"split_guard": table}))
        compatibility_check.check(plan, method)
        check_privacy(method, SMALL, PEOPLE, plan)

    with pytest.raises(ConfigError, match=said):
        checked()

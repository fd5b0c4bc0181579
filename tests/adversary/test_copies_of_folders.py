"""What comes back from a copy: a client's folder, a file in it, and what messages say of it."""

import json
import re
import secrets
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.adversary.kill_at_fsync import KillAtFsync, Killed
from tests.adversary.lies import circle, method, opened, question, turn, turns
from tests.adversary.test_evaluations_of_any_model import evaluation
from tests.privacy.sums import ends
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.serialization import pack, unpack
from vergence.deployment import launcher
from vergence.deployment.client_node import ClientNode
from vergence.deployment.folders import ClientSide, write_settings
from vergence.deployment.protocol import ClientRequest, unframed
from vergence.deployment.secure_sum_client import MarkedContributions
from vergence.deployment.teacher_quota import FILE, TeacherQuota, parse_entries
from vergence.engine.plan import Plan
from vergence.engine.secure_sum_attempts import SumAnswer
from vergence.engine.secure_sum_attempts import hold as hold_protocol
from vergence.engine.secure_sums import SERVER
from vergence.errors import ConfigError, StateError
from vergence.privacy.config import SecureAggregationConfig, UserLevelConfig
from vergence.privacy.folder_marks import FolderMark, RolledBack, state_folder
from vergence.privacy.release_log import FOLDER, Release, ReleaseLog
from vergence.privacy.secure_aggregation.additive_messages import SharePart
from vergence.privacy.secure_aggregation.pairwise_messages import Advert, Roster, view_digest
from vergence.privacy.secure_aggregation.relay import Coordinator
from vergence.privacy.secure_aggregation.session import NO_BOOKS, Invitation, UsedContributions
from vergence.studies.sweep_budget import Spendings

SGD = LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)
USER = UserLevelConfig(clip=0.5, epsilon=8.0)


def stale_advice(error):
    """Whether a message advises to put a file back, which would forget what was done since."""
    return bool(re.search(r"restore (it|them)|copy again", error)) or "start a new run" not in error


@pytest.mark.parametrize(
    "file",
    ["sum.spent", "ledger.seed0.json", f"{FOLDER}/seed0.sums.csv", f"{FOLDER}/secret"],
)
def test_no_message_advises_to_put_a_book_back(file, tmp_path):
    """A server could otherwise ask again what the copy does not know."""
    made = circle(method("fedavg", SGD), tmp_path, 5, user=USER)
    for client in made.names:
        turn(made, client, ClientRequest("turn", client, question(made, 0), "0.1"))
    opened(made, question(made, 0), dict.fromkeys(made.names, "0.1"))
    path = made.place("p01") / file
    path.write_bytes(path.read_bytes()[:-9] + b"\xff garbage\n")
    with pytest.raises(StateError, match="damaged") as refused:
        turn(made, "p01", ClientRequest("turn", "p01", question(made, 1), "1.1", progress=1 / 3))
    assert not stale_advice(str(refused.value)), refused.value


def test_no_message_advises_to_put_a_list_of_questions_back(tmp_path):
    (tmp_path / FILE).write_text("something,else\n")
    with pytest.raises(StateError, match="damaged") as refused:
        parse_entries((tmp_path / FILE).read_bytes())
    assert "restore" not in str(refused.value)
    assert "start a new one" in str(refused.value)


def test_no_message_advises_to_put_a_sweeps_spending_back(tmp_path):
    path = tmp_path / "spent.csv"
    path.write_text("something,else\n1,2\n")
    with pytest.raises(StateError, match="damaged") as refused:
        Spendings(path, Plan())
    assert "restore" not in str(refused.value)
    assert "another --out" in str(refused.value)


PEOPLE, VICTIM = 5, "p02"
ALL = ("**/*",)
SUMS, LEDGER, STATES = ("sum.*",), ("ledger.*",), ("*.safetensors", "answer.*")


def moment_of(request):
    """The name of a request in the order of a run: of the server's message, and of the round."""
    said = request.sum_message
    return f"{request.kind if said is None else type(said).__name__} {request.message.round}"


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Two rounds of SCAFFOLD under pads, with copies of one folder from before every request."""
    root = tmp_path_factory.mktemp("story")
    made = circle(method("scaffold", SGD), root / "run", PEOPLE)
    real = made.ask

    def ask(client, request):
        if client == VICTIM:
            moment = moment_of(unpack(request, ClientRequest))
            made.place(client).mkdir(parents=True, exist_ok=True)
            shutil.copytree(made.place(client), root / moment, dirs_exist_ok=True)
        return real(client, request)

    made.ask = ask
    made.run_rounds(rounds=2)
    shutil.copytree(made.place(VICTIM), root / "end")
    # What an honest server opened: of a copy, as whoever repeats a sum has more entries.
    shutil.copytree(root / "run", root / "honest")
    again, honest = circle(method("scaffold", SGD), root / "honest", PEOPLE), {}
    again.plan = made.plan
    for at in (0, 1):
        asked = turns(made, at)
        with suppress(StateError):
            stamps = {client: request.stamp for client, request in asked.items()}
            honest[at] = opened(again, asked[VICTIM].message, stamps)[1].words
    return SimpleNamespace(
        root=root, made=made, asked=turns(made, 1), first=turns(made, 0), honest=honest
    )


@pytest.fixture
def later(story, tmp_path):
    """The same people some time after these rounds, on disks of their own."""
    made = circle(method("scaffold", SGD), tmp_path, PEOPLE)
    made.plan, made.asked = story.made.plan, list(story.made.asked)
    shutil.copytree(story.root / "run", tmp_path, dirs_exist_ok=True)
    return made


def put_back(story, made, moment, files):
    """Put files of one folder back as they were before a request; newer ones of these names go."""
    place, copy = made.place(VICTIM), story.root / moment
    for pattern in files:
        for path in [path for path in place.glob(pattern) if path.is_file()]:
            path.unlink()
        for path in [path for path in copy.glob(pattern) if path.is_file()]:
            target = place / path.relative_to(copy)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def gains(story, made):
    """What a lying server opens that it has not got yet: sums of a round that differ.

    It asks for both rounds again, from every state that the run had, and with another model, and
    then holds the very same sum.
    """
    found, states = [], [None, *sorted(p.name for p in made.place(VICTIM).glob("*.safetensors"))]
    for asked in (story.asked, story.first):
        message = asked[VICTIM].message
        stamps = {client: request.stamp for client, request in asked.items()}
        honest = story.honest.get(message.round)
        other = replace(message, trees={n: t * 1.5 for n, t in message.trees.items()})
        tries = [(message, state) for state in states] + [(other, None)]
        for at, (said, state) in enumerate(tries):
            stamp = f"{message.round}.{7 + at}"
            request = replace(asked[VICTIM], message=said, stamp=stamp, file=state)
            try:
                turn(made, VICTIM, request)
                second = opened(made, message, {**stamps, VICTIM: stamp})[1].words
            except StateError:
                continue
            if honest is None or not np.array_equal(honest, second):
                found.append((message.round, at, state))
    return found


COPIES = [
    ("turn 0", ALL),
    ("Invitation 0", ALL),
    ("Roster 0", ALL),
    ("RelayedShares 0", ALL),
    ("Survivors 0", ALL),
    ("Agreements 0", ALL),
    ("turn 1", ALL),
    ("Invitation 1", ALL),
    ("Roster 1", ALL),
    ("RelayedShares 1", ALL),
    ("Survivors 1", ALL),
    ("Agreements 1", ALL),
    ("turn 0", SUMS),
    ("turn 1", SUMS),
    ("Invitation 1", SUMS),
    ("Agreements 1", SUMS),
    ("turn 0", LEDGER),
    ("turn 1", LEDGER),
    ("Invitation 1", LEDGER),
    ("turn 1", SUMS + LEDGER),
    ("Invitation 1", SUMS + LEDGER),
    ("turn 1", STATES),
    ("turn 1", LEDGER + STATES),
    ("turn 1", SUMS + STATES),
]
"""Before which request files were copied, and which files; they are put back after the run."""


def test_a_copy_would_open_one_persons_words(story, later, monkeypatch):
    """Without marks, and others who remember: this is what both are for."""
    put_back(story, later, "turn 1", ALL)
    later.identity = lambda client=None: replace(type(later).identity(later, client), mark=None)
    assert gains(story, later) == []
    monkeypatch.setattr(MarkedContributions, "compare", UsedContributions.compare)
    assert gains(story, later)


@pytest.mark.parametrize(("moment", "files"), COPIES)
def test_a_lying_server_and_a_copy_open_nothing_on_another_machine(moment, files, story, later):
    """Which has no mark, and whose owner lets the copy go on: the other clients remember."""
    put_back(story, later, moment, files)
    mark = later.identity(VICTIM).mark
    mark.path.unlink()
    if mark.ends():
        with suppress(RolledBack):  # a record without a ledger is an aggregator's
            mark.accept()
    assert gains(story, later) == []


def test_others_say_whose_folder_went_back(story, later):
    put_back(story, later, "turn 1", ALL)
    later.identity(VICTIM).mark.path.unlink()
    later.identity(VICTIM).mark.accept()
    turn(later, VICTIM, replace(story.asked[VICTIM], stamp="1.7", file=None))
    stamps = {client: request.stamp for client, request in story.asked.items()}
    with pytest.raises(StateError, match=rf"books: the folder of '{VICTIM}' went back") as refused:
        opened(later, story.asked[VICTIM].message, {**stamps, VICTIM: "1.7"})
    assert "\n" not in str(refused.value)


def test_a_server_does_not_change_what_a_client_says_of_its_books(story, later, monkeypatch):
    """It puts in what the others remember of this client."""
    known = json.loads((later.place("p01") / "sum.peers").read_text())["run"][VICTIM]
    put_back(story, later, "turn 1", ALL)
    later.identity(VICTIM).mark.path.unlink()
    later.identity(VICTIM).mark.accept()
    turn(later, VICTIM, replace(story.asked[VICTIM], stamp="1.7", file=None))
    stamps = {client: request.stamp for client, request in story.asked.items()}
    real = ClientNode.answer

    def answer(self, data, attachment=b""):
        request = unpack(data, ClientRequest)
        if isinstance(request.sum_message, Roster):
            books = (known[0], known[1], bytes.fromhex(known[2]["1.train"]))
            adverts = [
                replace(advert, books=books if advert.sender == VICTIM else advert.books)
                for advert in request.sum_message.adverts
            ]
            changed = replace(request.sum_message, adverts=tuple(adverts))
            data = pack(replace(request, sum_message=changed))
        return real(self, data, attachment)

    monkeypatch.setattr(ClientNode, "answer", answer)
    with pytest.raises(StateError, match=f"signature: this is not from '{VICTIM}'"):
        opened(later, story.asked[VICTIM].message, {**stamps, VICTIM: "1.7"})


def test_clients_sign_the_books_that_they_were_shown():
    """On a ring a client checks the signatures of its neighbours' adverts alone."""
    shown = {
        view_digest(b"terms", {"p01": Advert(b"", "p01", b"box", b"pad", books=books)}, (), ())
        for books in ((1, 4, b"h"), (1, 5, b"h"), (2, 4, b"h"), (1, 4, b"g"), NO_BOOKS)
    }
    assert len(shown) == 5
    signed = {
        SharePart(b"", "p01", "north", b"box", books=books).signed
        for books in ((1, 4, b"h"), (1, 5, b"h"), (2, 4, b"h"), (1, 4, b"g"), NO_BOOKS)
    }
    assert len(signed) == 5


def test_others_tell_the_server_whose_folder_went_back(tmp_path):
    """A run of an honest server, in which one folder comes back between two rounds."""
    made = circle(method("fedavg", SGD), tmp_path, PEOPLE)
    real, copy = made.ask, tmp_path / "copy"

    def ask(client, request):
        moment = moment_of(unpack(request, ClientRequest))
        if client == VICTIM and moment == "turn 1":
            shutil.copytree(made.place(client), copy)
        if client == VICTIM and moment == "turn 3":
            shutil.rmtree(made.place(client))
            shutil.copytree(copy, made.place(client))
            made.identity(client).mark.path.unlink()
            made.identity(client).mark.accept()
        return real(client, request)

    made.ask = ask
    made.run_rounds(rounds=4)
    said = f"books: the folder of '{VICTIM}' went back to a copy: it was in round 2"
    assert any(line.startswith(said) for event, _, line in made.told if event == "refused")
    others = [f"'{name}' went back" for name in made.names if name != VICTIM]
    assert not any(words in line for words in others for *_, line in made.told)


def later_round(story, made, at, stamp, file=None):
    """What a server asks one client in a later round."""
    old = story.asked[VICTIM]
    message = replace(old.message, round=at)
    return replace(old, message=message, stamp=stamp, file=file, progress=made.plan.progress(at))


def hold(story, made, at, names):
    """Ask clients for a later round, each from its own last state; return requests and sum."""
    asked = {}
    for client in names:
        one = later_round(story, made, at, f"{at}.1", restored_state(made, client))
        asked[client] = replace(one, client=client, drop=())
        assert turn(made, client, asked[client])["status"] == "ok"
    return asked, opened(made, one.message, dict.fromkeys(names, f"{at}.1"))[1]


@pytest.mark.parametrize("mark", [True, False])
def test_a_folder_that_went_back_a_little_is_in_later_sums(mark, story, later):
    """On the same machine after a loss; on another one if nothing was answered since."""
    later.plan = replace(later.plan, rounds=7)
    hold(story, later, 3, later.names)
    shutil.copytree(later.place(VICTIM), later.folder / "copy")
    if mark:
        hold(story, later, 4, later.names)
        hold(story, later, 5, later.names)
    shutil.rmtree(later.place(VICTIM))
    shutil.copytree(later.folder / "copy", later.place(VICTIM))
    if not mark:
        later.identity(VICTIM).mark.path.unlink()
    later.identity(VICTIM).mark.accept()
    asked, total = hold(story, later, 6, later.names)
    again = opened(later, asked[VICTIM].message, dict.fromkeys(later.names, "6.1"))[1]
    assert len(total.names) == PEOPLE
    assert np.array_equal(again.words, total.words)


def test_a_round_that_is_over_for_others_is_refused(story, later):
    """A new folder of a client who was away: another one might have answered in its place."""
    later.plan = replace(later.plan, rounds=6)
    others = [name for name in later.names if name != VICTIM]
    requests, _ = hold(story, later, 3, others)
    hold(story, later, 4, others)
    shutil.rmtree(later.place(VICTIM))
    later.identity(VICTIM).mark.path.unlink()
    for client in others:
        (later.place(client) / "sum.peers").unlink()
        assert turn(later, client, requests[client])["status"] == "ok"
    turn(later, VICTIM, replace(later_round(story, later, 3, "3.1"), drop=()))
    with pytest.raises(StateError, match="books: round 3 is asked for, and is over: 'p0"):
        opened(later, requests[others[0]].message, dict.fromkeys(later.names, "3.1"))


def test_aggregators_remember_the_books_of_clients(tmp_path):
    """Of a client whose folder comes back on another machine: its second row is in no sum."""
    policy = SecureAggregationConfig("additive", aggregators=("north", "south"))
    made = circle(method("scaffold", SGD), tmp_path, PEOPLE, policy)
    real, copy = made.ask, tmp_path / "copy"

    def ask(client, request):
        what = unpack(request, ClientRequest)
        if client == VICTIM and moment_of(what) == "turn 1":
            shutil.copytree(made.place(client), copy)
        return real(client, request)

    made.ask = ask
    made.run_rounds(rounds=2)
    asked = turns(made, 1)
    stamps = {client: request.stamp for client, request in asked.items()}
    assert len(shared(made, asked[VICTIM].message, stamps).names) == PEOPLE
    shutil.rmtree(made.place(VICTIM))
    shutil.copytree(copy, made.place(VICTIM))
    made.identity(VICTIM).mark.path.unlink()
    made.identity(VICTIM).mark.accept()
    turn(made, VICTIM, replace(asked[VICTIM], stamp="1.7", file=None))
    with pytest.raises(StateError):
        shared(made, asked[VICTIM].message, {**stamps, VICTIM: "1.7"})
    (why,) = {each.attempt.refused[VICTIM] for each in made.adding.values()}
    assert f"books: the folder of '{VICTIM}' went back" in why


def shared(made, message, stamps):
    """Hold the sum on shares of the rows that lie under these stamps."""
    names = sorted(stamps)
    form = made.home(names[0]).runner.layout(message, {})
    terms = made.sums.terms(form, message, "run", secrets.randbits(62), len(names))
    facts = {name: getattr(terms, name) for name in ("attempt", "threshold", "cipher")}
    facts |= {"about": terms.form.hex(), "request": terms.request}
    register, sign = made.identity().register, ends(SERVER)[0]

    def ask(asked):
        found = {}
        for name, said in asked.items():
            told = Message("say", {}, facts, message.round)
            request = ClientRequest("say", name, told, stamps.get(name, "1.1"), sum_message=said)
            end = made.home(name) if name in stamps else made.aggregator(name)
            found[name] = unpack(unframed(end.answer(pack(request)))[1], *get_args(SumAnswer))
        return found

    return hold_protocol(Coordinator(terms, tuple(names), register, sign, SERVER).converse(), ask)


@pytest.mark.parametrize(("moment", "files"), COPIES)
def test_a_lying_server_and_a_copy_open_nothing_on_the_same_machine(moment, files, story, later):
    put_back(story, later, moment, files)
    assert gains(story, later) == []


@pytest.mark.parametrize(("moment", "files"), [row for row in COPIES if row[0] != "turn 0"])
def test_a_copy_on_a_machine_without_the_mark_is_refused(moment, files, story, later):
    put_back(story, later, moment, files)
    shutil.rmtree(later.marks)
    with pytest.raises(RolledBack, match=r"no mark .* join FOLDER --restored") as refused:
        turn(later, VICTIM, replace(story.asked[VICTIM], stamp="1.7", file=None))
    assert "\n" not in str(refused.value)
    assert gains(story, later) == []


def test_an_honest_restart_is_accepted(story, later):
    """From the folder as it was left, also moved, and where the mark is a little older."""
    put_back(story, later, "end", ALL)
    marks = later.identity(VICTIM).mark.path
    data = json.loads(marks.read_text())
    for count in (data["books"]["sum.spent"][0], 2, 1):
        end = later.identity(VICTIM).mark.end("sum.spent", count)
        data["books"]["sum.spent"] = end
        marks.write_text(json.dumps(data))
        for client in (*later.names, *later.names):
            assert turn(later, client, story.asked[client])["status"] == "ok"
        assert json.loads(marks.read_text())["books"]["sum.spent"][0] > 3


def test_a_book_of_the_same_length_with_another_line_is_noticed(story, later):
    """And one that is longer: the chain covers every line before the mark."""
    path = later.place(VICTIM) / "sum.spent"
    first, *lines = path.read_text().splitlines(keepends=True)
    for text in (["00" + first[2:], *lines], [first[::-1], *lines, "aa more\n"]):
        path.write_text("".join(text))
        with pytest.raises(RolledBack, match=r"sum.spent has other entries"):
            turn(later, VICTIM, story.asked[VICTIM])


@pytest.fixture
def owned(tmp_path, monkeypatch):
    """A client's folder as `deploy init` leaves it, after some answers."""
    monkeypatch.setenv("VERGENCE_STATE", str(tmp_path / "user"))
    side = ClientSide("anna", "127.0.0.1:8000", "a1b2")
    folder = tmp_path / "anna"
    place = folder / "state" / "a1b2" / "fedavg"
    (place / FOLDER).mkdir(parents=True)
    write_settings(folder, side)
    shutil.copytree(folder, tmp_path / "new")
    launcher.check_mark(folder, side, restored=False)
    mark = FolderMark(folder, side.run, side.client)
    mark.check()
    (place / "sum.spent").write_text("aa question of 0\nbb row of 0\n")
    (place / "ledger.seed0.json").write_text('{"last_round": 4, "saves": 7}')
    mark.commit(mark.run_of(place, 0), 4)
    return SimpleNamespace(folder=folder, side=side, place=place, new=tmp_path / "new")


def test_join_refuses_a_folder_that_was_put_back_and_says_what_to_do(owned):
    launcher.check_mark(owned.folder, owned.side, restored=False)
    with pytest.raises(RolledBack, match=r"0 of 7 entries .* --restored") as refused:
        launcher.check_mark(owned.new, owned.side, restored=False)
    assert "\n" not in str(refused.value)
    launcher.check_mark(owned.new, owned.side, restored=True)
    launcher.check_mark(owned.new, owned.side, restored=False)
    mark = FolderMark(owned.new, owned.side.run, owned.side.client)
    mark.check()
    with pytest.raises(RolledBack, match="takes part after round 4"):
        mark.refuse_answered("state/a1b2/fedavg 0", 4)
    mark.refuse_answered("state/a1b2/fedavg 0", 5)
    mark.refuse_answered("state/a1b2/fedcpf 0", 0)
    assert "only later rounds" in (owned.new / "events.log").read_text()


@pytest.mark.parametrize("book", ["seed0.sums.csv", "seed0.client.anna.csv", "seed0.mask.anna.csv"])
@pytest.mark.parametrize("mark", [True, False])
def test_join_lets_no_folder_go_on_that_lost_a_budget(book, mark, owned):
    log = ReleaseLog(owned.place / FOLDER / book)
    log.enter(Release("0", "0.train", 3.0, 1.0, 1))
    FolderMark(owned.folder, owned.side.run, owned.side.client).commit()
    launcher.check_mark(owned.folder, owned.side, restored=False)
    if mark:
        log.path.unlink()
    else:
        shutil.rmtree(state_folder())
    with pytest.raises(RolledBack, match=rf"{book}.*start a new run"):
        launcher.check_mark(owned.folder, owned.side, restored=True)


def test_a_folder_that_was_moved_goes_on_after_its_last_round(owned):
    """To another machine, which has no mark of it."""
    shutil.rmtree(state_folder())
    with pytest.raises(RolledBack, match="no mark"):
        launcher.check_mark(owned.folder, owned.side, restored=False)
    launcher.check_mark(owned.folder, owned.side, restored=True)
    mark = FolderMark(owned.folder, owned.side.run, owned.side.client)
    mark.check()
    with pytest.raises(RolledBack, match="takes part after round 4"):
        mark.refuse_answered(mark.run_of(owned.place, 0), 4)


def test_a_mark_inside_of_its_folder_is_none(owned, monkeypatch):
    monkeypatch.setenv("VERGENCE_STATE", str(owned.folder / "marks"))
    with pytest.raises(ConfigError, match=r"VERGENCE_STATE .* outside"):
        launcher.check_mark(owned.folder, owned.side, restored=False)


def test_two_runs_of_a_folder_keep_each_others_marks(owned):
    """Each read the mark before the other wrote it."""
    one, two = (FolderMark(owned.folder, owned.side.run, owned.side.client) for _ in range(2))
    one.check()
    two.check()
    one.commit("state/a1b2/fedavg 0", 5)
    two.commit("state/a1b2/fedcpf 0", 2)
    one.check()
    assert one.mark.rounds == {"state/a1b2/fedavg 0": 5, "state/a1b2/fedcpf 0": 2}


@pytest.mark.parametrize("after", [False, True])
def test_a_client_that_is_killed_at_any_write_is_not_refused(after, tmp_path, monkeypatch):
    """Before or after each file is on the disk, in a turn and a sum; then it is started again."""
    kill = KillAtFsync(monkeypatch, after)

    @dataclass
    class Restarted:
        home: Any
        client: str

        @property
        def runner(self):
            return self.home(self.client).runner

        def answer(self, request):
            kill.live = self.client == VICTIM
            try:
                return self.home(self.client).answer(request)
            except Killed:
                return self.home(self.client).answer(request)
            finally:
                kill.live = False

    while kill.more:
        kill.next()
        made = circle(method("fedavg", SGD), tmp_path / str(kill.at), 4, user=USER)
        made.home = partial(Restarted, made.home)
        for client in made.names:
            turn(made, client, ClientRequest("turn", client, question(made, 0), "0.1"))
        with suppress(StateError):
            opened(made, question(made, 0), dict.fromkeys(made.names, "0.1"))
        asked = ClientRequest("turn", VICTIM, question(made, 1), "1.1", progress=1 / 3)
        assert turn(made, VICTIM, asked)["status"] == "ok"
        made.identity(VICTIM).mark.check()
    assert kill.at > 20


@pytest.fixture
def restored(story, later):
    """The folder as before its turn of round 1, which its owner lets go on."""
    put_back(story, later, "turn 1", ALL)
    FolderMark(later.place(VICTIM), "run", VICTIM, later.marks).accept()
    return later


def test_a_folder_that_goes_on_answers_no_round_that_it_may_have_answered(story, restored):
    assert gains(story, restored) == []
    with pytest.raises(RolledBack, match=r"may have answered round 1 before: .* after round 1"):
        turn(restored, VICTIM, replace(story.asked[VICTIM], stamp="1.7"))
    plan = replace(restored.plan, rounds=4, evaluate_every=1)
    restored.plan = plan
    with pytest.raises(RolledBack, match="may have answered round 1 before"):
        turn(restored, VICTIM, replace(evaluation(restored, 2), client=VICTIM))
    old = story.asked[VICTIM]
    later = replace(old.message, round=2)
    state = restored_state(restored, VICTIM)
    asked = replace(old, message=later, stamp="2.1", file=state, progress=plan.progress(2))
    assert turn(restored, VICTIM, asked)["status"] == "ok"


def restored_state(made, client):
    """The file of the state that counts, as the folder's ledger has it."""
    record = json.loads((made.place(client) / "ledger.seed0.json").read_text())
    return record["pending"] or record["committed"]


def spend(made, rounds):
    """Hold sums of rounds, each of which costs everybody budget."""
    for at in rounds:
        message = question(made, at)
        for client in made.names:
            progress = made.plan.progress(at)
            turn(made, client, ClientRequest("turn", client, message, f"{at}.1", progress=progress))
        opened(made, message, dict.fromkeys(made.names, f"{at}.1"))


@pytest.mark.parametrize("mark", [True, False])
def test_a_budget_that_was_put_back_is_not_spent_twice(mark, tmp_path):
    """The book of `privacy.user`, damaged and put back from the day before."""
    made = circle(method("fedavg", SGD), tmp_path, 5, user=USER, rounds=8)
    book, kept = made.place(VICTIM) / FOLDER / "seed0.sums.csv", tmp_path / "kept.csv"
    spend(made, range(2))
    shutil.copy2(book, kept)
    spend(made, range(2, 5))
    book.write_bytes(book.read_bytes()[:-9] + b"\x00garbage\n")
    shutil.copy2(kept, book)
    if not mark:
        shutil.rmtree(made.marks)
    with pytest.raises(RolledBack, match="start a new run"):
        spend(made, [5])
    with pytest.raises(RolledBack, match=r"seed0.sums.csv.*start a new run"):
        FolderMark(made.place(VICTIM), "run", VICTIM, made.marks).accept()
    assert len(ReleaseLog(book).entries) == 2


def test_a_question_to_a_teacher_is_counted_whatever_is_put_back(tmp_path):
    mark = FolderMark(tmp_path / "owner", "run", "owner", tmp_path / "marks")
    quota = TeacherQuota(tmp_path / "owner", most=50, mark=mark)
    quota.folder.mkdir()
    made = Params.named(made=torch.zeros(30, 4))
    asked = ClientRequest("turn", "owner", Message("judge", {"made": made}), "0.1")
    quota.count(asked, "a")
    quota.count(asked, "a")
    (quota.folder / FILE).unlink()
    with pytest.raises(RolledBack, match=r"asked.csv has 0 of 2 entries"):
        quota.count(asked, "b")
    with pytest.raises(RolledBack, match="start a new run"):
        mark.accept()


def test_an_aggregator_that_was_put_back_opens_no_second_sum(tmp_path):
    """Nor may its owner let it go on: nobody else knows which sums it opened."""
    policy = SecureAggregationConfig("additive", aggregators=("north", "south"))
    made = circle(method("fedavg", SGD), tmp_path, 5, policy)
    made.run_rounds(rounds=1)
    assert made.place("north").joinpath("sum.spent").exists()
    (made.place("north") / "sum.spent").unlink()
    mark = made.identity("north").mark
    made.adding.clear()
    message = question(made, 0)
    request = ClientRequest("say", "north", message, "0.1", sum_message=Invitation(b""))
    with pytest.raises(RolledBack, match=r"sum.spent has 0 of \d+ entries"):
        made.aggregator("north").answer(pack(request))
    with pytest.raises(RolledBack, match="start a new run"):
        mark.accept()


def test_a_mark_that_cannot_be_written_stops_the_client(tmp_path):
    (tmp_path / "file").write_text("")
    made = circle(method("fedavg", SGD), tmp_path / "run", 5)
    made.marks = tmp_path / "file" / "marks"
    with pytest.raises(StateError, match=r"cannot be written .* VERGENCE_STATE") as refused:
        turn(made, VICTIM, ClientRequest("turn", VICTIM, question(made, 0), "0.1"))
    assert "\n" not in str(refused.value)
    assert not (made.place(VICTIM) / "sum.spent").exists()


@pytest.mark.parametrize(
    ("system", "names", "ends"),
    [
        ("linux", {}, ".local/state/vergence"),
        ("linux", {"XDG_STATE_HOME": "/x"}, "/x/vergence"),
        ("darwin", {}, "Library/Application Support/vergence"),
        ("win32", {"LOCALAPPDATA": "/y"}, "/y/vergence"),
        ("win32", {}, "AppData/Local/vergence"),
        ("linux", {"VERGENCE_STATE": "/z"}, "/z"),
    ],
)
def test_marks_lie_where_a_system_has_what_must_stay(system, names, ends, monkeypatch):
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA", "VERGENCE_STATE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", system)
    assert state_folder().as_posix().endswith(ends)

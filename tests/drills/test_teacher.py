"""An owner serves its teacher: the same as in process, and what it refuses to answer."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import pytest
import tomli_w
import torch

from tests.data.zero_shot.test_xlsa17 import write as write_xlsa17
from tests.drills.deployment import deployed, simulated
from tests.lines import Wire, greet
from vergence.core.files import complete_length
from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.serialization import equal_states, pack
from vergence.deployment import folder_setup, launcher
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.client_registry import ENOUGH
from vergence.deployment.folders import EXPERIMENT, ClientSide, settings, write_settings
from vergence.deployment.protocol import ClientRequest, unframed
from vergence.deployment.server_run import ServerRun
from vergence.deployment.teacher_quota import FILE, TeacherQuota, parse_entries
from vergence.engine.round_loop import run_rounds
from vergence.errors import StateError, VergenceError
from vergence.experiment import run
from vergence.experiment.schema import check

OWNER = ("owner",)
TEACHER = {
    "task": {"name": "zero_shot"},
    "model": {"name": "mlp", "inputs": 64, "hidden": [16], "classes": 16},
    "federation": {"name": "zsl_synthetic", "images": 10},
    "methods": [
        {"name": "pe_zsl", "generator_rounds": 2, "samples": 20, "batch": 160, "hidden": 16},
        {
            "name": "sg_zsl",
            "guide": "student",
            "generator_rounds": 1,
            "samples": 20,
            "batch": 160,
            "hidden": 16,
        },
    ],
    "local": {"optimizer": "sgd", "epochs": 1, "batch": 32, "lr": 0.05},
    "run": {"rounds": 3, "seeds": [0], "evaluate_every": 0, "solver": "sequential"},
}


def question(samples, verb="judge", stamp="0.1"):
    made = Params.named(made=torch.zeros(samples, 4))
    return ClientRequest("turn", "owner", Message(verb, {"made": made}), stamp)


def entries(folder):
    """What the log of a client's folder says; a line that is not whole counts for nothing."""
    data = (folder / FILE).read_bytes()
    return parse_entries(data[: complete_length(data)])


def test_samples_are_counted_before_they_are_answered_and_once(tmp_path):
    book = TeacherQuota(tmp_path, most=50, clock=lambda: 1000.0)
    book.count(question(30), "a")
    book.count(question(30), "a")  # the same request, sent again
    book.count(question(20, "guide"), "b")
    with pytest.raises(StateError, match=r"50 samples in all, has answered 50 .* 1 more"):
        book.count(question(1), "c")
    lines = (tmp_path / FILE).read_text().splitlines()
    assert lines[0] == "time,mark,what,samples"
    assert lines[1:] == ["1000.000,a,judge 0.1,30", "1000.000,b,guide 0.1,20"]


def test_a_minute_has_its_limit_and_passes(tmp_path):
    now = [0.0]
    book = TeacherQuota(tmp_path, a_minute=100, clock=lambda: now[0])
    book.count(question(80), "a")
    now[0] = 19.5
    with pytest.raises(StateError, match=r"again in 41 s: .* 100 samples a minute"):
        book.count(question(30), "b")
    now[0] = 61.0
    book.count(question(30), "b")
    with pytest.raises(StateError, match=f"^{ENOUGH}.* 101 at once"):  # no minute is long enough
        book.count(question(101), "c")
    now[0] = 31.0  # the clock was set back: no new minute begins
    with pytest.raises(StateError, match="again in 90 s"):
        book.count(question(80), "c")
    now[0] = -500.0  # what lies far in the future is not of this minute
    book.count(question(100), "c")


def test_a_damaged_book_answers_nothing_and_a_torn_line_is_none(tmp_path):
    book = TeacherQuota(tmp_path)
    book.count(question(5), "a")
    with (tmp_path / FILE).open("a") as file:
        file.write("12.0,b,jud")
    assert len(entries(tmp_path)) == 1
    (tmp_path / FILE).write_text("time,mark,what,samples\nnonsense\n")
    with pytest.raises(StateError, match=r"damaged .* nothing more is answered"):
        book.count(question(5), "c")


def test_the_book_outlives_a_tear_at_every_byte(tmp_path, monkeypatch):
    """Also through its first line: what was answered after that counts, and is all read again."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    book, file = TeacherQuota(tmp_path, clock=lambda: 1000.0), tmp_path / FILE
    book.count(question(3), "a")
    data = file.read_bytes()
    for end in range(len(data)):
        file.write_bytes(data[:end])
        assert not entries(tmp_path)
        book.count(question(7), "c")
        book.count(question(5), "b")
        assert entries(tmp_path) == [(1000.0, "c", 7), (1000.0, "b", 5)]
    file.write_text("1000.000,a,judge 0.1,3\n")
    with pytest.raises(StateError, match=r"damaged .*first line"):
        book.count(question(1), "d")


def test_no_name_of_a_turn_damages_the_book(tmp_path):
    book = TeacherQuota(tmp_path)
    for number, stamp in enumerate(("0.1\n", "0.1\r", '0."', "0.\u2028", "\x1c,", "\ud800")):
        book.count(question(1, stamp=stamp), str(number))
    assert len(entries(tmp_path)) == 6


def test_processes_of_one_owner_share_a_budget(tmp_path):
    """Every look at the clock lets all the others read too, if they may."""
    book = TeacherQuota(tmp_path, most=3, clock=lambda: time.sleep(0.01) or 0.0)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(book.count, question(1), str(n)) for n in range(8)]
        assert sum(one.exception() is None for one in asked) == 3
    assert len(entries(tmp_path)) == 3


def test_other_turns_are_free(tmp_path):
    book = TeacherQuota(tmp_path, most=1)
    for stamp in ("0.1", "0.2"):
        book.count(ClientRequest("turn", "owner", Message("teach"), stamp), stamp)
    assert not (tmp_path / FILE).exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return an owner's folder after its teacher learned, the note of its run and its state."""
    path = tmp_path_factory.mktemp("made")
    table = {
        **TEACHER,
        "methods": [{**TEACHER["methods"][0], "guide": "student", "regulariser": "none"}],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "check_flower", lambda: None)
        folder_setup.init(check(table), OWNER, "127.0.0.1:8000", path / "out")
    own = path / "out" / "clients" / "owner"
    note = {"kind": "request", "run": settings(own, ClientSide).run, "label": "pe_zsl", "seed": 0}
    asked = ClientRequest("turn", "owner", Message("teach"), "setup.1")
    taught = unframed(AnsweringClient(own, settings(own, ClientSide)).work(note, pack(asked)))[0]
    return own, note, taught["filed"][0]


@pytest.fixture(autouse=True)
def marks(tmp_path, monkeypatch):
    """Each test has a copy of the folder, as if on a machine of its own."""
    monkeypatch.setenv("VERGENCE_STATE", str(tmp_path / "user"))


def limited(folder, path, **limits):
    """Return an end of a copy of the folder, with limits, and its note and state."""
    own, note, file = folder
    shutil.copytree(own, path / "owner")
    write_settings(path / "owner", replace(settings(own, ClientSide), **limits))
    return AnsweringClient(path / "owner", settings(path / "owner", ClientSide)), note, file


def about(made, file, verb="judge", stamp="0.1"):
    trees = {"made": Params.named(made=made)}
    return ClientRequest("turn", "owner", Message(verb, trees), stamp, file)


MISUSE = {
    "more than in all": (lambda f: about(torch.zeros(41, 64), f), "40 samples in all"),
    "more than a minute": (lambda f: about(torch.zeros(31, 64), f), "30 samples a minute"),
    "gradients in a black box": (
        lambda f: about(torch.zeros(2, 64), f, "guide"),
        "nothing that can be done",
    ),
    "comparisons with real samples": (
        lambda f: about(torch.zeros(2, 64), f, "compare"),
        "nothing that can be done",
    ),
    "a verb of nobody's": (
        lambda f: about(torch.zeros(2, 64), f, "model_on"),
        "nothing that can be done",
    ),
    "features of another number": (lambda f: about(torch.zeros(2, 63), f), "features"),
    "no samples": (
        lambda f: replace(about(torch.zeros(2, 64), f), message=Message("judge")),
        "cannot be",
    ),
    "another owner": (lambda f: replace(about(torch.zeros(2, 64), f), client="p00"), "not for"),
    "a file of somebody's": (
        lambda _: about(torch.zeros(2, 64), "../../secret.safetensors"),
        "no state of",
    ),
    "dropping the teacher": (
        lambda f: replace(about(torch.zeros(2, 64), f), drop=(f,)),
        "do away with",
    ),
}


@pytest.mark.parametrize("kind", MISUSE)
def test_misuse_is_refused_with_a_reason_and_changes_nothing(kind, folder, tmp_path):
    make, reason = MISUSE[kind]
    end, note, file = limited(folder, tmp_path, answers_in_all=40, answers_a_minute=30)
    before = next((tmp_path / "owner").rglob(file)).read_bytes()
    with pytest.raises(VergenceError, match=reason):
        end.work(note, pack(make(file)))
    assert next((tmp_path / "owner").rglob(file)).read_bytes() == before
    told, _ = unframed(end.work(note, pack(about(torch.zeros(2, 64), file))))
    assert told["status"] == "ok"


def test_nan_is_no_answer_and_a_question_sent_again_costs_nothing(folder, tmp_path):
    end, note, file = limited(folder, tmp_path, answers_in_all=6)
    told, body = unframed(end.work(note, pack(about(torch.full((2, 64), torch.nan), file))))
    assert told["status"].startswith("quarantined: finite")
    assert not body
    good = pack(about(torch.zeros(4, 64), file, stamp="0.2"))
    assert end.work(note, good) == end.work(note, good)
    with pytest.raises(StateError, match="6 samples in all, has answered 6"):
        end.work(note, pack(about(torch.zeros(1, 64), file, stamp="0.3")))


def test_a_main_server_has_no_budget_of_its_own(folder, tmp_path):
    end, note, file = limited(folder, tmp_path, answers_in_all=1)
    with pytest.raises(StateError, match="1 samples in all"):
        end.client_node(note, closed=True).answer(pack(about(torch.zeros(2, 64), file)))


def test_a_batch_of_batches_is_no_sample(folder, tmp_path):
    end, note, file = limited(folder, tmp_path, answers_in_all=1)
    with pytest.raises(VergenceError):
        end.work(note, pack(about(torch.zeros(1, 50, 64), file)))


class Owner(Wire):
    """Stands for Flower: the owner is a node of this process."""

    def __init__(self, end):
        self.end = end

    def nodes(self):
        return {1: "now"}

    def answer(self, node, data):
        return self.end.answer(data)


@pytest.mark.slow
@pytest.mark.parametrize(("more", "learns"), [(0, False), (160, True)])
def test_a_provider_goes_on_when_its_budget_is_spent(more, learns, tmp_path, monkeypatch):
    """The generator's round asks about 320; of the lesson's 320 `more` are answered."""
    monkeypatch.setattr(launcher, "check_flower", lambda: None)
    method = {**TEACHER["methods"][0], "verify": False, "generator_rounds": 1}
    table = {**TEACHER, "methods": [method]}
    folder_setup.init(check(table), OWNER, "127.0.0.1:8000", tmp_path / "out")
    own, server = tmp_path / "out" / "clients" / "owner", tmp_path / "out" / "server"
    side = replace(settings(own, ClientSide), answers_in_all=320 + more)
    found, leading = [], ServerRun(server, Owner(AnsweringClient(own, side)))

    def recorded(*args, **more):
        found.append(run_rounds(*args, **more))
        return found[0]

    monkeypatch.setattr(run, "run_rounds", recorded)
    greet(leading.registry, 1)
    leading.run()
    assert (server / "run" / "pe_zsl" / "results.json").exists()
    final = found[0].server
    assert (final.lesson is not None) is learns
    assert equal_states(final.model, leading.experiment.task(0).init()) is not learns
    if learns:
        assert final.lesson["kept"].tolist() == [1.0] * 160 + [0.0] * 160


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'")
def test_a_served_teacher_gives_the_bits_of_one_process_to_a_provider_without_data(tmp_path):
    """They meet over TLS. The features lie where the owner's folder says; the provider's folder,
    and the experiment of both, name a place that is not there.
    """
    data = tmp_path / "data"
    data.mkdir()
    write_xlsa17(data)
    names = ["killer whale", "sea lion", "bat"]
    table = {
        **TEACHER,
        "task": {"name": "zero_shot", "names": names, "unseen": ["bat"]},
        "model": {"name": "mlp", "inputs": 3, "hidden": [4], "classes": 3},
        "federation": {"name": "xlsa17", "root": str(data)},
        "methods": [{**method, "semantics": "random"} for method in TEACHER["methods"]],
    }
    with deployed(tmp_path, table, clients=OWNER) as made:
        gone = {**table, "federation": {"name": "xlsa17", "root": str(tmp_path / "nowhere")}}
        for folder in (made.server, made.client("owner")):
            (folder / EXPERIMENT).write_text(tomli_w.dumps(gone))
        side = settings(made.client("owner"), ClientSide)
        write_settings(made.client("owner"), replace(side, data=str(data)))
        served, joined = made.serve(), made.join("owner")
        here = simulated(table, tmp_path / "here")
        assert served.wait(500) == 0, made.events()
        assert joined.wait(30) == 0
        assert made.fingerprints() == here
        assert set(here) == {"pe_zsl", "sg_zsl"}
        asked = entries(made.client("owner"))
        assert sum(samples for *_, samples in asked) == (2 + 1) * 60 + (1 + 1) * 60
        assert str(data) not in "".join(
            path.read_text(errors="replace") for path in made.server.rglob("*") if path.is_file()
        )

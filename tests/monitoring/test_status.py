"""How a run stands, read from folders that are finished, cut off, being written, or not runs."""

import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import vergence as vg
from tests.cli.commands import SEVERAL, TOY, go_on, run, vergence, write
from vergence.deployment.folders import (
    EXPERIMENT,
    ClientSide,
    ServerSide,
    tell,
    write_settings,
)
from vergence.errors import PartialRun, StateError
from vergence.experiment.run import RoundCallback, start
from vergence.experiment.schema import load
from vergence.monitoring import page as status_page
from vergence.monitoring.status import silent_first, status
from vergence.monitoring.terminal import amount, as_json, duration
from vergence.system.file_locks import lock_owner

EVIL = "<script>alert(1)</script>\x1b[2J"
TURNS = "seed,round,client,verb,tree,bytes_up,bytes_down,examples,weight,steps,personal_fraction"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Three methods, two seeds, six rounds; a third of all replies is lost."""
    sets = ("run.rounds=6", "run.seeds=[0, 1]", "run.evaluate_every=2", "presence.lost=0.3")
    return run(tmp_path_factory.mktemp("runs"), SEVERAL, *sets)


def cut(finished: Path, folder: Path, rounds: int = 4) -> Path:
    """Return a copy as it was in seed 0 of its second method, in the middle of writing a line."""
    out = Path(shutil.copytree(finished, folder / "cut"))
    shutil.rmtree(out / "fedcpf")
    for name in ("results.json", "SHA256SUMS"):
        (out / "fedavg" / name).unlink()
    for name, torn in (("rounds.csv", "0,5,train,lo"), ("turns.csv", '0,5,p00,train,"mod')):
        head, *rows = (out / "fedavg" / name).read_text().splitlines()
        kept = [row for row in rows if row.startswith("0,") and int(row.split(",")[1]) <= rounds]
        (out / "fedavg" / name).write_text("\n".join([head, *kept, torn]))
    return out


def turns(path: Path) -> list[list[str]]:
    return [line.split(",") for line in path.read_text().splitlines()[1:]]


@pytest.mark.slow
def test_a_finished_run(finished):
    found = status(finished)
    assert [r.label for r in found.runs] == ["local_only", "fedavg", "fedcpf"]
    assert {r.state for r in found.runs} == {"finished"}
    assert (found.running, found.seconds_left, found.now.label) == (None, None, "fedcpf")
    one = found.now
    assert (one.done, one.total, one.seed, one.round) == (12, 12, 1, 6)
    rows = turns(finished / "fedcpf" / "turns.csv")
    assert one.bytes_up == sum(float(row[5]) for row in rows)
    assert one.bytes_down == sum(float(row[6]) for row in rows)
    for person in one.people:
        mine = [row for row in rows if row[2] == person.name]
        assert (person.asked, person.lost) == (12, sum(row[-1] == "lost" for row in mine))
        assert person.counted == sum(row[-1] == "ok" for row in mine) < 12
        assert person.last_reply == max(int(r[1]) for r in mine if r[0] == "1" and r[-1] == "ok")
        assert person.silence == 6 - person.last_reply
    assert len(one.troubles) == sum(row[-1] == "lost" for row in rows)
    value = json.loads((finished / "fedcpf" / "results.json").read_text())
    assert one.headline is not None
    assert one.headline.metric == value["headline"]
    assert one.headline.better is (one.headline.value < one.headline.before)


@pytest.mark.parametrize("local", [True, False], ids=["with local-only", "without"])
def test_tables_of_an_unfinished_study_begin_with_what_is_missing(local, tmp_path):
    """FedAvg was interrupted in round 2, another waits; local-only is finished or waits."""
    order = (
        ["local_only", "fedavg", "fedcpf"] if local else ["interpolation", "fedavg", "local_only"]
    )
    text = TOY.replace("METHODS", f"methods = {json.dumps(order)}")

    def stop(report):
        if report.label == "fedavg" and report.round == 2:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(PartialRun):
        start(load(write(tmp_path, text)), out, RoundCallback(stop))
    line = f"unfinished: fedavg (1 of 3 rounds), 1 method waiting: `vergence resume {out}`"
    for said in (vergence("compare", out), vergence("report", out)):
        assert said.code == 0, said.err
        assert said.err.startswith(f"vergence: {line}")
        assert ("nobody is compared with local_only" in said.err) is not local
    page = (out / "report.html").read_text()
    assert line.removeprefix("unfinished") in page
    assert vergence("compare", out).out.count(" 0%") == local, "local-only"
    assert line in repr(vg.compare(out))
    go_on(out)
    assert vergence("compare", out).err == ""


def test_a_run_cut_off_in_the_middle_of_a_line(finished, tmp_path):
    """Four of twelve rounds of the second method; the third has not begun."""
    found = status(cut(finished, tmp_path))
    assert [r.state for r in found.runs] == ["finished", "interrupted", "waiting"]
    one = found.now
    assert (one.label, one.done, one.seed, one.round) == ("fedavg", 4, 0, 4)
    took = sorted(
        {
            float(r[-2])
            for r in turns(finished / "fedavg" / "rounds.csv")
            if r[0] == "0" and 1 <= int(r[1]) <= 4 and r[2] == "train"
        }
    )
    assert took[0] <= one.pace <= took[-1]
    assert one.seconds_left == pytest.approx(8 * one.pace)
    pace = (found.runs[0].pace + one.pace) / 2  # of the third method nobody knows
    assert found.seconds_left == pytest.approx(8 * one.pace + 12 * pace)
    assert one.headline.metric == "error", "from the task: there are no results yet"
    assert {t.round for t in one.traffic} <= {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_a_running_run_is_seen_and_left_alone(finished, tmp_path):
    out = cut(finished, tmp_path)
    code = (
        "import sys, pathlib\nfrom vergence.experiment.run import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n    print('in', flush=True)\n"
        "    input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()
        before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
        found = status(out)
        assert (found.running, found.now.state) == (other.pid, "running")
        assert f"running (process {other.pid})" in vergence("status", out).out
        assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
        other.communicate("\n")
    assert status(out).running is None
    assert lock_owner(out / "nothing") is None


def test_the_command(finished, tmp_path):
    said = vergence("status", finished)
    assert said.code == 0
    for word in ("not running", "fedcpf", "12 of 12", "whose turns did not count", "lost"):
        assert word in said.out
    told = json.loads(vergence("status", finished / "fedcpf", "--json").out)
    assert [r["label"] for r in told["runs"]] == ["fedcpf"]
    assert {p["name"] for p in told["runs"][0]["people"]} == {"p00", "p01", "p02"}
    assert told["runs"][0]["traffic"][0].keys() >= {"round", "up", "down", "asked", "counted"}
    assert vergence("status", finished, "--watch").out.count("fedcpf") >= 1, "ends with the run"
    assert vergence("status", finished, "--out", tmp_path / "p.html").code == 0
    assert "<svg" in (tmp_path / "p.html").read_text()
    vergence("status", finished, "--json", "--watch").complains(2, "--json", "--watch")


def test_what_is_no_run_is_refused(tmp_path, finished):
    vergence("status", tmp_path / "nowhere").complains(2, "there is no folder")
    vergence("status", tmp_path).complains(2, "holds no run", "config.toml", "vergence run --out")
    (tmp_path / "config.toml").write_text("task = ")
    vergence("status", tmp_path).complains(2, "config.toml is damaged")
    out = cut(finished, tmp_path)
    table = out / "fedavg" / "turns.csv"
    whole = table.read_text()
    table.write_text(whole.replace("0,2,", "0,two,", 1))
    vergence("status", out).complains(2, "turns.csv is damaged", "two")
    table.write_text("seed,round\n")
    vergence("status", out).complains(2, "turns.csv lacks the columns", "status")


@pytest.fixture
def crowd(finished, tmp_path) -> Path:
    """A run whose last round had 60 clients, one with a name and a reason of its own making."""
    out = cut(finished, tmp_path)
    names = [f"c{i:02}" for i in range(59)]
    rows = [f"0,{1 + (name > 'c39')},{name},train,model,4,8,9,9,1,,ok" for name in names]
    rows += [f"0,{r},{EVIL},train,model,0,8,9,9,1,,quarantined: {EVIL}" for r in (1, 2, 3, 4)]
    rows.append("0,3,c00,train,model,0,8,9,9,1,,late")
    (out / "fedavg" / "turns.csv").write_text("\n".join([f"{TURNS},status", *rows, ""]))
    return out


def test_of_many_people_those_are_shown_who_were_silent_longest(crowd):
    """Never heard: the stranger; c00 to c39 in round 1 of 4, the rest in round 2; 50 of 60."""
    one = status(crowd).now
    shown, left_out = silent_first(one)
    assert (len(one.people), len(shown), left_out) == (60, 50, 10)
    assert [shown[0].name, shown[1].name, shown[2].name] == [EVIL, "c00", "c01"]
    assert (shown[0].silence, shown[0].last_reply, shown[0].quarantined) == (4, None, 4)
    assert (shown[1].silence, shown[1].late, shown[1].reason) == (3, 1, "late")
    assert shown[-1].silence == 2
    page = status_page.page(status(crowd))
    assert "The 50 who were silent longest; 10 more are left out." in page
    assert "c58" not in page


def test_what_clients_said_commands_nothing(crowd):
    page = status_page.page(status(crowd))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    said = vergence("status", crowd).out
    assert "\x1b" not in said
    assert "<script>alert(1)" in said


def test_the_page_is_one_file_without_the_network(finished):
    page = status_page.page(status(finished))
    assert not re.search(r"""(src|href|url|action)\s*[=(]\s*["']?\s*(https?:)?//""", page)
    assert "http-equiv" not in page
    assert page.count("<svg") == page.count("</svg>") == 2
    for word in ("FedCPF", "12 of 12", "36 of 36", "Turns that did not count", "training loss"):
        assert word in page
    assert '<meta http-equiv="refresh" content="10">' in status_page.page(status(finished), 10)


@pytest.fixture
def asked(finished, tmp_path):
    """Serve a run's page; return how to ask for something, and the run's folder."""
    out = cut(finished, tmp_path)
    server = status_page.PageServer(out, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()

    def ask(path="/", verb="GET", host=None):
        line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        line.request(verb, path, headers={"Host": host} if host else {})
        answer = line.getresponse()
        body = answer.read().decode()
        line.close()
        return answer, body

    yield ask, out, server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_server_answers_this_machine_and_only_looks(asked):
    ask, _, server = asked
    assert server.server_address[0] == "127.0.0.1"
    answer, body = ask()
    assert answer.status == 200
    assert "http-equiv" in body
    assert answer.getheader("Content-Security-Policy").startswith("default-src 'none'")
    assert answer.getheader("Server") == "vergence"
    assert json.loads(ask("/status.json")[1])["runs"][1]["round"] == 4
    answer, body = ask(verb="HEAD")
    assert (answer.status, body) == (200, "")
    assert int(answer.getheader("Content-Length")) > 1000
    for verb in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"):
        answer, _ = ask(verb=verb)
        assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD")
    for path in ("/x", "/../config.toml", "/config.toml", "/?a=1", "/status.json/"):
        assert ask(path)[0].status == 404
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1"):
        assert ask(host=host)[0].status == 403
    for host in ("localhost", f"localhost:{server.server_port}", "127.0.0.1"):
        assert ask(host=host)[0].status == 200


def test_programs_that_watch_get_health_and_numbers_without_names(asked, monkeypatch):
    ask, _, _ = asked
    answer, body = ask("/metrics")
    assert (answer.status, answer.getheader("Content-Type").startswith("text/plain")) == (200, True)
    lines = [line for line in body.splitlines() if not line.startswith("#")]
    numbers = {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines)}
    now = json.loads(ask("/status.json")[1])
    for each in now["runs"]:
        method = f'method="{each["label"]}"'
        assert numbers[f"vergence_rounds_done{{{method}}}"] == each["done"]
        counted = sum(person["counted"] for person in each["people"])
        assert numbers[f'vergence_turns{{{method},outcome="counted"}}'] == counted
        assert not any(person["name"] in body for person in each["people"])
    assert numbers["vergence_running"] == 0
    assert len(numbers) == len(lines)
    # Each metric's type stands once, before all its numbers, as the format asks.
    types = [line.split()[2] for line in body.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len({*types})
    answer, body = ask("/health")
    assert answer.status == 503
    assert "no process works on" in body
    monkeypatch.setattr("vergence.monitoring.status.lock_owner", lambda _: 42)
    assert ask("/metrics")[1].splitlines()[1] == "vergence_running 1"
    assert (ask("/health")[0].status, ask("/health")[1]) == (200, "ok\n")


def test_the_server_draws_what_is_new(asked, monkeypatch):
    ask, out, server = asked
    drawn = []
    monkeypatch.setattr(status_page, "page", lambda _, every: str(drawn.append(every)))
    ask(), ask()
    assert len(drawn) == 1
    server.took = 3.0
    with (out / "fedavg" / "rounds.csv").open("a") as file:
        file.write("ss,1.0,0,0,0.1,\n0,6,train,loss,1.0,0,0,0.1,\n")
    ask()
    assert drawn == [10, 60], "seldom, where it takes long"
    (out / "fedavg" / "rounds.csv").write_text("")
    shutil.rmtree(out)
    answer, body = ask()
    assert (answer.status, body) == (500, f"there is no folder {out}\n")


def test_a_port_that_is_taken(asked):
    _, out, server = asked
    vergence("status", out, "--serve", server.server_port).complains(2, "cannot listen", "--serve")


@pytest.fixture
def deployed(finished, tmp_path) -> Path:
    """A deployment's folders around the run that was cut off."""
    home = tmp_path / "first" / "server"
    (home / "keys").mkdir(parents=True)
    cut(finished, tmp_path).rename(home / "run")
    shutil.copy(home / "run" / "config.toml", home / EXPERIMENT)
    write_settings(home, ServerSide(("anna", "ben", "carl"), "127.0.0.1:8000", "a1"))
    mine = home.parent / "clients" / "anna"
    mine.mkdir(parents=True)
    write_settings(mine, ClientSide("anna", "127.0.0.1:8000", "r", "p00"))
    return home


def test_a_deployment_says_who_is_connected_and_why_others_are_not(deployed, monkeypatch):
    tell(deployed, "'carl' is here", "here", client="carl")
    tell(deployed, "serving 127.0.0.1:8000, 3 clients expected", "serving")
    for client in ("anna", "ben"):
        tell(deployed, f"'{client}' is here", "here", client=client)
    tell(deployed, "fedavg, seed 0: round 1 of 6", "round", label="fedavg", seed=0, round=1)
    tell(deployed, "'ben' is lost: no answer in 600 s", "lost", client="ben")
    tell(deployed, "'ben' is gone", "gone", client="ben")
    tell(deployed, "'carl' refused: its torch is 2.5", "refused", client="carl")
    with (deployed / "events.jsonl").open("a") as file:
        file.write("[1]\nno json\n" + '{"time": "2026')
    assert status(deployed).deployed.connected == (), "nobody, while no server is running"
    monkeypatch.setattr("vergence.monitoring.status.lock_owner", lambda _: 42)
    found = status(deployed)
    assert status(deployed.parent).runs == found.runs, "DIR is as good as DIR/server"
    assert found.deployed.connected == ("anna",)
    assert found.deployed.reasons == {
        "ben": "'ben' is gone",
        "carl": "'carl' refused: its torch is 2.5",
    }
    assert found.now.state == "running"
    assert [e["level"] for e in found.events] == ["info"] * 5 + ["warning", "info", "warning"]
    assert found.events[4]["round"] == 1
    said = vergence("status", deployed).out
    for word in ("1 of 3 clients are connected: anna", "its torch is 2.5", "no answer in 600 s"):
        assert word in said
    page = status_page.page(found)
    assert "1 of 3 clients are connected: anna" in page
    assert "not connected: &#39;ben&#39;" in page


def test_a_revoked_client_is_told_of_as_such(deployed):
    for event in ("revoked", "gone", "lost"):
        tell(deployed, f"'ben' is {event}", event, client="ben")
    assert status(deployed).deployed.reasons == {"ben": "'ben' is revoked"}


def test_a_clients_folder_holds_no_run(deployed):
    said = vergence("status", deployed.parent / "clients" / "anna")
    said.complains(2, "client's folder", "vergence deploy status")


def test_events_are_written_for_people_and_for_programs(tmp_path):
    tell(tmp_path, "one\ntwo", "lost", client="a")
    assert re.fullmatch(r"[\d-]{10} [\d:]{8} one two\n", (tmp_path / "events.log").read_text())
    found = json.loads((tmp_path / "events.jsonl").read_text())
    assert {k: v for k, v in found.items() if k != "time"} == {
        "level": "warning",
        "event": "lost",
        "client": "a",
        "text": "one two",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}([+-]\d\d:\d\d|Z)", found["time"])
    (tmp_path / "events.log").unlink()
    (tmp_path / "events.log").mkdir()
    tell(tmp_path, "three")  # a log that cannot be written is not worth a run
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2
    tell(tmp_path / "nowhere", "four")


def test_numbers_in_words(finished):
    assert [amount(x) for x in (0, 999, 1000, 3720, 999_600, 2.97e9)] == [
        "0 B",
        "999 B",
        "1 kB",
        "3.72 kB",
        "1000 kB",
        "2.97 GB",
    ]
    assert [duration(x) for x in (3, 119, 120, 7200, 172_800)] == [
        "3 s",
        "119 s",
        "2 min",
        "2 h",
        "2 days",
    ]
    assert json.loads(as_json(status(finished)))["seconds_left"] is None
    with pytest.raises(StateError):
        status(finished / "fedcpf" / "state")

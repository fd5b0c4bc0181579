"""Who is asked, who is away, who is lost: drawn by key, told in the tables, leaving no trace."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from tests.cli.commands import ONE, vergence, write
from tests.engine.toys import LOCAL, run_toy, table
from tests.engine.turns import watch_turns
from vergence.core.federation import NumberedIds
from vergence.core.randomness import RandomStream
from vergence.core.serialization import equal_states
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.protections.robust_aggregation import replies
from vergence.errors import ConfigError, DataError
from vergence.methods.centralised import Centralised
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.fedcpf import FedCPF

STREAM = RandomStream("run", 0)
FEDCPF = FedCPF(local=LOCAL, rate=0.2)
NAMES = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=20, unique=True)


@given(NAMES, st.integers(1, 30), st.integers(0, 50))
def test_a_cohort_number_is_that_many_or_everybody(clients, cohort, round):
    asked = Participation(cohort=cohort).ask(clients, round, STREAM)
    assert len(asked) == min(cohort, len(clients))
    assert asked == [c for c in clients if c in asked]  # client order, nobody twice


@given(NAMES, st.floats(0.001, 1.0), st.integers(0, 50))
def test_a_cohort_share_is_rounded_half_up_and_at_least_one(clients, share, round):
    asked = Participation(cohort=share).ask(clients, round, STREAM)
    assert len(asked) == max(1, int(share * len(clients) + 0.5))
    assert asked == [c for c in clients if c in asked]


@given(NAMES, st.integers(1, 5), st.integers(0, 50))
def test_the_draw_depends_on_its_key_alone(clients, cohort, round):
    presence, again = Participation(cohort=cohort), Participation(cohort=cohort)
    presence.ask(clients, round + 1, STREAM)  # asking about other rounds first changes nothing
    assert presence.ask(clients, round, STREAM) == again.ask(clients, round, RandomStream("run", 0))


def test_rounds_and_seeds_draw_differently_and_everybody_gets_a_turn():
    clients = [f"p{i:02d}" for i in range(10)]
    presence = Participation(cohort=3)
    draws = [presence.ask(clients, r, STREAM) for r in range(40)]
    assert len({tuple(d) for d in draws}) > 30
    assert {c for d in draws for c in d} == set(clients)
    others = [presence.ask(clients, r, RandomStream("run", 1)) for r in range(40)]
    assert draws != others


@given(st.integers(0, 60), st.integers(0, 20))
def test_losses_are_keyed_by_client_and_round(round, client):
    half, name = Participation(lost=0.5), f"p{client}"
    assert half.loses(name, round, STREAM) == half.loses(name, round, RandomStream("run", 0))
    assert not Participation(lost=0.0).loses(name, round, STREAM)
    assert Participation(lost=1.0).loses(name, round, STREAM)


def test_half_of_the_replies_get_lost_at_lost_one_half():
    """1000 draws: 500 +- 5 standard deviations of sqrt(250)."""
    found = [Participation(lost=0.5).loses(f"p{i % 10}", i // 10, STREAM) for i in range(1000)]
    assert 420 < sum(found) < 580


@given(st.integers(0, 20), st.integers(0, 40))
def test_the_gone_never_come_back(since, round):
    presence = Participation(gone={"b": since})
    assert presence.here("b", round, STREAM) == (round < since)
    assert presence.here("a", round, STREAM)


def trace(tmp_path: Path, text: str, **options) -> Participation:
    path = tmp_path / "trace.csv"
    path.write_text("client,round,idle,charging\n" + text)
    return Participation(trace=str(path), **options)


ROWS = "a,0,1,1\na,3,1,0\na,5,0,1\na,7,1,1\nb,2,1,1\n"


@pytest.mark.parametrize(
    ("require", "there"),
    [
        (("idle", "charging"), {0, 1, 2, 7, 8}),
        (("idle",), {0, 1, 2, 3, 4, 7, 8}),
        (("charging",), {0, 1, 2, 5, 6, 7, 8}),
        ((), set(range(9))),
    ],
)
def test_a_trace_holds_until_the_next_row_under_the_required_rules(tmp_path, require, there):
    """a: idle and charging from 0, idle only from 3, charging only from 5, both from 7."""
    presence = trace(tmp_path, ROWS, require=require)
    assert {r for r in range(9) if presence.here("a", r, STREAM)} == there
    assert {r for r in range(9) if presence.here("b", r, STREAM)} == set(range(2, 9))


def test_rows_of_a_trace_may_come_in_any_order(tmp_path):
    backwards = "\n".join(reversed(ROWS.splitlines())) + "\n"
    presence = trace(tmp_path, backwards)
    assert [presence.here("a", r, STREAM) for r in (2, 4, 8)] == [True, False, True]


def test_only_those_who_are_there_are_drawn(tmp_path):
    presence = trace(tmp_path, ROWS, cohort=2)
    assert presence.ask(["a", "b"], 1, STREAM) == ["a"]
    assert presence.ask(["a", "b"], 4, STREAM) == ["b"]
    assert presence.ask(["a", "b"], 8, STREAM) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("p00,0,1,1\n", "no row for client 'p01'"),
        ("p00,zero,1,1\n", "line 2: not numbers"),
        ("p00,0,yes,1\n", "line 2: not numbers"),
        ("p00,0\n", "line 2: not numbers"),
    ],
)
def test_a_bad_trace_stops_the_run_before_it_writes(tmp_path, text, says):
    trace(tmp_path, text)
    change = f"presence.trace={tmp_path / 'trace.csv'}"
    said = vergence("run", write(tmp_path, ONE), "--out", tmp_path / "out", "--set", change)
    said.complains(3, "trace.csv", says)
    assert not (tmp_path / "out" / "config.toml").exists()


def test_a_trace_of_other_columns_or_none_at_all(tmp_path):
    path = tmp_path / "trace.csv"
    with pytest.raises(DataError, match="no trace file"):
        Participation(trace=str(path)).check(["a"])
    path.write_text("client,round,awake\na,0,1\n")
    with pytest.raises(DataError, match="columns must be client,round,idle,charging"):
        Participation(trace=str(path)).check(["a"])
    with pytest.raises(ConfigError, match="not both"):
        Participation(trace=str(path), rhythm=True)


@given(st.integers(0, 30), st.integers(2, 48))
def test_in_a_rhythm_everybody_is_there_a_third_of_every_day_in_one_stretch(client, day):
    presence, name = Participation(rhythm=True, day=day), f"p{client}"
    there = [presence.here(name, r, STREAM) for r in range(3 * day)]
    assert there[:day] == there[day : 2 * day] == there[2 * day :]
    assert day // 3 <= sum(there[:day]) <= day // 3 + 1
    pairs = zip(there[day - 1 : -1], there[day:], strict=True)
    starts = sum(now and not before for before, now in pairs)
    assert starts <= 2  # once a day, in two days


def test_in_a_rhythm_people_sleep_at_their_own_hours():
    presence = Participation(rhythm=True)
    clients = [f"p{i}" for i in range(20)]
    assert len({tuple(presence.ask(clients, r, STREAM)) for r in range(24)}) > 10


# --- many clients

MILLION = NumberedIds(range(1_000_000))


def away(share: int) -> dict[str, int]:
    """All but every `share`-th of a thousand clients, gone from the start."""
    return {f"c{i:07d}": 0 for i in range(1000) if i % share}


ABSENCES = st.sampled_from(
    [
        {},
        {"rhythm": True},
        {"gone": away(2)},
        {"gone": away(100)},
        {"rhythm": True, "day": 3},
    ]
)


@given(st.integers(1, 1200), st.integers(1, 400), ABSENCES, st.integers(0, 50))
def test_a_cohort_is_distinct_present_in_order_full_and_keyed(people, cohort, options, round):
    """Against looking at everybody; tries fill it or give way to that."""
    clients = NumberedIds(range(people))
    asked = Participation(cohort=cohort, **options).ask(clients, round, STREAM)
    present = {c for c in clients if Participation(**options).here(c, round, STREAM)}
    places = [clients.index(c) for c in asked]
    assert places == sorted(set(places))
    assert set(asked) <= present
    assert len(asked) == min(cohort, len(present))
    again = Participation(cohort=cohort, **options).ask(
        tuple(clients), round, RandomStream("run", 0)
    )
    assert again == asked


@given(st.integers(1, 1200), st.floats(0.001, 1.0), ABSENCES, st.integers(0, 50))
def test_a_share_is_of_those_present(people, share, options, round):
    clients = NumberedIds(range(people))
    asked = Participation(cohort=share, **options).ask(clients, round, STREAM)
    present = [c for c in clients if Participation(**options).here(c, round, STREAM)]
    assert len(asked) == min(max(1, int(share * len(present) + 0.5)), len(present))
    assert asked == [c for c in present if c in set(asked)]


@pytest.mark.parametrize(
    ("options", "present"),
    [
        ({}, range(40)),
        ({"gone": {f"c{i:07d}": 0 for i in range(0, 40, 2)}}, range(1, 40, 2)),  # mostly by trying
        ({"gone": {f"c{i:07d}": 0 for i in range(34)}}, range(34, 40)),  # mostly by looking
    ],
)
def test_everybody_present_is_asked_equally_often(options, present):
    """4000 rounds, three of those present each.

    Of n present, a client is asked 12000 / n times on average with variance 4000 (3/n)(1 - 3/n);
    the sum of squares over that variance, times (n - 1) / n, is chi-square with n - 1 degrees of
    freedom. The seed is fixed; the bound is the 0.999 quantile.
    """
    clients, presence, n = NumberedIds(range(40)), Participation(cohort=3, **options), len(present)
    found = Counter(c for r in range(4000) for c in presence.ask(clients, r, STREAM))
    assert set(found) == {clients[i] for i in present}
    variance = 4000 * (3 / n) * (1 - 3 / n)
    statistic = sum((k - 12_000 / n) ** 2 for k in found.values()) / variance * (n - 1) / n
    assert statistic < chi2.ppf(0.999, n - 1)


def test_both_ways_of_drawing_are_taken(monkeypatch):
    """Half of 40 present: ten tries nearly always find three. Six present: mostly they do not."""
    tries = Participation._try
    found = []
    monkeypatch.setattr(Participation, "_try", lambda *a: found.append(tries(*a)) or found[-1])
    counts = []
    for since in (20, 34):
        found.clear()
        gone = {f"c{i:07d}": 0 for i in range(since)}
        for r in range(200):
            Participation(cohort=3, gone=gone).ask(NumberedIds(range(40)), r, STREAM)
        counts.append(sum(f is not None for f in found))
    assert counts[0] > 180
    assert 0 < counts[1] < 100


@pytest.mark.parametrize(
    "options",
    [
        {"cohort": 100},
        {"cohort": 1e-4},
        {"cohort": 100, "rhythm": True},
        {"cohort": 100, "gone": {"c0000001": 0}},
        {"cohort": 100, "lost": 0.5},
    ],
)
def test_a_hundred_of_a_million_are_drawn_without_looking_at_all(options):
    class Looked(NumberedIds):
        __slots__ = ("count",)

        def __getitem__(self, at):
            self.count += 1
            return super().__getitem__(at)

        def __iter__(self):
            raise AssertionError("everybody was looked at")

    clients = Looked(range(1_000_000))
    for round in range(3):
        clients.count = 0
        assert len(Participation(**options).ask(clients, round, STREAM)) == 100
        assert clients.count < 2000


def test_those_who_stay_are_all_at_no_cost_or_less_the_gone():
    assert Participation(gone={"c0000003": 2}).staying(MILLION, 1) is MILLION
    presence = Participation(gone={"b": 2, "c": 3})
    assert [presence.staying("abc", r) for r in (1, 2, 3)] == ["abc", ["a", "c"], ["a"]]


def test_a_stranger_among_a_million_is_told_without_listing_them():
    with pytest.raises(ConfigError, match="no client 'p7'; known: c0000000 to c0999999, 1,000,000"):
        Participation(gone={"p7": 1}).check(MILLION)
    Participation(gone={"c0000007": 1}).check(MILLION)
    with pytest.raises(ConfigError, match="did you mean 'p07'"):
        Participation(gone={"p7": 1}).check(["p07", "a"])


# --- whole runs


def turns(path):
    return [(int(t["round"]), t["client"], t["status"]) for t in table(path, "turns.csv")]


def test_the_lost_keep_their_state_send_nothing_and_are_told_apart(tmp_path, monkeypatch):
    """Round 1 of p01 is lost: nothing is trained there, its state is that of round 0."""
    lost = {("p01", 1)}
    monkeypatch.setattr(
        Participation, "loses", lambda _, client, round, __: (client, round) in lost
    )
    trained = []
    watch_turns(monkeypatch, lambda task, _: trained.append((task.client, task.message.round)))
    before = run_toy(tmp_path / "one", FEDCPF, rounds=1)
    after = run_toy(tmp_path / "two", FEDCPF, rounds=2)
    assert ("p01", 1) not in trained
    assert equal_states(after.clients["p01"], before.clients["p01"])
    assert not equal_states(after.clients["p00"], before.clients["p00"])
    found = {(int(t["round"]), t["client"]): t for t in table(tmp_path / "two", "turns.csv")}
    row = found[2, "p01"]
    assert (row["status"], row["bytes_up"], row["bytes_down"]) == ("lost", "0", "20")
    assert (row["examples"], row["steps"], row["weight"]) == ("0", "0", "")
    assert found[2, "p00"]["status"] == "ok"
    rounds = table(tmp_path / "two", "rounds.csv")
    assert [r["value"] for r in rounds if r["metric"] == "replies"] == ["3.0", "2.0"]


def test_a_lost_turn_is_as_if_the_client_had_not_been_asked(tmp_path, monkeypatch):
    """Server and everybody's state afterwards, and all later rounds, for a method with memory."""
    with monkeypatch.context() as patch:
        patch.setattr(
            Participation, "loses", lambda _, client, round, __: (client, round) == ("p01", 1)
        )
        lost = run_toy(tmp_path / "lost", FEDCPF)

    def without(_, clients, round, *__, **___):
        return [c for c in clients if (c, round) != ("p01", 1)]

    monkeypatch.setattr(Participation, "ask", without)
    unasked = run_toy(tmp_path / "unasked", FEDCPF)
    assert lost.fingerprint == unasked.fingerprint


def test_everybody_lost_leaves_the_server_as_it_was(tmp_path):
    outcome = run_toy(tmp_path, FedAvg(local=LOCAL), presence=Participation(lost=1.0))
    assert not outcome.server.model.flat.any()  # the toy model starts at zero
    assert outcome.clients == {}
    assert {status for *_, status in turns(tmp_path)} == {"lost"}


def test_a_round_with_everybody_away_is_recorded_and_changes_nothing(tmp_path):
    """Nobody is there in rounds 1 and 2 of four."""
    text = "".join(f"p{i:02d},0,1,1\np{i:02d},1,0,1\np{i:02d},3,1,1\n" for i in range(3))
    presence = trace(tmp_path, text)
    outcome = run_toy(tmp_path / "run", FEDCPF, presence=presence)
    rounds = table(tmp_path / "run", "rounds.csv")
    counted = [(r["round"], r["value"]) for r in rounds if r["metric"] == "replies"]
    assert counted == [("1", "3.0"), ("2", "0.0"), ("3", "0.0"), ("4", "3.0")]
    away = [r for r in rounds if r["round"] in "23"]
    assert [(r["bytes_up"], r["bytes_down"]) for r in away] == [("0.0", "0.0")] * 2
    assert {r for r, *_ in turns(tmp_path / "run")} == {1, 4}
    once = run_toy(tmp_path / "once", FEDCPF, rounds=3, presence=presence)
    assert equal_states(once.server, run_toy(tmp_path / "first", FEDCPF, rounds=1).server)
    assert not equal_states(once.server, outcome.server)


def test_the_gone_are_asked_no_more_not_even_to_fine_tune(tmp_path):
    presence = Participation(gone={"p01": 2})
    run_toy(tmp_path, FedAvgFT(local=LOCAL, tune_epochs=1), presence=presence)
    asked = {(r, c) for r, c, _ in turns(tmp_path)}
    assert asked == {(r, c) for r in (1, 2, 3, 4, 5) for c in ("p00", "p01", "p02")} - {
        (3, "p01"),
        (4, "p01"),
        (5, "p01"),
    }
    told = table(tmp_path, "turns.csv")
    assert {t["client"] for t in told if t["verb"] == "tune"} == {"p00", "p02"}
    people = {r["person"] for r in table(tmp_path, "people.csv")}
    assert people == {"p00", "p01", "p02"}  # the server's model is measured on everybody


@pytest.mark.parametrize("options", [{"rhythm": True}, {"lost": 1.0}, {"gone": {"p00": 0}}])
def test_a_data_centre_is_always_there(tmp_path, options):
    method = Centralised(local=LOCAL)
    here = run_toy(tmp_path / "a", method, presence=Participation(**options))
    assert here.fingerprint == run_toy(tmp_path / "b", method).fingerprint


def test_cohorts_and_losses_are_the_same_for_any_engine(tmp_path):
    presence = Participation(cohort=2, lost=0.3)
    one = run_toy(tmp_path / "a", FEDCPF, people=5, rounds=8, presence=presence)
    two = run_toy(tmp_path / "b", FEDCPF, people=5, rounds=8, presence=presence, workers=2)
    assert one.fingerprint == two.fingerprint
    assert turns(tmp_path / "a") == turns(tmp_path / "b")
    assert "lost" in {status for *_, status in turns(tmp_path / "a")}
    assert {sum(r == n for r, *_ in turns(tmp_path / "a")) for n in range(1, 9)} == {2}


def test_nobody_is_lost_after_the_last_round(tmp_path):
    """Fine-tuning happens at home: it has no reply to lose."""
    method = FedAvgFT(local=LOCAL, tune_epochs=1)
    outcome = run_toy(tmp_path, method, people=8, rounds=2, presence=Participation(lost=0.6))
    tuned = [state.params is not None for state in outcome.clients.values()]
    assert tuned == [True] * 8


def test_who_is_back_is_there_at_the_end_alone():
    presence = Participation(gone={"b": 0, "c": 2}, back=("b",))
    clients = ("a", "b", "c", "d")
    assert presence.staying(clients, 3) == ["a", "d"]
    assert presence.returned(clients, 3) == ["a", "b", "d"]
    with pytest.raises(ConfigError, match="'a' never left"):
        Participation(gone={"b": 0}, back=("a",))


@pytest.mark.parametrize(("cohort", "size"), [(0.04, 1), (0.25, 3), (0.5, 5), (4, 4), (20, 20)])
def test_everyone_who_asks_for_the_size_of_a_cohort_gets_the_same(cohort, size):
    """A share of 10 people is rounded half up, and is at least one person."""
    plan = Plan(presence=Participation(cohort=cohort))
    assert plan.presence.size(10) == size
    people = [f"p{n}" for n in range(10)]
    asked = plan.presence.ask(people, 0, RandomStream("run", 0))
    assert len(asked) == plan.asked(10) == replies(plan, 10) == min(size, 10)


def test_a_share_asks_one_client_at_least_and_a_number_is_kept():
    """0.1 of 3 rounds to 0, 0.5 of 3 to 2 (half up), and of nobody one is asked for."""
    assert [Participation(cohort=0.1).size(n) for n in (0, 3, 4, 15, 16)] == [1, 1, 1, 2, 2]
    assert [Participation(cohort=0.5).size(n) for n in (1, 2, 3)] == [1, 1, 2]
    assert [Participation(cohort=4).size(n) for n in (0, 3, 9)] == [4, 4, 4]
    assert Participation(cohort=1).size(9) == 1
    assert Participation(cohort=1.0).size(9) == 9

"""Secure sums' records by hand: names, thresholds, what tables show, and who is left out."""

from types import SimpleNamespace

import numpy as np
import pytest

from vergence.core.aggregation import Sum
from vergence.core.messages import Message
from vergence.core.method import Exposure
from vergence.engine import secure_sum_attempts
from vergence.engine.plan import Plan
from vergence.engine.protections import secure_aggregation
from vergence.engine.protections.secure_aggregation import SecureSumProtection
from vergence.engine.records import ClientResult, GroupResult
from vergence.engine.secure_sum_attempts import OpenedSum, PartyIdentity, of_rows, with_opened_sum
from vergence.engine.secure_sums import (
    PackedReply,
    SecureSum,
    gate_of,
    left_out,
    masked,
    redact,
    request_of,
    server_deals,
    smallest,
    steered,
    unpack_words,
)
from vergence.engine.silos import Silos
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import ConfigError, StateError
from vergence.privacy.config import Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.privacy.secure_aggregation.additive import Aborted
from vergence.privacy.secure_aggregation.pairwise import STEPS, colluders

SENT = Exposure("each", down=("a",))


def sums(people=9, **policy):
    return SecureSum(SecureAggregationConfig(**policy).among(people), people)


@pytest.mark.parametrize(
    ("numbered", "facts", "name"),
    [
        ((), {"epoch": 4}, "7.train"),
        (("epoch",), {"epoch": 4}, "7.train.4"),
        (("epoch", "part"), {"part": 0, "epoch": 4}, "7.train.4.0"),
        (("epoch",), {"epoch": True}, None),
        (("epoch",), {"epoch": -1}, None),
        (("epoch",), {"epoch": 1.0}, None),
        (("epoch", "part"), {"epoch": 1}, None),
    ],
)
def test_a_sum_is_named_by_its_round_and_numbers(numbered, facts, name):
    form = SimpleNamespace(exposed=Exposure(numbered=numbered))
    message = Message("train", {}, facts, 7)
    if name is None:
        with pytest.raises(StateError, match=r"'train' is numbered by .* no whole numbers"):
            request_of(form, message)
    else:
        assert request_of(form, message) == name


@pytest.mark.parametrize(
    ("counted", "entries", "gate"), [(True, 12, (12, 5)), (False, 12, (0, 0)), (True, 0, (0, 0))]
)
def test_words_are_gated_where_their_contributors_are_counted(counted, entries, gate):
    trees = {"model": SimpleNamespace(count_bits=5), "other": SimpleNamespace(count_bits=6)}
    form = SimpleNamespace(counted=counted, entries=entries, trees=trees)
    assert gate_of(form) == gate


@pytest.mark.parametrize(
    ("asked", "least", "threshold"),
    [(9, 3, 7), (10, 3, 7), (11, 3, 8), (3, 3, 3), (4, 3, 3), (9, 8, 8)],
)
def test_more_than_two_thirds_of_those_asked_open_a_sum(asked, least, threshold, monkeypatch):
    made = sums(min_contributors=least)
    monkeypatch.setattr(SecureSum, "terms_of", lambda _, *given: given)
    monkeypatch.setattr("vergence.engine.secure_sums.SumQuestion.of", lambda *_: "question")
    given = made.terms(None, None, "run", 5, asked)
    assert given == ("question", "run", 5, threshold, "aes-256-ctr")
    shares = sums(min_contributors=least, name="additive")
    assert shares.terms(None, None, "run", 5, asked)[3] == least


@pytest.mark.parametrize(
    ("threshold", "cipher", "said"),
    [(2, "aes-256-ctr", "a sum of 2 people is proposed"), (3, "other", "pads by 'other' are")],
)
def test_weaker_terms_than_ones_own_are_refused(threshold, cipher, said):
    question = SimpleNamespace(request="r", words=5, about=b"a", gated=0, count_bits=0)
    made = sums(min_contributors=3)
    with pytest.raises(StateError, match=said):
        made.terms_of(question, "run", 1, threshold, cipher)
    terms = made.terms_of(question, "run", 1, 3, "aes-256-ctr")
    assert terms.threshold == 3


@pytest.mark.parametrize(("ok", "kept"), [(3, True), (2, False)])
def test_results_count_where_enough_replied(ok, kept):
    results = {
        name: ClientResult(name, "ok" if at < ok else "lost", up={"words": 8}, filed="file")
        for at, name in enumerate("abcd")
    }
    found = sums(min_contributors=3).final_results(results)
    if kept:
        assert found == results
    else:
        why = "lost: a sum of 2 is not opened, 3 are needed"
        assert [found[name].status for name in "abcd"] == [why, why, "lost", "lost"]
        assert (found["a"].up, found["a"].filed) == ({}, None)
        assert found["c"] is results["c"]


RESULT = ClientResult(
    "a",
    "ok",
    {"model": 4},
    {"model": 2.0},
    3.0,
    5,
    {"loss": 1.0},
    {"P1": {"loss": 2.0}},
    StateRef("file", "0" * 64, 0.5),
    0.5,
)


@pytest.mark.parametrize(
    ("status", "words", "up"),
    [("ok", 6, {"words": 48}), ("quarantined: nan", 6, {}), ("ok", 0, {})],
)
def test_tables_show_of_a_secure_reply_its_bytes_alone(status, words, up):
    given = ClientResult(**{**vars(RESULT), "status": status})
    made = redact(given, SimpleNamespace(words=words))
    assert made == ClientResult(
        "a", status, up, measured=RESULT.measured, filed=RESULT.filed, examples=0.0, steps=0
    )


def test_words_travel_as_a_reply():
    words = np.array([1, 2**64 - 1, 2**63], np.uint64)
    made = PackedReply.of(words, 4)
    assert (made.round, made.metrics, made.trees["words"].weight) == (4, {}, 1.0)
    assert made.words.tolist() == words.tolist()
    whole = of_rows(words, 5)
    assert (whole.count, unpack_words(whole.totals["words"]).tolist()) == (5, words.tolist())


@pytest.mark.parametrize(
    ("exposures", "bounded", "differ", "trees"),
    [
        ([Exposure(weight="mask")], False, True, ()),
        ([Exposure(weight="per entry")], False, True, ()),
        ([Exposure(weight="mask")], True, False, ()),
        ([Exposure()], False, False, ()),
        ([Exposure(trees=(), weight="mask")], False, False, ()),
        (
            [Exposure("each", down=("b", "a")), Exposure(), Exposure("each", down=("a",))],
            0,
            0,
            "ba",
        ),
        ([Exposure("each", down=("b",)), Exposure(trees=())], 0, 0, ()),
        ([Exposure("each"), Exposure()], 0, 0, ()),
    ],
)
def test_what_replies_differ_in_and_what_a_server_could_steer(exposures, bounded, differ, trees):
    method = SimpleNamespace(exposure=dict(enumerate(exposures)))
    assert masked(method, SimpleNamespace(bounded=bounded)) == bool(differ)
    assert steered(method) == tuple(trees)
    for parties in ((), ("a", "b"), ("a", "b", "c")):
        privacy = SimpleNamespace(bounded=bounded, aggregators=parties)
        assert server_deals(method, privacy) == (bool(differ) and len(parties) == 2)


def test_the_last_group_has_the_sum_of_all():
    groups = [
        (at, GroupResult([ClientResult(f"{name}{at}", filed="file") for name in "ab"], Sum()))
        for at in range(3)
    ]
    opened = OpenedSum(of_rows(np.zeros(2, np.uint64), 4), {"b1": "lost: left the sum"})
    done = list(with_opened_sum(groups, opened))
    assert [number for number, _ in done] == [0, 1, 2]
    assert [group.sum.count for _, group in done] == [0, 0, 4]
    status = {r.client: r.status for _, group in done for r in group.results}
    assert [name for name, said in status.items() if said != "ok"] == ["b1"]
    assert status["b1"] == "lost: left the sum"
    (gone,) = [r for r in done[1][1].results if r.client == "b1"]
    assert gone == left_out(ClientResult("b1", filed="file"), "lost: left the sum")


def test_whoever_is_not_in_a_sum_left_it_or_was_refused():
    found = secure_sum_attempts._missing("abcd", ["b"], {"a": "key", "b": "none"})
    assert found == {"a": "quarantined: key", "c": "lost: left the sum", "d": "lost: left the sum"}


class Attempts:
    """Plays the attempts at a sum: each says who answered, and whether the sum was opened."""

    def __init__(self, monkeypatch, *attempts):
        self.attempts, self.asked = list(attempts), []
        monkeypatch.setattr(secure_sum_attempts, "PairwiseServer", self.server)
        monkeypatch.setattr(secure_sum_attempts, "converse", lambda server: server)
        monkeypatch.setattr(secure_sum_attempts, "hold", self.hold)
        monkeypatch.setattr(secure_sum_attempts, "PairwiseParams", object)

    def server(self, terms, keys):
        step, answered, refused = self.attempts.pop(0)
        self.asked.append("".join(keys))
        return SimpleNamespace(answers=set(answered), refused=refused, step=step, kinds=STEPS)

    def hold(self, server, ask):
        if server.step is not None:
            raise Aborted("too few")
        return SimpleNamespace(words=np.ones(2, np.uint64), names=sorted(server.answers))

    def total(self, names, threshold=3):
        policy = SimpleNamespace(threshold=threshold, name="pairwise")
        here = SimpleNamespace(policy=policy, terms=lambda *given: given)
        identity = PartyIdentity("run", dict.fromkeys(names))
        form = SimpleNamespace(words=2)
        return secure_sum_attempts.under_pads(here, form, None, names, identity, print)


LEFT = "lost: left the sum"


@pytest.mark.parametrize(
    ("attempts", "asked", "count", "out"),
    [
        ([(None, "abcde", {})], ["abcde"], 5, {}),
        ([(None, "abcd", {"e": "key"})], ["abcde"], 4, {"e": "quarantined: key"}),
        ([(1, "abcd", {}), (None, "abc", {})], ["abcde", "abcd"], 3, {"e": LEFT, "d": LEFT}),
        # Nobody vanished: another attempt would fail as well.
        ([(1, "abcde", {})], ["abcde"], 0, dict.fromkeys("abcde", "lost: no sum: too few")),
        ([(1, "ab", {})], ["abcde"], 0, None),
    ],
)
def test_attempts_at_a_sum_go_on_with_those_who_are_left(attempts, asked, count, out, monkeypatch):
    played = Attempts(monkeypatch, *attempts)
    opened = played.total("edcba")
    assert played.asked == asked
    assert opened.sum.count == count
    if out is None:
        few = "lost: 2 of 5 are left in the sum, which is not opened"
        out = {"a": few, "b": few, "c": LEFT, "d": LEFT, "e": LEFT}
    assert opened.out == out


def test_after_the_last_step_there_is_no_other_attempt(monkeypatch):
    last = len(STEPS) - 1
    played = Attempts(monkeypatch, (last, "abcd", {}), (None, "abcd", {}))
    opened = played.total("abcde")
    assert played.asked == ["abcde"]
    assert opened.out == {**dict.fromkeys("abcd", "lost: no sum: too few"), "e": LEFT}


def test_attempts_end_in_time(monkeypatch):
    names = "abcdefghijklmnop"
    many = [(1, names[: 15 - at], {}) for at in range(12)]
    played = Attempts(monkeypatch, *many)
    opened = played.total(names)
    assert len(played.asked) == secure_sum_attempts.ATTEMPTS
    assert opened.sum.count == 0
    assert set(opened.out) == set(names)


@pytest.mark.parametrize(("names", "words"), [("ab", 2), ("abc", 0)])
def test_sums_of_too_few_or_of_nothing_are_zeros(names, words, monkeypatch):
    played = Attempts(monkeypatch)
    policy = SimpleNamespace(threshold=3)
    form = SimpleNamespace(words=words)
    made = secure_sum_attempts.under_pads(
        SimpleNamespace(policy=policy), form, None, names, None, None
    )
    assert (made.sum.count, made.out, played.asked) == (len(names), {}, [])
    assert unpack_words(made.sum.totals["words"]).tolist() == [0] * words


@pytest.mark.parametrize(("bits", "halves"), [(64, ""), (32, ", two entries in each,")])
@pytest.mark.parametrize(("name", "how"), [("pairwise", "5 messages"), ("additive", "one message")])
def test_the_size_of_what_is_sent_is_named_in_megabytes(bits, halves, name, how, monkeypatch):
    """125,000,062,500 words of 8 bytes are 1,000,000.50 MB; a verb without words has no size."""
    words = {"train": 125_000_062_500, "tell": 0, "batch": None}

    def form(_, verb, __):
        if words[verb] is None:
            raise ConfigError("a batch")
        return SimpleNamespace(words=words[verb])

    monkeypatch.setattr(secure_aggregation, "smallest", lambda _: SimpleNamespace(form=form))
    policy = SimpleNamespace(name=name, entry_bits=bits, colluders=None)
    method = SimpleNamespace(
        exposure=words, known_trees=lambda _: {}, offer=lambda *_: {}, server=lambda _: None
    )
    run = SimpleNamespace(method=method, task=None)
    said = SecureSumProtection(Plan(), policy)._sizes(run)
    assert said == (
        f"up goes as whole numbers of 64 bits{halves} that mean nothing until they are added "
        f"up: 1000000.50 MB [train], as much as a batch is [batch], in {how} with some kB of keys"
    )


@pytest.mark.parametrize(
    ("people", "least", "of", "twice"), [(9, 6, " of 9", 3), (9, 3, " of 9", 1), (0, 4, "", 8)]
)
def test_how_many_must_collude_by_hand(people, least, of, twice):
    few, said, two = secure_aggregation._fewest_colluders(people, least)
    assert few == colluders(people or 2 * least, least)
    assert (said, two) == (of, twice)


@pytest.mark.parametrize("user", [None, UserLevelConfig(noise=2.0, clip=0.5)])
def test_the_smallest_sums_of_a_plan_have_its_bound(user):
    """Of labs with up to 3 people; twice as many clients as open a sum."""
    silos = Silos({"x": ("a", "b", "c"), "y": ("d",)})
    secure = SecureAggregationConfig(min_contributors=4)
    found = smallest(Plan(privacy=Privacy(aggregation=secure, user=user), silos=silos))
    assert (found.people, found.policy.threshold, found.most) == (8, 4, 3)
    assert found.level == (None if user is None else user.level(most=3))
    assert smallest(Plan()) is None


@pytest.mark.parametrize(
    ("attempts", "asked", "count", "out"),
    [
        ([(None, "abcd", 1)], ["abcde"], 4, {"e": LEFT}),
        # Three are enough for another attempt, where an aggregator answered; two are not.
        ([(0, "abc", 1), (None, "abc", 1)], ["abcde", "abc"], 3, {"d": LEFT, "e": LEFT}),
        ([(0, "ab", 1)], ["abcde"], 0, {**dict.fromkeys("cde", LEFT)}),
        ([(0, "abcd", 0)], ["abcde"], 0, {"e": LEFT}),
        ([(0, "abcde", 1)] * 3, ["abcde"] * 3, 0, {}),
    ],
)
def test_aggregators_may_try_again_with_enough_clients(attempts, asked, count, out, monkeypatch):
    left, seen = list(attempts), []

    def coordinator(_, clients, *__):
        failed, names, openings = left.pop(0)
        seen.append("".join(clients))
        here = SimpleNamespace(clients=list(names), refused={}, openings=openings, failed=failed)
        here.converse = lambda: here
        return here

    def hold(here, _):
        if here.failed is not None:
            raise Aborted("too few")
        return SimpleNamespace(words=np.ones(2, np.uint64), names=sorted(here.clients))

    for name, value in {"Coordinator": coordinator, "hold": hold, "ATTEMPTS": 3}.items():
        monkeypatch.setattr(secure_sum_attempts, name, value)
    monkeypatch.setattr(secure_sum_attempts, "AdditiveParams", object)
    sums_ = SimpleNamespace(policy=SimpleNamespace(threshold=3), terms=lambda *given: given)
    identity = PartyIdentity("run", {})
    form = SimpleNamespace(words=2)
    opened = secure_sum_attempts.on_shares(sums_, form, None, "edcba", identity, print)
    assert (seen, opened.sum.count) == (asked, count)
    kept = attempts[-1][1] if not count else ""
    assert opened.out == {**dict.fromkeys(kept, "lost: no sum: too few"), **out}


@pytest.mark.parametrize(
    ("parties", "differ", "said"),
    [
        (("a", "b"), True, ["the server and a helper can find", "one person alone shares"]),
        (("a", "b", "c"), True, ["two of the helpers can find"]),
        (("a", "b"), False, []),
        ((), True, []),
    ],
)
def test_what_secure_sums_do_not_hide(parties, differ, said, monkeypatch):
    monkeypatch.setattr(secure_aggregation, "masked", lambda *_: differ)
    deals = differ and len(parties) == 2
    monkeypatch.setattr(secure_aggregation, "server_deals", lambda *_: deals)
    plan = SimpleNamespace(privacy=SimpleNamespace(aggregators=parties), silos=Silos())
    *texts, last = secure_aggregation._residual(plan, None)
    assert last == "Two sums over nearly the same people differ by one person's part."
    assert len(texts) == len(said)
    for text, part in zip(texts, said, strict=True):
        assert part in text

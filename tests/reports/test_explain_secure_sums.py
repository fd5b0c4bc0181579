"""What `vergence explain` says of secure sums."""

from rich.console import Console

from vergence.experiment.schema import check
from vergence.reports.explain import explain

TABLE = {
    "task": {"name": "toy"},
    "model": {"name": "linear", "inputs": 999},
    "federation": {"name": "toy", "people": 4},
}


def told(method, aggregation, table=TABLE):
    console = Console(width=400, record=True, quiet=False)
    with console.capture() as found:
        explain(
            check({**table, "methods": [method], "privacy": {"aggregation": aggregation}}), console
        )
    return found.get()


def test_plain_sums_are_said_to_be_plain():
    assert "every single update: aggregation here is plain" in told("fedavg", "plain")


def test_pads_say_who_must_collude_and_what_a_dropout_costs():
    """1000 entries, a weight and a loss: 1002 words of 8 bytes."""
    said = told("fedavg", {"min_contributors": 4})
    for words in (
        "0.01 MB [train], in 5 messages",
        "nothing of fewer than 4 people",
        "must collude: the server with 3 clients",
        "may vanish at any time",
    ):
        assert words in said
    assert "aggregation here is plain" not in said
    assert "how many samples" not in said


def test_shares_say_that_few_contributors_stay_hidden_and_who_must_collude():
    said = told("fedcpf", {"name": "additive", "aggregators": ["north", "south", "west"]})
    for words in (
        "fewer than 3 share, only that it is so",
        "all of north, south, west",
        "west with one of the others",
        "each person's test metrics",
    ):
        assert words in said
    assert "which entries each person shares" not in said
    assert "a server that lies" not in said


def test_with_two_aggregators_a_lying_server_opens_what_one_person_shares():
    two = {"name": "additive"}
    assert "a server that lies can have them opened, as it deals" in told("fedcpf", two)
    assert "a server that lies" not in told("fedavg", two)


def test_half_words_hold_two_entries():
    """1000 entries in 500 words, a weight and a loss."""
    half = {"entry_bits": 32, "range": 1.0, "weight": 1000.0}
    said = told("fedavg", half)
    assert (
        "whole numbers of 64 bits, two entries in each, that mean nothing until they are added up: "
        "0.00 MB" in said
    )
    assert "two entries" not in told("fedavg", "secure")


def test_split_learning_says_what_no_sum_hides():
    table = {
        "task": {"name": "gaze_angle"},
        "model": {"name": "small_eye"},
        "federation": {"name": "eye_synthetic", "people": 4, "samples": 40},
    }
    said = told("splitfed", "secure", table)
    assert "but every single person's smashed, labels, which no sum hides" in said
    assert "[release], in 5 messages" in said

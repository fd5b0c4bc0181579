"""Layout of results: columns of a run's tables, display names, and formats of numbers.

Used in most packages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from vergence.engine.storage import run_tables
from vergence.metrics.intervals import Bounds, interval, with_number

MINUS, DASH, TIMES = "\u2212", "\u2013", "\u00d7"


class Column(NamedTuple):
    """Type, meaning and unit of a table's column; a number of type float may be left empty."""

    kind: type
    meaning: str
    unit: str = ""


COLUMNS = {
    "seed": Column(int, "seed of the run"),
    "round": Column(int, "rounds done; 0 is before training, a turn of round 1 is in the first"),
    "person": Column(str, "whose samples were measured"),
    "client": Column(str, "who was asked"),
    "evaluation": Column(str, "point of measurement, or train for numbers of the training"),
    "metric": Column(str, "name of the number in `value`"),
    "value": Column(float, "a score; in rounds.csv the mean over people", "the metric's"),
    "bytes_up": Column(float, "sent by clients; in rounds.csv the mean over those asked", "bytes"),
    "bytes_down": Column(float, "sent to clients, counted alike", "bytes"),
    "seconds": Column(float, "duration of a round, or of a trial", "s"),
    "personal_fraction": Column(float, "share of the parameters that a client keeps; or empty"),
    "verb": Column(str, "what a client was asked to do"),
    "tree": Column(str, "which set of parameters travelled"),
    "examples": Column(float, "the task's weight of the client's training data"),
    "weight": Column(float, "largest weight of a reply's entries"),
    "steps": Column(float, "gradient steps of a turn", "steps"),
    "status": Column(str, "ok, or why a turn or trial did not count"),
    "time": Column(float, "time of an event by the virtual clock", "s"),
    "turn": Column(int, "number of a client's turn"),
    "version": Column(int, "version of the model that was sent"),
    "age": Column(int, "versions that were made since"),
    "event": Column(str, "what happened"),
    "took": Column(float, "duration of a turn by the virtual clock", "s"),
    "prior": Column(str, "name of a predictor that needs no training"),
    "class": Column(str, "name of a class"),
    "samples": Column(int, "training samples of a class", "samples"),
    "group": Column(int, "group whose model serves a person at the end"),
    "unseen": Column(int, "1 for a class of which whoever predicts had no samples"),
    "accuracy": Column(float, "share of a class's test samples that are right"),
    "block": Column(
        str, "number of the picture or scene that is shown, or run of neighbouring samples"
    ),
    "counted": Column(int, "frames or samples that count in a block", "samples"),
    "method": Column(str, "label of a method"),
    "trial": Column(int, "number of a sweep's trial"),
    "score": Column(float, "mean over people of a trial's score; higher is better"),
    "headline": Column(float, "mean over people of a trial's headline", "the metric's"),
    "unit": Column(str, "whose privacy is counted: person, sample, mask, picture or pixel"),
    "who": Column(str, "client that keeps the log; empty for the server's"),
    "epsilon": Column(str, "privacy spent, as shown"),
    "delta": Column(str, "delta that it is counted at, as shown"),
    "charges": Column(str, "noise, sampling rate and number of releases, as JSON"),
}
"""Columns of all tables of a run and a sweep, by name."""
TABLES: Mapping[str, tuple[str, ...]] = {
    **run_tables.TABLES,
    **run_tables.OPTIONAL,
    "priors.csv": ("prior", "person", "metric", "value"),
    "classes.csv": ("person", "class", "samples"),
    "groups.csv": ("seed", "person", "group"),
    "per_class.csv": ("seed", "person", "class", "unseen", "accuracy"),
    "samples.csv": ("seed", "person", "block", "counted", "value"),
    "prior_samples.csv": ("prior", "person", "block", "counted", "value"),
    "spent.csv": ("method", "trial", "seed", "unit", "who", "epsilon", "delta", "charges"),
}
"""Table -> the columns that it has in every run. The engine defines tables that grow in a run."""
CROWD = 100
"""Most people who are drawn or listed one by one; of more, their distribution is shown."""
COSTS = run_tables.TABLES["rounds.csv"][5:]
"""Columns of rounds.csv that have the same value in every row of a round."""
TRIAL = ("method", "trial", "seed")
"""First columns of trials.csv and spent.csv."""
OUTCOME = ("score", "headline", "seconds", "status")
"""Last columns of trials.csv, after the settings that were tried."""

METHOD_NAMES = {
    "local_only": "local-only",
    "centralised": "centralised",
    "fedavg": "FedAvg",
    "fedavg_ft": "FedAvg + fine-tuning",
    "fedprox": "FedProx",
    "fedselect": "FedSelect",
    "fedcpf": "FedCPF",
    "fedcpf_random": "random freezing",
    "fedcpf_inverted": "inverted FedCPF",
    "fedpac": "FedPAC",
    "fedper": "FedPer",
    "fedrep": "FedRep",
    "fedbabu": "FedBABU",
    "splitfed": "SplitFed V1",
    "splitfed_v2": "SplitFed V2",
    "splitfed_u": "SplitFed U-shape",
    "local_loss_split": "local-loss split",
    "lg_fedavg": "LG-FedAvg",
    "fedridge": "FedRidge",
    "fedbn": "FedBN",
    "ditto": "Ditto",
    "fedala": "FedALA",
    "pfedme": "pFedMe",
    "per_fedavg": "Per-FedAvg",
    "per_fedavg_hf": "Per-FedAvg, Hessian-free",
    "reptile": "Reptile",
    "apfl": "APFL",
    "ap_fl": "AP-FL",
    "scaffold": "SCAFFOLD",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedadagrad": "FedAdagrad",
    "fedavgm": "FedAvgM",
    "qfedavg": "q-FedAvg",
    "feddf": "FedDF",
    "fedgen": "FedGen",
    "ifca": "IFCA",
    "cfedvs": "CFed-VS",
    "fedgroup": "FedGroup",
    "interpolation_mix": "interpolation, not fine-tuned",
    # Runs before the method was renamed.
    "earned_mix": "earned, not fine-tuned",
    "local_only_long": "local-only, more steps",
    "fedavg_ft_long": "FedAvg + longer fine-tuning",
}

METRIC_NAMES = {
    "f": "F",
    "nss": "NSS",
    "cc": "CC",
    "sim": "SIM",
    "kld": "KLD",
    "auc_judd": "AUC-Judd",
    "auc_shuffled": "shuffled AUC",
    "f1_glc": "F1 (GLC)",
    "f1_hit": "F1 (hit@0.7)",
    "f1_best": "F1 (best)",
    "recall_glc": "recall (GLC)",
    "precision_glc": "precision (GLC)",
    "angle_error_deg": "angular error (°)",
    "angle_error_peak_deg": "angular error of the peak (°)",
    "pitch_error_deg": "pitch error (°)",
    "yaw_error_deg": "yaw error (°)",
    "unseen_error_deg": "error in unseen zones (°)",
    "seen_error_deg": "error in seen zones (°)",
}


def method_name(label: str) -> str:
    """Return the printed name for a run's label: a known method's name, else the label."""
    return METHOD_NAMES.get(label, label.replace("_", " "))


def metric_name(metric: str) -> str:
    """Return a metric's printed name."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def digits(values: Iterable[float]) -> int:
    """Return the number of decimals that show about three figures of the largest value."""
    finite = [abs(v) for v in values if math.isfinite(v)]
    top = max(finite, default=0.0)
    return 3 if top < 1.05 else 2 if top < 100 else 1


def number(value: float, decimals: int) -> str:
    """Format a number with a true minus sign; NaN and infinity become a dash."""
    return f"{value:.{decimals}f}".replace("-", MINUS) if math.isfinite(value) else DASH


def spread(values: Iterable[float], decimals: int, bounds: Bounds | None) -> str:
    """Format the mean of numbers and its 95 % interval, such as "1.2 [1.0, 1.4]".

    The interval stays inside `bounds`.
    """
    listed = with_number(values)
    ends = ", ".join(number(end, decimals) for end in interval(listed, bounds=bounds))
    return f"{number(float(np.mean(listed)), decimals)} [{ends}]"


def finite(value: Any) -> Any:
    """Return a tree of JSON values in which NaN and infinity are null, as JSON lacks them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    # A named tuple becomes a table; `json` would write it as a list.
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value

"""Display names of methods and metrics, and formats of numbers: in tables, pages and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable

from vergence.results.read import Run

MINUS, DASH, TIMES = "\u2212", "\u2013", "\u00d7"


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
    "fedbn": "FedBN",
    "ditto": "Ditto",
    "fedala": "FedALA",
    "pfedme": "pFedMe",
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


def title(run: Run) -> str:
    """Return the name of a run as printed: the method's own, or the label where they differ."""
    return METHOD_NAMES.get(run.label, run.label.replace("_", " "))


def metric_name(metric: str) -> str:
    """Return a metric's printed name."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def digits(values: Iterable[float]) -> int:
    """Number of decimals that show about three figures of the largest value."""
    finite = [abs(v) for v in values if math.isfinite(v)]
    top = max(finite, default=0.0)
    return 3 if top < 1.05 else 2 if top < 100 else 1


def number(value: float, decimals: int) -> str:
    """Print a number with a true minus sign, or a dash where there is none."""
    if not math.isfinite(value):
        return DASH
    return f"{value:.{decimals}f}".replace("-", MINUS)

"""The SplitFed gaze thesis: degrees of angular error on MPIIGaze, as printed, and the claims.

Source: the SplitFed gaze thesis, sections 4.2, 4.5 and 4.6.
"""

from __future__ import annotations

import math

from vergence.app.papers.adaptive import MPIIGAZE, SEED
from vergence.app.papers.base import Claim, PaperTable, alike, better, order
from vergence.app.papers.splitfed import (
    ADAPTIVE,
    ALONE,
    CENTRES,
    CROSS_ALONE,
    CROSS_FL,
    EPOCHS,
    FL_2,
    MEAN,
    PRUNED,
    RANDOM,
    RIVALS,
    SFL_1,
    SFL_2,
    SFL_3,
    SHOTS,
    SUPERVISED,
    TEST_ROWS,
    TRAIN_ROWS,
    TRAINED,
    UNSEEN,
    cut,
    known,
    row,
)

WITHIN = 0.1
"""Degrees within which "no effect" asks two errors to be, fixed before any run."""
SAME = 1e-6
"""Degrees that rounding may make between two orders of the same computation."""
PARITY = 0.10
"""Share of the error by which "slightly" and "competitive" may be worse, fixed before any run."""

SIX, FIVE, NINE = (f"{MPIIGAZE} P{ends}" for ends in ("00-P05", "00-P04", "01-P09"))
TABLE46 = {"3": 5.929, "3a": 5.938, "3b": 5.921}
TABLE47 = {"splitfed": 5.9953, "fedavg": 5.9953}
TABLE48, TABLE48_SFL = {0.0: 6.664, 0.2: 9.199, 0.5: 11.017}, 5.746
"""Mean over P00 to P04, by the noise on smashed data; and of SplitFed on the same people."""
TABLE45 = {0.0: (4.18, 0.0, 56.3), 0.9: (4.29, 88.75, 6.87), 0.95: (4.43, 93.68, 4.13),
           0.99: (5.24, 97.62, 1.93), 0.999: (7.21, 98.51, 1.43)}  # fmt: skip
"""By amount: error of P00, zeros of the server's part in percent, its size in MB."""
TABLE44 = (13.80, 1.23, 86.54)
"""Convolutions at 0.9: error of P00, zeros of the server's and of the clients' part in percent."""
TABLE410 = {"cross": 7.2, "auto_encoder": 9.5, "equal_features": 9.2, "simclr": 10.0,
            "byol": 11.1, "cross_fl": 9.82}  # fmt: skip
IMAGENET = 10.6

NAN = math.nan
HALVES = ("zeros server", "size server", "zeros client", "size client")

NO_EXTREME = (
    "a range is that of single people: there is no interval over people; the person-by-person bars "
    "are drawn"
)
EVERYBODY = (
    "everybody trains in every round; SplitFed counts people equally; individual learning is the "
    "next person's own model, tested on a person; L1 loss and Adam's rate, 1e-3, are ours, as the "
    "thesis states neither"
)


def _own(number: str) -> dict[str, str]:
    """Return the printed names of the rows that Figures 4.1 to 4.3 share."""
    return {
        row("individual", number): f"individual learning, Model {number}",
        row("splitfed", number): f"SplitFed, Model {number}",
        row("centralised", number): f"data centre, Model {number}",
    }


def _worse(amount: float) -> str:
    return f"linear {amount:g}"


FIGURES = (
    PaperTable(
        "splitfed/fig4.1", "Model 1: SplitFed, data centre, individual learning, adaptive FL",
        ("main", "best", "worst"), {}, "gaze_angle", (SFL_1, CENTRES["1"], ALONE["1"], ADAPTIVE),
        (
            better("the data centre is better than SplitFed (7.5 %)", "4.2",
                   row("centralised", "1"), row("splitfed", "1")),
            better("SplitFed's errors are only slightly larger (10 % at most)", "4.2",
                   row("splitfed", "1"), row("centralised", "1"), margin=PARITY),
            better("SplitFed generalises better than individual learning (10 %)", "4.2",
                   row("splitfed", "1"), row("individual", "1")),
            better("SplitFed's error is below that of adaptive FL (17 %, copied from its paper)",
                   "4.2", row("splitfed", "1"), row(SEED, "1")),
            Claim("individual learning has large errors for single pairs (6 to 16 degrees)", "4.2",
                  untestable=NO_EXTREME),
        ),
        figure="bars", rows=_own("1") | {row(SEED, "1"): "adaptive FL, Model 1"},
        note=f"{EVERYBODY}; the thesis copied adaptive FL's errors from its paper and draws no "
        "conclusion from them, here it is run on the same terms.",
        apart=("split",),
    ),
    PaperTable(
        "splitfed/fig4.2", "Model 2: SplitFed, data centre, individual learning; Model 1",
        ("main", "best", "worst"), {}, "gaze_angle", (SFL_2, CENTRES["2"], ALONE["2"], SFL_1),
        (
            better("SplitFed is better with Model 2 than with Model 1 (10 %)", "4.2",
                   row("splitfed", "2"), row("splitfed", "1")),
            better("the data centre is better than SplitFed", "4.2",
                   row("centralised", "2"), row("splitfed", "2")),
            better("the data centre's lead is small (10 % at most)", "4.2",
                   row("splitfed", "2"), row("centralised", "2"), margin=PARITY),
            better("SplitFed is better than individual learning", "4.2",
                   row("splitfed", "2"), row("individual", "2")),
            Claim("individual learning's errors range from 5 to 11.5 degrees", "4.2",
                  untestable=NO_EXTREME),
        ),
        figure="bars", rows=_own("1") | _own("2"), note=f"{EVERYBODY}.",
        apart=("split", "model", "local"),
    ),
    PaperTable(
        "splitfed/fig4.3", "Model 3: SplitFed, data centre, individual learning; Model 2",
        ("main", "best", "worst"), {}, "gaze_angle",
        (SFL_3, CENTRES["3"], ALONE["3"], SFL_2, ALONE["2"]),
        (
            better("SplitFed is better with Model 3 than with Model 2 (3 %)", "4.2",
                   row("splitfed", "3"), row("splitfed", "2")),
            better("individual learning is worse with Model 3 than with Model 2", "4.2",
                   row("individual", "2"), row("individual", "3")),
            better("SplitFed is better than individual learning", "4.2",
                   row("splitfed", "3"), row("individual", "3")),
        ),
        figure="bars", rows=_own("2") | _own("3"), note=f"{EVERYBODY}.",
        apart=("split", "model", "local"),
    ),
    PaperTable(
        "splitfed/fig4.7", "training and test error by local epochs, Model 2", ("main",), {},
        "gaze_angle", (*TRAINED, *map(known, TRAINED)),
        (
            alike("test errors do not change with 2 or 3 local epochs (within 0.1 degrees)",
                  "4.6.2", WITHIN, TEST_ROWS[0], *TEST_ROWS[1:]),
            order("training errors fall with every local epoch", "4.6.2", *TRAIN_ROWS),
        ),
        figure="epochs",
        rows={label: f"{count} local epochs, {what}"
              for labels, what in ((TEST_ROWS, "left out"), (TRAIN_ROWS, "in training"))
              for label, count in zip(labels, EPOCHS, strict=True)},
        note=f"{EVERYBODY}; as many rounds whatever the epochs; the training error is that of the "
        "people and samples that a model was trained on.",
        apart=("local",),
    ),
)  # fmt: skip

CUT = "where the network is cut has no effect on the error"
ABLATION = (
    PaperTable(
        "splitfed/table4.6", "Model 3 cut in three places", ("main",),
        {SIX: {row("splitfed", number): (error,) for number, error in TABLE46.items()}},
        "gaze_angle", (SFL_3, cut("3a"), cut("3b")),
        (
            alike(f"{CUT} (within 0.1 degrees)", "4.6.3", WITHIN, row("splitfed", "3"),
                  row("splitfed", "3a"), row("splitfed", "3b")),
            alike("all cuts give the same updates (1e-6 degrees for everybody)", "4.6.3", SAME,
                  row("splitfed", "3"), row("splitfed", "3a"), row("splitfed", "3b"),
                  everybody=True),
        ),
        rows={row("splitfed", number): f"Model {number}" for number in TABLE46},
        note=f"{EVERYBODY}; a part is a block of two convolutions; 3a keeps one less with the "
        "client than 3, 3b one more.",
    ),
    PaperTable(
        "splitfed/table4.7", "FL and SplitFed, Model 2", ("main",),
        {SIX: {row(label, "2"): (error,) for label, error in TABLE47.items()}},
        "gaze_angle", (SFL_2, FL_2),
        (
            alike("FL and SplitFed have the same error (within 0.1 degrees)", "4.6.3", WITHIN,
                  row("splitfed", "2"), row("fedavg", "2")),
            alike("FL is SplitFed with everything at the client (1e-6 degrees for everybody)",
                  "4.6.3", SAME, row("splitfed", "2"), row("fedavg", "2"), everybody=True),
        ),
        rows={row("splitfed", "2"): "SFL (SplitFed)", row("fedavg", "2"): "FL (FedAvg)"},
        note=EVERYBODY + ".",
    ),
)  # fmt: skip

SIZES = (
    "after leave-one-person-out training of Model 2 by SplitFed; sizes are the smaller of a dense "
    "and a sparse file, the thesis's that of sparse COO tensors; its error is that of P00"
)
PRUNING = (
    PaperTable(
        "splitfed/table4.4", "convolutions pruned after training, Model 2", ("main", *HALVES),
        {f"{MPIIGAZE} P00": {"as trained": (TABLE45[0.0][0], 0.0, NAN, 0.0, NAN),
                             "conv 0.9": (TABLE44[0], TABLE44[1], NAN, TABLE44[2], NAN)}},
        "gaze_angle", (PRUNED,),
        (
            better("90 % fewer weights in convolutions raise the error dramatically (to 13.8)",
                   "4.5", "as trained", "conv 0.9"),
        ),
        note=f"{SIZES}.",
    ),
    PaperTable(
        "splitfed/table4.5", "linear layers pruned after training, Model 2", ("main", *HALVES),
        {f"{MPIIGAZE} P00": {
            "as trained" if not amount else _worse(amount): (error, zeros, NAN, 0.0, NAN)
            for amount, (error, zeros, _) in TABLE45.items()
        }},
        "gaze_angle", (PRUNED,),
        (
            better("errors increase only slightly at 0.9 and 0.95 (10 % at most)", "4.5",
                   _worse(0.9), "as trained", margin=PARITY),
            better("also at 0.95", "4.5", _worse(0.95), "as trained", margin=PARITY),
            order("more pruning, more error from 0.95 to 0.999", "Table 4.5",
                  _worse(0.999), _worse(0.99), _worse(0.95)),
            better("the server's part needs less storage than dense from 0.9 on", "4.5",
                   _worse(0.9), "as trained", quantity="size server"),
        ),
        note=f"{SIZES}.",
    ),
)  # fmt: skip

CODES = tuple(f"{label}{UNSEEN}" for label in TABLE410)
FEW = (
    "error of a small network on frozen codes and head pose, trained on 100 labelled pictures of "
    "one person of the training (30 epochs; the thesis 5), on people nobody trained on: the last "
    "third, five at most; gaze codes where training gives them a meaning (Cross-Encoder, EFC), "
    "else whole codes; encoders of four convolutions, where the thesis has ResNet-18, and as many "
    "rounds as the other tables, where it has 3 epochs; the supervised row trains without the same "
    "people"
)
CROSS_FL_ROW, CROSS_ROW = f"cross_fl{UNSEEN}", f"cross{UNSEEN}"
NAMES = {
    CROSS_FL_ROW: "Cross-Encoder, FL", CROSS_ROW: "Cross-Encoder, data centre",
    f"auto_encoder{UNSEEN}": "auto-encoder",
    f"equal_features{UNSEEN}": "auto-encoder, equal features (EFC)",
    f"simclr{UNSEEN}": "SimCLR", f"byol{UNSEEN}": "BYOL",
    f"splitfed{UNSEEN}": "SplitFed with all labels, Model 2",
    SHOTS: "the shots alone, supervised", RANDOM: "encoder as initialised",
    MEAN: "mean gaze of the shots",
}  # fmt: skip
DIFFERENT = ("task", "federation", "headline", "people", "model", "split", "data", "local")
UNLABELLED = (
    PaperTable(
        "splitfed/table4.9", "federated Cross-Encoder, 100 labels", ("main", "best", "worst"),
        {NINE: {CROSS_FL_ROW: (TABLE410["cross_fl"], 8.36, 10.70)}}, "gaze_angle",
        (CROSS_FL, SUPERVISED),
        (
            better("its errors are larger than those of supervised learning", "4.6.5",
                   f"splitfed{UNSEEN}", CROSS_FL_ROW),
        ),
        rows=NAMES, note=f"{FEW}.", apart=DIFFERENT,
    ),
    PaperTable(
        "splitfed/table4.10", "learning without labels: methods compared",
        ("main", "best", "worst"),
        {MPIIGAZE: {f"{label}{UNSEEN}": (error, NAN, NAN) for label, error in TABLE410.items()}},
        "gaze_angle", (CROSS_FL, CROSS_ALONE, *RIVALS),
        (
            better("in a data centre the Cross-Encoder beats all other methods", "Table 4.10",
                   CROSS_ROW, *CODES[1:5]),
            better("federated, its errors are larger than in a data centre", "4.6.5", CROSS_ROW,
                   CROSS_FL_ROW),
            better("federated, it is competitive with the others (10 % at most worse)", "4.6.5",
                   CROSS_FL_ROW, *CODES[1:5], margin=PARITY),
            Claim(f"it beats features of ImageNet ({IMAGENET})", "Table 4.10",
                  untestable="no network trained on ImageNet comes with this library for grey eye "
                  "patches"),
        ),
        rows=NAMES, note=f"{FEW}; all on equal budget, the auto-encoder's weight of the constraint "
        "is 1.",
        apart=DIFFERENT,
    ),
)  # fmt: skip

TABLES = (*FIGURES, *ABLATION, *PRUNING, *UNLABELLED)

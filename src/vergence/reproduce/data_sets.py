"""Data sets that the tables can be run on, with their tasks, networks and local training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vergence.data.images.cifar10 import CLASSES as CIFAR10
from vergence.data.images.cifar10_unseen import SHARED
from vergence.data.images.cifar100 import FINE as CIFAR100
from vergence.data.images.emnist import FILES as EMNIST
from vergence.data.images.fashion_mnist import FILES as FASHION
from vergence.data.synthetic.zsl_synthetic import NAMES
from vergence.data.zero_shot.splits import APY, AWA
from vergence.errors import ConfigError, nearest

_Table = dict[str, Any]

HIT: Mapping[str, tuple[str, ...]] = {
    "main": ("f1_hit", "f1_glc", "nss"),
    "recall": ("recall_hit", "recall_glc"),
    "precision": ("precision_hit", "precision_glc"),
    "map": ("nss", "cc"),
}
GLC: Mapping[str, tuple[str, ...]] = {
    "main": ("f1_glc", "f1_hit", "nss"),
    "recall": ("recall_glc", "recall_hit"),
    "precision": ("precision_glc", "precision_hit"),
    "map": ("nss", "cc"),
}
PRUNED: Mapping[str, tuple[str, ...]] = {
    f"{what} {side}": (f"{side} {what} ({unit})",)
    for side in ("server", "client")
    for what, unit in (("zeros", "%"), ("size", "KiB"))
}
"""Of a pruned model's halves, beside its error."""

DEFENDED: Mapping[str, tuple[str, ...]] = {
    "seconds": ("CPU s per round",),
    "sent": ("KiB per client and round",),
    "found": ("attacker's MSE x 1000",),
    "epsilon": ("epsilon",),
    "lied to": ("error under liars",),
}
"""Of a run with a defence, beside its error; of an attacker's pictures more is better."""

ANGLE: Mapping[str, tuple[str, ...]] = {"main": ("angle_error_deg",), **PRUNED, **DEFENDED}

SUMMARY: Mapping[str, tuple[str, ...]] = {
    "main": ("f", "tau", "rho"),
    "tau": ("tau",),
    "rho": ("rho",),
    "spread": ("max - min of F (points)",),
    "rounds": ("rounds to the level",),
    "silhouette": ("silhouette of the groups",),
}
"""Of summaries: F decides, as in the thesis; of spread and rounds less is better."""
FRIENDS: Mapping[str, tuple[str, ...]] = {
    "A_n": ("there: own-test accuracy",),
    "A_n pooled": ("there: pooled-test accuracy",),
    "A_d": ("away: own-test accuracy",),
    "A_d pooled": ("away: pooled-test accuracy",),
}
"""Of AP-FL's friends alone: of people who took part, and of who dropped out."""
IMAGES: Mapping[str, tuple[str, ...]] = {
    "main": ("pooled_accuracy",),
    "own": ("accuracy",),
    **FRIENDS,
}
MADE: Mapping[str, tuple[str, ...]] = {
    "near": ("nearest real sample: accuracy",),
    "apart": ("told from real: accuracy",),
    "far": ("distance to the nearest real sample (real: 1)",),
    "clustered": ("nearest of its like: accuracy",),
}
"""Of what a generator makes; of the second and the third less is better."""
FOUND = "members found, % at 1 % false alarms"
COSTS: Mapping[str, tuple[str, ...]] = {
    "seconds": ("seconds",),
    "up": ("MB up",),
    "down": ("MB down",),
    "kept": ("MB kept",),
}
"""Of a teacher's training or a student's, all of it, and of what its end has to keep."""
TAUGHT: Mapping[str, tuple[str, ...]] = {
    "main": ("H",),
    "T1": ("T1",),
    "u": ("u",),
    "s": ("s",),
    "members": (FOUND,),
    **COSTS,
    **MADE,
}
"""Of a provider that learned from a teacher's answers, and of who attacks both."""

COMPARED = (
    "FedAdam's server_lr, at 1, 3 and 10 times tau, on training data of eye_synthetic and "
    "mpiigaze_crops; nothing else"
)
LOOKED = (
    "sigma and width were compared on validation images; candidates for sigma and the number of "
    "rounds after a look at test scores"
)
LENET_SGD = {"epochs": 1, "batch": 32, "lr": 0.01, "nesterov": True, "schedule": "step"}
EYE_SGD = {"epochs": 1, "batch": 32, "lr": 0.05, "nesterov": True, "schedule": "step"}
ADAM = {"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "clip": 0.0, "schedule": "constant"}
VIDEO = {
    "batch": 8,
    "optimizer": "adamw",
    "lr": 1e-3,
    "weight_decay": 0.05,
    "schedule": "cosine",
    "clip": 1.0,
}
STILLS = {
    "epochs": 1,
    "batch": 20,
    "optimizer": "adamw",
    "lr": 1e-3,
    "weight_decay": 0.01,
    "schedule": "cosine",
}


@dataclass(frozen=True)
class Ground:
    """A data set to test a paper on.

    Attributes:
        name: of the data set, as in `vergence data list`.
        kind: `real` people, `generated` ones, or `toy` numbers for plumbing.
        papers: whose tables it can carry.
        table: task, model, federation and local training.
        rounds: of a full run.
        quantities: a claim's quantity -> metrics; the first decides, the others are told.
        rho: largest personal share of the paper's best row.
        rate: share of parameters that become personal per round, so that masks fill early.
        server: FedAdam's options, fitted to the size of a first update (docs/reproduce.md).
        server_printed: the same for clients that train at the adaptive-FL paper's rate.
        tuned: what was chosen by looking at scores, and on which data.
        networks: the SplitFed thesis's Models 1 to 3, or what stands in their place, with their
            local training; `narrow` is Model 2 with few features at a deep cut. Of video
            summaries: the networks of CFed-VS's chapter.
        size: of eye images, in pixels.
        cuts: of its Models 3, 3a and 3b, and of `narrow`: the clients' last stage.
        labelled: what differs for its supervised tables: everybody has equally much data.
        glances: what differs where gaze is learned without labels, `eyes` where it is with them.
        classes: of images, by name.
        same_as: the paper's data set that this is.
        root: where its files lie below VERGENCE_DATA; None: --root must say; "" for no files.
        note: what differs from the paper.
    """

    name: str
    kind: Literal["real", "generated", "toy"]
    papers: tuple[str, ...]
    table: Mapping[str, Any]
    rounds: int
    quantities: Mapping[str, tuple[str, ...]]
    rho: float = 0.5
    rate: float = 0.05
    server: Mapping[str, float] = field(default_factory=dict)
    server_printed: Mapping[str, float] = field(default_factory=dict)
    networks: Mapping[str, _Table] = field(default_factory=dict)
    cuts: Mapping[str, str] = field(default_factory=dict)
    size: str = "36x60"
    labelled: Mapping[str, Any] = field(default_factory=dict)
    glances: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    eyes: Mapping[str, Any] = field(default_factory=dict)
    tuned: str = "nothing"
    same_as: str = ""
    root: str | None = ""
    note: str = ""

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.table["task"]["name"]


def _still(
    name: str, grid: list[int], sigma: float, local: Mapping[str, Any], **more: Any
) -> _Table:
    return {
        "task": {"name": "gaze_map", "criterion": "kl", "sigma": sigma, "score_from": "f1_best"},
        "model": {"name": "glc_features", "grid": grid, "width": 32},
        "federation": {"name": name, **more},
        "local": {**STILLS, **local},
    }


def _video(name: str, steps: int, **options: Any) -> _Table:
    return {
        "task": {"name": "gaze_map"},
        "model": {"name": "glc_vit", "preset": "tiny64"},
        "federation": {"name": name, **options},
        "local": {**VIDEO, "steps": steps},
    }


def _server(tau: float, times: float) -> dict[str, float]:
    return {"tau": tau, "server_lr": times * tau}


def _eye(model: str, name: str, local: Mapping[str, Any], **options: Any) -> _Table:
    return {
        "task": {"name": "gaze_angle"},
        "model": {"name": model},
        "federation": {"name": name, **options},
        "local": dict(local),
    }


def _clips(features: int, hidden: int, rates: tuple[float, float], **options: Any) -> _Table:
    """Parts of a ground of clips: networks with their rates, vsLSTM's first."""
    sizes = ({"name": "vslstm", "hidden": hidden}, {"name": "mixture_transformer", "width": hidden})
    judged = {"judged": "summe"} if options["name"] == "summe" else {}
    epochs = 20 if features == 1024 else 2  # as in the thesis, on its features
    return {
        "table": {
            "task": {"name": "summary", **judged},
            "federation": options,
            "local": {"optimizer": "adam", "batch": 4, "epochs": epochs},
        },
        "networks": {
            size["name"]: {"model": {**size, "features": features}, "local": {"lr": rate}}
            for size, rate in zip(sizes, rates, strict=True)
        },
    }


def _networks(*models: _Table) -> dict[str, _Table]:
    trained = ({"clip": 0.0}, ADAM, ADAM, ADAM)
    both = zip(("1", "2", "3", "narrow"), models, trained, strict=True)
    return {number: {"model": model, "local": dict(local)} for number, model, local in both}


SMALL = {
    "networks": _networks(
        {"name": "small_eye"},
        {"name": "small_eye", "channels": [16, 40]},
        {"name": "resnet_preact"},
        {"name": "small_eye", "channels": [16, 3]},
    ),
    "cuts": {"3a": "conv", "3": "stage1", "3b": "stage2", "narrow": "conv3"},
    "size": "9x15",
}
"""For 9x15 crops, which LeNet and the usual ResNet-18 do not take."""
THESIS = {
    "networks": _networks(
        {"name": "lenet"},
        {"name": "lenet", "channels": [20, 80]},
        {"name": "resnet18"},
        {"name": "lenet", "channels": [20, 1]},
    ),
    "cuts": {"3a": "conv", "3": "block0", "3b": "block1", "narrow": "pool2"},
}
IN_PLACE = (
    "in the place of the SplitFed thesis's Models 1, 2 and 3: small_eye, small_eye with channels "
    "(16, 40), resnet_preact"
)
TOY = {
    "task": {"name": "toy"},
    "model": {"name": "linear", "inputs": 4},
    "federation": {"name": "toy", "people": 4},
    "local": {"epochs": 2, "batch": 8, "lr": 0.05},
}


def _images(name: str, classes: int, image: list[int], take: float, **options: Any) -> _Table:
    return {
        "task": {"name": "images"},
        "model": {"name": "small_cnn", "image": image, "classes": classes},
        "federation": {"name": name, "take": take, **options},
        "local": {"epochs": 1, "batch": 50, **ADAM},
    }


def _owned(name: str, inputs: int, hidden: list[int], classes: int, **more: Any) -> _Table:
    """Return one owner's table; `told` names classes where the task does not know them."""
    return {
        "task": {"name": "zero_shot", **more.pop("told", {})},
        "model": {"name": "mlp", "inputs": inputs, "hidden": hidden, "classes": classes},
        "federation": {"name": name, **more},
        "local": {"epochs": 10, "batch": 32, "optimizer": "adam", "lr": 1e-3},
    }


def _listed(name: str, folder: str, unseen: str, classes: int) -> Ground:
    """Return the ground of generated features on a real set's lists and attributes."""
    told = {"names": f"{folder}/att_splits.mat", "unseen": unseen.split(", ")}
    table = _owned(
        "zsl_synthetic", 1024, [128, 64], classes, told=told, features=1024, share=0.5, noise=1.0
    )
    table["local"] |= {"batch": 128, "lr": 3e-3}
    return Ground(
        name,
        "generated",
        ZERO_SHOT,
        table,
        100,
        TAUGHT,
        root=folder,
        tuned="features, share, noise, batch and rate, by the accuracy on validation "
        "data of a teacher of all classes of AWA2 and aPY; nothing by students",
        note="1024 features generated from the real attributes, half of the images "
        "of the published lists; which class an image is of is drawn; T_g 25 and T_s 75 "
        "rounds",
    )


ZERO_SHOT = ("pezsl", "sgzsl")
SMALLER = (
    "small_cnn, a small share of the images (federation.take) and ten rounds of one epoch at rate "
    "1e-3; the thesis has a network sixteen times as large, all images, 20 epochs a round at 2e-4, "
    "and states no rounds"
)
BOTH = ("fedcpf", "adaptive")
EYES = (*BOTH, "splitfed")
CLIPS = ("cfedvs",)
SEVENTH = (
    "learning rates, of 0.01, 0.003 and 0.001, by the training loss of FedAvg and of the data "
    "centre with a seed that the tables do not have"
)
EGTEA_FIVE = ["P02", "OP03", "OP04", "OP06", "P04"]
"""Subjects with enough test clips; the paper does not say who its five clients are."""

GROUNDS = {
    ground.name: ground
    for ground in (
        Ground(
            "ego_synthetic",
            "generated",
            ("fedcpf",),
            _video("ego_synthetic", 2, people=5, clips=80),
            100,
            HIT,
        ),
        Ground(
            "eye_synthetic",
            "generated",
            EYES,
            _eye("small_eye", "eye_synthetic", EYE_SGD, people=15, size="9x15", quantity=0.8),
            25,
            ANGLE,
            server=_server(5e-3, 3),
            server_printed=_server(1e-5, 10),
            **SMALL,
            labelled={"federation": {"people": 10, "quantity": 0.0}},
            glances={"federation": {"name": "eye_glances", "people": 20, "quantity": 0.0}},
            eyes={"federation": {"people": 20, "quantity": 0.0}},
            tuned=COMPARED,
            note=f"small_eye on 9x15 crops, not LeNet on 36x60 patches; {IN_PLACE}",
        ),
        Ground(
            "osie",
            "real",
            ("fedcpf",),
            _still("osie", [30, 40], 0.02, {}),
            10,
            GLC,
            rate=0.1,
            root="osie",
            tuned=LOOKED,
            note="15 viewers of still images: every viewer sees the same ones",
        ),
        Ground(
            "gazecom",
            "real",
            ("fedcpf",),
            _still("gazecom", [24, 40], 0.03, {"steps": 4, "batch": 8}, window=8),
            10,
            GLC,
            rate=0.1,
            root="gazecom_video",
            note="36 viewers of the same clips, frames rebuilt from crops",
        ),
        Ground(
            "mpiigaze_crops",
            "real",
            EYES,
            _eye("small_eye", "mpiigaze_crops", EYE_SGD),
            25,
            ANGLE,
            server=_server(1.5e-2, 3),
            server_printed=_server(2.5e-4, 10),
            **SMALL,
            tuned=COMPARED,
            root="eyes/mpiigaze_9x15",
            note=f"11 of the 15 people of MPIIGaze, 9x15 centre crops, small_eye; {IN_PLACE}",
        ),
        Ground(
            "mpiigaze",
            "real",
            EYES,
            _eye("lenet", "mpiigaze", LENET_SGD),
            20,
            ANGLE,
            server=_server(1.5e-3, 3),
            server_printed=_server(5e-5, 10),
            **THESIS,
            tuned=COMPARED,
            same_as="MPIIGaze",
            root=None,
            note="the paper states neither rounds nor batch; learning rate 0.01, not its 1e-5",
        ),
        Ground(
            "egtea",
            "real",
            ("fedcpf",),
            _video("egtea", 20, people=EGTEA_FIVE),
            100,
            HIT,
            same_as="EGTEA Gaze+",
            root=None,
            note="five subjects, each split in time; the paper's five clients are not known",
        ),
        Ground(
            "ego4d",
            "real",
            ("fedcpf",),
            _video("ego4d", 20),
            100,
            HIT,
            rho=0.4,
            same_as="Ego4D",
            root=None,
            note="a video is a client; the paper deals them to five",
        ),
        Ground(
            "clip_synthetic",
            "generated",
            CLIPS,
            rounds=20,
            quantities=SUMMARY,
            **_clips(4, 16, (0.01, 0.003), name="clip_synthetic"),
            tuned=SEVENTH,
            note="people's communities are the classes; vsLSTM and Mixture Transformer of width "
            "16, 2 local epochs",
        ),
        Ground(
            "tvsum_keyframes",
            "real",
            CLIPS,
            rounds=20,
            quantities=SUMMARY,
            **_clips(1280, 32, (1e-3, 1e-3), name="tvsum", keyframes=True, people=4),
            root="video_summarisation",
            note="key frames of 20 videos, chosen at extremes of the ratings, dealt to four "
            "made-up people, each frame a shot; all of one class",
        ),
        Ground(
            "tvsum",
            "real",
            CLIPS,
            rounds=200,
            quantities=SUMMARY,
            **_clips(1024, 256, (1e-4, 1e-4), name="tvsum"),
            same_as="TVSum",
            root=None,
            note="fragments of 50 videos; whole videos for training or test",
        ),
        Ground(
            "summe",
            "real",
            CLIPS,
            rounds=200,
            quantities=SUMMARY,
            **_clips(1024, 256, (1e-4, 1e-4), name="summe"),
            same_as="SumMe",
            root=None,
            note="fragments of 25 videos in three classes of ours",
        ),
        Ground(
            "fashion_mnist",
            "real",
            ("apfl",),
            _images("fashion_mnist", 10, [1, 28, 28], 0.06),
            10,
            IMAGES,
            classes=FASHION.classes,
            same_as="Fashion-MNIST",
            root="fashion_mnist",
            note=SMALLER,
        ),
        Ground(
            "cifar10",
            "real",
            ("apfl",),
            _images("cifar10", 10, [3, 32, 32], 0.1),
            10,
            IMAGES,
            classes=CIFAR10,
            same_as="CIFAR10",
            root="cifar10",
            note=SMALLER,
        ),
        Ground(
            "cifar100",
            "real",
            ("apfl",),
            _images("cifar100", 100, [3, 32, 32], 0.1),
            10,
            IMAGES,
            classes=CIFAR100,
            same_as="CIFAR100",
            root=None,
            note=SMALLER,
        ),
        Ground(
            "emnist",
            "real",
            ("apfl",),
            _images("emnist", 26, [1, 28, 28], 0.1),
            10,
            IMAGES,
            classes=EMNIST["letters"].classes,
            same_as="EMNIST",
            root=None,
            note=SMALLER,
        ),
        Ground(
            "zsl_synthetic",
            "generated",
            ZERO_SHOT,
            _owned("zsl_synthetic", 64, [64, 32], 16),
            50,
            TAUGHT,
            classes=NAMES,
            note="12 seen and 4 unseen made-up classes, 64 features, T_g 20 and T_s 30 rounds",
        ),
        _listed("awa1_lists", "zsl_splits/AWA1", AWA, 50),
        _listed("awa2_lists", "zsl_splits/AWA2", AWA, 50),
        _listed("apy_lists", "zsl_splits/APY", APY, 32),
        Ground(
            "cifar10_unseen",
            "real",
            ZERO_SHOT,
            _owned(
                "cifar10_unseen",
                1280,
                [256, 128],
                7,
                images=400,
                tests=100,
                told={"names": list(SHARED), "unseen": ["cat", "boat"]},
            ),
            130,
            TAUGHT,
            classes=SHARED,
            root="cifar10",
            tuned="how many images, by a teacher's accuracy on validation data",
            note="five seen and two unseen classes of CIFAR-10, features of a network that has "
            "seen them all; samples, T_g 50 and T_s 80 rounds are the thesis's",
        ),
        Ground(
            "xlsa17",
            "real",
            ZERO_SHOT,
            _owned(
                "xlsa17",
                2048,
                [1024, 512],
                50,
                told={"names": "xlsa17/AWA2/att_splits.mat", "unseen": AWA.split(", ")},
            ),
            130,
            TAUGHT,
            same_as="AWA2",
            root="xlsa17/AWA2",
            note="AWA2; for another set --root and --set task.names, task.unseen, model.classes",
        ),
        Ground(
            "toy",
            "toy",
            BOTH,
            TOY,
            8,
            {"main": ("error",)},
            rate=0.2,
            server=_server(1.0, 1),
            server_printed=_server(5e-4, 10),
        ),
    )
}

DEFAULT = {
    "fedcpf": "ego_synthetic",
    "adaptive": "eye_synthetic",
    "splitfed": "eye_synthetic",
    "cfedvs": "clip_synthetic",
    "apfl": "fashion_mnist",
    **dict.fromkeys(ZERO_SHOT, "zsl_synthetic"),
}
"""What a paper's tables run on when nobody says."""


def ground(paper: str, name: str | None) -> Ground:
    """Return the data set to run a paper's tables on.

    Raises:
        ConfigError: it cannot carry them.
    """
    name = name or DEFAULT[paper]
    fit = [g for g in GROUNDS if paper in GROUNDS[g].papers]
    if name not in fit:
        raise ConfigError(f"the tables of {paper} cannot run on '{name}'{nearest(name, fit)}")
    return GROUNDS[name]

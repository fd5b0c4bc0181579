"""`vergence export`: the model a person predicts with as one ONNX file, checked and timed.

Used by `cli.runs`, `deployment.private_inference.sharing` and `live.command`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from vergence.core.data import Batch, Samples, copy_of
from vergence.core.federation import Dataset
from vergence.core.files import replacing
from vergence.core.naming import plural, registry_name
from vergence.core.optional import import_optional
from vergence.core.params import Params
from vergence.core.task import Model, Task
from vergence.errors import ConfigError, DataError
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.metrics.personal_priors import BANK, common_prior, whole_prior, with_one_prior
from vergence.model_tools.latency import medians
from vergence.model_tools.reduced_precision import Feed, Precision, reduced
from vergence.models import motion, pretrained
from vergence.models.glc.glc_causal import GlcCausal, GlcCausalNet
from vergence.models.glc.glc_features import GlcFeatures
from vergence.models.personal_eye import PersonalEye
from vergence.results.layout import metric_name
from vergence.results.read import Run, read
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.gaze_map import GazeMap
from vergence.tasks.images import Images
from vergence.training.pruning import bind_parameters
from vergence.video.streaming import State, StreamingModel

# float32 results of the same operations in another order differ by about 1e-6.
TOLERANCE = 1e-5
# Version of ONNX's operators: stated, so that another release of torch does not change it.
OPSET = 20
FROZEN = (GlcFeatures, GlcCausal)
"""Networks on frozen features, whose feature extractor is put into the graph."""
# Number of test samples for which the file must answer as torch does: a few, as each is run twice.
CHECKED = 32
# Calls with training samples that give `int8 static` its ranges, and calls with test samples of
# each person that compare a smaller file with that in float32.
CALIBRATED, COMPARED = 256, 200
# Notes on the screen, and in the file's metadata.
SAMPLES_INSIDE = "inside, as constants: the inputs of samples (pixels and head poses) of"
PRIOR_INSIDE = "inside, as constants: the personal prior, made of the gaze of"
Size = int | Literal["dynamic"]
"""Size of an axis of the file: fixed, or chosen at every call."""


@dataclass(frozen=True)
class OnnxAnswer:
    """Output of the file: its name, meaning, unit, and whether differences are relative to it."""

    name: str
    meaning: str
    relative: bool = False
    unit: str = "of the network"


ANSWERS: Mapping[type[Task], OnnxAnswer] = {
    GazeAngle: OnnxAnswer(
        "gaze",
        "float32 [1, 2]: pitch, yaw in radians, in the camera frame of the normalised patch; the "
        "direction is (-cos p sin y, -sin p, -cos p cos y)",
        unit="radian",
    ),
    GazeMap: OnnxAnswer(
        "map",
        "float32 [1, frames, rows, columns], without frames where one goes in: where in each "
        "frame, first row at the top; every frame's map sums to 1",
        relative=True,
        unit="probability, 0 to 1",
    ),
    Images: OnnxAnswer(
        "probability",
        "float32 [1, classes]: probabilities, which sum to 1",
        unit="probability, 0 to 1",
    ),
}
# Meaning, unit and range of the inputs.
MEANINGS = {
    "image": ("uint8: pixels as the data set gives them, scaled inside", "grey level", "0 to 255"),
    "frames": ("uint8 RGB: pixels, scaled inside", "level", "0 to 255"),
    "frame": ("uint8 RGB: pixels of the next frame, scaled inside", "level", "0 to 255"),
    "last_maps": (
        "float32: own maps of the last frames, newest last; zeros before the first frame",
        "probability",
        "0 to 1",
    ),
    "last_summaries": (
        "float32: of the last frames, newest last; zeros before the first frame",
        "of the network",
        "what the file answered",
    ),
    "last_mean": (
        "float32: grey mean of the frames so far; zeros before the first frame",
        "of the network",
        "what the file answered",
    ),
    "last_seen": ("float32: frames so far; zero before the first frame", "frames", "0 and more"),
    "pose": ("float32: head pitch, yaw", "radian", "-pi to pi"),
    "side": ("int64: 0 left eye, 1 right eye", "none", "0 or 1"),
}


@dataclass(frozen=True)
class CallShape:
    """Shape of one call of the file.

    Attributes:
        frames: number of frames in a window; None: that of the run's data.
        batch: number of samples.
    """

    frames: Size | None = None
    batch: Size = 1

    @property
    def dynamic(self) -> bool:
        """Whether an axis is chosen at every call."""
        return "dynamic" in (self.frames, self.batch)


DATA_SHAPE = CallShape()
"""A single sample, of the shape of the run's data."""


@dataclass(frozen=True)
class Reduction:
    """What a file in smaller numbers loses and gains, each beside the same file in float32.

    Attributes:
        metric: name of the task's headline metric.
        errors: that metric on test samples, a mean over people: of float32, and of the file.
        sizes: bytes of the files in the same order.
        ms: milliseconds of a call in the same order.
        people: number of people whose test samples were used.
    """

    metric: str
    errors: tuple[float, float]
    sizes: tuple[int, int]
    ms: tuple[float, float]
    people: int


@dataclass(frozen=True)
class Exported:
    """Exported file: largest difference of its answers from torch's, and milliseconds of both."""

    path: Path
    inputs: tuple[str, ...]
    difference: float
    torch_ms: float
    onnx_ms: float
    precision: Precision = "float32"
    reduction: Reduction | None = None


class WholeModel(nn.Module):
    """A task's network with its pre- and postprocessing: from columns of a sample to the answer."""

    def __init__(
        self, task: Task, network: nn.Module, columns: Sequence[str], prior: Tensor | None = None
    ) -> None:
        super().__init__()
        self.task, self.network, self.columns = task, network, tuple(columns)
        self.prior = prior
        self.answers = (answer_of(task).name,)
        frozen = task.network if isinstance(task.network, GlcFeatures) else None
        self.features = None if frozen is None else pretrained.FrozenModel(frozen.standardise)
        self.moves = frozen is not None and frozen.sees_motion

    def forward(self, *values: Tensor) -> State:
        """Return the answer that `answer_of` describes."""
        batch = dict(zip(self.columns, values, strict=True))
        if self.prior is not None:
            batch[BANK] = self.prior
        if self.moves:
            batch[motion.BANK] = motion.motion_of(batch["frames"])
        if self.features is not None:
            batch["frames"] = self.features(batch["frames"])
        output = self.task.forward(self.network, batch)
        if isinstance(self.task, GazeMap):
            return ((output / self.task.temperature).flatten(2).softmax(-1).view(output.shape),)
        return (output.softmax(-1) if isinstance(self.task, Images) else output,)

    def arguments(self, batch: Batch) -> State:
        """Return the columns of a batch that are inputs of the file."""
        return tuple(batch[name] for name in self.columns)

    def calls(self, batch: Batch) -> Iterator[State]:
        """Yield the arguments of each call; here one call for the whole batch."""
        yield self.arguments(batch)


Exportable = WholeModel | StreamingModel


class Noted(dict[str, Tensor]):
    """A batch that records which of its columns a task reads."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(copy_of(batch))
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.read:
            self.read.append(name)
        return super().__getitem__(name)


def export(
    folder: Path,
    out: Path,
    console: Console,
    person: str | None = None,
    seed: int | None = None,
    shape: CallShape = DATA_SHAPE,
    experiment: Experiment | None = None,
    precision: Precision = "float32",
) -> Exported:
    """Write the model that a person predicts with as ONNX, and print parity and latency.

    Scaling of pixels, and the softmax of maps, are inside.

    Args:
        folder: run directory of one method.
        out: the file (.onnx).
        console: where the table goes.
        person: whose model; default what a newcomer gets, and of an adapted run its person.
        seed: of which seed; default the first.
        shape: of a call.
        experiment: the run's experiment; None: it is read from config.toml.
        precision: of the file's numbers. Another than float32 is compared with float32 on test
            samples, and the table has the error of both.

    Raises:
        ConfigError: the extra is missing, another task, an unknown person, no model for
            newcomers, or a network that cannot be called in this shape; or `int8 static` of a run
            with a privacy budget.
        StateError: the run is unfinished.
        DataError: the file's answers differ from torch's by more than 1e-5 in float32, or are not
            finite in another precision; nothing is written.
    """
    packages()
    trained, run = opened(folder, person, seed, experiment)
    person = person or trained.owner
    params, test = params_and_probe(trained, person)
    whole = assembled(trained.task, params, test.take(slice(0, 1)))
    window = check_shape(whole, test, shape)
    metadata = about(trained, run, person, shape) | ({"window": str(window)} if window else {})
    metadata |= pace(trained.experiment.dataset, test)
    cases = singles(test) if shape == DATA_SHAPE else list(shaped(whole, test, shape))
    data = converted(whole, cases[-1], metadata, shape)
    session, difference = verified(whole, data, cases, out)
    reduction = None
    if precision != "float32":
        check_reducible(run, shape, precision)
        feeds = calibration_feeds(trained, whole, session) if precision == "int8 static" else ()
        full, data = data, reduced(data, precision, feeds)
        before, (session, difference) = session, verified(whole, data, cases, out, precision)
        people = (person,) if person is not None else trained.trained_on.clients
        reduction = compared(trained, whole, (before, session), (full, data), people)
    with replacing(out) as scratch:
        scratch.write_bytes(data)
    times = timed(whole, session, cases[0])
    made = Exported(out, names(session), difference, *times, precision, reduction)
    show(made, len(data), len(cases), console)
    warn_of_owner(trained, person, console)
    return made


def verified(
    whole: Exportable,
    data: bytes,
    cases: Sequence[Batch],
    out: Path,
    precision: Precision = "float32",
) -> tuple[Any, float]:
    """Return a session of a model, and the largest difference of its answers from torch's.

    Raises:
        DataError: it is more than 1e-5 in float32, or an answer is not finite.
    """
    session = opened_again(data)
    difference = parity(whole, session, cases)
    if precision != "float32" and difference == float("inf"):
        raise DataError(f"the model answers NaN in {precision}; {out} is not written")
    # Written as "not <=", so that a NaN is refused too.
    if precision == "float32" and not difference <= TOLERANCE:
        raise DataError(
            f"the exported model differs from torch by {difference:.1e}, more than {TOLERANCE:g}; "
            f"{out} is not written: please report it with the model's options"
        )
    return session, difference


def warn_of_owner(trained: TrainedRun, person: str | None, console: Console) -> None:
    """Print whose samples, prior or adaptation a file holds, so that it is not given away."""
    if person is not None and has_samples(trained):
        console.print(f"{SAMPLES_INSIDE} '{person}': give it to nobody else", soft_wrap=True)
    if trained.task.own_prior and person is not None:
        console.print(f"{PRIOR_INSIDE} '{person}': give it to nobody else", soft_wrap=True)
    elif trained.owner is not None:
        # The weights were fitted to one person's eyes, which they may reveal.
        text = f"adapted to '{trained.owner}', and tells of them: give it to nobody else"
        console.print(text, soft_wrap=True)


def packages() -> Any:
    """Return onnxruntime.

    Raises:
        ConfigError: the extra `export` is not installed.
    """
    for name in ("onnx", "onnxscript"):
        import_optional(name, "export", "export")
    return import_optional("onnxruntime", "export", "export")


def answer_of(task: Task) -> OnnxAnswer:
    """Return the output of a task's file; its meaning is "" if it cannot be exported."""
    return ANSWERS.get(type(task), OnnxAnswer("output", task.exported, relative=True))


def opened(
    folder: Path, person: str | None, seed: int | None, experiment: Experiment | None = None
) -> tuple[TrainedRun, Run]:
    """Read a run's models and its results.

    Raises:
        ConfigError: a task without an answer to export, or an unknown person.
        StateError: the run is unfinished.
    """
    trained, run = read_run(folder, seed, experiment), read(folder).runs[0]
    if not answer_of(trained.task).meaning:
        names = ", ".join(registry_name(kind) for kind in ANSWERS)
        raise ConfigError(
            f"{folder} is of task '{run.results['task']}'; export takes {names}, and tasks of "
            "vergence.task_from"
        )
    network = trained.task.network
    # `prepare` computes columns before training, outside the network: the file would lack them.
    if type(network).prepare is not Model.prepare and not isinstance(network, FROZEN):
        raise ConfigError(f"{folder}: export cannot put what this network prepares into the graph")
    trained.refuse_unknown_person(person, trained.ready.clients)
    return trained, run


def params_and_probe(trained: TrainedRun, person: str | None) -> tuple[Params, Samples]:
    """Return a person's parameters, and raw test samples to check the file with."""
    took_part, raw = trained.clients, trained.loaded.raw
    if (person is None or person not in took_part) and not trained.offers_newcomer(whole=True):
        raise ConfigError(
            f"{trained.folder} has no whole model for {person or 'a newcomer'}, who took no "
            f"part; choose --person among {', '.join(took_part)}"
        )
    who = raw.clients[0] if person is None else person
    test = raw.people[who].test
    params = trained.newcomer() if person is None else trained.model(who)
    # A personal prior needs the person's own gaze; somebody new gets that of all others.
    if trained.task.own_prior:
        ready = trained.tune_prior(params, who).test
        known = person in trained.trained_on.clients
        prior = whole_prior(ready) if known else common_prior(ready)
        test = with_one_prior(test, prior)
    return params, test


def assembled(task: Task, params: Params, first: Batch) -> Exportable:
    """Return the network with pre- and postprocessing, for the columns that it reads."""
    network = bind_parameters(task.module(), params)
    if isinstance(task, GazeMap) and isinstance(network, GlcCausalNet):
        return StreamingModel(task, network, first.get(BANK)).eval().requires_grad_(False)
    columns = ["frames"]
    if not isinstance(task.network, GlcFeatures):
        batch = Noted(first)
        with torch.no_grad():
            output = task.forward(network, batch)
        if not isinstance(output, Tensor):
            raise ConfigError(
                f"export takes a network with one output tensor, and this one returns a "
                f"{type(output).__name__}: name the tensor, task_from(..., outputs=...)"
            )
        # A task made of functions reads its target to find out what its loss takes.
        columns = [name for name in batch.read if name not in (BANK, *task.labels)]
    return WholeModel(task, network, columns, first.get(BANK)).eval().requires_grad_(False)


def check_shape(whole: Exportable, test: Samples, shape: CallShape) -> int | None:
    """Return the number of frames in a window of the run's data, None without windows.

    Raises:
        ConfigError: a network that cannot be called in this shape.
    """
    network = whole.task.network
    name = registry_name(network)
    for option, size in (("--frames", shape.frames), ("--batch", shape.batch)):
        if isinstance(size, int) and size < 1:
            raise ConfigError(f"{option} must be 1 or more, or dynamic, got {size}")
    if isinstance(whole, StreamingModel):
        if shape != DATA_SHAPE:
            raise ConfigError(
                f"{name} is given one frame after the other, and its file holds one stream's "
                "state: leave out --frames and --batch"
            )
        return None
    if whole.columns != ("frames",) or whole.task.exported:
        if shape.frames is not None:
            raise ConfigError(f"{name} is given single images: leave out --frames")
        return None
    window = int(test.take(slice(0, 1))["frames"].shape[1])
    if shape.frames not in (None, window) and not isinstance(network, GlcFeatures):
        raise ConfigError(
            f"{name} takes windows of {window} frames and no others, --frames asks "
            f"for {shape.frames}: leave it out"
        )
    if shape.frames == "dynamic" and whole.moves:
        raise ConfigError(
            f"{name} with motion follows a window frame by frame, so its length is fixed in the "
            "file: give --frames a number"
        )
    return window


def singles(test: Samples) -> list[Batch]:
    """Return test samples one by one."""
    return [test.take(slice(at, at + 1)) for at in range(min(CHECKED, len(test)))]


def shaped(whole: Exportable, test: Samples, shape: CallShape) -> Iterator[Batch]:
    """Yield batches of test data in the shape of a call, in several sizes for dynamic axes.

    Windows of other lengths than the data's are cut from the same frames.
    """
    batch = test.take(slice(0, CHECKED))
    own = int(batch["frames"].shape[1]) if "frames" in whole.columns else 1
    # Shorter, equal and longer than in training: a size frozen into the graph shows in one of them.
    lengths = (1, own, own + 3) if shape.frames == "dynamic" else (shape.frames or own,)
    counts = (1, 2, 3) if shape.batch == "dynamic" else (shape.batch,)
    at = 0
    sizes = list(product(lengths, counts))
    for length, count in sizes * (4 if len(sizes) == 1 else 1):
        if "frames" in whole.columns:
            pool = batch["frames"].flatten(0, 1)
            rows = torch.arange(at, at + count * length).view(count, length)
            yield {"frames": pool[rows % len(pool)]}
            at += count * length
        else:
            rows = torch.arange(at, at + count)
            yield {name: batch[name][rows % len(batch[name])] for name in whole.columns}
            at += count


def converted(
    whole: Exportable, first: Batch, metadata: Mapping[str, str], shape: CallShape = DATA_SHAPE
) -> bytes:
    """Return the bytes of a network's ONNX file for a batch's shapes, with this metadata."""
    arguments = dict(zip(whole.columns, whole.arguments(first), strict=True))
    axes = [dynamic_axes(name, shape) for name in arguments]
    log = logging.getLogger("torch.onnx")
    before = log.level
    # Below errors it lists every operator of packages that are not installed.
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # torch 2.13 warns of its own use of a class that it will remove.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            # Several inputs share the axis `batch`, and one name for it is what is wanted.
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            program = torch.onnx.export(
                whole,
                tuple(arguments.values()),
                dynamo=True,
                verbose=False,
                external_data=False,
                opset_version=OPSET,
                input_names=list(arguments),
                output_names=list(whole.answers),
                dynamic_shapes=(tuple(axes),) if shape.dynamic else None,
            )
    finally:
        log.setLevel(before)
    assert program is not None
    graph = program.model.graph
    # A network may leave a column alone (a head pose): then its file does not ask for it.
    graph.inputs[:] = [v for v in graph.inputs if v.uses() or v.is_graph_output()]
    inputs: dict[str, str] = {}
    for value in graph.inputs:
        name = str(value.name)
        free = dynamic_axes(name, shape)
        sizes = [str(free.get(axis, size)) for axis, size in enumerate(arguments[name].shape)]
        kind = str(arguments[name].dtype).removeprefix("torch.")
        meaning, unit, values = MEANINGS.get(name, (kind, "of the data", "that of the data"))
        about = f"{meaning}; shape [{', '.join(sizes)}]"
        inputs |= {f"input {name}": about, f"unit {name}": unit, f"range {name}": values}
    # torch writes this machine's paths into every node: they would tell users' names, and make two
    # equal models differ.
    for node in graph.all_nodes():
        node.metadata_props.clear()
    program.model.metadata_props.update({**inputs, **metadata, "opset": str(OPSET)})
    proto = program.model_proto
    # Constants were reshaped after these entries were made: quantize_dynamic, which compares their
    # shapes with those that it infers, would refuse the file. Constants state their own shapes.
    constants = {value.name for value in proto.graph.initializer}
    sized = [value for value in proto.graph.value_info if value.name not in constants]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(sized)
    return proto.SerializeToString()


def dynamic_axes(column: str, shape: CallShape) -> dict[int, str]:
    """Return the axes of a column that are chosen at every call, with their names."""
    axes = {0: "batch"} if shape.batch == "dynamic" else {}
    if column == "frames" and shape.frames == "dynamic":
        axes[1] = "frames"
    return axes


def opened_again(data: bytes) -> Any:
    """Return an onnxruntime session of one thread."""
    # One thread: times compare with torch's, and sums do not depend on the number of cores.
    runtime = packages()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def names(session: Any) -> tuple[str, ...]:
    """Return the names of a session's inputs."""
    return tuple(value.name for value in session.get_inputs())


def has_samples(trained: TrainedRun) -> bool:
    """Return whether people's own models contain the inputs of their samples, as they are."""
    task = trained.task
    return isinstance(task.network, PersonalEye) or trained.method.stores_inputs(task)


def about(trained: TrainedRun, run: Run, person: str | None, shape: CallShape) -> dict[str, str]:
    """Return what a user of the file must know, for its metadata."""
    answer, raw = answer_of(trained.task), trained.loaded.raw
    inside = trained.task.own_prior and person is not None
    centres = has_samples(trained) and person is not None
    batch = "batch" if shape.batch == "dynamic" else shape.batch
    adapted = run.provenance.get("adapted")
    return {
        # A fleet must see which common model a wearer's file came from.
        **(
            {
                "common_fingerprint": adapted["fingerprint"],
                "common_version": str(adapted.get("version", 1)),
            }
            if adapted
            else {}
        ),
        **({"personal_prior": f"{PRIOR_INSIDE} '{person}'"} if inside else {}),
        **({"own_samples": f"{SAMPLES_INSIDE} '{person}'"} if centres else {}),
        "vergence": version("vergence"),
        "task": run.results["task"],
        "model": trained.experiment.table["model"]["name"],
        "method": run.method,
        "person": person or "newcomer",
        "seed": str(trained.task.seed),
        "fingerprint": trained.fingerprint,
        f"output {answer.name}": answer.meaning.replace("[1,", f"[{batch},"),
        f"unit {answer.name}": answer.unit,
        "data": raw.name,
        "data_licence": raw.about.get("licence", "not stated"),
        "data_citation": raw.about.get("citation", "not stated"),
    }


def pace(dataset: Dataset, test: Samples) -> dict[str, str]:
    """Return the seconds between frames as metadata, empty if unknown or without windows."""
    # `vergence live` reads it, to give the network frames at the pace of its training.
    frames = test.take(slice(0, 1)).get("frames")
    several = frames is not None and frames.ndim == 5 and frames.shape[1] > 1
    step_s = dataset.frame_step_s if several else None
    return {} if step_s is None else {"step_s": f"{step_s:g}"}


def parity(whole: Exportable, session: Any, cases: Iterable[Batch]) -> float:
    """Return the largest difference between the file's and torch's answers to these batches.

    For maps it is relative to the largest value of each answer, for networks of `task_from` to that
    value or 1. A stream's frames are given one
    after the other, and each side continues from its own state.
    """
    worst = 0.0
    for batch in cases:
        for ours, theirs in both(whole, session, batch):
            # max() drops a NaN, which would pass for no difference.
            if ours.shape != theirs.shape or not theirs.isfinite().all():
                return float("inf")
            peak = float(ours.abs().max())
            # Outputs of a user's network may be large, and float32 rounds by their size.
            least = 1.0 if whole.task.exported else peak
            scale = max(peak, least) if answer_of(whole.task).relative else 1.0
            worst = max(worst, float((ours - theirs).abs().max()) / scale)
    return worst


@torch.no_grad()
def both(whole: Exportable, session: Any, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield torch's and the file's answers to a sample: one, or those of a stream's frames."""
    calls = list(whole.calls(batch))
    mine = whole.arguments(batch)[len(calls[0]) :]
    for arguments, (_, answer) in zip(calls, answers(whole, session, batch), strict=True):
        ours, *mine = whole(*(value.clone() for value in arguments), *mine)
        yield ours, answer


def answers(whole: Exportable, session: Any, batch: Batch) -> Iterator[tuple[Feed, Tensor]]:
    """Yield the inputs of each call for a sample and the file's answer; a stream has its state."""
    calls = list(whole.calls(batch))
    state = whole.arguments(batch)[len(calls[0]) :]
    for arguments in calls:
        values = (*arguments, *state)
        answer, *state = answered(whole, session, values)
        yield feed_of(whole, session, values), answer


def feed_of(whole: Exportable, session: Any, values_of_columns: Sequence[Tensor]) -> Feed:
    """Return these values of the columns as inputs of the file, by name."""
    values = dict(zip(whole.columns, values_of_columns, strict=True))
    return {name: values[name].contiguous().numpy() for name in names(session)}


def answered(whole: Exportable, session: Any, values_of_columns: Sequence[Tensor]) -> list[Tensor]:
    """Return the file's answers to these values of its columns."""
    outputs = session.run(None, feed_of(whole, session, values_of_columns))
    return [torch.from_numpy(value) for value in outputs]


def check_reducible(run: Run, shape: CallShape, precision: Precision) -> None:
    """Check that a run's file can be written in another precision than float32.

    Raises:
        ConfigError: a call has another shape than a sample of the data, or the ranges of
            `int8 static` would tell of training samples beyond the run's privacy budget.
    """
    if shape.batch not in (1, "dynamic") or shape.frames not in (None, "dynamic"):
        raise ConfigError(
            f"a file in {precision} is compared with float32 sample by sample: leave out --frames "
            "and --batch, or make them dynamic"
        )
    if precision == "int8 static" and run.results.get("privacy"):
        raise ConfigError(
            f"{run.folder} has a privacy budget, which ranges of training samples are no part of: "
            "give --int8 dynamic or --float16, which read no samples"
        )


def calibration_feeds(trained: TrainedRun, whole: Exportable, session: Any) -> list[Feed]:
    """Return inputs of calls with training samples of the people who took part."""
    everybody, who = trained.loaded.raw.people, trained.trained_on.clients
    each = [spread(everybody[name].train, whole, CALIBRATED // len(who)) for name in who]
    return [feed for part in each for one in part for feed, _ in answers(whole, session, one)]


def spread(samples: Samples, whole: Exportable, calls: int) -> list[Batch]:
    """Return samples one by one, evenly spread over all, which take at most so many calls.

    There is one at least.
    """
    needed = sum(1 for _ in whole.calls(samples.take(slice(0, 1))))
    count = min(len(samples), max(1, calls // needed))
    rows = (torch.arange(count) * len(samples) // count).split(1)
    return [samples.take(row) for row in rows]


def compared(
    trained: TrainedRun,
    whole: Exportable,
    sessions: Sequence[Any],
    files: Sequence[bytes],
    people: Sequence[str],
) -> Reduction:
    """Compare a file with the same in float32, which comes first, on people's test samples."""
    values = whole.arguments(trained.loaded.raw.people[people[0]].test.take(slice(0, 1)))
    full, small = (headline_of(trained, whole, session, people) for session in sessions)
    ms = medians([lambda s=session: answered(whole, s, values) for session in sessions])
    sizes, times = (len(files[0]), len(files[1])), (ms[0], ms[1])
    return Reduction(trained.task.headline, (full, small), sizes, times, len(people))


def headline_of(
    trained: TrainedRun, whole: Exportable, session: Any, people: Sequence[str]
) -> float:
    """Return the mean over people of the headline metric of a file's answers on test samples."""
    task, values = trained.task, []
    for who in people:
        raw = trained.loaded.raw.people[who].test
        rows = []
        for one in spread(raw, whole, COMPARED):
            answer = torch.cat([each for _, each in answers(whole, session, one)])
            rows.append(answer[None] if isinstance(whole, StreamingModel) else answer)
        output = torch.cat(rows)
        if isinstance(task, GazeMap | Images):
            # The file answers with probabilities, and metrics take logits.
            scale = task.temperature if isinstance(task, GazeMap) else 1.0
            output = scale * output.clamp(min=torch.finfo(output.dtype).tiny).log()
        every = torch.arange(len(rows)) * len(raw) // len(rows)
        ready = trained.loaded.ready.people[who].test.subset(every)
        values.append(task.metrics(output, ready)[task.headline])
    return sum(values) / len(values)


def timed(whole: Exportable, session: Any, first: Batch) -> tuple[float, float]:
    """Return the milliseconds of one call: torch and onnxruntime, one thread each."""
    values = whole.arguments(first)

    @torch.no_grad()
    def ours() -> State:
        return whole(*values)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        mine, theirs = medians([ours, lambda: answered(whole, session, values)])
    finally:
        torch.set_num_threads(threads)
    return mine, theirs


def show(made: Exported, size: int, checked: int, console: Console) -> None:
    """Print the file's path and size, its difference from torch, and the time of both."""
    grid = Table("one call, one thread", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    grid.add_column("ms (median processor time)", justify="right")
    grid.add_row("torch", f"{made.torch_ms:.3f}")
    grid.add_row("onnxruntime", f"{made.onnx_ms:.3f}")
    console.print(grid)
    if made.reduction is not None:
        console.print(reduction_table(made.reduction, made.precision))
    console.print(
        f"largest difference from torch in {checked} calls with test samples: "
        f"{made.difference:.1e}\n"
        f"model: {made.path} ({size / 1024:.0f} KiB; inputs: {', '.join(made.inputs)}; opset "
        f"{OPSET})",
        soft_wrap=True,
        highlight=False,
    )


def reduction_table(made: Reduction, precision: Precision) -> Table:
    """Return the table of size, time and error of a smaller file beside float32."""
    title = f"test samples of {plural(made.people, 'person')}"
    grid = Table(title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("KiB", "ms", metric_name(made.metric)):
        grid.add_column(name, justify="right")
    rows = zip(("float32", precision), made.sizes, made.ms, made.errors, strict=True)
    for name, size, ms, error in rows:
        grid.add_row(name, f"{size / 1024:.0f}", f"{ms:.3f}", f"{error:.3f}")
    return grid

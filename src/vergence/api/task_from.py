"""Tasks made of the user's functions: a network's factory, a loss, and metrics of its outputs.

Used by `api.from_objects`.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn.functional import one_hot

from vergence.api.augmentation import Transform, augmented
from vergence.api.function_digest import behaviour_digest, qualified_name
from vergence.core.data import Batch, Samples
from vergence.core.federation import Federation
from vergence.core.options import check_call, named_arguments
from vergence.core.params import Params
from vergence.core.task import Model, Task, isolated_randomness, map_outputs, tensor_in
from vergence.errors import ConfigError, VergenceError, first_line
from vergence.metrics.intervals import SHARE, Bounds

Factory = Callable[[], nn.Module]
LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean loss."""
Metric = Callable[[Tensor, Tensor], Any]
"""(outputs, targets) of all test samples of a person -> one number."""
# Most output numbers that a constant is fitted to, as more would take time; of more targets a
# regular sample is used.
CELLS = 1_000_000
# Size of a constant, in multiples of the largest target, above which it is rejected: the optimiser
# runs away where a loss has no minimum.
FAR = 1e4
KIND = re.compile("type|bool|not implemented for")
"""Words in an error of torch that mean: the function does not take numbers of this type."""
NAMED_SHARE = re.compile(
    r"((balanced|macro|micro|weighted|mean|roc|pr|top_?\d+)_)*"
    r"(acc|accuracy|f1|auc|auroc|precision|recall|sensitivity|specificity|iou|dice)"
    r"(_score|_macro|_micro|_weighted)*",
    re.IGNORECASE,
)
"""A metric's name that says that its values are shares, from 0 to 1 (or percent)."""
TARGETS_FIRST = re.compile(
    "(y_?)?(true|target|label|ground_?truth|gt)s?(_.*)?|reference", re.IGNORECASE
)
"""A name of a function's first argument that says that it is the targets."""
SIZE = re.compile("must match the size|must have size|to match target batch_size")
"""Words in an error of torch that mean: outputs and targets differ in shape."""


@named_arguments()
def task_from(
    module_factory: Factory,
    loss: LossFunction,
    metrics: Mapping[str, Metric] | None = None,
    lower_is_better: bool | Collection[str] | None = None,
    *,
    inputs: str | Sequence[str] = "x",
    target: str = "y",
    outputs: str | int | None = None,
    head: Sequence[str] = (),
) -> FunctionTask:
    """Make a task for any network from its factory, a loss, and metrics.

    Args:
        module_factory: function that builds a new network at every call, as `lambda: nn.Linear(4,
            1)`, or a class without arguments. A lambda is allowed, since worker processes are
            copies of this one. Only Ray's workers have to import the function by name.
        loss: (outputs, targets) -> a scalar, as `torch.nn.functional.mse_loss` or `cross_entropy`.
        metrics: name -> (outputs, targets) -> a number, over all test samples of a person; the
            first is the headline. Default: the loss itself, as "test_loss". Intervals of a metric
            whose name says that it is a share, as `accuracy` or `f1_macro`, stay inside 0 and 1.
        lower_is_better: the metrics of which less is better; True or False holds for all of them.
        inputs: the column that the network takes, or several, in the order of its arguments.
        target: the column with which loss and metrics compare outputs.
        outputs: for a network that returns a dict, a tuple or an object: the name or index of the
            tensor that loss and metrics get. Default: the whole output if the loss takes it, else
            its `logits`, the first item of a tuple, or the only tensor in it.
        head: names (patterns) of the parameters that methods such as FedPer keep on the client;
            default: the parameters of the last layer that has any.

    Raises:
        ConfigError: the factory builds no network that can be averaged, or `lower_is_better` is
            missing.

    Examples:
        >>> from torch.nn.functional import mse_loss
        >>> task_from(lambda: nn.Linear(4, 1), loss=mse_loss).headline
        'test_loss'
    """
    task = FunctionTask(
        FactoryModel(module_factory, head=_as_names("head", head)),
        loss_function=loss,
        lower_is_better=_lower_is_better(metrics, lower_is_better),
        metric_functions=tuple((metrics or {"test_loss": loss}).items()),
        input_columns=_as_names("inputs", inputs),
        target=target,
        outputs=outputs,
    )
    _check_functions(loss, metrics or {})
    _check_factory(task)
    return task


def _check_functions(loss: LossFunction, metrics: Mapping[str, Metric]) -> None:
    for what, function in (
        ("loss", loss),
        *((f"metric {n!r}", m) for n, m in metrics.items()),
    ):
        if not callable(function) or (
            isinstance(function, type) and issubclass(function, nn.Module)
        ):
            raise ConfigError(
                f"task_from: {what} must be a function of (outputs, targets), as "
                f"torch.nn.functional.mse_loss or nn.MSELoss(); got {function!r}"
                f"{f': write nn.{function.__name__}()' if isinstance(function, type) else ''}"
            )
        names = check_call(
            function, 2, f"task_from: {what} must be a function of (outputs, targets)"
        )
        # Scikit-learn's R2 of swapped arguments is a number too, and another one.
        if TARGETS_FIRST.fullmatch("".join(names[:1])):
            raise ConfigError(
                f"task_from: {what} takes targets before outputs, and gets (outputs, targets): "
                "write lambda outputs, targets: ...(targets, outputs)"
            )
        trainable = dict(function.named_parameters()) if isinstance(function, nn.Module) else {}
        if any(each.requires_grad for each in trainable.values()):
            raise ConfigError(
                f"task_from: {what} has parameters ({', '.join(trainable)}), which no run trains: "
                "make them part of the network, and let it return what the loss needs"
            )
    if "score" in metrics:
        raise ConfigError(
            "task_from: 'score' is the number in [0, 1] that methods steer by, which follows from "
            "the first metric; call this metric something else"
        )


def _as_names(what: str, value: Any) -> tuple[str, ...]:
    """Return a list of names as a tuple; a single text is one name."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"task_from: {what} must be names, as ['x']; got {value!r}")
    return tuple(names)


def _lower_is_better(metrics: Mapping[str, Metric] | None, option: Any) -> frozenset[str]:
    """Return the metrics of which less is better, from the argument `lower_is_better`."""
    if metrics is None:
        if option not in (None, True):
            raise ConfigError(
                "task_from: without metrics the score is the loss, of which less is better; got "
                f"lower_is_better={option!r}: leave it out, or give metrics"
            )
        return frozenset({"test_loss"})
    if not metrics or not isinstance(metrics, Mapping):
        raise ConfigError(
            "task_from: metrics must be functions by name, as {'accuracy': accuracy}; got "
            f"{metrics!r}: leave them out to score by the loss"
        )
    # There is no safe default: a wrong direction would make the worst method win.
    if option is None:
        first = next(iter(metrics))
        raise ConfigError(
            f"task_from: say of which metrics ({', '.join(metrics)}) less is better, as "
            f"lower_is_better=[{first!r}], or lower_is_better=False for none"
        )
    if isinstance(option, bool):
        return frozenset(metrics if option else ())
    if not isinstance(option, str | list | tuple | set | frozenset):
        raise ConfigError(
            "task_from: lower_is_better must be True, False or names of metrics, as "
            f"{list(metrics)[:1]}; got {option!r}"
        )
    names = {option} if isinstance(option, str) else set(map(str, option))
    if unknown := sorted(names - set(metrics)):
        raise ConfigError(
            f"task_from: lower_is_better names {unknown[0]!r}, which is no metric; there are "
            f"{', '.join(metrics)}"
        )
    return frozenset(names)


@dataclass(frozen=True)
class FactoryModel(Model):
    """A network that a user's function builds.

    Attributes:
        factory: the function, which may draw random numbers from torch's global generator only.
        head: names (patterns) of the parameters of the network's head.
    """

    factory: Factory
    head: tuple[str, ...] = field(kw_only=True, default=())  # type: ignore[misc]

    def build(self) -> nn.Module:
        """Build a new network."""
        return self.factory()


@dataclass(frozen=True)
class FunctionTask(Task):
    """A task made of functions; see `task_from`.

    Some methods decide by a score in [0, 1], of which more is better. It is 1/2 - atan(headline) /
    pi if less of the headline metric is better, else 1/2 + atan(headline) / pi.

    Attributes:
        loss_function: (outputs, targets) -> the mean loss.
        metric_functions: (name, function) of each metric, the headline first.
        lower_is_better: the metrics of which less is better.
        input_columns: the columns that the network takes.
        target: the column that the network is to predict.
        outputs: name or index of the tensor to use, if the network's output is not itself a tensor.
        transform: random augmentation of a training sample's input columns; None: there is none.
        whole: {"loss": whether the loss takes the whole of an output that is not a tensor}. It is
            empty until the network has given an output of this type.
    """

    loss_function: LossFunction = field(kw_only=True)
    metric_functions: tuple[tuple[str, Metric], ...] = field(kw_only=True)
    lower_is_better: frozenset[str] = field(kw_only=True)  # type: ignore[misc]
    input_columns: tuple[str, ...] = field(kw_only=True, default=("x",))  # type: ignore[misc]
    target: str = field(kw_only=True, default="y")
    outputs: str | int | None = field(kw_only=True, default=None)
    transform: Transform | None = field(kw_only=True, default=None)
    chooses_by_loss: ClassVar[bool] = True
    exported: ClassVar[str] = "the network's output, as the loss gets it"
    # Copies of the task for other seeds share it, so that the loss is tried once.
    whole: dict[str, bool] = field(kw_only=True, default_factory=dict, compare=False, repr=False)

    @property
    def headline(self) -> str:  # type: ignore[override]
        """Name of the first metric."""
        return self.metric_functions[0][0]

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        """Name of the column with which the loss compares outputs, in a tuple."""
        return (self.target,)

    @property
    def bounds(self) -> Mapping[str, Bounds]:  # type: ignore[override]
        """0 and 1 for each metric whose name says that it is a share."""
        return {name: SHARE for name, _ in self.metric_functions if NAMED_SHARE.fullmatch(name)}

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the network's output on a batch."""
        columns = [self._column(batch, name) for name in self.input_columns]
        # A network that changes its own target must not change what the loss sees.
        columns = [c.clone() if self.target in self.input_columns else c for c in columns]
        if self.transform is not None and module.training:
            with _explained("the transform", dict(zip(self.input_columns, columns, strict=True))):
                columns = augmented(self.transform, columns)
        with _explained("the network", dict(zip(self.input_columns, columns, strict=True))):
            output = module(*columns)
        return output if isinstance(output, Tensor) else self._part(output, batch)

    def with_transform(self, transform: Transform) -> FunctionTask:
        """Return this task with a random augmentation of training samples, such as a random crop.

        Args:
            transform: it gets the input columns of one sample, without a batch dimension, and
                returns them with the same shapes. It is called for each sample, in every step. Its
                random numbers, of torch, NumPy or Python, repeat with the run.

        Raises:
            ConfigError: `transform` is no function.

        Examples:
            >>> from torch.nn.functional import mse_loss
            >>> task = task_from(lambda: nn.Linear(4, 1), loss=mse_loss)
            >>> task.with_transform(lambda x: x + 0.1 * torch.randn(4)).augments
            True
        """
        check_call(
            transform,
            len(self.input_columns),
            "transform must be a function of one sample's input, as lambda x: x.flip(-1) if "
            f"torch.rand(()) < 0.5 else x; it gets {', '.join(self.input_columns)}, and no labels",
        )
        return replace(self, transform=transform)

    @property
    def augments(self) -> bool:
        """Whether training samples are augmented at random."""
        return self.transform is not None

    def _part(self, output: Any, batch: Batch) -> Any:
        """Return what loss and metrics get of a network's output: the whole, or one tensor."""
        if not self.whole and self.outputs is None and self.target in batch:
            target = batch[self.target].clone()
            try:
                with torch.no_grad():
                    loss = self.loss_function(map_outputs(torch.clone, output), target)
                self.whole["loss"] = isinstance(loss, Tensor)
            # The user's function may raise anything for an output that it does not take.
            except Exception:
                self.whole["loss"] = False
        return output if self.whole.get("loss") else tensor_in(output, self.outputs)

    def inputs(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the first input column, and a tuple of the other input columns."""
        first, *others = (self._column(batch, name) for name in self.input_columns)
        return first, tuple(others)

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the batch."""
        target = self._column(batch, self.target)
        with _explained("the loss", {self.target: target}):
            return self.loss_function(self._matched(output, target), target)

    def class_of(self, batch: Batch) -> Tensor:
        """Return the targets, if they are classes (whole numbers).

        Raises:
            ConfigError: the targets are not classes.
        """
        target = self._column(batch, self.target)
        if target.is_floating_point() or target.ndim != 1:
            return super().class_of(batch)
        return target

    def targets(self, batch: Batch, outputs: int) -> Tensor:
        """Return the target column as rows of floats; of classes, 1 for the class and else 0."""
        target = self._column(batch, self.target)
        if target.is_floating_point():
            return target.reshape(len(target), -1)
        return one_hot(self.class_of(batch).long(), outputs).float()

    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return metric -> value over all samples."""
        target = self._column(samples.columns, self.target)
        values = {}
        for name, metric in self.metric_functions:
            with torch.no_grad(), _explained(f"metric {name!r}", {self.target: target}):
                values[name] = _number(name, self._measured(metric, outputs, target))
        return values

    def score(self, outputs: Any, samples: Samples) -> float:
        """Return the headline metric as a number in [0, 1], higher is better, for methods."""
        # An arctangent puts any number into [0, 1], in its order; nobody reads it in tables.
        angle = math.atan(self.metrics(outputs, samples)[self.headline]) / math.pi
        return 0.5 - angle if self.headline in self.lower_is_better else 0.5 + angle

    def _measured(self, metric: Metric, outputs: Any, target: Tensor) -> Any:
        """Compute a metric from the whole output; if that fails, from one tensor of it."""
        # It gets copies, as a user's metric may change its arguments.
        try:
            return metric(map_outputs(torch.clone, self._matched(outputs, target)), target.clone())
        except Exception:
            if isinstance(outputs, Tensor):
                raise
            return self._measured(metric, tensor_in(outputs, self.outputs), target)

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Score the best constant output on all people's test samples.

        Returns:
            {"best constant": person -> metric -> value}. The result is empty if there is no such
            constant: the output is large, or the loss has no finite value for a constant.
        """
        trains = (splits.train for splits in federation.people.values())
        try:
            # Only the targets stay: everybody's inputs may not fit into memory.
            targets = ({self.target: self._column(s.columns, self.target)} for s in trains)
            constant = self.best_constant([next(trains), *map(Samples, targets)])
            rows = {
                person: self.metrics(_repeated(constant, len(splits.test)), splits.test)
                for person, splits in federation.scored_people.items()
            }
        # The user's functions are made for a network's outputs, and may fail on a constant.
        except Exception:
            return {}
        return {"best constant": rows}

    def best_constant(self, parts: Sequence[Samples]) -> Tensor:
        """Return the constant output with the least loss on the training targets.

        The candidates are the targets' mean and median, the frequencies of classes, and zeros. If
        the loss has a gradient, L-BFGS improves the best candidate. Outputs that are probabilities,
        or their logarithms, stay so.

        Args:
            parts: training samples, one entry per person.

        Raises:
            ConfigError: the output has too many numbers; or the loss of a constant output is not
                finite, or has no minimum.
        """
        with torch.no_grad():
            seen = self.forward(_built(self).eval(), parts[0].take(slice(0, 32)))
        shape, size = seen.shape[1:], seen[0].numel()
        targets = torch.cat([self._column(part.columns, self.target) for part in parts])
        targets = targets[:: -(-len(targets) * size // CELLS)]

        def loss(flat: Any) -> Tensor:
            constant = torch.as_tensor(flat, dtype=seen.dtype).reshape(shape)
            outputs = _repeated(constant, len(targets))
            return self.loss_function(self._matched(outputs, targets), targets.clone())

        def slope(flat: Any) -> tuple[float, Any]:
            at = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
            value = loss(at)
            value.backward()
            return float(value.detach()), at.grad.numpy()  # type: ignore[union-attr]

        bounded = _between(seen, 0, 1) and _between(targets, 0, 1)
        candidates, within = [torch.zeros(size)], (0, 1) if bounded else (None, None)
        if not targets.is_floating_point() and targets.ndim == 1 and size > 1:
            # A class without samples would have an infinite loss otherwise.
            shares = targets[targets >= 0].bincount(minlength=size).add(1e-3).double()
            shares /= shares.sum()
            for each, sums in ((shares, seen.sum(1)), (shares.log(), seen.exp().sum(1))):
                if _between(sums, 1 - 1e-3, 1 + 1e-3):
                    return each.to(seen.dtype)
            candidates.append(shares.log())
        elif size == targets[0].numel():
            candidates += [targets.double().mean(0), targets.double().median(0).values]
        start = min(candidates, key=lambda each: float(loss(each).nan_to_num(math.inf)))
        best = start.double().flatten()
        # A loss without a gradient fails in `backward`: then the best candidate stays.
        with suppress(RuntimeError):
            better = minimize(slope, best.numpy(), jac=True, bounds=[within] * size).x
            if float(loss(better)) < float(loss(start)):
                best = torch.from_numpy(better)
        # A loss that compares samples with each other has no finite value for equal outputs.
        halves = torch.full((size,), 0.5)
        far = best.abs().max() > FAR * (1 + targets.abs().max())
        if far or not all(math.isfinite(float(loss(each))) for each in (best, halves)):
            raise ConfigError(f"no constant output of {size:,} numbers has the least loss")
        return best.to(seen.dtype).reshape(shape)

    def describe(self) -> dict[str, Any]:
        """Return the task's description in config.toml, with digests of its functions."""
        return {
            "name": "task_from",
            "loss": qualified_name(self.loss_function),
            "metrics": {name: qualified_name(of) for name, of in self.metric_functions},
            "loss_digest": behaviour_digest(self.loss_function),
            "metric_digests": {name: behaviour_digest(of) for name, of in self.metric_functions},
            "lower_is_better": sorted(self.lower_is_better),
            "inputs": list(self.input_columns),
            "target": self.target,
            **({} if self.outputs is None else {"outputs": self.outputs}),
            **self._transform_marks(),
        }

    def _transform_marks(self) -> dict[str, str]:
        if self.transform is None:
            return {}
        digest = behaviour_digest(self.transform)
        return {"transform": qualified_name(self.transform), "transform_digest": digest}

    def functions(self) -> dict[str, Any]:
        """Return role -> function: the loss, and each metric."""
        named = {f"metric {name!r}": of for name, of in self.metric_functions}
        transform = {} if self.transform is None else {"transform": self.transform}
        return {"loss": self.loss_function, **named, **transform}

    def _column(self, batch: Mapping[str, Tensor], name: str) -> Tensor:
        if name not in batch:
            raise ConfigError(
                f"the task looks for a column {name!r}, and samples have {', '.join(batch)}: say "
                "which, task_from(..., inputs=..., target=...)"
            )
        return batch[name]

    def _matched(self, output: Tensor, target: Tensor) -> Tensor:
        """Reshape outputs to the shape of their targets: `[n, 1]` becomes `[n]`, or the reverse."""
        # Broadcasting would otherwise pair every output with every target.
        if not isinstance(output, Tensor) or output.shape == target.shape:
            return output
        # Every class has an output: [n, C] for targets [n], which stays as it is.
        if not target.is_floating_point():
            columns = {(len(target),), (len(target), 1)}
            pair = {tuple(output.shape), tuple(target.shape)}
            return output.reshape(target.shape) if pair == columns else output
        if output.numel() == target.numel() and output.ndim and output.shape[0] == target.shape[0]:
            return output.reshape(target.shape)
        classes = target.ndim == 1 and output.ndim == 2
        raise ConfigError(
            f"the network puts out {list(output.shape)} for targets {list(target.shape)} "
            f"({self.target!r}): give it an output of the targets' shape"
            f"{_as_type('; classes are whole numbers', self.target, 'int64') if classes else ''}"
        )


def _as_type(why: str, column: str, kind: str) -> str:
    return f"{why}, {column}.astype({kind!r})"


@contextmanager
def _explained(what: str, columns: Mapping[str, Tensor]) -> Iterator[None]:
    """Explain an error of torch that is due to whole numbers instead of floating-point ones.

    `what` names the function that is called in the block, and `columns` are its arguments.

    Raises:
        ConfigError: replaces torch's error; the message names the column and what to do.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        whole = [name for name, column in columns.items() if not column.is_floating_point()]
        reason = first_line(error)
        # Scikit-learn's word for numbers in a metric of classes, such as F1.
        if "continuous" in reason:
            mend = (
                "outputs are a score for each class: give it outputs.argmax(1)"
                if whole
                else f"{next(iter(columns))!r} has no class numbers: take a metric of this task"
            )
            raise ConfigError(f"{what} is one of classes ({reason}), and {mend}") from error
        if SIZE.search(reason) and what != "the network":
            raise ConfigError(
                f"{what} does not take {', '.join(columns)} ({reason}): the network must return a "
                "row for each sample, and targets be of the shape of its outputs, or one class "
                f"number a sample, as {next(iter(columns))}.argmax(1)"
            ) from error
        if not whole or not KIND.search(reason):
            raise
        kind = str(columns[whole[0]].dtype).removeprefix("torch.")
        # With one output, cross-entropy would compare the samples of a batch with each other.
        mend = (
            ": give the network an output for each class, or take a loss of one output"
            if "class probabilities" in reason
            else _as_type(": give class numbers", whole[0], "int64")
            if "to be Long" in reason
            else _as_type(": give floating-point numbers", whole[0], "float32")
            + ", if it takes (outputs, targets) in this order" * (what == "the loss")
        )
        raise ConfigError(
            f"{what} does not take {whole[0]!r}, which is {kind} ({reason}){mend}"
        ) from error


def _between(values: Tensor, low: float, high: float) -> bool:
    return bool(((values >= low) & (values <= high)).all())


def _repeated(constant: Tensor, times: int) -> Tensor:
    return constant.expand(times, *constant.shape).contiguous()


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        what = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ConfigError(
            f"metric {name!r} must give one number for all samples; got {what}"
        ) from None


def _check_factory(task: FunctionTask) -> None:
    """Build the network twice, and refuse a factory if runs could not be trained or resumed."""
    assert isinstance(task.network, FactoryModel)
    factory = task.network.factory
    if isinstance(factory, nn.Module):
        raise ConfigError(
            f"task_from takes a function that builds the network, so that every seed has its own "
            f"parameters to start from; got a {type(factory).__name__}: write task_from(lambda: "
            "...) around what built it, or task_from(lambda: copy.deepcopy(net)) to start every "
            "seed from these very parameters"
        )
    if not callable(factory):
        raise ConfigError(
            "task_from takes a function that builds the network, as lambda: nn.Linear(4, 1); got "
            f"{factory!r}"
        )
    first, second = _built(task), _built(task)
    if first is second:
        raise ConfigError(
            f"{qualified_name(factory)} gives the same network at every call: build a new one in "
            "it, or copy yours, lambda: copy.deepcopy(net)"
        )
    one, other = Params.of(first), Params.of(second)
    if not one.layout.n:
        raise ConfigError(f"{qualified_name(factory)} builds a network without parameters to train")
    fixed, again = fixed_arrays(first), fixed_arrays(second)
    alike = fixed.keys() == again.keys() and all(torch.equal(fixed[n], again[n]) for n in fixed)
    if one.layout != other.layout or not torch.equal(one.flat, other.flat) or not alike:
        raise ConfigError(
            f"{qualified_name(factory)} builds other parameters at every call, whatever the seed: "
            "draw them from torch's global generator alone, so that a run can be gone on with"
        )


def _built(task: FunctionTask) -> nn.Module:
    assert isinstance(task.network, FactoryModel)
    factory = task.network.factory
    try:
        with isolated_randomness():
            torch.default_generator.manual_seed(task.seed)
            module = factory()
    except VergenceError:
        raise
    except Exception as error:
        raise ConfigError(_failed(factory, error)) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{qualified_name(factory)} must build a torch.nn.Module; it gives a "
            f"{type(module).__name__}"
        )
    if elsewhere := {p.device.type for p in module.parameters()} - {"cpu"}:
        raise ConfigError(
            f"{qualified_name(factory)} builds its network on {elsewhere.pop()}: build it on the "
            "CPU, and give train device='cuda', which moves it"
        )
    return module


def fixed_arrays(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen parameters and the buffers of a network, which no run trains or keeps."""
    frozen = {name: each for name, each in module.named_parameters() if not each.requires_grad}
    every = {name: each.detach() for name, each in (*frozen.items(), *module.named_buffers())}
    # Files have no complex numbers.
    return {n: torch.view_as_real(each) if each.is_complex() else each for n, each in every.items()}


def _failed(factory: Any, error: Exception) -> str:
    """Return the message on an error that a factory raised.

    It says that the factory needs arguments, or that it failed.
    """
    name, reason = qualified_name(factory), first_line(error)
    own_frames = error.__traceback__ and error.__traceback__.tb_next
    if isinstance(error, TypeError) and own_frames is None:
        return (
            f"{name} cannot be called without arguments ({reason}): write task_from(lambda: ...) "
            "around it"
        )
    kind = type(error).__name__
    text = kind if reason == kind else f"{kind}: {reason}"
    return (
        f"{name}, called to build the network, failed with {text}; "
        f"{'build it on the CPU, train(device=...) moves it' if 'CUDA' in reason else 'mend it'}"
    )


def is_importable(thing: Any) -> bool:
    """Return whether another process can import a function, or an object's class, by name."""
    if isinstance(thing, partial):
        return all(map(is_importable, (thing.func, *thing.args, *thing.keywords.values())))
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module, name = getattr(named, "__module__", None), named.__qualname__
    # Names such as `<lambda>` and `<locals>` cannot be imported.
    if module in (None, "__main__", "builtins") or "<" in name:
        return module == "builtins"
    try:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return False
    return value is named

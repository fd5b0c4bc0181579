"""FedRidge: ridge regression in closed form from sums over clients, in one round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor, nn

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, compute
from vergence.core.data import copy_of
from vergence.core.identifiers import ClientId
from vergence.core.layers.kernel_head import KernelHead, gaussian
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Layers, Method, Tree
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.training.ridge import kernel_ridge, solve_products

OWN = ("centres", "own_weight", "own_bias")
"""Names of the parameters of a `KernelHead` that belong to one person."""


@tagged("RidgeModel")
@dataclass(frozen=True)
class RidgeModel:
    """Server state: the model without personal parameters, and the name of the head's layer."""

    model: Params
    head: str


@dataclass(frozen=True)
class FedRidge(Method[RidgeModel, Layers]):
    """Compute the head of a network by ridge regression on all clients' samples, in one round.

    With z the inputs of the head (of a `KernelHead`: its random Fourier features), y the targets
    (`Task.targets`) and v = (z, 1), client k sends the mean products of its samples,
    A_k = mean(v v^T) and B_k = mean(v y^T). Sums of these determine the solution exactly:

    (W, b) = argmin sum_k n_k mean_i |y_i - W z_i - b|^2 + ridge s |W|^2, s = mean |z|^2.

    The body of the network stays as it starts (`model.start`: as an earlier run trained it). After
    the round every client fits the residuals of its own samples by kernel ridge regression, and
    keeps that part: with a linear head by the products z . z', with a `KernelHead` by the head's
    Gaussian kernel, so that the personal part is zero far from the person's samples. Leave-one-out
    chooses the penalty (`training.ridge.kernel_ridge`); where no penalty has a smaller error than
    no personal part, this part is zero.

    Args:
        ridge: penalty of the common part; 1 weighs as much as one sample, or as one client where
            clients count equally.
        common: fit the common part; otherwise clients send nothing, and each has its own part
            alone, which is the baseline that needs no federation.
        own_part: fit each client's residuals after the last round; otherwise everybody predicts
            with the common part.
        weights: clients count by their samples (n_k), or equally (n_k = 1).

    Source: the closed form is Hoerl and Kennard, "Ridge regression", Technometrics 1970;
    leave-one-out in closed form is Allen, Technometrics 1974, Equation 2.5. Sums of second moments
    over clients: Salman et al. 2022 (FedHEONN) and others. The residual step is this project's.
    """

    ridge: Annotated[float, Gt(0)] = 1.0
    common: bool = True
    own_part: bool = True
    weights: Literal["samples", "equal"] = "samples"

    resident: ClassVar[bool] = False
    closed_form: ClassVar[bool] = True
    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(trees=("products",), metrics=()),
        "tune": Exposure(trees=(), metrics=()),
    }
    trees: ClassVar[Mapping[str, Tree]] = {
        "products": Tree(
            "Gram matrix of features, of rank n for n samples, so that few samples can be read "
            "from it, and products of features with {labels}",
            "values",
        )
    }
    finish_verbs: ClassVar[tuple[str, ...]] = ("tune",)
    unfit_for_statistics: ClassVar[str] = (
        "the body does not train, and running statistics are counted in training"
    )

    def check(self, task: Task) -> None:
        """Refuse a sampler, and a head that is neither one linear layer nor a `KernelHead`."""
        super().check(task)
        if self.local.sampler != "shuffle":
            raise ConfigError(
                "fedridge solves for all samples at once and draws no batches; leave out "
                f"local.sampler = '{self.local.sampler}'"
            )
        head_of(task)

    def server(self, task: Task) -> RidgeModel:
        """Return the server's first state: the initial model without personal parameters."""
        start, head = task.init(), head_of(task)[0]
        own = {within(head, name) for name in OWN}
        return RidgeModel(start.only([name for name in start if name not in own]), head)

    def reply_templates(self, s: RidgeModel) -> Mapping[str, Params]:
        """Return zeros in the form of the products: the upper triangle of A_k, and B_k."""
        outputs, inputs = s.model[within(s.head, "weight")].shape
        products = Params.named(
            among=torch.zeros((inputs + 1) * (inputs + 2) // 2),
            with_targets=torch.zeros(inputs + 1, outputs),
        )
        return {"products": products}

    def stores_inputs(self, task: Task) -> bool:
        """Return whether the head has centres, which are inputs of the client's own samples."""
        return self.own_part and hasattr(head_of(task)[1], "centres")

    def unused_by_newcomers(self, task: Task) -> Collection[str]:
        """Return the names of the personal part, which is 0 for whoever took no part."""
        # Without a common part there is nothing beside it.
        return [within(head_of(task)[0], name) for name in OWN if self.common]

    def client(self, task: Task) -> Layers:
        """Return a client's first state: the initial model, of which nothing is personal yet."""
        return Layers(task.init(), ())

    def round(self, s: RidgeModel, cohort: Sequence[ClientId]) -> Conversation[RidgeModel]:
        """Sum the cohort's products, and solve for the head."""
        if not self.common:
            return s
        inputs = s.model[within(s.head, "weight")].shape[1]
        got = yield from aggregate("train", to=cohort, like=self.reply_templates(s))
        if not got.count:
            return s
        mean, samples = got.mean("products"), got.contributors("products")
        # A robust rule counts contributors for each entry.
        if isinstance(samples, Params):
            samples = samples.range[1]
        rows, columns = torch.triu_indices(inputs + 1, inputs + 1)
        among = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64)
        among[rows, columns] = among[columns, rows] = mean["among"].double()
        solution = solve_products(among, mean["with_targets"].double(), self.ridge / samples)
        head = {"weight": solution[:-1].T, "bias": solution[-1]}
        return replace(s, model=s.model.put(part_of_head(s.head, head)))

    def on_train(
        self, c: Layers, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Layers, Reply]]:
        """Reply with the mean products of the client's samples."""
        params = c.params.put(msg["model"])
        _, layer = head_of(site.task)
        inputs = yield from compute(params, site.train, "features")
        rows = (layer.features(inputs) if isinstance(layer, KernelHead) else inputs).double()
        rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
        targets = targets_of(site, layer)
        upper = torch.triu_indices(rows.shape[1], rows.shape[1])
        products = Params.named(
            among=(rows.T @ rows / len(rows))[upper[0], upper[1]].float(),
            with_targets=(rows.T @ targets / len(rows)).float(),
        )
        return c, reply(site.weight(self.weights), products=products)

    def finish(self, s: RidgeModel, clients: Sequence[ClientId]) -> Conversation[RidgeModel]:
        """Let every client fit its own residuals, once after the last round."""
        if self.own_part:
            yield from aggregate("tune", to=clients)
        return s

    def on_tune(
        self, c: Layers, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Layers, Reply]]:
        """Fit the residuals of the client's own samples; nothing goes back."""
        params = c.params.put(msg["model"])
        entry, layer = head_of(site.task)
        inputs = yield from compute(params, site.train, "features")
        outputs = yield from compute(params, site.train, "outputs")
        residuals = targets_of(site, layer) - outputs.double().reshape(len(outputs), -1)
        if not isinstance(layer, KernelHead):
            own = own_linear(inputs.double(), residuals)
            own = {name: params[within(entry, name)] + own[name] for name in own}
        elif hasattr(layer, "centres"):
            own = own_kernel(layer, inputs, residuals, site.rng, constant=not self.common)
        else:
            return c, reply()
        mine = part_of_head(entry, own)
        return Layers(params.put(mine), tuple(mine)), reply()

    def model_on(self, c: Layers, msg: Message, site: ClientContext) -> Params:
        """Return the received model with the client's personal part."""
        common = [name for name in msg["model"] if name not in c.personal]
        return c.params.put(msg["model"].only(common))


def within(head: str, name: str) -> str:
    """Return the name of a head's parameter in the network; the head "" is the whole network."""
    return f"{head}.{name}" if head else name


def part_of_head(head: str, tensors: Mapping[str, Tensor]) -> Params:
    """Return a head's tensors as float32 parameters with their names in the network."""
    return Params.named(**{within(head, name): value.float() for name, value in tensors.items()})


def head_of(task: Task) -> tuple[str, nn.Linear | KernelHead]:
    """Return the name of the head's layer in the network, "" for the whole network, and the layer.

    Raises:
        ConfigError: the head is neither a `KernelHead` nor one linear layer with a bias.
    """
    entry = task.head_layer()
    layer = task.module().get_submodule(entry)
    if isinstance(layer, KernelHead):
        return entry, layer
    task.linear_head()  # refuses any other head
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise ConfigError(
            f"fedridge computes a weight and a bias, and the head {entry or 'of the network'} has "
            "no bias; use nn.Linear(..., bias=True), or vergence.KernelHead"
        )
    return entry, layer


def targets_of(site: ClientContext, layer: nn.Linear | KernelHead) -> Tensor:
    """Return the targets of the client's training samples, float64 `[n, outputs of the head]`.

    Raises:
        ConfigError: the task has targets of another length than the head's output.
    """
    outputs = len(layer.weight)
    targets = site.task.targets(copy_of(site.train.columns), outputs).double()
    if targets.shape != (len(site.train), outputs):
        raise ConfigError(
            f"fedridge: the targets of {site.id} are {list(targets.shape)}, and the head returns "
            f"[{len(site.train)}, {outputs}]; give the network as many outputs as a target has"
        )
    return targets


def own_linear(inputs: Tensor, residuals: Tensor) -> dict[str, Tensor]:
    """Return a client's changes of a linear head's weight and bias, float64.

    Args:
        inputs: the head's inputs, float64 `[n, d]`.
        residuals: targets minus outputs, float64 `[n, outputs]`.
    """
    # In units of the mean squared length, so that one range of penalties suits every network.
    scale = inputs.square().sum(1).mean().clamp(min=1e-12)
    coefficients, _ = kernel_ridge(inputs @ inputs.T / scale + 1, residuals)
    return {"weight": coefficients.T @ inputs / scale, "bias": coefficients.sum(0)}


def own_kernel(
    layer: KernelHead, inputs: Tensor, residuals: Tensor, stream: RandomStream, constant: bool
) -> dict[str, Tensor]:
    """Return a client's personal parameters of a `KernelHead`.

    Of more samples than the head has centres, a random choice is used.

    Args:
        layer: the head, for its sizes and the width of its kernel.
        inputs: the head's inputs `[n, d]`.
        residuals: targets minus outputs, float64 `[n, outputs]`.
        stream: the client's random numbers.
        constant: whether the personal part has a bias, as large as the kernel. Far from a person's
            samples predictions then tend to their mean; otherwise they tend to the common part.
    """
    own = {name: torch.zeros_like(getattr(layer, name)).detach() for name in OWN}
    order = torch.randperm(len(inputs), generator=stream.child("own centres").torch())
    rows = order[: len(layer.centres)].sort().values
    centres, count = inputs[rows].double(), len(rows)
    kernel = gaussian(centres, centres, layer.own_width) + constant
    coefficients, _ = kernel_ridge(kernel, residuals[rows])
    own["centres"][:count] = centres.float()
    own["own_weight"][:, :count] = coefficients.T.float()
    own["own_bias"][:] = constant * coefficients.sum(0).float()
    return own

"""Several clients trained at once: every parameter is one block `[clients, ...]`.

A small network is bound by the cost of calling its operators, not by its arithmetic. `vmap` over
the clients turns a linear layer into one batched matrix product and calls it once for all of them.
Only the forward pass is mapped; backward is autograd's ordinary one, and the optimiser's fused
kernel runs over the blocks. The arithmetic is that of `sequential.Solver` in another order of
additions, so results agree within rounding, not bit for bit.

Used by `engine.client_executor` and `training.solver_trial`.
"""

# torch.optim is built on these kernels; they have no public names.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from vergence.core.data import Batch
from vergence.core.layers.batch_norm import statistics_of
from vergence.core.local_training import LocalTraining, Precision
from vergence.core.params import CHANNELS_LAST, Layout, Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit, FitResult
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.training.batch_buffers import BatchBuffer, BufferPool
from vergence.training.bf16_weights import CONVOLUTIONS, float32_parameters, keep_types
from vergence.training.cuda_graphs import Graphed
from vergence.training.fused_optimizers import slots_of, stepper
from vergence.training.gradients import Adjust, take_gradients, training_loss
from vergence.training.sequential import Solver


class Unstackable(ConfigError):
    """A network or a request that cannot be trained for several clients at once."""


def groups_of(asks: Sequence[Fit]) -> list[list[int]]:
    """Split requests into groups that `Stacked.fit_all` takes, in order of first appearance.

    A group shares settings, number of samples, kind of data and kind of request. A request with an
    optimiser's state is a group of its own, as the stack does not return such a state.
    """
    groups: dict[object, list[int]] = {}
    for number, ask in enumerate(asks):
        alone = ask.optimiser is not None or ask.objective is not None or not len(ask.data)
        groups.setdefault(number if alone else _kind(ask), []).append(number)
    return list(groups.values())


def _kind(ask: Fit) -> tuple[object, ...]:
    mu = None if ask.anchor is None else ask.anchor[1]
    columns = tuple((n, c.dtype, c.shape) for n, c in ask.data.columns.items())
    banks = tuple((n, b.by, b.rows.dtype, b.rows.shape[1:]) for n, b in ask.data.banks.items())
    return ask.local, mu, ask.trainable is None, ask.correction is None, columns, banks


class Stacked:
    """Trains clients of one task together, on one device.

    `solver` scores validation data if a request asks for it; without one a network is built at the
    first such request. Between calls the blocks of the largest stack so far stay in memory.
    """

    def __init__(
        self,
        task: Task,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        solver: Solver | Graphed | None = None,
    ) -> None:
        if task.augments:
            raise Unstackable(
                "clients cannot be stacked: the task augments samples at random, one by one; use "
                "the sequential solver"
            )
        self.task, self.solver = task, solver
        self.device = torch.device(device)
        module = task.module()
        start = Params.of(module)
        self.layout, self.dtype = start.layout, start.flat.dtype
        for layer in module.modules():
            if type(layer) is nn.Linear:
                layer.forward = types.MethodType(_linear, layer)
        # vmap hides convolutions from autocast.
        if precision != "fp32":
            keep_types(module, CONVOLUTIONS)
        self.loss = _Loss(task, module.to(self.device).train(), precision)
        self.half, self.exact = precision == "half", float32_parameters(module)
        self.names = [f"module.{name}" for name in self.layout.names]
        counted = statistics_of(module)
        self.trained = [n for n, name in enumerate(self.layout.names) if name not in counted]
        self.mapped = vmap(self._loss_of_one)
        self.room = BufferPool(self.device)
        self.vmap_works = False

    def fit_all(
        self, asks: Sequence[Fit], streams: Sequence[RandomStream], progress: float = 0.0
    ) -> list[FitResult]:
        """Carry out training requests, each with the batches that `Solver.fit` would draw.

        The results' parameters are rows of one matrix, which lies where the requests' parameters
        lie and lives as long as one of them.

        Raises:
            Unstackable: `vmap` cannot take the network, or the requests are not of one group.
        """
        local = _common(asks, streams)
        clients = len(asks)
        blocks = self._blocks("params", clients)
        starts = self._columns([ask.params.flat for ask in asks])
        for block, start in zip(blocks, starts, strict=True):
            block.copy_(start)
        read = self._read(blocks)
        leaves = [block.detach() for block in read]
        moved = self._trained(leaves)
        for leaf in moved:
            leaf.requires_grad_()
        names = slots_of(local)
        buffers = [self._trained(self._blocks(name, clients, zero=True)) for name in names]
        count = torch.zeros((), device=self.device)
        step = stepper(self._trained(blocks), buffers, local, local.learning_rate(progress), count)
        masks = [ask.trainable.bits for ask in asks if ask.trainable is not None]
        keep = self._columns(masks) if masks else []
        adjust = self._adjuster(asks, self._trained(blocks), self._trained(keep))
        totals = torch.zeros(clients, dtype=torch.float64, device=self.device)
        feed = BatchBuffer([a.data for a in asks], local, streams, self.room, self.task)
        # Tensors that a task makes on the way (a grid, say) belong where its data are.
        with nullcontext() if self.device.type == "cpu" else self.device:
            for batch in feed:
                losses = self._losses(leaves, batch)
                try:
                    torch.autograd.backward(losses, torch.ones_like(losses))
                except torch.OutOfMemoryError:
                    raise
                # A CPU without memory raises a plain RuntimeError; no other solver needs less.
                except RuntimeError as error:
                    if "allocate memory" in str(error):
                        raise
                    raise self._unstackable(str(error)) from error
                step(adjust(self._gradients(moved)))
                # Weight decay reaches frozen entries, too.
                for block, part, start in zip(blocks, keep, starts, strict=False):
                    torch.where(part, block, start, out=block)
                if self.half:
                    torch._foreach_copy_(read, blocks)
                totals += losses.detach()
        return self._fitted(asks, blocks, totals / feed.steps, feed.steps)

    def _read(self, blocks: list[Tensor]) -> list[Tensor]:
        """Return the tensors of forward passes: the blocks, or their bfloat16 copies."""
        if not self.half:
            return blocks
        copies = self._blocks("half", len(blocks[0]), dtype=torch.bfloat16)
        torch._foreach_copy_(copies, blocks)
        names = self.layout.names
        read = zip(names, blocks, copies, strict=True)
        return [block if name in self.exact else copy for name, block, copy in read]

    def _trained(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return those of the layout's tensors that an optimiser moves; [] if `tensors` is []."""
        return [tensors[number] for number in self.trained] if tensors else []

    def _gradients(self, leaves: list[Tensor]) -> list[Tensor]:
        gradients = take_gradients(leaves)
        if not self.half:
            return gradients
        sums = self._trained(self._blocks("gradients", len(leaves[0])))
        torch._foreach_copy_(sums, gradients)
        return sums

    def _loss_of_one(self, tensors: list[Tensor], batch: Batch) -> Tensor:
        return functional_call(self.loss, dict(zip(self.names, tensors, strict=True)), (batch,))

    def _losses(self, leaves: list[Tensor], batch: Batch) -> Tensor:
        """Return every client's loss `[clients]`."""
        try:
            # Only until a batch has worked: catching warnings takes time, and threads share it.
            with nullcontext() if self.vmap_works else _fallback_refused():
                losses = self.mapped(leaves, batch)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError, UserWarning) as error:
            if "allocate memory" in str(error):
                raise
            # A fault of the network or the data raises here, too, with its own message.
            self._loss_of_one([leaf[0] for leaf in leaves], {n: c[0] for n, c in batch.items()})
            raise self._unstackable(str(error)) from error
        if losses.ndim != 1:
            raise self._unstackable(f"the loss has shape {list(losses.shape[1:])}, not one number")
        self.vmap_works = True
        return losses

    def _unstackable(self, reason: str) -> Unstackable:
        network = type(self.loss.module).__name__
        return Unstackable(
            f"clients of {network} cannot be stacked: {reason.strip().splitlines()[0]}; "
            "use the sequential solver"
        )

    def _blocks(
        self, name: str, clients: int, zero: bool = False, dtype: torch.dtype | None = None
    ) -> list[Tensor]:
        """Return resident blocks, contiguous except for the order of a convolution's weights."""
        flat = self.room.take(name, (clients * self.layout.n,), dtype or self.dtype)
        if zero:
            flat.zero_()
        return [
            _shaped(flat[clients * part.start : clients * part.stop].view(clients, -1), shape)
            for part, shape in zip(self.layout.slices.values(), self.layout.shapes, strict=True)
        ]

    def _columns(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return clients' vectors as views per parameter; `[1, ...]` if all are one vector."""
        same = all(flat is flats[0] for flat in flats)
        rows = flats[0].unsqueeze(0) if same else torch.stack(list(flats))
        return _split(rows.to(self.device), self.layout)

    def _adjuster(self, asks: Sequence[Fit], blocks: list[Tensor], keep: list[Tensor]) -> Adjust:
        """Return a function that changes the gradients in place, as in `gradients.adjuster`."""
        anchors = [ask.anchor for ask in asks if ask.anchor is not None]
        mu, centres, pull = 0.0, [], []
        if anchors:
            mu = anchors[0][1]
            centres = self._trained(self._columns([centre.flat for centre, _ in anchors]))
            pull = self._trained(self._blocks("pull", len(asks)))
        pushes = [ask.correction.flat for ask in asks if ask.correction is not None]
        push = self._trained(self._columns(pushes)) if pushes else []
        clip = asks[0].local.clip

        @torch.no_grad()
        def adjust(gradients: list[Tensor]) -> list[Tensor]:
            if anchors:
                for g, block, centre, out in zip(gradients, blocks, centres, pull, strict=True):
                    g.add_(torch.sub(block, centre, out=out), alpha=mu)
            for gradient, part in zip(gradients, push, strict=False):
                gradient.add_(part)
            for gradient, part in zip(gradients, keep, strict=False):
                gradient.mul_(part)
            if clip:
                _clip(gradients, clip)
            return gradients

        return adjust

    def _fitted(
        self, asks: Sequence[Fit], blocks: list[Tensor], losses: Tensor, steps: int
    ) -> list[FitResult]:
        matrix = torch.empty(len(asks), self.layout.n, dtype=self.dtype, device=self.device)
        for column, block in zip(_split(matrix, self.layout), blocks, strict=True):
            column.copy_(block)
        matrix = matrix.to(asks[0].params.flat.device)
        fitted = []
        for ask, row, loss in zip(asks, matrix.unbind(), losses.tolist(), strict=True):
            params, metrics = ask.params.like(row), {"loss": loss}
            if ask.score_on is not None:
                self.solver = self.solver or Solver(self.task)
                metrics["score"] = self.solver.score(params, ask.score_on)
            fitted.append(FitResult(params, self.task.weigh(ask.data), steps, None, metrics))
        return fitted


class _Loss(nn.Module):
    """A network and its task as one function of parameters and a batch."""

    def __init__(self, task: Task, module: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.task, self.module = task, module
        self.precision: Precision = precision

    def forward(self, batch: Batch) -> Tensor:
        return training_loss(self.task, self.module, batch, self.precision)


@contextmanager
def _fallback_refused() -> Iterator[None]:
    """Turn vmap's warning that it runs an operator client by client into an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        yield


def _linear(self: nn.Linear, x: Tensor) -> Tensor:
    """Return the output of a linear layer, computed as (W x^T)^T."""
    # The batched gradient is then laid out like W. With x W^T it is transposed, and autograd copies
    # it: half of a small network's backward pass.
    flat = x.reshape(-1, x.shape[-1])
    out = (self.weight @ flat.mT).mT
    if self.bias is not None:
        out = out + self.bias.to(out.dtype)
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], -1)


def _common(asks: Sequence[Fit], streams: Sequence[RandomStream]) -> LocalTraining:
    first = asks[0]
    for ask in asks:
        if (
            len(ask.data) != len(first.data)
            or ask.local != first.local
            or ask.optimiser is not None
            or ask.objective is not None
            or (ask.correction is None) != (first.correction is None)
            or (ask.trainable is None) != (first.trainable is None)
            or (None if ask.anchor is None else ask.anchor[1])
            != (None if first.anchor is None else first.anchor[1])
        ):
            raise Unstackable(
                "requests of one stack share local settings, sample count, anchor strength and "
                "whether a mask is given, and bring no optimiser state; split them with groups_of"
            )
    if len(streams) != len(asks):
        raise Unstackable(f"{len(asks)} requests need as many streams, got {len(streams)}")
    if not len(first.data):
        raise ConfigError("a client without training samples was asked to train")
    return first.local


def _clip(gradients: list[Tensor], limit: float) -> None:
    """Scale each client's gradient to a norm of at most `limit`, in place."""
    parts = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients]
    norms = torch.linalg.vector_norm(torch.stack(parts), dim=0) + 1e-6
    over = norms > limit
    # Asking a GPU would wait for it; there the multiplication is cheaper than the question.
    if norms.device.type == "cpu" and not bool(over.any()):
        return
    scale = torch.where(over, limit / norms, 1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.ndim - 1)))


def _split(rows: Tensor, layout: Layout) -> list[Tensor]:
    """Cut `[clients, P]` into views `[clients, *shape]`."""
    parts = zip(layout.slices.values(), layout.shapes, strict=True)
    return [_shaped(rows[:, part], shape) for part, shape in parts]


def _shaped(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View `[clients, n]` as `[clients, *shape]`, stored inside a client as `Layout.view` does."""
    order = CHANNELS_LAST.get(len(shape))
    if order is None:
        return part.view(len(part), *shape)
    stored = part.view(len(part), *(shape[i] for i in order))
    return stored.permute(0, *(order.index(i) + 1 for i in range(len(shape))))

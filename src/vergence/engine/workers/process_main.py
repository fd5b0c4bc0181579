"""One forked worker process: carries out groups of tasks until none is left, and reports them.

Used by `engine.workers.pools`.
"""

from __future__ import annotations

import gc
import json
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import fields
from multiprocessing.connection import Connection

import torch

from vergence import errors, profiling
from vergence.core.aggregation import Sum
from vergence.core.files import JsonObject
from vergence.core.messages import Message, SealedReply
from vergence.core.params import Params
from vergence.engine.client_runner import ClientRunner
from vergence.engine.records import ClientTask, GroupResult, TaskBatch
from vergence.engine.workers.shared_memory import Layouts, SharedArena, TaskTickets
from vergence.errors import VergenceError
from vergence.system.processes import die_with_parent, ignore_interrupts


class WorkerProcess:
    """Worker in a forked process; it ends with the run, even if the run is killed."""

    def __init__(
        self,
        runner: ClientRunner,
        pipe: Connection,
        others: Sequence[Connection],
        sent: SharedArena,
        tickets: TaskTickets,
        slots: Sequence[SharedArena],
        layouts: Layouts,
    ) -> None:
        self.runner, self.pipe, self.others = runner, pipe, others
        self.sent, self.tickets, self.slots = sent, tickets, slots
        self.layouts = layouts

    def forever(self) -> None:
        """Carry out batches until the parent process closes the pipe."""
        # Ctrl-C reaches the whole group of processes: only the parent answers it, in order.
        ignore_interrupts()
        die_with_parent()
        torch.set_num_threads(1)
        # The collector would write into every object that is shared with the parent, and so copy
        # its memory page by page.
        gc.freeze()
        # A turn makes thousands of objects, none of which is in a cycle.
        gc.set_threshold(20_000, 20, 20)
        profiling.in_worker()
        for other in self.others:
            other.close()
        try:
            while True:
                note = json.loads(self.pipe.recv_bytes())
                with profiling.phase("exchange"):
                    self._carry_out(self._batch(note), note["first"], note["many"])
        # The run is over. No clean-up here: handlers inherited by the fork are the parent's.
        except (EOFError, BrokenPipeError, ConnectionResetError):
            os._exit(0)
        except VergenceError as error:
            kinds = [k.__name__ for k in type(error).__mro__ if k.__module__ == errors.__name__]
            self._say({"error": (kinds[0], str(error))})
        except Exception:
            self._say({"error": ("RuntimeError", traceback.format_exc())})

    def _batch(self, note: JsonObject) -> TaskBatch:
        """Make a batch from its description and the arrays in shared memory."""
        messages = [
            Message(
                m["verb"],
                {t: self.sent.read(n, self.layouts) for t, n in m["trees"].items()},
                m["facts"],
                m["round"],
            )
            for m in note["messages"]
        ]
        tasks = [
            ClientTask(c, messages[place], file, spare) for c, place, file, spare in note["tasks"]
        ]
        templates = {t: self.sent.read(n, self.layouts) for t, n in note["templates"].items()}
        # By name: a field that is left out here would have its default in workers alone.
        plain = {f.name: note[f.name] for f in fields(TaskBatch)}
        points = tuple(note["points"])
        return TaskBatch(**{**plain, "tasks": tasks, "points": points, "templates": templates})

    def _carry_out(self, batch: TaskBatch, first: int, many: int) -> None:
        """Carry out groups until none is left; report them to the parent, `many` at a time.

        `first` is the number of the batch's first group, counted over the whole run.
        """
        slots = len(self.slots)
        done: list[JsonObject] = []
        while (ticket := self.tickets.draw(first + len(batch.groups))) is not None:
            number = ticket - first
            # The group's slot may hold a sum that still waits to be added up. What is done is
            # reported first: the parent may wait for just that.
            if ticket >= self.tickets.settled + slots:
                self._report(done)
                while ticket >= self.tickets.settled + slots:
                    with profiling.phase(profiling.WAITING):
                        time.sleep(0.0005)
            done.append(self._group(batch, number, self.slots[number % slots]))
            if len(done) == many:
                self._report(done)
        self._report(done)

    def _report(self, done: list[JsonObject]) -> None:
        """Send the reports of finished groups to the parent process, and clear the list."""
        if done:
            self._say({"done": done, **profiling.take_times()})
            done.clear()

    def _group(self, batch: TaskBatch, number: int, slot: SharedArena) -> JsonObject:
        """Carry out one group, whose sum is made in a slot of shared memory; return the report."""
        slot.clear()
        places: dict[int, int] = {}

        def new(n: int, dtype: torch.dtype) -> torch.Tensor:
            """Make a tensor in the slot, and remember at which byte it starts."""
            start = slot.used
            tensor = slot.new(n, dtype)
            places[tensor.data_ptr()] = start
            return tensor

        result = self.runner.carry_out(batch, number, Sum(new))
        return {"group": number, **self._note(result, slot, places)}

    def _note(
        self, result: GroupResult, slot: SharedArena, places: Mapping[int, int]
    ) -> JsonObject:
        """Describe the result of a group as plain data, with its arrays' byte offsets in the slot.

        `places` maps the addresses of tensors to these offsets.
        """
        whole = result.sum
        sums = {}
        for name, total in whole.totals.items():
            weight = whole.weights[name]
            if isinstance(weight, Params):
                weight = slot.note(weight, places[weight.flat.data_ptr()], self.layouts)
            sums[name] = (slot.note(total, places[total.flat.data_ptr()], self.layouts), weight)
        replies = {
            client: placed(sealed, slot, self.layouts) for client, sealed in result.replies.items()
        }
        return {
            "results": [vars(client) for client in result.results],
            "count": whole.count,
            "sums": sums,
            "replies": replies,
        }

    def _say(self, note: Mapping[str, object]) -> None:
        """Send plain data to the parent process as JSON."""
        self.pipe.send_bytes(json.dumps(note).encode())


def placed(sealed: SealedReply, slot: SharedArena, layouts: Layouts) -> JsonObject:
    """Copy a reply into a slot of shared memory, and describe it as plain data."""
    trees = {
        name: (slot.write(tree.total, layouts), slot.write_weight(tree.weight, layouts))
        for name, tree in sealed.trees.items()
    }
    return {"round": sealed.round, "trees": trees, "metrics": dict(sealed.metrics)}

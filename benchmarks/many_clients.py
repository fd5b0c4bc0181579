"""What many clients cost a deployed server: memory, threads, CPU seconds, seconds of a round.

python -m benchmarks.many_clients [--counts 30,100,300] [--cohort 0] [--rounds 4] [--out FILE.csv]

The server is that of `vergence deploy serve`, with its processes. All clients live in this process:
they have real keys and folders, speak TLS, and sign requests and answers. One of them trains a
batch; the others send its answer with a few other last bits, under their own name and signature.
So what a client costs here is transport alone, and all seconds of a round are beyond training.
`--cohort 100` with `--counts 1000` asks 100 of 1,000 connected clients in each round. Public doors
only are used: run it from a checkout of an older version to compare.
"""

import asyncio
import base64
import csv
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import tomli_w
from cryptography.hazmat.primitives import serialization
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import sign_message
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.common.options import options
from benchmarks.deploy import COMMAND
from vergence.core.serialization import pack, quick_digest, unpack
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.client_registry import reply
from vergence.deployment.folders import ClientSide, settings
from vergence.deployment.keys import signer
from vergence.deployment.protocol import ClientRequest, framed, unframed
from vergence.deployment.transport.flower import packed, unpacked

BEAT = 60.0
"""Seconds between two heartbeats of a client; the server waits twice as long."""
PAUSE = 0.2
"""Seconds between two looks at the server's processes, and between two requests for a message."""
TRIES = 20
"""Number of times that a client sends a request whose connection breaks."""
MOST_SECONDS = int(os.environ.get("MOST_SECONDS", "1500"))
"""Longest time of a deployment in seconds."""
COLUMNS = [
    "clients",
    "asked",
    "rounds",
    "memory MB",
    "idle MB",
    "of this run MB",
    "of this link MB",
    "threads",
    "CPU s a client",
    "of this link",
    "of this run",
    "s a round",
    "s a client",
    "client CPU s",
    "s to connect",
    "of the link to connect",
]


def table(clients, cohort, rounds, size):
    """Return the experiment: FedAvg on eye patches, a batch for each person."""
    presence = {"presence": {"cohort": cohort}} if cohort else {}
    return {
        "task": {"name": "gaze_angle"},
        "model": {"name": "lenet"},
        "federation": {"name": "eye_synthetic", "people": clients, "samples": 40, "size": size},
        "methods": [{"name": "fedavg"}],
        "local": {"optimizer": "sgd", "epochs": 1, "batch": 16, "lr": 0.01},
        "run": {"rounds": rounds, "evaluate_every": 0, "solver": "sequential"},
        **presence,
    }


class Answers:
    """Makes the answers of all clients from those of one, which really computes."""

    def __init__(self, folders):
        self.first = AnsweringClient(folders[0], settings(folders[0], ClientSide))
        self.templates, self.lock = {}, threading.Lock()
        self.first_turn = None

    def answer(self, number, client, sign, asked):
        """Return a client's signed answer to a request."""
        note, body = unframed(asked)
        if note["kind"] != "request":
            content = self.first.carry_out(asked) if note["kind"] == "hello" else b""
            return reply(asked, client, sign, content)
        request = unpack(body, ClientRequest)
        self.first_turn = self.first_turn or time.monotonic()
        # Under the lock, so that the answer is computed once: all others wait for it.
        with self.lock:
            if request.stamp not in self.templates:
                own = framed(note, pack(replace(request, client=self.first.side.client)))
                self.templates = {request.stamp: unframed(self.first.carry_out(own))}
            answer, model = self.templates[request.stamp]
        changed = bytearray(model)
        # The lowest bytes of a few numbers, in every part that Flower makes: else its store, which
        # keeps equal parts once, would hold one answer for all.
        for at in range(1 << 16, len(changed), 1 << 20):
            changed[at & ~7 : (at & ~7) + 2] = number.to_bytes(2, "little")
        about = {**answer, "to": quick_digest(body), "client": client}
        return reply(asked, client, sign, framed(about, bytes(changed)))


class LightClient:
    """A client's node: asks for messages, fetches their parts, sends answers."""

    def __init__(self, number, folder, address, line, answers):
        self.number, self.folder, self.line, self.answers = number, folder, line, answers
        self.client = settings(folder, ClientSide).client
        self.sign, self.url = signer(folder / "node"), f"https://{address}/v1/fleet/"
        self.key = serialization.load_ssh_private_key((folder / "node").read_bytes(), None)
        self.public = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.node, self.messages, self.again = None, 0, False

    async def call(self, path, request, answer):
        """Send a signed request; return the answer."""
        for tries in range(TRIES):
            when = now().isoformat()
            headers = {
                "content-type": "application/protobuf",
                "accept": "application/protobuf",
                "flwr-public-key": base64.b64encode(self.public).decode(),
                "flwr-timestamp": when,
                "flwr-signature": base64.b64encode(sign_message(self.key, when.encode())).decode(),
            }
            try:
                response = await self.line.post(
                    self.url + path, content=request.SerializeToString(), headers=headers
                )
                break
            except httpx.TransportError:
                if tries == TRIES - 1:
                    raise
                # As Flower's node: where others have the cores, the link ends some handshakes.
                await asyncio.sleep(min(0.1 * 2**tries, 5.0))
        # So does Flower's node: it is not its turn yet.
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            await asyncio.sleep(1.0)
            return await self.call(path, request, answer)
        response.raise_for_status()
        self.again = "x-vergence-again" in response.headers
        return answer.FromString(response.content)

    async def live(self):
        """Connect, and answer messages until the task is cancelled."""
        request = fleet_pb2.ActivateNodeRequest(public_key=self.public, heartbeat_interval=BEAT)
        number = (await self.call("activate-node", request, fleet_pb2.ActivateNodeResponse)).node_id
        self.node = Node(node_id=number)
        async with asyncio.TaskGroup() as both:
            both.create_task(self.beat())
            both.create_task(self.serve())

    async def beat(self):
        """Tell the server again and again that this client is there, also while it sends."""
        about = heartbeat_pb2.SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=BEAT)
        while True:
            await asyncio.sleep(BEAT / 2)
            await self.call("send-node-heartbeat", about, heartbeat_pb2.SendNodeHeartbeatResponse)

    async def serve(self):
        """Answer one message after the other."""
        while True:
            begun = time.monotonic()
            got = await self.call(
                "pull-messages",
                fleet_pb2.PullMessagesRequest(node=self.node),
                fleet_pb2.PullMessagesResponse,
            )
            if got.messages_list:
                await self.handle(got.messages_list[0], got.message_object_trees[0])
            elif not self.again:
                await asyncio.sleep(max(0.0, begun + PAUSE - time.monotonic()))

    async def handle(self, proto, tree):
        """Fetch a message's parts, and send the answer."""
        run, number, parts = proto.metadata.run_id, proto.metadata.message_id, {}
        for part in {inner.object_id: inner for inner in iterate_object_tree(tree)}:
            about = message_pb2.PullObjectRequest(node=self.node, run_id=run, object_id=part)
            pause = 0.01
            while not (
                got := await self.call("pull-object", about, message_pb2.PullObjectResponse)
            ).object_available:
                await asyncio.sleep(pause := min(2 * pause, 1.0))
            parts[part] = got.object_content
        about = message_pb2.ConfirmMessageReceivedRequest(
            node=self.node, run_id=run, message_object_id=number
        )
        await self.call(
            "confirm-message-received", about, message_pb2.ConfirmMessageReceivedResponse
        )
        asked = unpacked(inflate_object_from_contents(number, parts))
        # One after the other in a thread of its own: a batch of training must not hold up lines.
        answer = await asyncio.to_thread(
            self.answers.answer, self.number, self.client, self.sign, asked
        )
        self.messages += 1
        await self.send(Message(packed(answer), reply_to=message_from_proto(proto)), run)

    async def send(self, message, run):
        """Announce an answer, and send those of its parts that the server lacks."""
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            objects, tree = get_all_nested_objects(message), get_object_tree(message)
        about = fleet_pb2.PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[tree],
            clientapp_runtime_list=[0.0],
        )
        got = await self.call("push-messages", about, fleet_pb2.PushMessagesResponse)
        for name in got.objects_to_push:
            await self.call(
                "push-object",
                message_pb2.PushObjectRequest(
                    node=self.node,
                    run_id=run,
                    object_id=name,
                    object_content=objects[name].deflate(),
                    session_id=got.session_id,
                ),
                message_pb2.PushObjectResponse,
            )


class Watch(threading.Thread):
    """Looks at the server's processes again and again: memory, threads and CPU seconds."""

    def __init__(self, server, folder):
        super().__init__(daemon=True)
        self.server, self.events, self.looks, self.rounds = server, folder / "events.jsonl", [], []
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(PAUSE):
            try:
                look = self.look()
            except psutil.NoSuchProcess:
                return
            self.looks.append(look)
            text = self.events.read_text() if self.events.is_file() else ""
            done = text.count('"event": "round"') + text.count('"event":"round"')
            if done > len(self.rounds):
                self.rounds.append(look)

    def look(self):
        """Return time, and by process its memory in MB, threads and CPU seconds."""
        found = {}
        for process in [self.server, *self.server.children(recursive=True)]:
            try:
                words = process.cmdline()
                role = next((w for w in ("link", "server") if w in words[3:6]), "serve")
                memory = process.memory_full_info().pss / 1e6
                used = sum(process.cpu_times()[:2])
                threads = process.num_threads()
            except (psutil.Error, OSError):
                continue
            before = found.get(role, (0.0, 0, 0.0))
            found[role] = (before[0] + memory, before[1] + threads, before[2] + used)
        return time.monotonic(), found


def deployment(folder, clients, cohort, rounds, size):
    """Make the folders of a deployment; return the server's address and the clients' folders."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    names = [f"p{number:02d}" for number in range(clients)]
    (folder / "exp.toml").write_text(tomli_w.dumps(table(clients, cohort, rounds, size)))
    words = ["init", "exp.toml", "--clients", ",".join(names), "--address", address, "--out", "d"]
    subprocess.run([*COMMAND, "deploy", *words], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return address, [folder / "d" / "clients" / name for name in names]


async def serve_all(folder, address, folders, server, rounds):
    """Let light clients answer until the server's process ends; return what was measured."""
    answers = Answers(folders)
    context = ssl.create_default_context(cafile=folders[0] / "ca.crt")
    watch = Watch(psutil.Process(server.pid), folder / "d" / "server")
    watch.start()
    while b"serving" not in (folder / "d/server/events.jsonl").read_bytes():
        await asyncio.sleep(PAUSE)
    async with AsyncExitStack() as stack:
        clients, tasks = [], []
        for number, path in enumerate(folders):
            # The server closes a connection that is idle for 5 seconds.
            limits = httpx.Limits(max_keepalive_connections=2, keepalive_expiry=3.0)
            line = httpx.AsyncClient(verify=context, limits=limits, timeout=300.0)
            await stack.enter_async_context(line)
            clients.append(LightClient(number, path, address, line, answers))
            tasks.append(asyncio.create_task(clients[-1].live()))
            await asyncio.sleep(0.05)
        end = time.monotonic() + MOST_SECONDS
        while server.poll() is None and time.monotonic() < end:
            await asyncio.sleep(PAUSE)
            # The final evaluation of everybody is not measured: it gets a minute.
            if len(watch.rounds) > rounds:
                end = min(end, watch.rounds[rounds][0] + 60)
            failed = [task for task in tasks if task.done()]
            if failed and server.poll() is None and len(watch.rounds) <= rounds:
                print(f"{len(failed)} clients failed: {failed[0].exception()!r}", flush=True)
                break
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    watch.over.set()
    watch.join()
    return watch, answers, clients


def measure(clients, cohort, rounds, size):
    """Run a deployment of light clients; return its row of the table."""
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        address, folders = deployment(folder, clients, cohort, rounds, size)
        (folder / "d/server/events.jsonl").touch()
        with (folder / "out").open("wb") as out:
            server = subprocess.Popen(
                [*COMMAND, "deploy", "serve", "d/server"],
                cwd=folder,
                stdout=out,
                stderr=out,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            used = time.process_time()
            try:
                watch, answers, made = asyncio.run(
                    serve_all(folder, address, folders, server, rounds)
                )
            finally:
                server.terminate()
                server.wait()
            used = time.process_time() - used
        if len(watch.rounds) <= rounds:
            logs = [folder / "out", *sorted((folder / "d/server/log").glob("*.log"))]
            sys.exit("the server stopped early:\n" + "\n".join(p.read_text()[-3000:] for p in logs))
        result = folder / "d/server/run/fedavg/results.json"
        fingerprint = json.loads(result.read_text())["fingerprint"] if result.exists() else "none"
        with (folder / "d/server/run/fedavg/turns.csv").open() as file:
            statuses = Counter(line["status"] for line in csv.DictReader(file))
        print(f"{clients} clients: {fingerprint}, {dict(statuses)}", flush=True)
    return row(watch, answers.first_turn, clients, cohort or clients, rounds, used, made)


def row(watch, first_turn, clients, asked, rounds, used, made):
    """Return one row: medians and peaks over rounds, without the first round for CPU and time."""

    def of(look, role=None, what=0):
        return sum(v[what] for name, v in look[1].items() if role in (None, name))

    idle = max((x for x in watch.looks if x[0] < first_turn), key=lambda x: x[0])
    last = watch.rounds[-1][0]
    busy = [x for x in watch.looks if first_turn <= x[0] <= last]
    one = [
        (b[0] - a[0], *(of(b, role, 2) - of(a, role, 2) for role in (None, "link", "server")))
        for a, b in pairwise(watch.rounds)
    ]
    seconds, whole, link, run = (statistics.median(values) for values in zip(*one, strict=True))
    answered = sum(client.messages for client in made)
    peak = {role: max(of(x, role) for x in busy) - of(idle, role) for role in ("server", "link")}
    return {
        "clients": clients,
        "asked": asked,
        "rounds": rounds,
        "memory MB": round(max(of(x) for x in busy) - of(idle)),
        "idle MB": round(of(idle)),
        "of this run MB": round(peak["server"]),
        "of this link MB": round(peak["link"]),
        "threads": max(of(x, None, 1) for x in busy),
        "CPU s a client": f"{whole / asked:.3f}",
        "of this link": f"{link / asked:.3f}",
        "of this run": f"{run / asked:.3f}",
        "s a round": f"{seconds:.1f}",
        "s a client": f"{seconds / asked:.3f}",
        "client CPU s": f"{used / max(answered, 1):.3f}",
        "s to connect": round(idle[0] - watch.looks[0][0]),
        "of the link to connect": round(of(idle, "link", 2)),
    }


def main():
    """Measure, print, and write the table."""
    given = options(
        __doc__.partition("\n")[0], counts="30,100,300", cohort=0, rounds=4, size="36x60", out=""
    )
    rows = []
    for clients in map(int, given.counts.split(",")):
        rows.append(measure(clients, given.cohort, given.rounds, given.size))
        print(rows[-1], f"load {os.getloadavg()[0]:.1f}", flush=True)
    if given.out:
        with Path(given.out).open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

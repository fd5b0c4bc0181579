"""Lines and wires to clients in this process: what a deployment's transport offers, over `ask`."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

THREADS = ThreadPoolExecutor(32)


class Line:
    """A line on which every request is answered by `ask`, in a thread."""

    def start(self, client, request, shared=None):
        whole = request if shared is None else request + shared.data
        return THREADS.submit(self.ask, client, whole)


class Wire:
    """A wire on which every message is answered by `answer(node, bytes)`, in a thread."""

    async def send(self, node, data, seconds, there=lambda: True, shared=b""):
        return await asyncio.to_thread(self.answer, node, data + shared)


def greet(registry, node, since="now"):
    """Greet a node, and wait until it has been let in or refused."""
    registry.greeted[node] = since
    asyncio.run(registry._greet(node, since))


class Grid:
    """A Flower grid whose link is this object: it announces what `pull_messages(numbers)` returns.

    Parts of answers to messages in `withheld` do not arrive; `looks` counts the requests for any
    other part.
    """

    def __init__(self):
        from flwr.proto.node_pb2 import Node

        self.node, self.run = Node(node_id=1), SimpleNamespace(run_id=1)
        self._runtime_client, self.parts, self.withheld, self.looks = self, {}, set(), 0
        self.confirmed = []

    def PullMessages(self, request):
        from flwr.supercore.inflatable import inflatable_object as inflatable

        found, trees = self.pull_messages(list(request.message_ids)), []
        for message in found:
            hidden = message.metadata.reply_to_message_id in self.withheld
            for name, part in inflatable.get_all_nested_objects(message).items():
                self.parts[name] = b"" if hidden else part.deflate()
            trees.append(inflatable.get_object_tree(message))
        return SimpleNamespace(messages_list=found, message_object_trees=trees)

    def PullObject(self, request):
        content = self.parts[request.object_id]
        self.looks += bool(content)
        return SimpleNamespace(
            object_found=True, object_available=content != b"", object_content=content
        )

    def ConfirmMessageReceived(self, request):
        assert self.parts[request.message_object_id]
        self.confirmed.append(request.message_object_id)

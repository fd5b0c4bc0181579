"""Every turn watched: tests look at replies, or change them."""

from vergence.engine.client_executor import ClientExecutor


def watch_turns(patch, see):
    """Call `see(task, sealed)` after every turn; a reply that it returns is sent instead."""
    honest = ClientExecutor.turn

    def turn(self, task, kept, batch):
        result, sealed, after = honest(self, task, kept, batch)
        return result, see(task, sealed) or sealed, after

    patch.setattr(ClientExecutor, "turn", turn)

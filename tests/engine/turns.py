"""Every turn watched: tests look at replies, or change them."""

from vergence.engine.client_executor import ClientExecutor


def watch_turns(patch, see):
    """Call `see(task, sealed)` after every turn; a reply that it returns is sent instead."""
    honest = ClientExecutor.turn

    def turn(self, task, kept, batch):
        taken = honest(self, task, kept, batch)
        return taken._replace(sealed=see(task, taken.sealed) or taken.sealed)

    patch.setattr(ClientExecutor, "turn", turn)

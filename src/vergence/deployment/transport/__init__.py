"""How messages of a deployment travel: Flower, and limits on connections."""

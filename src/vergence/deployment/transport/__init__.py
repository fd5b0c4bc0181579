"""Transport of a deployment's messages: Flower, and limits on connections."""

"""The paper on adaptive federated learning of gaze."""

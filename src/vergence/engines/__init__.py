"""Who answers a method's requests: the simulator, its workers, its stores."""

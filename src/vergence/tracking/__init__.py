"""How a run stands: status, pages, TensorBoard and MLflow."""

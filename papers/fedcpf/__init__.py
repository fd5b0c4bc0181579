"""The FedCPF paper."""

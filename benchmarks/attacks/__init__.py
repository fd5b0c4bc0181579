"""Parts of attacks that benchmarks alone carry out."""

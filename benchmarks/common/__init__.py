"""What several benchmarks share: folders of runs, real eyes or the generator's, reports."""

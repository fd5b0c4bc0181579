"""Experiments from Python: training, finished runs, comparisons; what `import vergence` offers."""

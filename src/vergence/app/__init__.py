"""The command line, configs, results, reports and pictures."""

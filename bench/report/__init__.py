"""The report on a benchmark run: `python -m bench.report RESULTS.json`."""

"""The report on a benchmark run: `python -m lightcake_fast.report RESULTS.json`."""

"""Search settings of ``--preset best`` on a data set's validation split; the test split is not looked at.

Run from the repository root, a grid in the words of ``lightcake_fast.train``:

    python -m bench.search --out runs/search --grid dim=64,128 row-dropout=0,0.2 -- --dataset ddb14

Everything behind ``--`` goes to every run. A finished run is kept, so that a search which was stopped goes
on where it was. Prints the runs, best validation MRR first, as the Markdown table of docs/results.md.
"""

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path


def runs_of(grid: list[str]) -> list[list[str]]:
    """Every combination of "name=value,value" as flags."""
    axes = []
    for axis in grid:
        name, _, values = axis.partition("=")
        if not values:
            raise SystemExit(f"grid: got {axis!r}, wanted name=value,value")
        axes.append([[f"--{name}", value] for value in values.split(",")])
    return [list(itertools.chain(*combination)) for combination in itertools.product(*axes)]


def best_validation(folder: Path) -> tuple[float, int, float]:
    """(best validation MRR, its epoch, seconds an epoch) of a run."""
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    best = max(epochs, key=lambda epoch: float(epoch["valid"]["all"]["mrr"]))
    seconds = sum(epoch["seconds"] for epoch in epochs) / len(epochs)
    return best["valid"]["all"]["mrr"], best["epoch"], seconds


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--grid", nargs="+", default=[], help="name=value,value ...")
    parser.add_argument("common", nargs="*", help="flags of every run, behind --")
    arguments = parser.parse_args()

    found = []
    for flags in runs_of(arguments.grid):
        name = "_".join(word.removeprefix("--") for word in flags) or "single"
        folder = arguments.out / name
        if not (folder / "results.json").is_file():
            where = (
                ["--resume", str(folder)]
                if folder.is_dir()
                else [*arguments.common, *flags, "--out", str(folder)]
            )
            # a run ends with its test metrics, which a search must not see
            command = [sys.executable, "-m", "lightcake_fast.train", "--quiet", *where]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        found.append((*best_validation(folder), name.replace("_", " ")))
    print("| validation MRR | epoch | s an epoch | settings |\n|---|---|---|---|")
    for mrr, epoch, seconds, name in sorted(found, reverse=True):
        print(f"| {mrr:.4f} | {epoch} | {seconds:.1f} | {name} |")


if __name__ == "__main__":
    main()

"""Print the table of docs/results.md from run folders, each row beside the paper's.

python -m bench.results runs/*
"""

import argparse
import json
from pathlib import Path

from lightcake_fast.reproduce.paper import published

PAPER = {"lightcake-transe": "LightCAKE-TransE", "lightcake-distmult": "LightCAKE-DistMult"}  # names there


def row(folder: Path) -> str:
    """One finished run as a row."""
    results = json.loads((folder / "results.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    paper = published(PAPER.get(results["model"], ""), results["dataset"])
    test, seen = results["test"]["all"], results["test"]["seen"]
    cells = [
        results["dataset"],
        results["model"],
        config["preset"],
        f"{test['mrr']:.4f} / {test['mr']:.3f} / {test['hits_at_3']:.4f}",
        f"{paper.mrr:.3f} / {paper.mr:.3f} / {paper.hits_at_3:.3f}" if paper else "",
        f"{seen['mrr']:.4f}",
        f"{results['valid']['all']['mrr']:.4f}",
        f"{results['best_epoch']} of {results['epochs']}",
        f"{results['seconds']:.0f}",
        str(config["seed"]),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders; unfinished ones are left out")
    finished = [folder for folder in parser.parse_args().runs if (folder / "results.json").is_file()]
    print("| data set | model | preset | MRR / MR / Hits@3 | paper | seen only | valid | epoch | s | seed |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for folder in finished:
        print(row(folder))


if __name__ == "__main__":
    main()

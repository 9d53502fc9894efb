"""Print the table of docs/results.md from run folders, each row beside the paper's.

python -m bench.results runs/*
"""

import argparse
import json
from pathlib import Path

# MRR / MR / Hits@3. Source: LightCAKE, PAKDD 2021 (arXiv 2102.10826), table 2.
PAPER = {
    ("wn18rr", "lightcake-transe"): ".813 / 1.648 / .933",
    ("fb15k-237", "lightcake-transe"): ".943 / 2.281 / .962",
    ("nell995", "lightcake-transe"): ".793 / 9.325 / .831",
    ("ddb14", "lightcake-transe"): ".964 / 1.184 / .969",
    ("wn18rr", "lightcake-distmult"): ".955 / 1.134 / .988",
    ("fb15k-237", "lightcake-distmult"): ".967 / 1.174 / .988",
    ("nell995", "lightcake-distmult"): ".852 / 2.271 / .914",
    ("ddb14", "lightcake-distmult"): ".972 / 1.097 / .991",
}


def row(folder: Path) -> str:
    """One finished run as a row."""
    results = json.loads((folder / "results.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    model = config.get("model", "lightcake")
    title = f"{model}-{config['score']}" if model == "lightcake" else model
    test, seen = results["test"]["all"], results["test"]["seen"]
    cells = [
        results["dataset"],
        title,
        config["preset"],
        f"{test['mrr']:.4f} / {test['mr']:.3f} / {test['hits_at_3']:.4f}",
        PAPER.get((results["dataset"], title), ""),
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

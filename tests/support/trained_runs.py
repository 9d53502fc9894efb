"""Helpers for tests of trained models: a small data set with unseen entities, and runs on it."""

from pathlib import Path

from lightcake_fast.data import SPLITS, load_dataset
from lightcake_fast.train import main as train

SMALL = ["--dim", "6", "--batch-size", "64", "--epochs", "2", "--unseen-rate", "0.1", "--relation-bias"]
SMALL += ["--preset", "paper", "--lr", "0.01", "--backend", "reference", "--quiet"]
UNSEEN = "Nobody [of] note"  # rich reads brackets as markup; here they are text
PAIR = ("Priya Novák 10", "Dmitri Novák 21")


def write_dataset(folder: Path) -> Path:
    """Write a small genealogy as files. One entity occurs only in the test split."""
    graph = load_dataset("family:60")
    folder.mkdir()
    for split in SPLITS:
        names = [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.split(split)]
        lines = ["\t".join(triple) + "\n" for triple in names]
        if split == "test":
            lines.append(f"{UNSEEN}\tcousin\t{PAIR[1]}\n")
        (folder / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


def train_run(folder: Path, *flags: str) -> Path:
    """Train on the data of `write_dataset`, once per combination of flags, and return the run folder."""
    folder.mkdir(exist_ok=True)
    data = folder / "data"
    if not data.exists():
        write_dataset(data)
    path = folder / "-".join(["run", *(flag.strip("-") for flag in flags)])
    if not path.exists():
        assert train([*SMALL, "--dataset", str(data), "--out", str(path), *flags]) == 0
    return path

"""`python -m lightcake_fast`: the commands."""

import sys
from collections.abc import Sequence

from lightcake_fast import __version__, cli

COMMANDS = {
    "train": "train a model on a data set",
    "data": "print the statistics of a data set",
    "predict": "predict the relation of a pair, and explain it",
    "evaluate": "metrics of a run, by relation or degree too",
    "export": "write refined embeddings for other programs",
    "report": "turn a benchmark run into Markdown with figures",
    "reproduce": "make the paper's tables and figures anew",
}


def main(argv: Sequence[str]) -> None:
    """List the commands."""
    parser = cli.ArgumentParser("python -m lightcake_fast", "List the commands.", _list())
    parser.parse_args(argv)
    print(f"lightcake_fast {__version__}\n\n{_list()}")


def _list() -> str:
    lines = (f"  python -m lightcake_fast.{name:<9} {text}" for name, text in COMMANDS.items())
    return "\n".join(["commands, each with --help:", *lines])


if __name__ == "__main__":
    sys.exit(cli.run(main))

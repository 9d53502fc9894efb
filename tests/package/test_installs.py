"""In a clean environment, each documented install line is enough for the code that the documents show."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package.test_docs import PAGES, ROOT, blocks, declared_extras

EDITABLE = "-e ."
FIRST, PARQUET = "-e '.[plots,tables]'", "pandas pyarrow"
TRAINED = (
    "import lightcake_fast\nresult = lightcake_fast.train('family:100', layers=1, epochs=1, quiet=True)\n"
)
READ_PARQUET = """
import pandas
from lightcake_fast import load_dataset
pandas.read_csv("examples/films.csv").to_parquet("films.parquet")
assert load_dataset("films.parquet").num_relations == 5
"""


def install_lines() -> list[str]:
    """Distinct arguments of `pip install` in the documents and examples."""
    sources = [*PAGES, *(ROOT / "examples").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    return sorted({found.strip() for found in re.findall(r"\bpip install ([^`#\n]+)", text)})


def python_block(page: str, marker: str) -> str:
    """The Python block of a page that contains these words."""
    (found,) = (
        text for language, text in blocks(ROOT / "docs" / page) if language == "python" and marker in text
    )
    return found


def command(page: str, marker: str, *flags: str) -> list[str]:
    """The command of a page that contains these words, with flags for a short run."""
    (found,) = (
        line
        for language, text in blocks(ROOT / "docs" / page)
        if language == "sh"
        for line in text.splitlines()
        if marker in line
    )
    return [*shlex.split(found, comments=True)[1:], *flags]


def shown(line: str) -> list[list[str]]:
    """Arguments of Python for the example of an install line."""
    extra = line.removeprefix("'lightcake_fast[").removesuffix("]'")
    if line == FIRST:
        figure = command("getting-started.md", "--figure")
        figure[2] = "run"
        options = ["--dataset", "family", "--epochs", "1", "--dim", "8", "--out", "run", "--quiet"]
        block = python_block("getting-started.md", "result.plot()")
        return [["-c", block], ["-m", "lightcake_fast.train", *options], figure]
    if line == PARQUET:
        return [["-c", READ_PARQUET]]
    if line == "torch-geometric":
        return [["examples/pyg_loop.py"]]
    if extra == "tensorboard":
        return [["-c", TRAINED + python_block("getting-started.md", "to_tensorboard")]]
    if extra == "search":
        return [command("getting-started.md", "--vary", "--trials", "2", "--epochs", "1")]
    if extra == "scale":
        words = ["examples/films.csv", "--header", "--parts", "2", "--method", "metis"]
        return [["-m", "lightcake_fast.partition", *words]]
    pytest.fail(f"no rule says what {line!r} is good for: add one")


@pytest.fixture
def clone() -> Iterator[Path]:
    """Copy the files of a clone next to a new environment, and delete both after the test."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(None, listed.stdout.split("\0")):
            target = Path(folder) / "clone" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target, follow_symlinks=False)
        yield Path(folder) / "clone"


@pytest.mark.full
@pytest.mark.parametrize("line", install_lines())
def test_documented_install_line_is_enough(clone: Path, line: str) -> None:
    """Takes about a minute. pip takes torch from its cache or from the index."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    python = clone / ".venv" / "bin" / "python"

    def run(*words: str | Path) -> None:
        done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"

    run(sys.executable, "-m", "venv", clone / ".venv")
    lines = [line] if line.startswith("-e ") else [EDITABLE, line]
    for words in map(shlex.split, lines):
        run(python, "-m", "pip", "install", "-qq", "-c", "constraints.txt", *words)
    for arguments in shown(line):
        run(python, *arguments)


def test_documented_extras_exist() -> None:
    sources = [*PAGES, *(ROOT / "lightcake_fast").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = re.findall(r"pip install [^\n]*?(?:lightcake_fast|\.)\[([\w,]+)\]", text)
    assert {"plots", "search", "tables"} <= {extra for group in named for extra in group.split(",")}
    assert {extra for group in named for extra in group.split(",")} <= set(declared_extras())

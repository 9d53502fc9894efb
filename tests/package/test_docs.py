"""Every example of the documents runs in the order of its page, with a small model for a few seconds.

Commands run in this process. If their data is missing or they take long, only their flags are parsed. This
still finds flags that no longer exist.
"""

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightcake_fast import cli
from lightcake_fast.__main__ import COMMANDS
from lightcake_fast.__main__ import main as list_commands
from lightcake_fast.data.public import PUBLIC_DATASETS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
QUICK = ["--epochs", "1", "--dim", "8", "--backend", "reference", "--quiet"]  # the last of two values counts
QUICK_BY_COMMAND = {
    "lightcake_fast.train": QUICK,
    "lightcake_fast.search": ["--trials", "2", "--epochs", "1", "--backend", "reference", "--quiet"],
}
NOT_HERE = (*PUBLIC_DATASETS, "my/folder", "results.json")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of the code blocks with a language."""
    yield from re.findall(
        r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def declared_extras() -> dict[str, list[str]]:
    """Extras of `pyproject.toml` with their requirements."""
    extras: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return extras


def module_of(name: str) -> Any:
    """The module of `python -m NAME`."""
    package = (ROOT / name.replace(".", "/")).is_dir()
    return importlib.import_module(f"{name}.__main__" if package else name)


def parse(words: list[str]) -> None:
    """Check the flags of `python -m lightcake_fast.NAME ...`."""
    own = words[3 : words.index("--")] if "--" in words else words[3:]
    module_of(words[2]).make_parser().parse_args(own)


def run_command(words: list[str], target: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Run `python -m NAME ...`. Write stdout to the file `target` if given."""
    name, arguments = words[2], words[3:]
    if name == "lightcake_fast":
        assert cli.run(list_commands, arguments) == 0
    elif "--help" in arguments or any(word in NOT_HERE for word in words):
        parse([word for word in words if word != "--help"])
    else:
        quick = QUICK_BY_COMMAND.get(name, [])
        quick = ["--epochs", "2"] if "--resume" in arguments else quick
        capsys.readouterr()
        code = cli.run(module_of(name).main, [*arguments, *quick])
        found = capsys.readouterr()
        errors = [line for line in found.err.splitlines() if "compiling the CPU passes" not in line]
        assert (code, errors) == (0, []), shlex.join(words)
        if target is not None:
            assert found.out
            Path(target).write_text(found.out, encoding="utf-8")


def run_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a line of a shell block, or check the names in it."""
    words = shlex.split(line, comments=True)
    match words:
        case ["python", "-m", *_]:
            target = None
            if ">" in words:
                words, (target,) = words[: words.index(">")], words[words.index(">") + 1 :]
            run_command(words, target, capsys)
        case ["torchrun", "--nproc-per-node", _, *command]:
            parse(["python", *command])
        case ["make", target]:
            assert re.search(f"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["bash" | "pytest", path, *_]:
            assert (ROOT / path).exists()
        case ["pip", "install", *_, what]:
            assert set(re.findall(r"\w+", what)) <= set(declared_extras())
        case ["pytest", "bench/", *flags]:
            # only the fastest file of the suite
            command = [sys.executable, "-m", "pytest", str(ROOT / "bench"), "-k", "test_plan and 300", *flags]
            subprocess.run(command, check=True, capture_output=True)
        case ["printf", *_]:
            subprocess.run(["bash", "-c", line], check=True)
        case ["python3", "-m", "venv", _] | ["source", ".venv/bin/activate"] | []:
            pass
        case _:
            pytest.fail(f"no rule says how to check {line!r}: add one")


@pytest.mark.usefixtures("registry")  # a page registers a score
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_examples_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    namespace: dict[str, Any] = {}
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, str(page), "exec"), namespace)
            assert "is not in the data" not in capsys.readouterr().out
        else:
            assert language == "sh", f"no rule says how to check a block of {language}: add one"
            for line in text.splitlines():
                run_line(line, capsys)


def test_examples_write_to_distinct_places() -> None:
    """A reader who follows several pages in one folder must not meet an existing output."""
    text = "".join(text for page in PAGES for language, text in blocks(page) if language == "sh")
    places = re.findall(r" --(?:out|to|history) (\S+)", text)
    assert len(places) > 10
    assert len(set(places)) == len(places), sorted(places)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def test_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(list_commands, []) == 0
    listed = capsys.readouterr().out
    sources = [*(ROOT / "lightcake_fast").glob("*.py"), *(ROOT / "lightcake_fast").glob("*/__main__.py")]
    found = {path for path in sources if "def make_parser" in path.read_text(encoding="utf-8")}
    assert set(COMMANDS) == {path.parent.name if path.stem == "__main__" else path.stem for path in found}
    for name in COMMANDS:
        assert f"python -m lightcake_fast.{name} " in listed
    assert cli.run(list_commands, ["surplus"]) == 2
    assert "COMMAND: invalid choice: 'surplus'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, "  lightcake-fast train     train a model"),
        (["--help"], 0, "usage: lightcake-fast [COMMAND [flags]]"),
        (["data", "family:60"], 0, "family ("),
        (["train", "--help"], 0, "usage: lightcake-fast train [--dataset NAME]"),
        (["predict", "--help"], 0, "\n  lightcake-fast predict runs/family --head"),
        (
            ["train", "--dmi", "3"],
            2,
            "arguments: --dmi 3 (see lightcake-fast train --help)",
        ),
        (["trian"], 2, "(see lightcake-fast --help)"),
    ],
)
def test_help_uses_name_of_installed_script(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    script = tmp_path / "lightcake-fast"
    script.write_text("import sys\nfrom lightcake_fast.__main__ import script\nsys.exit(script())\n")
    done = subprocess.run(
        [sys.executable, script, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "python -m" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_whose_flags_exist(name: str) -> None:
    text = module_of(f"lightcake_fast.{name}").make_parser().format_help()
    examples = re.findall(
        r"^  (?:.*\| )?(python -m lightcake_fast\.\S+.*?)(?:   .*| > .*)?$", text, re.MULTILINE
    )
    assert len(examples) > 1
    for example in examples:
        words = shlex.split(example)
        assert words[2] == f"lightcake_fast.{name}"
        parse(words)

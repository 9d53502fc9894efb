"""Measure plain English in Markdown, docstrings, comments and messages: `python .ci/prose.py --check`.

The script counts sentences of more than 25 words, and turns of phrase that make a reader go back. The best
repositories of the field have under 2 of these turns in 1,000 words.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

TURNS = re.compile(
    r"\b(?:that|those) of\b|\bof (?:which|whom)\b|\bwhich else\b|\bwhoever\b|\bbeside\b|\bwanted\b"
    r"|\bso many\b"
    r"|\bwhat (?:is|are|was|were|a|an|the|it|they|he|she|only|else|has|have|does|do|did|no|comes|came|goes"
    r"|stands|lies|remains|this|that|these|those|can|could|would|must|may|one|each|every|all|not|takes|makes"
    r"|fits|fails)\b"
    r"|\b(?:its|their|one's|your|a|of) own\b|\b(?:is|are|was|were|be|being) told\b|\bno other\b|\ball but\b"
    r"|\bby turns\b|\btakes? turns\b|\bin turn\b|\bat hand\b|\blikewise\b|\bmended\b|\bhanded? out\b"
    r"|\bnothing (?:that|of|but|says|else)\b|\bno (?:whole )?numbers?\b|\bis none\b"
    r"|\bthere (?:is|are) (?:not|none)\b|\b(?:a|an|one|the) [a-z]+ (?:a|an) [a-z]+\b"
    r"|\b[a-z]+s a (?:second|step|triple|relation|row|pair|score|layer|process|run|line|number)\b",
    re.IGNORECASE,
)
MOST_TURNS = {"Markdown": 2.5, "docstrings": 2.0, "comments": 2.0, "texts": 2.0}  # in 1,000 words
MOST_LONG = {"Markdown": 6.0, "docstrings": 5.0}  # per cent of sentences with more than 25 words

Found = tuple[str, str, str]  # kind, file, sentence


def prose_of_markdown(text: str) -> str:
    """Remove code, tables, link targets and mark-up."""
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"^\s*\|.*$|^( {4,}|\t).*$", " ", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"``?[^`]*``?", "X", text)
    text = re.sub(r"<[^>]+>", " ", text)
    text = re.sub(r"^#+ .*$", ".", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([-*]|\d+\.)\s+", ". ", text, flags=re.MULTILINE)
    return re.sub(r"\n\s*\n", ". ", re.sub(r"[*_]{1,2}", "", text))


def sentences(text: str) -> list[str]:
    """Split a text into sentences of more than three words."""
    parts = re.split(r"(?<=[.!?:;])\s+", re.sub(r"\s+", " ", text))
    return [part for part in parts if len(part.split()) > 3]


def prose_of_python(source: str) -> Iterator[tuple[str, str]]:
    """Give docstrings, comments and the strings of more than four words, each with its kind."""
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first, text = next(iter(node.body), None), ast.get_docstring(node)
            if text is not None and isinstance(first, ast.Expr):
                docstrings.add(id(first.value))
                yield "docstrings", prose_of_markdown(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings:
            continue
        if isinstance(node.value, str) and len(node.value.split()) > 4:
            yield "texts", node.value
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if not re.match(r"#( noqa|!| type:| fmt:| pragma)", token.string):
                block.append(token.string.lstrip("# "))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE) and block:
            yield "comments", " ".join(block)
            block = []


def files(paths: Iterable[str]) -> Iterator[Path]:
    """Give the files of the repository, or of some paths in it."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in listed:
        path = Path(name)
        if path.is_file() and not path.is_symlink() and not re.match(r"CHANGELOG|LICEN[CS]E", name):
            yield path


def read(paths: Iterable[str]) -> list[Found]:
    """Read all sentences. Tests count neither with their docstrings nor with their texts."""
    found = []
    for path in files(paths):
        text = path.read_text(encoding="utf-8", errors="replace") if path.suffix in (".md", ".py") else ""
        if path.suffix == ".md":
            found += [("Markdown", str(path), one) for one in sentences(prose_of_markdown(text))]
        elif path.suffix == ".py" and "tests" not in path.parts and path.name != Path(__file__).name:
            for kind, prose in prose_of_python(text):
                found += [(kind, str(path), one) for one in sentences(prose)]
    return found


def missed_bounds(found: list[Found]) -> list[str]:
    """Print the figures of each kind of text, and give the bounds that are exceeded."""
    missed = []
    for kind, most in MOST_TURNS.items():
        some = [one for of, _, one in found if of == kind]
        words = [len(one.split()) for one in some]
        if not some:
            continue
        rate = 1000 * sum(len(TURNS.findall(one)) for one in some) / sum(words)
        long = 100 * sum(count > 25 for count in words) / len(words)
        print(f"{kind:10} {len(some):5} sentences: {rate:4.1f} turns in 1,000 words, {long:.1f} % long ones")
        if rate > most:
            missed.append(f"{kind}: expected at most {most} turns in 1,000 words, got {rate:.1f}")
        if long > MOST_LONG.get(kind, 100):
            missed.append(f"{kind}: expected at most {MOST_LONG[kind]} % over 25 words, got {long:.1f} %")
    return missed


def main() -> int:
    """Measure, print the worst sentences, and exit with 1 for a missed bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", help="files or folders (default: the repository)")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="number of sentences to print")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is exceeded")
    given = parser.parse_args()
    found = read(given.paths)
    missed = missed_bounds(found)
    worst = sorted(
        ((len(TURNS.findall(one)) / (len(one.split()) + 8), file, one) for _, file, one in found),
        reverse=True,
    )
    for share, file, one in worst[: given.worst]:
        if share:
            print(f"  {file}: {one}")
    print(*missed, sep="\n", end="\n" * bool(missed))
    return int(given.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())

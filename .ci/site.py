"""Add pages from outside docs/ to the site, with README.md as the start page, and the notebook."""

import html
import json
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
NOTEBOOK = "tour.ipynb"


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages; mkdocs calls this hook with the files in docs/."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "LICENSE", abs_src_path=str(ROOT / "LICENSE")))
    notebook = json.loads((ROOT / "docs" / NOTEBOOK).read_text(encoding="utf-8"))
    page = "\n\n".join(_markdown(cell) for cell in notebook["cells"])
    files.append(File.generated(config, NOTEBOOK.replace("ipynb", "md"), content=page + "\n"))
    return files


def _markdown(cell: dict[str, Any]) -> str:
    """Return a notebook cell and its output as Markdown."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_output, cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/html" in data:
        lines = (line for line in "".join(data["text/html"]).splitlines() if line.strip())
        return f"<div>{''.join(lines)}</div>"
    return f"<pre>{html.escape(''.join(data['text/plain']))}</pre>"

"""The notebook of the documents runs from start to end and shows its saved outputs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import HANG

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tour.ipynb"


def test_notebook_shows_each_figure_and_answer() -> None:
    shown: dict[str, list[str]] = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            last = cell["source"][-1]
            assert last not in shown, "an answer is shown once"
            shown[last] = list(output.get("data", ()))
    for line in ("result.plot()", "explanation.plot()"):
        assert "image/png" in shown[line]
    for line in ("predictions", "explanation"):
        assert "text/html" in shown[line]


@pytest.mark.full
def test_notebook_runs(tmp_path: Path, peer: Callable[[str], Any]) -> None:
    nbformat, nbclient = peer("nbformat"), peer("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    shown = [[output["output_type"] for output in cell.get("outputs", [])] for cell in notebook.cells]
    nbclient.NotebookClient(
        notebook,
        timeout=HANG,
        startup_timeout=HANG,
        coalesce_streams=True,  # the load decides into how many parts the text of a cell is split
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    again = [
        [output["output_type"] for output in cell.get("outputs", []) if output.get("name") != "stderr"]
        for cell in notebook.cells
    ]
    assert again == shown
    assert (tmp_path / "films.safetensors").exists()

"""The notebooks: clean as committed, and they run from top to bottom with tiny numbers."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = (
    "00_quickstart",
    "01_colab_tpu",
    "02_swap_a_part",
    "03_read_a_study",
    "04_scale_ladder",
)
COLAB = "https://colab.research.google.com/github/purejax-merl/purejax_merl/blob/main/notebooks"
INSTALL = """\
import importlib.util

if importlib.util.find_spec("purejax_merl") is None:
    %pip install -q "purejax-merl[render] @ git+https://github.com/purejax-merl/purejax_merl"
"""
LOCAL_PATH = re.compile(r"(?<![\w.])/(tmp|home|work|root)\b")


def read(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_all_notebooks_are_known():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_outputs_are_committed(name):
    for cell in code_cells(read(name)):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.parametrize("name", NAMES)
def test_format_and_kernel(name):
    notebook = read(name)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_starts_with_badge_and_install_cell(name):
    notebook = read(name)
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert f"]({COLAB}/{name}.ipynb)" in source(notebook["cells"][0])
    assert source(code_cells(notebook)[0]).strip() == INSTALL.strip()


def test_the_readme_leads_to_each():
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"](notebooks/{name}.ipynb)" in readme
        assert f"]({COLAB}/{name}.ipynb)" in readme


@pytest.mark.parametrize("name", NAMES)
def test_no_path_of_one_machine(name):
    for cell in read(name)["cells"]:
        assert not LOCAL_PATH.search(source(cell)), source(cell)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    for module in ("nbclient", "nbformat", "ipykernel", "matplotlib", "PIL"):
        pytest.importorskip(module, reason=f"running the notebooks needs {module}")
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PUREJAX_MERL_QUICK", "1")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()

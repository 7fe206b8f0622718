"""Everything public says what it is: modules, functions, classes, methods, and every flag."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "purejax_merl"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}
Definition = ast.FunctionDef | ast.ClassDef


def public(body: list[ast.stmt]) -> list[Definition]:
    return [n for n in body if isinstance(n, Definition) and not n.name.startswith("_")]


def classes(trees: dict[Path, ast.Module]) -> dict[str, ast.ClassDef]:
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def bases(node: ast.ClassDef) -> list[str]:
    """Names of the base classes, without what is in brackets."""
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [ast.unparse(base).rpartition(".")[2] for base in plain]


def inherits_words(method: str, node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> bool:
    """Whether a base class, ours, has documented the method."""
    for base in (known[name] for name in bases(node) if name in known):
        words = [ast.get_docstring(n) for n in public(base.body) if n.name == method]
        if any(words) or inherits_words(method, base, known):
            return True
    return False


def silent(tree: ast.Module, known: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Names of what has no docstring."""
    if not ast.get_docstring(tree):
        yield "the module"
    for node in public(tree.body):
        if not ast.get_docstring(node):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for method in public(node.body):
                if not ast.get_docstring(method) and not inherits_words(method.name, node, known):
                    yield f"{node.name}.{method.name}"


def silent_fields(node: ast.ClassDef) -> Iterator[str]:
    """Fields that no string follows."""
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and not (
            isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        ):
            yield ast.unparse(field.target)


@pytest.mark.parametrize("path", TREES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_names_have_docstrings(path):
    assert list(silent(TREES[path], classes(TREES))) == []


@pytest.mark.parametrize("name", ["config", "flags", "evaluate", "render", "report", "compare"])
def test_every_flag_has_a_docstring(name):
    found = [n for n in classes({ROOT: TREES[ROOT / f"{name}.py"]}).values() if n.decorator_list]
    assert found
    assert [f"{n.name}.{field}" for n in found for field in silent_fields(n)] == []


def test_the_reader_sees_what_is_missing():
    tree = ast.parse(
        "class A:\n"
        "    '''Documented.'''\n"
        "    x: int = 0\n"
        "    y: int = 0\n"
        "    '''Documented.'''\n"
        "    def told(self):\n"
        "        '''Documented.'''\n"
        "class B(A[int]):\n"
        "    def told(self): ...\n"
        "    def untold(self): ...\n"
        "    def _private(self): ...\n"
    )
    known = classes({ROOT: tree})
    assert list(silent(tree, known)) == ["the module", "B", "B.untold"]
    assert list(silent_fields(known["A"])) == ["x"]

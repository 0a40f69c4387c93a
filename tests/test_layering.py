"""The floors of docs/design.md: a module imports only from lower floors."""

from __future__ import annotations

import ast
import pathlib
import tomllib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "coorl_jax"

# Dotted name below coorl_jax -> floor; the longest matching prefix counts.
FLOORS = {
    "fields": 0,
    "runtime": 0,
    "signals": 0,
    "metrics": 0,
    "settings": 1,
    "games.game": 1,
    "config": 2,
    "variants": 3,
    "games": 2,
    "networks": 2,
    "optimizer": 2,
    "cfr.regret_matching": 2,
    "cfr.reservoir": 2,
    "cfr.samples": 2,
    "cfr.sampling": 3,
    "cfr.lanes": 3,
    "cfr.critic": 3,
    "cfr.descent": 3,
    "cfr.backup": 3,
    "cfr.outbox": 3,
    "cfr.machine": 3,
    "cfr.traversal": 3,
    "cfr.side_by_side": 3,
    "cfr.fit": 3,
    "cfr.mixture": 3,
    "cfr.iteration": 4,
    "policy": 3,
    "ppo": 4,
    "agents": 5,
    "evaluation": 6,
    "checkpoint": 6,
    "progress": 6,
    "plot": 6,
    "best": 7,
    "rundir": 7,
    "studydir": 7,
    "commandline": 7,
    "checkpoint_flag": 8,
    "common_flags": 8,
    "trained_agent": 8,
    "benchmarks": 8,
    "training": 9,
    "train": 10,
    "evaluate": 10,
    "tournament": 10,
    "variance": 10,
    "replay": 10,
    "study": 10,
    "bench": 10,
    "exploit": 10,
}

# Libraries that one module wraps for all others.
WRAPPERS = {"flax": "networks", "orbax": "checkpoint"}


def dotted(path: pathlib.Path) -> str:
    """Return a file's module name below coorl_jax; a package's `__init__.py` is the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py")) if dotted(path)}


def floor(module: str) -> int:
    if MODULES.get(module, ROOT).name == "__init__.py" and not list(imports(MODULES[module])):
        return 0  # A bare namespace.
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in FLOORS:
            return FLOORS[prefix]
    raise AssertionError(f"coorl_jax.{module} stands on no floor; add it to docs/design.md")


def imports(path: pathlib.Path) -> Iterator[str]:
    """Yield the absolute dotted name of everything that a file imports, at any depth in it."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def own_modules(path: pathlib.Path) -> Iterator[str]:
    """Yield the modules of the package, without its name, that a file imports."""
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "coorl_jax":
            # `from coorl_jax.games.game import State` names a member: its module is meant.
            yield next(
                (
                    module
                    for length in range(len(parts), 1, -1)
                    if (module := ".".join(parts[1:length])) in MODULES
                ),
                "",
            )


def may_import(module: str, target: str) -> bool:
    """Tell whether `module` may import `target`: a lower floor, or its own folder."""
    is_package = MODULES.get(module, ROOT).name == "__init__.py"
    folder = module if is_package else module.rpartition(".")[0]
    same_folder = bool(folder) and target.startswith(f"{folder}.")
    return floor(target) < floor(module) or (same_folder and floor(target) == floor(module))


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_from_lower_floors(module):
    upward = [
        f"coorl_jax.{module} (floor {floor(module)}) imports coorl_jax.{target} "
        f"(floor {floor(target)})"
        for target in own_modules(MODULES[module])
        if target and target != module and not may_import(module, target)
    ]
    assert not upward, "\n".join(upward)


@pytest.mark.parametrize(("library", "wrapper"), WRAPPERS.items())
def test_wrapped_libraries_have_one_importer(library, wrapper):
    importers = {
        module
        for module, path in MODULES.items()
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert importers <= {wrapper}


def test_configs_import_nothing_of_the_package():
    for path in sorted((ROOT / "configs").glob("*.py")):
        assert not [name for name in imports(path) if name.split(".")[0] == "coorl_jax"], path


def test_no_module_holds_two_ideas():
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert not {module: length for module, length in lengths.items() if length > 400}


def test_the_checker_sees_upward_imports(tmp_path, monkeypatch):
    source = tmp_path / "coorl_jax" / "networks.py"
    source.parent.mkdir()
    source.write_text(
        "def f():\n    from coorl_jax.cfr import traversal\n    from . import train\n"
    )
    monkeypatch.setattr("test_layering.ROOT", tmp_path)
    monkeypatch.setattr("test_layering.MODULES", {"cfr.traversal": source, "train": source})
    assert list(own_modules(source)) == ["cfr.traversal", "train"]
    assert not may_import("networks", "cfr.traversal")
    assert not may_import("networks", "games.lost_cities.rules")
    assert may_import("games.lost_cities.records", "games.lost_cities.rules")
    assert may_import("games.registry", "games.lost_cities.rules")
    assert not may_import("games.lost_cities.rules", "games.registry")
    assert not may_import("games.lost_cities.rules", "networks")


def test_every_package_is_installed():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in (ROOT / "coorl_jax").rglob("__init__.py")
    }
    assert {*pyproject["tool"]["setuptools"]["packages"]} == packages | {"coorl_jax.configs"}

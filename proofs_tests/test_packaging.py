"""What is installed: every package, under one name, and no light left on at the top level."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fsresearch

ROOT = Path(__file__).resolve().parents[1]
MAPPED = {"fsresearch.kernels": "kernels", "fsresearch.theory": "theory"}


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter whose path holds the folder it starts in."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def test_the_list_of_packages_is_complete() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        ".".join([package, *marker.parent.relative_to(ROOT / folder).parts])
        for package, folder in {"fsresearch": "fsresearch", **MAPPED}.items()
        for marker in (ROOT / folder).rglob("__init__.py")
    }
    assert setuptools["package-dir"] == MAPPED
    assert setuptools["packages"] == sorted(found)


@pytest.mark.parametrize("name", ["kernels", "theory"])
def test_the_links_lead_to_the_mapped_folders(name: str) -> None:
    link = ROOT / "fsresearch" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


@pytest.mark.parametrize("name", ["kernels", "theory"])
def test_mapped_folders_are_not_top_level_packages(name: str, tmp_path: Path) -> None:
    done = run(f"import fsresearch.{name}; import {name}", tmp_path)
    assert f"ModuleNotFoundError: No module named '{name}'" in done.stderr


def test_kernels_refuse_their_top_level_name() -> None:
    done = run("import kernels", ROOT)
    assert "ImportError" in done.stderr
    assert "is fsresearch.kernels" in done.stderr


def test_importing_needs_neither_triton_nor_a_kernel(tmp_path: Path) -> None:
    code = "import sys; sys.modules['triton'] = None; import fsresearch; print(*sys.modules)"
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    kernels = {name for name in done.stdout.split() if name.startswith("fsresearch.kernels.")}
    assert kernels == {"fsresearch.kernels.options"}


def test_the_version_stands_in_three_places() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "docs" / "changelog.md").read_text()
    assert f"\nversion: {fsresearch.__version__}\n" in citation
    first = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    assert first and first[1] == fsresearch.__version__


def test_the_package_is_typed() -> None:
    assert (ROOT / "fsresearch" / "py.typed").is_file()

"""Laws of the package: one name for the kernels, types shipped, a README that tells the truth."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpiopt
from mpiopt import launch

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text()


def test_the_link_in_the_checkout_leads_to_the_kernels() -> None:
    link = PROJECT / "mpiopt" / "kernels"
    assert link.is_symlink()
    assert link.readlink() == Path("../kernels")
    assert (link / "__init__.py").samefile(PROJECT / "kernels" / "__init__.py")


def test_the_kernels_have_one_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import kernels"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "mpiopt.kernels" in done.stderr


def test_types_are_shipped() -> None:
    assert (Path(mpiopt.__file__).parent / "py.typed").exists()


def test_the_installed_package_has_the_version_and_command_of_the_source() -> None:
    try:
        found = importlib.metadata.distribution("mpiopt")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("mpiopt is not installed here")
    assert found.version == mpiopt.__version__
    assert {point.name: point.value for point in found.entry_points} == {
        "mpiopt": "mpiopt.cli:main"
    }


def test_the_readme_opens_with_two_commands_that_need_only_python() -> None:
    commands = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[:2]
    assert all(command.startswith("python3 -m venv ") for command in commands)
    assert all(command.count("\n") == 1 for command in commands)
    assert "mpiopt bench" in commands[0]
    assert "pytest" in commands[1]


def test_the_links_in_the_documents_lead_somewhere() -> None:
    documents = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for document in [*documents, *(PROJECT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_readmes_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    script = tmp_path / "sum.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(PROJECT)!r})\n{example}")
    with (tmp_path / "output").open("w") as output:
        code = launch.run(3, [sys.executable, str(script)], timeout_s=100, output=output)
    said = (tmp_path / "output").read_text()
    assert code == 0, said
    assert said.startswith("3.0")
    assert "allreduce" in said

import importlib.metadata
import tomllib

import pytest
from packaging.requirements import Requirement

from devtools.home import ROOT
from devtools.lock import closure


def pins(name: str) -> dict[str, str]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-test.lock"])
def test_a_lock_holds_exact_versions_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "--" not in text
    assert pins(name)


def test_what_is_declared_is_locked_in_a_version_that_fits() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for lock, declared in (
        ("requirements.lock", project["dependencies"]),
        ("requirements-test.lock", project["dependencies"] + project["optional-dependencies"]["test"]),
    ):
        locked = pins(lock)
        for line in declared:
            requirement = Requirement(line)
            assert requirement.specifier.contains(locked[requirement.name.lower()]), line


def test_the_test_lock_agrees_with_the_runtime_lock() -> None:
    runtime, test = pins("requirements.lock"), pins("requirements-test.lock")
    assert runtime.items() <= test.items()


def test_what_runs_needs_nothing_that_only_tests_install() -> None:
    assert not {"playwright", "pytest", "mypy"} & pins("requirements.lock").keys()


def test_torch_is_the_version_that_the_script_and_the_constraints_name() -> None:
    version = pins("requirements.lock")["torch"]
    assert (ROOT / "constraints.txt").read_text() == f"torch=={version}\n"
    assert f'TORCH = "torch=={version}"' in (ROOT / "dev").read_text()


def test_the_closure_holds_what_a_requirement_needs_and_what_its_extra_adds() -> None:
    plain, extra = closure(["uvicorn"]), closure(["uvicorn[standard]"])
    assert "h11" in plain
    assert "uvloop" not in plain
    assert "uvloop" in extra


def test_the_lock_serves_the_oldest_python_that_is_allowed() -> None:
    assert "async-timeout" in closure(["redis"])  # redis needs it before Python 3.11.3


def test_an_installed_version_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="pyproject.toml wants click<1"):
        closure(["click<1"])
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        closure(["no-such-distribution"])

"""That mypy, which ``./dev test`` runs, sees everything, and sees it strictly."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STRICT = {
    "strict", "warn_unreachable", "disallow_any_generics", "disallow_subclassing_any", "disallow_untyped_calls",
    "disallow_untyped_decorators", "disallow_untyped_defs", "disallow_incomplete_defs", "check_untyped_defs",
    "warn_return_any", "warn_unused_ignores", "no_implicit_reexport", "strict_equality",
}  # fmt: skip
"""None of these may be switched off for everybody."""
UNTYPED_PARENTS = {"disallow_subclassing_any", "disallow_untyped_decorators", "ignore_missing_imports"}
"""Switched off by module, where a package without types is subclassed or decorates."""


def settings() -> dict[str, Any]:
    mypy: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    return mypy


def test_every_folder_of_ours_is_checked() -> None:
    found = {path.relative_to(ROOT).parts[0] for path in (*ROOT.glob("*.py"), *ROOT.glob("*/*.py"))}
    ours = {name for name in found if not name.startswith((".", "test"))}
    assert {"engine", "webapp", "manage.py"} < ours
    assert ours - set(settings()["files"]) == set()
    assert "exclude" not in settings()


def test_nothing_is_exempt_from_strictness_but_what_untyped_packages_make_so() -> None:
    mypy = settings()
    assert mypy["strict"] is True
    assert [name for name in STRICT if mypy.get(name, True) is not True] == []
    assert mypy.get("follow_imports", "normal") == "normal"
    for override in mypy["overrides"]:
        assert override.keys() - {"module"} <= UNTYPED_PARENTS

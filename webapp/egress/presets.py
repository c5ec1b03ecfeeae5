"""Egress policies to begin with, by name; each can be read, changed, and written into a spec."""

from collections.abc import Mapping
from dataclasses import dataclass

from sandboxes.egress.policy import EgressPolicy


@dataclass(frozen=True)
class Preset:
    about: str
    policy: EgressPolicy


def _https(name: str, *hosts: str) -> dict[str, object]:
    return {"name": name, "action": "allow", "hosts": list(hosts), "ports": [443]}


def _policy(name: str, *rules: Mapping[str, object]) -> EgressPolicy:
    return EgressPolicy.model_validate({"name": name, "rules": rules})


_UPLOADS = {"name": "no-uploads", "action": "deny", "hosts": ["upload.pypi.org"]}
_PYPI = _https("pypi", "pypi.org", "files.pythonhosted.org")
_NPM = {
    "name": "npm-reads", "action": "allow", "hosts": ["registry.npmjs.org"], "ports": [443],
}  # fmt: skip

PRESETS: dict[str, Preset] = {
    "nothing": Preset("No connection at all; every attempt is recorded.", _policy("nothing")),
    "python-packages": Preset(
        "Packages of PyPI over HTTPS, and no uploads to it.", _policy("python-packages", _UPLOADS, _PYPI)
    ),
    "python-and-node-packages": Preset(
        "Packages of PyPI and npm over HTTPS.", _policy("python-and-node-packages", _UPLOADS, _PYPI, _NPM)
    ),
    "debian-packages": Preset(
        "Packages of Debian, read over plain HTTP: other methods than GET and HEAD are denied.",
        _policy(
            "debian-packages",
            {"name": "debian", "action": "allow", "hosts": ["deb.debian.org", "security.debian.org"], "ports": [80],
             "methods": ["GET", "HEAD"]},
        ),
    ),
    "github": Preset(
        "Repositories and releases of GitHub over HTTPS.  What is encrypted cannot be limited to reading: with a token "
        "in the sandbox it can push.",
        _policy("github", _https("github", "github.com", "codeload.github.com", "objects.githubusercontent.com")),
    ),
}  # fmt: skip

"""Versions of models as a worker leaves them, made by hand: the files are on the disk, the row says ready."""

import hashlib
from pathlib import Path
from typing import Any

from engine.spec.model_files import MANIFEST, ModelManifest, StoredFile
from engine.spec.run import RunSpec
from webapp.accounts.models import Team, User
from webapp.catalog.models import Model, ModelVersion

FILES = {"config.json": b'{"model_type": "qwen3"}', "model.safetensors": bytes(range(256)) * 9, "README.md": b"read me"}


def ready_version(
    team: Team, name: str = "qwen", *, files: dict[str, bytes] | None = None, **fields: Any
) -> ModelVersion:
    files = FILES if files is None else files
    model, _ = Model.objects.get_or_create(team=team, name=name)
    model.last_number += 1
    model.save()
    stored = {
        file: StoredFile(bytes=len(content), pieces=[hashlib.sha256(content).hexdigest()])
        for file, content in files.items()
    }
    text = ModelManifest(files=stored).text()
    version = ModelVersion(
        model=model, number=model.last_number, state="ready", sha256=hashlib.sha256(text.encode()).hexdigest(),
        origin={"kind": "folder", "path": "qwen"}, bytes=sum(map(len, files.values())), architecture="Qwen3ForCausalLM",
        parameters=4_022_468_096, context_tokens=40_960, dtype="bfloat16", template_name="hermes",
        licence_text="Apache License 2.0", created_by=User.objects.filter(teams=team).first(),
    )  # fmt: skip
    for field, value in fields.items():
        setattr(version, field, value)
    _write(version.folder, files, text)
    version.save()
    return version


def judged_by(*, trained: str | None = "qwen@1", **judge: str) -> RunSpec:
    """A run of that version, or of the built-in model, whose turns are judged by servers of its own."""
    asked = {"kind": "llm", "endpoint": "resources.judge", "model": "judge"}
    recipe = {"credit": {"kind": "attribution", "judge": asked}}
    model = {"model": {"kind": "pretrained", "catalog": trained}} if trained else {}
    return RunSpec.model_validate({"name": "x", "recipe": recipe, "resources": {"judge": judge}} | model)


def _write(folder: Path, files: dict[str, bytes], manifest: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    (folder / MANIFEST).write_text(manifest)

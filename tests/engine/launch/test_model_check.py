"""What ``python -m engine model-check`` says of a folder, and how a launch document's version is found."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from engine.launch.job import launch_from_file
from engine.launch.model_check import checked
from engine.launch.preflight import BadSpec, differing_fields
from engine.models.catalog import catalog_folder
from engine.models.origin import pinned
from engine.models.refusal import ModelFolderRefused
from engine.spec.launch import Launch
from engine.spec.model import PretrainedModel
from engine.spec.model_files import MANIFEST, PIECE_BYTES, CatalogFolder, ModelManifest, StoredFile
from engine.spec.model_report import ModelProblem
from engine.spec.run import RunSpec
from tests.engine.models.folders import FAMILIES, folder_of, other_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder_of("qwen3"), tmp_path / "qwen"))


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogFolder:
    """The folder of Qwen as version 3 of the catalog of team 7."""
    import hashlib

    monkeypatch.setenv("PALESTRA_MODELS", str(tmp_path / "models"))
    source = folder_of("qwen3")
    files = {
        path.name: StoredFile(bytes=path.stat().st_size, pieces=[hashlib.sha256(path.read_bytes()).hexdigest()])
        for path in source.iterdir()
    }
    text = ModelManifest(files=files).text()
    version = CatalogFolder(version="qwen@3", team="7", sha256=hashlib.sha256(text.encode()).hexdigest())
    target = tmp_path / "models" / "catalog" / "7" / version.sha256
    shutil.copytree(source, target)
    (target / MANIFEST).write_text(text)
    return version


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine", "model-check", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_says_what_it_holds(family: Any) -> None:
    report = checked(folder_of(family))
    expected = {"qwen2.5": ("Qwen2ForCausalLM", "hermes"), "qwen3": ("Qwen3ForCausalLM", "hermes"),
                "llama3": ("LlamaForCausalLM", "llama")}  # fmt: skip
    assert report.problem is None
    assert (report.architecture, report.template) == expected[family]
    assert (report.context_tokens, report.dtype) == (1024, "float32")


def test_the_command_answers_for_people_and_for_programs(folder: Path) -> None:
    assert check(folder).stdout.startswith("fine. Qwen3ForCausalLM: ")
    assert json.loads(check(folder, "--json").stdout)["architecture"] == "Qwen3ForCausalLM"
    (folder / "tokenizer.json").unlink()
    refused = check(folder, "--json")
    assert refused.returncode == 2
    problem = json.loads(refused.stdout)["problem"]
    assert (problem["field"], problem["value"]) == ("folder", "qwen")
    assert "no tokenizer.json" in problem["message"]
    assert problem["remedy"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("config.json", b"{", "config.json: is not JSON"),
        ("config.json", b'{"model_type": "x", "vocab_size": 9, "auto_map": {}}', "code of its own"),
        ("model.safetensors", b"\xff" * 64, "is damaged"),
        ("tokenizer.json", b"{}", "tokenizer"),
        ("adapter_config.json", b"{}", "an adapter alone"),
    ],
)
def test_a_folder_with_something_wrong_names_the_file(folder: Path, name: str, content: bytes, why: str) -> None:
    (folder / name).write_bytes(content)
    problem = checked(folder).problem
    assert problem is not None
    assert why in f"{problem.value}: {problem.message}"
    assert problem.remedy
    assert str(folder.parent) not in str(problem.value)


def test_printable_characters_that_the_tokenizer_cannot_hold_are_reported(folder: Path) -> None:
    assert checked(folder).lost_characters == ""
    assert "cannot hold" not in check(folder).stdout
    description = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = description["model"]["vocab"]
    for character in "^~":
        vocabulary[f"unused {character}"] = vocabulary.pop(character)
    (folder / "tokenizer.json").write_text(json.dumps(description))
    assert checked(folder).lost_characters == "^~"
    assert check(folder).stdout.rstrip().endswith("hermes; its tokenizer cannot hold ^ ~: prompts lose them")


def changed(folder: Path, **config: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def spoilt(folder: Path) -> Path:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"hidden_size": "32"}, "config.json: hidden_size = '32': must be a whole number of at least 1"),
        ({"hidden_size": -32}, "config.json: hidden_size = -32: must be a whole number"),
        ({"num_hidden_layers": 0}, "config.json: num_hidden_layers = 0: must be"),
        ({"num_key_value_heads": 3}, "4 heads cannot share them evenly"),
        ({"hidden_act": "frob"}, "transformers cannot load it: 'frob' (config.json: hidden_act = 'frob')"),
        pytest.param({"model_type": "frob"}, "(config.json: model_type = 'frob')", marks=pytest.mark.soak),
        pytest.param(
            {"model_type": "bert", "architectures": ["BertModel"]},
            "weights of its architecture are missing",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_network_that_no_run_could_build_is_refused(folder: Path, config: dict[str, Any], why: str) -> None:
    problem = checked(changed(folder, **config)).problem
    assert problem is not None
    assert why in problem.message
    assert (problem.field, problem.value) == ("folder", folder.name)
    assert problem.remedy


@pytest.mark.soak  # below another folder is fine with a note
def test_a_network_that_other_generators_serve_is_fine_with_a_note() -> None:
    report = checked(other_folder("gemma2"))
    assert report.problem is None
    [note, *_] = report.notes
    assert note.startswith("resources.generator: config.json: model_type = 'gemma2': the torch generator serves ")


def test_a_template_without_tools_is_fine_with_a_note(folder: Path) -> None:
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    (folder / "chat_template.jinja").write_text(
        plain + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    report = checked(folder)
    assert (report.problem, report.template) == (None, "code-fence")
    [note] = report.notes
    assert note.startswith("in an environment with tools: model.tool_calls = 'auto': ")
    assert "use code-fence" in note
    assert note in check(folder).stdout
    assert checked(folder_of("qwen3")).notes == []


def test_everything_that_is_wrong_is_reported_at_once(folder: Path) -> None:
    (changed(spoilt(folder), num_hidden_layers=0) / "tokenizer.json").unlink()
    lines = check(folder).stdout.splitlines()
    assert len(lines) == 3
    for words in ("no tokenizer.json", "num_hidden_layers = 0", "model.norm.weight holds NaN"):
        assert any(words in line for line in lines), words
    report = json.loads(check(folder, "--json").stdout)
    assert [report["problem"], *report["more_problems"]] == [dict(problem) for problem in problems_of(folder)]


def problems_of(folder: Path) -> list[ModelProblem]:
    report = checked(folder)
    return [problem for problem in (report.problem, *report.more_problems) if problem is not None]


def test_weights_that_are_no_numbers_are_named_by_file_and_tensor(folder: Path) -> None:
    [problem] = problems_of(spoilt(folder))
    assert (problem.field, problem.value) == ("folder", "qwen")
    assert problem.message == "model.safetensors: model.norm.weight holds NaN"
    assert problem.remedy.startswith("download the file again")


def test_a_slice_says_how_far_it_came(folder: Path) -> None:
    whole = json.loads(check(folder, "--json", "--seconds", "100").stdout)
    assert whole["bytes_read"] == whole["weight_bytes"] == 4 * whole["parameters"]
    part = checked(folder, seconds=0)
    assert 0 < part.bytes_read < part.weight_bytes
    assert checked(folder, after_bytes=part.bytes_read).bytes_read == part.weight_bytes
    assert checked(folder, after_bytes=part.bytes_read, seconds=0).bytes_read > part.bytes_read


def test_a_tokenizer_beyond_the_network_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 10}))
    problem = checked(folder).problem
    assert problem is not None
    assert "its network only 10" in problem.message


def test_manifests_of_equal_files_are_equal_text() -> None:
    one, two = StoredFile(bytes=1, pieces=["0" * 64]), StoredFile(bytes=0, pieces=[])
    assert ModelManifest(files={"a": one, "b": two}).text() == ModelManifest(files={"b": two, "a": one}).text()


def test_a_file_of_many_pieces_is_compared_by_its_length(tmp_path: Path) -> None:
    import hashlib

    text = ModelManifest(files={"w.safetensors": StoredFile(bytes=PIECE_BYTES + 1, pieces=["0" * 64] * 2)}).text()
    version = CatalogFolder(version="big@1", team="1", sha256=hashlib.sha256(text.encode()).hexdigest())
    folder = tmp_path / "catalog" / "1" / version.sha256
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(text)
    with (folder / "w.safetensors").open("wb") as file:
        file.truncate(PIECE_BYTES + 1)
    assert catalog_folder(tmp_path, version) == folder
    with (folder / "w.safetensors").open("wb") as file:
        file.truncate(PIECE_BYTES)
    with pytest.raises(ModelFolderRefused, match="w.safetensors has"):
        catalog_folder(tmp_path, version)


def written_launch(tmp_path: Path, spec: RunSpec, **pinned_to: CatalogFolder | None) -> Path:
    run_dir = tmp_path / "run"
    run_dir.mkdir(exist_ok=True)
    document = Launch(run_id="r", attempt=1, spec=spec, ingest_url="http://127.0.0.1:1", token="t",
                      run_dir=str(run_dir), **pinned_to)  # fmt: skip
    path = run_dir / "attempt-1.json"
    path.write_text(document.model_dump_json())
    return path


def launch_file(tmp_path: Path, pinned_to: CatalogFolder | None) -> Path:
    model = {"kind": "pretrained", "context_tokens": 1024, "catalog": "qwen@3"}
    return written_launch(tmp_path, RunSpec.model_validate({"name": "x", "model": model}), catalog=pinned_to)


def test_a_launched_run_finds_the_version_that_was_pinned(tmp_path: Path, stored: CatalogFolder) -> None:
    from engine.loop.requirements import lacking

    spec = launch_from_file(launch_file(tmp_path, stored)).spec
    assert isinstance(spec.model, PretrainedModel)
    assert spec.model.path == str(tmp_path / "models" / "catalog" / "7" / stored.sha256)
    assert not [problem for problem in lacking(spec) if problem.field.startswith("model")]


def test_a_version_that_no_document_pins_and_one_that_was_changed_are_refused(
    tmp_path: Path, stored: CatalogFolder
) -> None:
    with pytest.raises(BadSpec, match=r"model\.catalog = 'qwen@3': there is no catalog"):
        launch_from_file(launch_file(tmp_path, None))
    (tmp_path / "models" / "catalog" / "7" / stored.sha256 / "config.json").write_text("{}")
    with pytest.raises(BadSpec, match=r"config\.json has .* bytes, and had"):
        launch_from_file(launch_file(tmp_path, stored))


def judged_launch(tmp_path: Path, judge: CatalogFolder | None, catalog: CatalogFolder | None = None) -> Path:
    """A run of the built-in model whose turns are judged by the version."""
    asked = {"kind": "llm", "endpoint": "resources.judge", "model": "judge"}
    recipe = {"credit": {"kind": "attribution", "judge": asked}}
    resources = {"judge": {"catalog": "qwen@3", "context_tokens": 512}}
    spec = RunSpec.model_validate({"name": "x", "recipe": recipe, "resources": resources})
    return written_launch(tmp_path, spec, judge=judge, catalog=catalog)


def test_a_launched_run_finds_the_version_that_was_pinned_for_its_judge(
    tmp_path: Path, stored: CatalogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.loop.requirements import lacking

    monkeypatch.setattr("engine.loop.generator_requirements._has_sglang", lambda _: True)
    spec = launch_from_file(judged_launch(tmp_path, stored)).spec
    judge = spec.resources.judge
    assert judge is not None
    assert (judge.path, judge.catalog) == (str(tmp_path / "models" / "catalog" / "7" / stored.sha256), None)
    assert judge.context_tokens == 512
    assert lacking(spec) == []
    of_checkpoint = RunSpec.model_validate_json(spec.model_dump_json())
    assert differing_fields(of_checkpoint, launch_from_file(judged_launch(tmp_path, stored)).spec) == []


def test_a_judges_version_that_no_document_pins_and_one_that_was_changed_are_refused(
    tmp_path: Path, stored: CatalogFolder
) -> None:
    with pytest.raises(BadSpec, match=r"resources\.judge\.catalog = 'qwen@3': there is no catalog"):
        launch_from_file(judged_launch(tmp_path, None, catalog=stored))
    (tmp_path / "models" / "catalog" / "7" / stored.sha256 / "config.json").write_text("{}")
    with pytest.raises(BadSpec, match=r"resources\.judge\.catalog = 'qwen@3': config\.json has .* bytes, and had"):
        launch_from_file(judged_launch(tmp_path, stored))


def test_a_judges_version_of_another_team_is_not_where_the_document_pins_it(
    tmp_path: Path, stored: CatalogFolder
) -> None:
    with pytest.raises(BadSpec, match=r"resources\.judge\.catalog = 'qwen@3': .* cannot be read"):
        launch_from_file(judged_launch(tmp_path, stored.model_copy(update={"team": "8"})))


@pytest.mark.parametrize("path", ["catalog/7", "x/../catalog/7", "link", "uploads/1"])
def test_a_launched_run_reads_nothing_of_teams_by_a_path(tmp_path: Path, stored: CatalogFolder, path: str) -> None:
    (tmp_path / "models" / "link").symlink_to(tmp_path / "models" / "catalog" / "7")
    with pytest.raises(ModelFolderRefused, match="belongs to teams"):
        pinned(PretrainedModel(path=path), anywhere=False)
    assert pinned(PretrainedModel(path="qwen"), anywhere=False).path.endswith("models/qwen")  # type: ignore[union-attr]

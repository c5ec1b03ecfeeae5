"""The form of a pretrained model and of a warm start; and what the service does not read for anybody."""

from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from engine.spec.model import BuiltinModel, PretrainedModel
from engine.spec.run import RunSpec
from tests.webapp.test_pages_spec import browser, experiment, form_of, saved, shown
from webapp.accounts.models import Team, User
from webapp.editor.drafts import Draft, Size
from webapp.experiments.models import Experiment
from webapp.refusals import Invalid
from webapp.runs.services import submit_run

__all__ = ["browser", "experiment"]

pytestmark = pytest.mark.django_db


def with_model(**model: Any) -> RunSpec:
    return RunSpec.model_validate({"name": "x", "model": model})


def test_a_model_of_another_kind_asks_for_its_own_fields_and_is_saved(browser: Client, experiment: Experiment) -> None:
    form = form_of(browser, experiment)
    assert form["model.kind"] == ["builtin"]
    page = shown(browser, experiment, form | {"model.kind": "pretrained"})
    assert 'name="model.path"' in page
    assert 'name="model.layers"' not in page
    changed = form | {"model.kind": "pretrained", "base": '{"name": "x", "model": {"kind": "pretrained"}}'}
    spec = saved(
        browser,
        experiment,
        changed | {"model.path": "qwen", "model.lora": "on", "model.lora.targets": "q_proj\nv_proj"},
    )
    assert isinstance(spec.model, PretrainedModel)
    assert spec.model.lora is not None
    assert (spec.model.path, spec.model.lora.targets) == ("qwen", ["q_proj", "v_proj"])


def test_what_a_pretrained_model_amounts_to_is_not_guessed() -> None:
    assert Size.of(with_model(kind="pretrained", path="q")).parameters is None
    assert Size.of(with_model()).parameters


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b"])
def test_no_folder_of_the_server_is_read_for_anybody(team: Team, alice: User, path: str) -> None:
    for model in ({"kind": "pretrained", "path": path}, {"kind": "checkpoint", "run": path}):
        with pytest.raises(Invalid) as refused:
            submit_run(team, with_model(**model), acting_user=alice)
        assert refused.value.problems[0].field in ("model.path", "model.run")
        assert Draft.of(with_model(**model).model_dump(mode="json")).problems


def test_a_warm_start_begins_with_a_run_of_the_own_team(team: Team, alice: User, charlie: User) -> None:
    own = submit_run(team, RunSpec(name="own"), acting_user=alice)
    hers = charlie.memberships.get().team
    strange = submit_run(hers, RunSpec(name="strange"), acting_user=charlie)
    begun = submit_run(team, with_model(kind="checkpoint", run=str(own.id)), acting_user=alice)
    assert begun.spec["model"]["run"] == str(own.id)
    for run in (str(strange.id), str(uuid4()), "tiny-sample"):
        with pytest.raises(Invalid, match="no such run"):
            submit_run(team, with_model(kind="checkpoint", run=run), acting_user=alice)


def test_a_spec_that_was_saved_before_models_had_kinds_means_the_built_in_one() -> None:
    document = RunSpec(name="x").model_dump(mode="json")
    del document["model"]["kind"]
    assert isinstance(RunSpec.model_validate(document).model, BuiltinModel)

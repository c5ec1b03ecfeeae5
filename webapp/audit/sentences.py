"""An entry of the audit log as a sentence with links, and as plain text for a file.

Entries keep ids and names as they were.  A link may lead to what is gone by now, which then says so.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils.text import slugify

from webapp.accounts.models import AuditEntry


@dataclass(frozen=True)
class Part:
    text: str
    url: str = ""


Words = list[Part | str]
"""A text is a part without a link."""


def sentence(entry: AuditEntry) -> list[Part]:
    """Return what happened, without who: ``launched run #7 first try``."""
    words_of = _SENTENCES.get(entry.verb, _unknown)
    return [Part(word) if isinstance(word, str) else word for word in words_of(entry)]


def plain(entry: AuditEntry) -> str:
    return " ".join(part.text for part in sentence(entry))


def listed(words: Sequence[str]) -> str:
    """``read, launch and review``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _run(entry: AuditEntry, name: str = "number") -> Part:
    """The run that the target names, by its number if that was kept."""
    number, run_id = entry.details.get(name), _uuid_in(entry.target)
    label = f"run #{number}" if number is not None else "a run"
    return Part(label, reverse("runs:detail", args=[run_id]) if run_id else "")


def _uuid_in(text: str) -> UUID | None:
    found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)
    return UUID(found.group()) if found else None


def _object(entry: AuditEntry) -> str:
    """The target without its kind: ``user a@example.org`` -> ``a@example.org``."""
    return entry.target.partition(" ")[2]


def _named(entry: AuditEntry) -> str:
    return str(entry.details.get("name", _object(entry)))


def _of_run(verb: str, *, at_step: bool = True) -> Callable[[AuditEntry], Words]:
    def words_of(entry: AuditEntry) -> Words:
        step = entry.details.get("step")
        end = f"at step {step}" if at_step and step is not None else str(entry.details.get("name", ""))
        return [verb, _run(entry), end] if end else [verb, _run(entry)]

    return words_of


def _of_experiment(verb: str) -> Callable[[AuditEntry], Words]:
    def words_of(entry: AuditEntry) -> Words:
        found = _uuid_in(entry.target)
        url = reverse("experiments:detail", args=[found]) if found else ""
        return [f"{verb} the experiment", Part(_named(entry), url)]

    return words_of


def _published(kind: str) -> Callable[[AuditEntry], Words]:
    def words_of(entry: AuditEntry) -> Words:
        name = _object(entry).rpartition(" v")[0]
        place = f"#{kind}-{entry.team.slug}-{slugify(name)}"
        return [f"published the {kind}", Part(_object(entry), reverse("catalog:environments") + place)]

    return words_of


def _of_version(verb: str, page: str) -> Callable[[AuditEntry], Words]:
    def words_of(entry: AuditEntry) -> Words:
        number = _object(entry)
        return [verb, Part(_named(entry), reverse(page, args=[number]) if number.isdecimal() else "")]

    return words_of


def _of_model(verb: str) -> Callable[[AuditEntry], Words]:
    return _of_version(verb, "library:version")


def _of_dataset(verb: str) -> Callable[[AuditEntry], Words]:
    return _of_version(verb, "datasets:version")


def _of_tasks(verb: str) -> Callable[[AuditEntry], Words]:
    return _of_version(verb, "task_sets:version")


def _of_package(verb: str) -> Callable[[AuditEntry], Words]:
    return _of_version(verb, "packages:version")


def _uploading(verb: str) -> Callable[[AuditEntry], Words]:
    return lambda entry: [f"{verb} the {entry.details.get('kind', 'model')} {_named(entry)}"]


def _key_made(entry: AuditEntry) -> Words:
    scopes = listed(entry.details.get("scopes", []))
    return [f"made the API key “{_named(entry)}”", f"which may {scopes}" if scopes else ""]


def _counted(count: Any, noun: str, plural: str) -> str:
    return f"{count} {noun if count == 1 else plural}"


def _decided(entry: AuditEntry) -> Words:
    if entry.target.startswith("run "):  # about many at once
        many = _counted(entry.details.get("trajectories", 0), "trajectory", "trajectories")
        return [f"found {entry.details.get('verdict', 'something')}: {many} of", _run(entry, "run_number")]
    run_id = _uuid_in(entry.target)
    trajectory = _object(entry).partition(" of run ")[0]
    url = reverse("trajectories:detail", args=[run_id, trajectory]) if run_id and trajectory else ""
    return [f"found {entry.details.get('verdict', 'something')}:", Part(f"trajectory {trajectory}", url), "of",
            _run(entry, "run_number")]  # fmt: skip


def _alert(verb: str) -> Callable[[AuditEntry], Words]:
    def words_of(entry: AuditEntry) -> Words:
        if entry.target.startswith("run "):
            many = _counted(entry.details.get("alerts", 0), "alert", "alerts")
            return [f"{verb} {many} of", _run(entry, "run_number")]
        number = _object(entry)
        url = reverse("security:alert", args=[number]) if number.isdecimal() else ""
        return [f"{verb} the alert", Part(str(entry.details.get("rule", number)), url),
                f"of run #{entry.details['run']}" if "run" in entry.details else ""]  # fmt: skip

    return words_of


def _unknown(entry: AuditEntry) -> Words:
    details = [f"{name} {_value(value)}" for name, value in entry.details.items()]
    return [entry.verb.replace(".", " "), entry.target, f"({', '.join(details)})" if details else ""]


def _value(value: Any) -> str:
    return listed([str(item) for item in value]) if isinstance(value, list) else str(value)


def _talked(verb: str) -> Callable[[AuditEntry], Words]:
    def words_of(entry: AuditEntry) -> Words:
        if entry.target.startswith("model-version "):
            return _of_model(verb)(entry)
        return [verb, f"step {entry.details.get('step')} of", _run(entry)]

    return words_of


def _served(verb: str) -> Callable[[AuditEntry], Words]:
    return lambda entry: [verb, f"“{entry.details.get('name')}” to", str(entry.details.get("model"))]


_SENTENCES: dict[str, Callable[[AuditEntry], Words]] = {
    "run.submit": _of_run("launched", at_step=False),
    "run.cancel": _of_run("cancelled"),
    "run.pause": _of_run("paused"),
    "run.resume": _of_run("resumed"),
    "conversation.begin": _talked("began a conversation with"),
    "conversation.delete": _talked("deleted a conversation with"),
    "serving-key.create": _served("made the key"),
    "serving-key.revoke": _served("revoked the key"),
    "experiment.create": _of_experiment("made"),
    "experiment.change": _of_experiment("changed"),
    "environment.publish": _published("environment"),
    "dataset.publish": _published("dataset"),
    "model.import": _of_model("imported the model"),
    "model.upload": _of_model("completed the upload of the model"),
    "model.promote": _of_model("made a checkpoint a version of the model"),
    "model.cancel": _of_model("cancelled a version of the model"),
    "model.delete": _of_model("deleted the model's version"),
    "dataset.import": _of_dataset("imported the dataset"),
    "dataset.upload": _of_dataset("completed the upload of the dataset"),
    "dataset.prepare": _of_dataset("gave a mapping to the dataset"),
    "dataset.measure": _of_dataset("measured the dataset's version"),
    "dataset.cancel": _of_dataset("cancelled a version of the dataset"),
    "dataset.delete": _of_dataset("deleted the dataset's version"),
    "task-set.import": _of_tasks("imported the tasks"),
    "task-set.upload": _of_tasks("completed the upload of the tasks"),
    "task-set.check": _of_tasks("had the tasks checked:"),
    "task-set.publish": _of_tasks("published the tasks"),
    "task-set.cancel": _of_tasks("cancelled a version of the tasks"),
    "task-set.delete": _of_tasks("deleted the tasks"),
    "package.import": _of_package("imported the package"),
    "package.upload": _of_package("completed the upload of the package"),
    "package.check": _of_package("had the package checked:"),
    "package.publish": _of_package("published the package"),
    "package.cancel": _of_package("cancelled a version of the package"),
    "package.delete": _of_package("deleted the package"),
    "upload.begin": _uploading("began to upload"),
    "upload.delete": _uploading("deleted an upload of"),
    "team.create": lambda entry: ["made the team", _object(entry)],
    "member.add": lambda entry: [f"added {_object(entry)} as {entry.details.get('role', 'somebody')}"],
    "member.role": lambda entry: [
        f"made {_object(entry)} {entry.details.get('after')}, who was {entry.details.get('before')}"
    ],
    "member.remove": lambda entry: [f"removed {_object(entry)}, who was {entry.details.get('role', 'a member')}"],
    "key.create": _key_made,
    "key.revoke": lambda entry: [f"revoked the API key “{_named(entry)}”"],
    "password.change": lambda entry: ["changed their password"],
    "quarantine.decide": _decided,
    "alert.acknowledge": _alert("acknowledged"),
}
VERBS = tuple(_SENTENCES)

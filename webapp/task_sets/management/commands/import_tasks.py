"""``manage.py import_tasks``: what the page and the API do with tasks below the import root."""

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from engine.spec.problems import Problem
from engine.spec.task_check import TaskCheck
from webapp.accounts.management.members import member_of
from webapp.accounts.models import User
from webapp.catalog.imports import import_tasks
from webapp.catalog.models import TaskSetVersion
from webapp.catalog.task_versions import publish_tasks
from webapp.refusals import Refused


class Command(BaseCommand):
    help = "Import a set of terminal tasks from below the import root (PALESTRA_IMPORTS), have it checked, publish it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="of the task set; a new version where there is one of the name")
        parser.add_argument("folder", help="a folder of tasks, a .tar of one, or rows of a SWE-bench form (.jsonl)")
        parser.add_argument("--team", required=True, help="the team's short name, as in its address")
        parser.add_argument("--by", required=True, help="the e-mail of an owner or member, for the audit log")
        parser.add_argument("--repeat", type=int, choices=range(1, 21), metavar="N", help="have each task tried")
        parser.add_argument("--wait", action="store_true", help="until it is stored, and checked if it is")
        parser.add_argument("--publish", action="store_true", help="after a check that found every task ok; it waits")

    def handle(self, *_: Any, **options: Any) -> None:
        team, user = member_of(options["team"], options["by"])
        check = None if options["repeat"] is None else TaskCheck(repeat=options["repeat"])
        try:
            version = import_tasks(team, options["name"], options["folder"], check, acting_user=user)
            self.stdout.write(f"task-set-version {version.id}: {version.state}")
            if options["wait"] or options["publish"]:
                self._wait(version)
            if options["publish"]:
                self._publish(version, user)
        except Refused as refusal:
            raise CommandError("\n".join(map(str, refusal.problems)) or refusal.title) from refusal

    def _wait(self, version: TaskSetVersion) -> None:
        while version.is_unfinished:
            time.sleep(1)
            version.refresh_from_db()
        if version.problem is not None:
            faults = [str(Problem(**problem)) for problem in version.problems]
            raise CommandError("\n".join(faults) or str(Problem(**version.problem)))
        self.stdout.write(f"task-set-version {version.id}: {version.state}, {version.tasks.count()} tasks")

    def _publish(self, version: TaskSetVersion, user: User) -> None:
        self.stdout.write(f"{publish_tasks(version, acting_user=user)} is published")

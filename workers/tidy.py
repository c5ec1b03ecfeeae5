"""Drops rows and files that have served their time."""

from webapp import queue
from webapp.accounts.sign_in import forget_old_failures
from webapp.api.idempotency import forget_old_answers
from webapp.conversations.services import forget_old_conversations
from workers.app import app
from workers.model_tidy import tidy_models


@app.task(name=queue.TIDY)
def tidy() -> None:
    forget_old_failures()
    forget_old_answers()
    tidy_models()
    forget_old_conversations()

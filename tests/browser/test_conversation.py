"""The page of a conversation in a real browser: what a model writes is text, tokens stream, a failure can be mended."""

import json
from collections.abc import Callable

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from tests.browser.chat_log import HOSTILE, READING, answer_with_a_tool, append, tokens, turn_of
from tests.browser.conftest import Web, sign_in
from tests.browser.test_accessibility import faults_of
from webapp.conversations.models import Conversation, State
from webapp.experiments.sample import Sample
from webapp.runs.models import Checkpoint, Run
from webapp.runs.services import submit_run

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def conversation(sample: Sample) -> Conversation:
    run = submit_run(sample.experiment.team, sample.experiment.run_spec, acting_user=sample.owner)
    Checkpoint.objects.create(run=run, step=40, path="x", size_bytes=2**20, seconds=0.1, at=timezone.now())
    return Conversation.objects.create(team=run.team, run=run, step=40, with_tools=True, created_by=sample.owner)


@pytest.fixture
def page(tab: Callable[..., Page], web: Web, sample: Sample) -> Page:
    page = tab()
    sign_in(page, web, sample.owner)
    return page


def test_from_the_checkpoint_list_to_an_answer(
    page: Page, web: Web, conversation: Conversation, complaints: list[str]
) -> None:
    run: Run = conversation.run
    page.goto(f"{web.url}/runs/{run.id}/?tab=checkpoints")
    page.get_by_role("button", name="Chat with step 40").click()
    page.wait_for_url("**/conversations/**")
    talk = Conversation.objects.exclude(id=conversation.id).get()
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Message").fill("1+1=")
    page.get_by_label("Message").press("Control+Enter")
    expect(page.locator("#talk .spoken pre")).to_have_text("1+1=")
    entry = talk.entries.get()
    assert (entry.kind, entry.body["sampling"]["temperature"]) == ("send", 0.5)
    answer_with_a_tool(talk)
    expect(page.locator("#talk .usage")).to_contain_text("answered · read 20, sampled 9 tokens")
    expect(page.locator("#talk .called").first).to_contain_text("print(1 + 1)")
    expect(page.locator("#talk .call-output")).to_have_text(HOSTILE)
    expect(page.locator("#talk .as-text").last).to_have_text(f"2 {HOSTILE}")
    assert page.locator("#talk img, #talk script").count() == 0
    page.get_by_role("button", name="Tokens").click()
    expect(page.locator("#talk .as-tokens").last).to_be_visible()
    assert page.locator("#talk .as-tokens").last.locator(".tok").count() == 3
    assert complaints == []


def test_an_alert_of_the_tools_sandbox_stands_in_the_conversation_as_text(
    page: Page, web: Web, conversation: Conversation
) -> None:
    alert = {"rule": "ssh-outbound", "title": "It speaks SSH", "severity": "critical", "subject": HOSTILE,
             "frozen": True}  # fmt: skip
    append(conversation.id, [("send", {"messages": [{"role": "user", "content": "1+1="}]}), READING], handled_seq=1)
    append(conversation.id, [("alert", alert), ("said", turn_of("2"))])
    append(conversation.id, [("alert", alert | {"frozen": False, "subject": "203.0.113.7:2222"})], state=State.READY)
    page.goto(f"{web.url}/conversations/{conversation.id}/")
    shown = page.locator("#talk .said.alerted")
    expect(shown).to_have_count(2)
    expect(shown.first.locator(".who-said")).to_contain_text("Alert: ssh-outbound")
    expect(shown.first.locator(".who-said")).to_contain_text("the sandbox is frozen")
    expect(shown.first.locator("pre")).to_have_text(f"It speaks SSH\n{HOSTILE}")
    expect(shown.last).not_to_contain_text("frozen")
    assert page.locator("#talk img, #talk script").count() == 0


def test_what_is_streamed_stands_there_before_the_turn_is_over_in_both_tabs(
    page: Page, tab: Callable[..., Page], web: Web, sample: Sample, conversation: Conversation
) -> None:
    other = tab()
    sign_in(other, web, sample.owner)
    for one in (page, other):
        one.goto(f"{web.url}/conversations/{conversation.id}/")
    append(conversation.id, [("send", {"messages": [{"role": "user", "content": "count"}]}), READING],
           state=State.ANSWERING, handled_seq=1)  # fmt: skip
    for words in ("one", "one two"):
        append(conversation.id, [tokens(words.split()[-1] + " ")])
        for one in (page, other):
            expect(one.locator("#talk .as-text")).to_contain_text(words)
            expect(one.get_by_role("button", name="Stop")).to_be_visible()
            expect(one.get_by_role("button", name="Send")).to_be_disabled()
    with page.expect_response("**/stop") as stopped:
        page.get_by_role("button", name="Stop").click()
    assert stopped.value.status == 202
    assert conversation.entries.order_by("seq").last().kind == "stop"  # type: ignore[union-attr]


def test_a_process_that_was_killed_is_said_and_tried_again(page: Page, web: Web, conversation: Conversation) -> None:
    append(conversation.id, [("send", {"messages": [{"role": "user", "content": "count"}]}), READING, tokens("one")],
           handled_seq=1)  # fmt: skip
    ended = {"reason": "the process that samples was ended by SIGKILL", "asked": False}
    append(conversation.id, [("ended", ended)], state=State.FAILED)
    page.goto(f"{web.url}/conversations/{conversation.id}/")
    expect(page.locator("#failure")).to_contain_text("ended by SIGKILL")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#failure")).to_be_hidden()
    expect(page.locator("#talk .wrote")).to_have_count(0)
    expect(page.locator("#talk .spoken")).to_have_count(1)
    assert conversation.entries.order_by("seq").last().kind == "retry"  # type: ignore[union-attr]


def test_a_setting_that_cannot_be_is_named_and_the_message_stays_and_is_sent_again(
    page: Page, web: Web, conversation: Conversation
) -> None:
    page.goto(f"{web.url}/conversations/{conversation.id}/")
    page.get_by_label("top-p").fill("7")
    page.get_by_label("Message").fill("hello")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#failure")).to_contain_text("sampling.top_p: Input should be less than or equal to 1")
    expect(page.get_by_label("top-p")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Message")).to_have_value("hello")
    assert not conversation.entries.exists()
    page.get_by_label("top-p").fill("0.7")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#talk .spoken pre")).to_have_text("hello")
    expect(page.get_by_label("Message")).to_have_value("")
    expect(page.locator("#failure")).to_be_hidden()
    assert [entry.kind for entry in conversation.entries.all()] == ["send"]


def test_a_new_conversation_is_empty_and_copies_as_json(page: Page, web: Web, conversation: Conversation) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    append(conversation.id, [("send", {"messages": [{"role": "user", "content": "1+1="}]})], handled_seq=1)
    answer_with_a_tool(conversation)
    page.goto(f"{web.url}/conversations/{conversation.id}/")
    expect(page.locator("#talk .usage")).to_have_count(1)
    page.get_by_role("button", name="Copy as JSON").click()
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert [message["role"] for message in copied["messages"]] == ["user", "assistant", "tool", "assistant"]
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#talk li")).to_have_count(0)
    expect(page.get_by_text("Nothing was said yet.")).to_be_visible()


def test_axe_finds_nothing_on_the_pages_of_conversations(
    tab: Callable[..., Page], web: Web, sample: Sample, conversation: Conversation
) -> None:
    page = tab(reduced_motion="reduce")
    sign_in(page, web, sample.owner)
    append(conversation.id, [("send", {"messages": [{"role": "user", "content": "1+1="}]})], handled_seq=1)
    answer_with_a_tool(conversation)
    faults = []
    for address in (f"/conversations/{conversation.id}/", "/conversations/"):
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(web.url + address)
        if "-" in address:
            expect(page.locator("#talk .usage")).to_have_count(1)
        faults += faults_of(page, address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert faults == []

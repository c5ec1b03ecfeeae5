"""The parts of the live page that can be asked by themselves: the store of points, and the cursor of the socket."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Web
from webapp.pages.display import number

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

STORE = """async () => {
  const { SeriesStore } = await import("/static/js/series.js");
  const store = new SeriesStore();
  store.load({ a: { steps: [1, 2, 3], values: [1, 2, 3] } });
  store.add(3, { a: 30 });
  store.add(5, { a: 5, "sft/loss": 9 });
  store.add(4, { a: 4 });
  const before = [[...store.get("a").steps], [...store.get("a").values], store.get("a").at(3), store.get("a").at(0)];
  store.rewind(3, null);
  const after = [[...store.get("a").steps], [...store.get("sft/loss").steps]];
  store.rewind(0, null);
  return { before, after, empty: [store.get("a").steps.length, store.get("sft/loss").steps.length] };
}"""

SOCKET = """async () => {
  const { LiveRun } = await import("/static/js/live.js");
  const sockets = [], seen = [], statuses = [];
  const socketFor = (url) => {
    sockets.push({ url, close() {}, readyState: 1 });
    return sockets.at(-1);
  };
  const onFrame = (events) => seen.push(...events.map((event) => event.seq));
  const onStatus = (status) => statuses.push(status);
  const run = new LiveRun({ url: "ws", after: 4, socketFor, onFrame, onStatus });
  const send = (...seqs) => {
    const frame = { events: seqs.map((seq) => ({ seq })), run: {} };
    sockets.at(-1).onmessage({ data: JSON.stringify(frame) });
  };
  run.start();
  send(5, 6);
  send(5, 6, 7);   // sent twice: only 7 is new
  send(9);         // 8 is missing: it is asked for
  send(8, 9);
  sockets.at(-1).onclose({ code: 1006 });
  await new Promise((done) => setTimeout(done, 600));
  send(10);
  sockets.at(-1).onclose({ code: 4000 });
  await new Promise((done) => setTimeout(done, 600));
  return { urls: sockets.map((socket) => socket.url), seen, statuses };
}"""

WORDS = """async () => {
  const { format } = await import("/static/js/numbers.js");
  const { distance, now, setClock, timeElement } = await import("/static/js/times.js");
  const { LiveRun } = await import("/static/js/live.js");
  const values = [3e-4, 1e-12, -4e-5, 0.001, 0.0123, 1.5, 1e9, 1e300, 999999, 0, NaN, null];
  const numbers = values.map((value) => format(value));
  const happened = Date.now() / 1000 + 3600;  // on a server whose clock is an hour and a minute ahead
  setClock(happened + 60);
  const ago = [timeElement(happened).textContent, distance(now() - happened)];
  const ends = [4000, 4001, 4401, 4404, 1006].map((code) => {
    const sockets = [];
    const socketFor = () => { sockets.push({ readyState: 1 }); return sockets.at(-1); };
    const run = new LiveRun({ url: "ws", after: 0, socketFor, onFrame() {}, onStatus() {} });
    run.start();
    sockets[0].onclose({ code });
    const [status, stopped] = [run.status, Boolean(run.stopped)];
    dispatchEvent(new Event("focus"));  // the page is looked at again
    return [status, stopped, sockets.length];
  });
  return { numbers, ago, ends };
}"""

LOOK = """async () => {
  const { CloseLook } = await import("/static/js/zoom.js");
  const asked = [], answers = [];
  const fetchJson = (url) => {
    asked.push(url);
    return new Promise((done) => answers.push(done));
  };
  const answer = (index, seq, steps) => {
    answers[index]({ seq, series: { a: { steps, values: [...steps] } } });
    return new Promise((done) => setTimeout(done));
  };
  const look = new CloseLook({ url: "series", keys: ["a"], onPoints: () => {}, fetchJson });
  const seen = () => [...(look.get("a")?.steps ?? [])];
  look.open(100, 200);
  look.add(7, 198, { a: 198, b: 1 });
  look.add(8, 199, { a: 199 });
  look.open(150, 200);       // looks elsewhere before the first answer
  look.add(9, 200, { a: 200 });
  await answer(0, 6, [1]);   // too late to matter
  const early = seen();
  await answer(1, 8, [198, 199]);
  const late = seen();
  look.add(10, 201, { a: 201 });
  const live = seen();
  look.rewind(199, null);
  const cut = seen();
  await answer(2, 11, [198, 199]);
  const rewound = seen();
  look.close();
  return { asked, early, late, live, cut, rewound, closed: seen() };
}"""


@pytest.fixture
def page(web: Web, tab: Callable[..., Page]) -> Page:
    opened = tab()
    opened.goto(f"{web.url}/sign-in")
    return opened


def test_a_step_is_held_once_and_a_restart_takes_back_what_came_later(page: Page) -> None:
    reported = page.evaluate(STORE)
    assert reported["before"] == [[1, 2, 3, 4, 5], [1, 2, 30, 4, 5], 30, None]
    assert reported["after"] == [[1, 2, 3], [5]]
    assert reported["empty"] == [0, 0]


def test_the_socket_drops_doubles_asks_for_gaps_and_goes_on_from_its_cursor(page: Page) -> None:
    reported = page.evaluate(SOCKET)
    assert reported["seen"] == [5, 6, 7, 8, 9, 10]
    assert reported["urls"] == ["ws?after=4", "ws?after=7", "ws?after=9"]
    assert reported["statuses"] == ["connecting", "live", "reconnecting", "live", "reconnecting", "live", "ended"]


def test_small_numbers_wrong_clocks_and_closed_doors_are_put_in_true_words(page: Page) -> None:
    reported = page.evaluate(WORDS)
    assert reported["numbers"] == [
        "3.00e-4", "1.00e-12", "-4.00e-5", "0.001", "0.012", "1.500", "1.00e9", "1.00e300", "999,999", "0", "–", "–",
    ]  # fmt: skip
    values = [3e-4, 1e-12, -4e-5, 0.001, 0.0123, 1.5, 1e9, 1e300, 999999.0, 0, float("nan"), None]
    assert reported["numbers"] == [number(value) for value in values]
    assert reported["ago"] == ["1 min ago", "1 min ago"]
    assert reported["ends"] == [
        ["ended", True, 1],
        ["reconnecting", False, 2],
        ["signed-out", True, 1],
        ["refused", True, 1],
        ["reconnecting", False, 2],
    ]


def test_a_close_look_holds_each_step_once_whatever_comes_while_it_is_fetched(page: Page) -> None:
    reported = page.evaluate(LOOK)
    assert reported["asked"] == [
        "series?first_step=99&last_step=201&key=a",
        "series?first_step=149&last_step=201&key=a",
        "series?first_step=149&last_step=201&key=a",
    ]
    assert reported["early"] == []
    assert reported["late"] == [198, 199, 200]
    assert reported["live"] == [198, 199, 200, 201]
    assert reported["cut"] == reported["rewound"] == [198, 199]
    assert reported["closed"] == []

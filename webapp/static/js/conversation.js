/* A conversation with a model: its log as cards, and what is typed into it.

   Everything that a model or a tool wrote is text of text nodes and never markup.  The log is the server's: a second tab
   shows the same, and what this one sends comes back to it as an entry. */

import { onKey } from "./keys.js";
import { LiveRun } from "./live.js";
import { saySignedOut } from "./session.js";

const page = JSON.parse(document.getElementById("page-data").textContent);
const $ = (id) => document.getElementById(id);
const talk = $("talk");
const WORKING = ["waiting", "loading", "answering"];
const STATES = { resting: "Resting", waiting: "Waiting for a place", loading: "Loading the model", ready: "Ready", answering: "Answering", failed: "Failed" };
const LINK = { connecting: "Connecting", live: "Live", reconnecting: "Reconnecting", "signed-out": "Signed out", refused: "Access ended", ended: "" };
const REASONS = {
  answered: "answered", calls: "it calls a tool, and there is none that answers", malformed: "not readable as a call or an answer",
  length: "cut: most tokens per turn", context: "the context is full", "turn-limit": "most turns per answer", stopped: "stopped",
  "time-limit": "cut: it took too long", done: "the environment’s task is over", frozen: "an alert has frozen the sandbox",
};
const LOGPROB_EDGES = [0.05, 0.2, 0.5, 1, 2]; // of -log p, as webapp/trajectories/shades.py has them
let messages = []; // the conversation as JSON, for copying
let turn = null; // the one under way
let opening = "";
let again = retry; // what "Try again" does

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function card(className, who, text, detail = "") {
  const made = element("div", `said ${className}`);
  const head = element("div", "who-said", who);
  if (detail) head.append(element("span", "muted", detail));
  made.append(head, element("pre", "", text));
  return made;
}

function begins(kind) {
  const item = element("li", "turn");
  item.dataset.kind = kind;
  talk.append(item);
  $("nothing-said").hidden = true;
  return item;
}

function tokenElement({ token, text, logprob }) {
  const made = element("span", `tok l${LOGPROB_EDGES.filter((edge) => -logprob >= edge).length}`, text.replaceAll("\n", "↵\n"));
  made.title = `token ${token}, log-prob ${logprob.toFixed(3)}`;
  return made;
}

function startTurn(body) {
  const item = begins("turn");
  const prompt = element("details", "change");
  prompt.append(element("summary", "", `Prompt: ${body.tokens} tokens in all`), element("pre", "diff", body.text));
  const wrote = element("div", "said wrote is-answering");
  const text = element("pre", "as-text");
  const tokens = element("div", "tokens as-tokens");
  wrote.append(element("div", "who-said", "Model"), text, tokens);
  item.append(prompt, wrote);
  turn = { item, wrote, text, tokens };
}

function addTokens({ tokens }) {
  if (!turn) return;
  turn.text.append(tokens.map((token) => token.text).join(""));
  turn.tokens.append(...tokens.map(tokenElement));
}

function endTurn({ message, problem }) {
  messages.push(message);
  if (!turn) return;
  turn.wrote.classList.remove("is-answering");
  const said = [message.reasoning && `${message.reasoning}\n`, message.content].filter(Boolean).join("\n");
  if (said) turn.text.textContent = said;
  if (!said && message.calls.length) turn.text.remove();
  for (const call of message.calls) {
    const code = call.written ?? textOf(call.arguments);
    turn.item.append(card("called", `Calls ${call.name}`, code, call.problem ?? ""));
  }
  if (problem) turn.item.append(element("p", "problem", `Not readable: ${problem}`));
}

function textOf(given) {
  const values = Object.values(given);
  return values.length === 1 && typeof values[0] === "string" ? values[0] : JSON.stringify(given, null, 2);
}

function showResult(body) {
  messages.push({ role: "tool", content: body.output, call: body.call, tool: body.tool });
  const made = card("called", `${body.tool} answers`, body.output, `${body.error_class ?? body.status}, ${body.seconds.toFixed(2)} s`);
  made.querySelector("pre").classList.add("call-output", ...(body.status === "error" ? ["bad"] : []));
  (turn?.item ?? begins("result")).append(made);
}

function showAlert({ rule, title, severity, subject, frozen }) {
  const made = card("alerted", `Alert: ${rule}`, `${title}\n${subject}`, frozen ? `${severity}, the sandbox is frozen` : severity);
  (turn?.item ?? begins("alert")).append(made);
}

function finish({ reason, usage, tools_begin_anew: anew }) {
  turn?.wrote.classList.remove("is-answering");
  turn = null;
  const perS = usage.seconds ? ` · ${(usage.sampled_tokens / usage.seconds).toFixed(1)} tokens/s` : "";
  const text = `${REASONS[reason] ?? reason} · read ${usage.read_tokens}, sampled ${usage.sampled_tokens} tokens in ${usage.seconds.toFixed(1)} s${perS}`;
  talk.append(element("li", "usage", anew ? `${text} · the tools begin anew` : text));
}

function showFailure(title, reason, next = retry) {
  again = next;
  turn?.wrote.classList.remove("is-answering");
  $("failure-title").textContent = title;
  $("failure-reason").textContent = reason;
  $("failure").hidden = false;
}

function forget() {
  talk.replaceChildren();
  messages = [];
  turn = null;
  $("nothing-said").hidden = false;
}

/** What came of the last message goes; the message stays. */
function dropAnswer() {
  while (talk.lastElementChild && talk.lastElementChild.dataset.kind !== "person") talk.lastElementChild.remove();
  while (messages.length && ["assistant", "tool"].includes(messages.at(-1).role)) messages.pop();
  turn = null;
}

const SHOW = {
  send(body) {
    $("failure").hidden = true;
    for (const message of body.messages) {
      messages.push(message);
      begins("person").append(card("spoken", message.role === "user" ? body.by ?? "User" : message.role, message.content));
    }
  },
  retry() { $("failure").hidden = true; dropAnswer(); },
  new() { $("failure").hidden = true; forget(); },
  ready(body) {
    $("context-tokens").textContent = `${body.context_tokens.toLocaleString("en")} tokens`;
    opening = body.opening.map((message) => message.content).join("\n");
    $("opening").hidden = !opening;
  },
  reading: startTurn,
  tokens: addTokens,
  said: endTurn,
  result: showResult,
  alert: showAlert,
  finished: finish,
  failed: (body) => showFailure("This cannot be answered.", `${body.field}: ${body.message}; ${body.remedy}.`),
  ended: (body) => body.asked || showFailure("The process that samples has ended.", `${body.reason}.`),
};

function apply(events) {
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
  for (const { kind, body } of events) SHOW[kind]?.(body);
  if (atEnd && events.length) $("message")?.scrollIntoView({ block: "end" });
}

function showState({ state }) {
  const isWorking = WORKING.includes(state);
  $("state").textContent = STATES[state] ?? state;
  $("state").dataset.state = state;
  if ($("send")) {
    $("send").disabled = isWorking;
    $("stop").hidden = !isWorking;
  }
}

/** `next`: what "Try again" does where this fails. */
async function post(path, body, next = () => post(path, body)) {
  const token = document.querySelector("#composer [name=csrfmiddlewaretoken]").value;
  const headers = { "X-CSRFToken": token, ...(body && { "Content-Type": "application/json" }) };
  let answer;
  try {
    answer = await fetch(page.api + path, { method: "POST", headers, body: body && JSON.stringify(body) });
  } catch {
    showFailure("The service cannot be reached.", "What was typed is still here; try again.", next);
    return false;
  }
  if (answer.ok) return true;
  if (answer.status === 401) saySignedOut();
  const { detail, problems = [] } = await answer.json().catch(() => ({ detail: `Error ${answer.status}` }));
  for (const problem of problems) document.getElementsByName(problem.field.split(".").at(-1))[0]?.setAttribute("aria-invalid", "true");
  showFailure("Not sent.", problems.map((problem) => `${problem.field}: ${problem.message}; ${problem.remedy}`).join(". ") || detail, next);
  return false;
}

function retry() {
  return post("/retry");
}

function sampling() {
  const values = {};
  for (const field of $("sampling").querySelectorAll("[name]")) {
    field.removeAttribute("aria-invalid");
    const text = field.value.trim();
    values[field.name] = field.name === "reasoning" || !text || Number.isNaN(Number(text)) ? text : Number(text);
  }
  return values;
}

async function send() {
  const field = $("message");
  if (!field.value.trim() || $("send").disabled) return;
  $("send").disabled = true;
  if (await post("/messages", { messages: [{ role: "user", content: field.value }], sampling: sampling() }, send)) field.value = "";
  else $("send").disabled = WORKING.includes($("state").dataset.state);
}

function listen() {
  $("token-view").addEventListener("click", toggleTokens);
  $("copy-json").addEventListener("click", async () => {
    await navigator.clipboard.writeText(JSON.stringify({ messages }, null, 2));
    const label = $("copy-json").querySelector("span");
    label.textContent = "Copied";
    setTimeout(() => { label.textContent = "Copy as JSON"; }, 1500);
  });
  onKey("c", "Show tokens by log-prob", toggleTokens);
  if (!$("composer")) return;
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
  });
  $("stop").addEventListener("click", () => post("/stop"));
  $("try-again").addEventListener("click", () => { $("failure").hidden = true; again(); });
  $("new-conversation").addEventListener("click", () => post("/new"));
  $("use-opening").addEventListener("click", () => { $("message").value = opening; $("message").focus(); });
}

function toggleTokens() {
  const on = talk.dataset.colour !== "logprob";
  talk.dataset.colour = on ? "logprob" : "none";
  $("token-view").setAttribute("aria-pressed", String(on));
}

function showLink(status) {
  $("link-state").dataset.link = status;
  $("link-state").textContent = LINK[status] ?? status;
  if (status === "signed-out") saySignedOut();
}

listen();
const scheme = location.protocol === "https:" ? "wss" : "ws";
new LiveRun({
  url: `${scheme}://${location.host}${page.socket}`,
  after: 0,
  onFrame: (events, state) => { apply(events); showState(state); talk.dataset.loaded = ""; },
  onStatus: showLink,
}).start();

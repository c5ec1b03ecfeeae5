/* Keyboard first: pages register their keys here, and "?" lists what is registered. */

const bindings = new Map();
let pending = "";
let pendingUntil = 0;

/** `keys` is one key or two in sequence, e.g. "j" or "g r". */
export function onKey(keys, description, handler) {
  bindings.set(keys, { description, handler });
}

function isTyping(target) {
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && !/^(checkbox|radio|range|button)$/.test(target.type);
}

function handle(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const sequence = Date.now() < pendingUntil ? `${pending} ${event.key}` : event.key;
  const binding = bindings.get(sequence) ?? bindings.get(event.key);
  pending = event.key;
  pendingUntil = Date.now() + 900;
  if (!binding) return;
  pendingUntil = 0;
  event.preventDefault();
  binding.handler(event);
}

function fillHelp(list) {
  list.replaceChildren();
  for (const [keys, { description }] of bindings) {
    const term = document.createElement("dt");
    for (const key of keys.split(" ")) {
      const cap = document.createElement("kbd");
      cap.className = "key";
      cap.textContent = key;
      term.append(cap);
    }
    const meaning = document.createElement("dd");
    meaning.textContent = description;
    list.append(term, meaning);
  }
}

export function showHelp() {
  const dialog = document.getElementById("keys-dialog");
  fillHelp(dialog.querySelector("dl"));
  dialog.showModal();
}

export function listenToKeys() {
  document.addEventListener("keydown", handle);
  for (const button of document.querySelectorAll("[data-shows-keys]")) button.addEventListener("click", showHelp);
}

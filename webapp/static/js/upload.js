/* Uploads the chosen files in parts, and goes on with what an earlier try has left on the server. */

const form = document.getElementById("upload-form");
const picker = document.getElementById("upload-files");
const problem = document.getElementById("upload-problem");
const progress = document.getElementById("upload-progress");
const stop = document.getElementById("upload-stop");
const send = form.querySelector("[type=submit]");
const { uploads, versions } = form.dataset;
const TRIES = 5;
let stopping = null;

class Refusal extends Error {}

async function call(method, path, body, type = "application/json") {
  const headers = { "X-CSRFToken": form.elements.csrfmiddlewaretoken.value, "Content-Type": type };
  const answer = await fetch(`/api/v1${path}`, { method, headers, body, signal: stopping.signal });
  const document = answer.status === 204 ? null : await answer.json();
  if (answer.ok) return document;
  const reasons = (document.problems ?? []).map((one) => `${one.message}; ${one.remedy}`);
  if (answer.status < 500) throw new Refusal(reasons.join(". ") || document.detail);
  throw new Error(document.detail);
}

/** A cut connection is tried again after a while; what the server refuses is not. */
async function steadily(act) {
  for (let tried = 1; ; tried++) {
    try {
      return await act();
    } catch (error) {
      if (error instanceof Refusal || error.name === "AbortError" || tried === TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** tried));
    }
  }
}

const announced = (files) => files.map((file) => ({ name: file.name, bytes: file.size }));
const same = (one, other) => one.length === other.length && one.every((file, i) => file.name === other[i].name && file.bytes === other[i].bytes);

async function uploadFor(name, team, files) {
  const query = team ? `?team=${encodeURIComponent(team)}` : "";
  const { items } = await call("GET", `${uploads}?limit=200`);
  const begun = items.find((one) => one.name === name && (!team || one.team === team) && same(announced(files), one.files));
  return begun ?? call("POST", `${uploads}${query}`, JSON.stringify({ name, files: announced(files) }));
}

async function digest(buffer) {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", buffer));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function sendParts(upload, files) {
  const total = files.reduce((sum, file) => sum + file.size, 0);
  let done = 0;
  for (const [place, file] of files.entries()) {
    const stored = new Set(upload.files[place].stored);
    for (let number = 0; number < upload.files[place].parts; number++) {
      const part = file.slice(number * upload.part_bytes, (number + 1) * upload.part_bytes);
      if (!stored.has(number)) {
        const content = await part.arrayBuffer();
        const path = `${uploads}/${upload.id}/files/${place}/parts/${number}?sha256=${await digest(content)}`;
        await steadily(() => call("PUT", path, content, "application/octet-stream"));
      }
      done += part.size;
      show(done, total);
    }
  }
}

function show(done, total) {
  progress.hidden = false;
  progress.querySelector("progress").value = total ? done / total : 0;
  progress.querySelector("span").textContent = `${(done / 2 ** 20).toFixed(1)} of ${(total / 2 ** 20).toFixed(1)} MiB`;
}

function say(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

function busy(is) {
  send.disabled = is;
  stop.hidden = !is;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  stopping = new AbortController();
  const files = [...picker.files].filter((file) => file.size && !file.name.startsWith(".")).sort((a, b) => (a.name < b.name ? -1 : 1));
  say("");
  busy(true);
  try {
    if (!crypto.subtle) throw new Refusal("This browser digests files only over https, or at localhost; use the REST API here.");
    const upload = await uploadFor(form.elements.name.value.trim(), form.elements.team?.value, files);
    await sendParts(upload, files);
    const version = await steadily(() => call("POST", `${uploads}/${upload.id}/complete`));
    location.assign(`${versions}${version.id}/`);
  } catch (error) {
    say(error.name === "AbortError" ? "Stopped. What has arrived is kept: choose the same files to go on." : error.message);
  } finally {
    busy(false);
  }
});

stop.addEventListener("click", () => stopping?.abort());
window.addEventListener("beforeunload", (event) => !stop.hidden && event.preventDefault());

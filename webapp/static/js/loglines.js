/* The tail of a run's log.  The newest line is at the bottom, and it stays in sight while one follows. */

const MOST_LINES = 2000;

const part = (name, text) => {
  const element = document.createElement("span");
  element.className = name;
  element.textContent = text;
  return element;
};

function lineOf({ at, level, source, message }) {
  const line = document.createElement("p");
  line.dataset.level = level;
  const time = document.createElement("time");
  const date = new Date(at * 1000);
  time.dateTime = date.toISOString();
  time.dataset.fixed = "";
  time.title = date.toUTCString();
  time.textContent = date.toLocaleTimeString("en-GB");
  line.append(time, part("level", level), part("source", source), part("message", message));
  return line;
}

export class LogTail {
  constructor(box, followBox) {
    Object.assign(this, { box, followBox, count: 0 });
    for (const button of document.querySelectorAll("[data-level][aria-pressed]")) {
      button.addEventListener("click", () => this.least(button));
    }
    followBox.addEventListener("change", () => this.follow());
    box.addEventListener("scroll", () => {
      const atEnd = box.scrollTop + box.clientHeight > box.scrollHeight - 40;
      if (!atEnd && followBox.checked && !box.hidden && box.clientHeight) followBox.checked = false;
    });
  }

  add(logs) {
    if (!logs.length) return;
    this.box.querySelector(".log-empty")?.remove();
    this.box.append(...logs.map(lineOf));
    this.count += logs.length;
    while (this.box.childElementCount > MOST_LINES) this.box.firstElementChild.remove();
    this.follow();
  }

  least(button) {
    for (const one of button.parentElement.children) one.setAttribute("aria-pressed", String(one === button));
    this.box.dataset.least = button.dataset.level;
    this.follow();
  }

  follow() {
    if (this.followBox.checked) this.box.scrollTop = this.box.scrollHeight;
  }
}

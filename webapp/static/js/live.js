/* One live run: a websocket that goes on from its cursor whatever happens to it.

   The cursor is the number of the last event that was applied.  A reconnect asks for what came
   after it, so nothing is missed; an event at or below it is dropped, so nothing is applied twice. */

const FIRST_DELAY_MS = 300;
const LONGEST_DELAY_MS = 8000;
const SILENCE_MS = 45000; // the server speaks at least every 20 s
const LAST_WORDS = { 4000: "ended", 4401: "signed-out", 4404: "refused" }; // codes after which nobody comes back

export class LiveRun {
  /** `onFrame(events, run)` gets new events only, in order; `onStatus` gets connecting, live, reconnecting, or the last words. */
  constructor({ url, after, onFrame, onStatus, socketFor = (address) => new WebSocket(address) }) {
    Object.assign(this, { url, cursor: after, onFrame, onStatus, socketFor });
    this.attempts = 0;
    this.status = "";
  }

  start() {
    this.open("connecting");
    this.watchdog = setInterval(() => this.check(), 5000);
    for (const wake of ["online", "pageshow", "focus"]) addEventListener(wake, () => this.wake());
    document.addEventListener("visibilitychange", () => document.hidden || this.wake());
  }

  stop(status) {
    this.stopped = true;
    clearInterval(this.watchdog);
    clearTimeout(this.timer);
    this.say(status);
  }

  open(status) {
    clearTimeout(this.timer);
    this.say(status);
    const socket = this.socketFor(`${this.url}?after=${this.cursor}`);
    this.socket = socket;
    this.heardAt = Date.now();
    socket.onmessage = (message) => socket === this.socket && this.receive(JSON.parse(message.data));
    socket.onclose = (event) => socket === this.socket && this.closed(event.code);
  }

  receive(frame) {
    this.heardAt = Date.now();
    this.attempts = 0;
    const fresh = frame.events.filter((event) => event.seq > this.cursor);
    if (fresh.length && fresh[0].seq !== this.cursor + 1) return this.again(); // a gap: ask for it
    this.cursor = fresh.at(-1)?.seq ?? this.cursor;
    this.say("live");
    this.onFrame(fresh, frame.run);
  }

  closed(code) {
    this.socket = null;
    if (code in LAST_WORDS) return this.stop(LAST_WORDS[code]);
    this.attempts += 1;
    const delay = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** (this.attempts - 1));
    this.say("reconnecting");
    this.timer = setTimeout(() => this.open("reconnecting"), delay * (0.5 + Math.random() / 2));
  }

  again() {
    const old = this.socket;
    this.socket = null;
    old?.close();
    this.open("reconnecting");
  }

  check() {
    if (this.socket && Date.now() - this.heardAt > SILENCE_MS) this.again();
  }

  /** The page is looked at again: a laptop that slept has a dead socket that nobody closed. */
  wake() {
    if (this.stopped) return;
    const dead = !this.socket || this.socket.readyState > WebSocket.OPEN || Date.now() - this.heardAt > SILENCE_MS;
    if (dead) this.again();
  }

  say(status) {
    if (status === this.status) return;
    this.status = status;
    this.onStatus(status);
  }
}

// One answer: asked for, read as it comes, shown token by token, timed by the browser's clock.

import { drawLine } from "./line.js";
import { events } from "./stream.js";
import { showChoices, hideChoices } from "./choices.js";

const REASONS = { length: "ended: max_tokens or the context is reached", stop: "ended: the model ended its text" };
// 0 for a token that was certain, 1/3 for one in ten, 2/3 for one in a hundred, 1 for one in a thousand or less.
const unlikely = (logprob) => Math.min(1, -logprob / Math.log(1000)).toFixed(3);
const milliseconds = (ms) => (ms < 10 ? ms.toFixed(1) : ms.toFixed(0)) + " ms";

export class Answer {
  // `body` goes to /v1/chat/completions if it holds messages, otherwise to /v1/completions.
  constructor(number, prompt, body, key) {
    Object.assign(this, { number, body, key, text: "", count: 0, gaps: [], ttft: null, state: "waiting" });
    this.card = document.getElementById("answer").content.cloneNode(true).firstElementChild;
    this.part("h2").textContent = `Answer ${number}`;
    const { max_tokens, temperature, seed } = body;
    const random = temperature === 0 ? "greedy" : `temperature ${temperature}`;
    const how = [`max_tokens ${max_tokens}`, random];
    if (seed !== undefined) how.push(`seed ${seed}`);
    this.part(".asked").textContent = how.join(" · ");
    const shown = prompt.length > 400 ? "…" + prompt.slice(-400) : prompt;
    this.part(body.messages ? ".message" : ".prompt").textContent = shown;
    this.part(".message").hidden = !body.messages;
    this.stopping = new AbortController();
    this.part(".stop").addEventListener("click", () => this.stopping.abort());
    this.listen(this.part(".tokens"));
  }

  part(selector) {
    return this.card.querySelector(selector);
  }

  // Ask, and read to the end. Whatever goes wrong becomes one line in the card.
  async read() {
    const path = this.body.messages ? "v1/chat/completions" : "v1/completions";
    const headers = { "Content-Type": "application/json" };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    const sent = performance.now();
    let last = sent, reason = null;
    const { signal } = this.stopping; // when it comes, the connection closes
    this.card.classList.add("writing");
    try {
      const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(this.body), signal });
      if (!response.ok) throw new Error(await this.refusal(response));
      for await (const chunks of events(response)) {
        const now = performance.now();
        const tokens = chunks.flatMap((chunk) => this.tokensOf(chunk));
        reason = chunks.map((chunk) => chunk.choices[0].finish_reason).find(Boolean) ?? reason;
        if (!tokens.length) continue;
        if (this.ttft === null) this.ttft = now - sent;
        else this.gaps.push(...tokens.map(() => (now - last) / tokens.length)); // together: they share the time
        last = now;
        this.add(tokens);
      }
      if (reason === null) throw new Error("The stream ended early: the server has stopped, or is stopping.");
      this.end(REASONS[reason] ?? `ended: ${reason}`);
    } catch (error) {
      const lost = error instanceof TypeError; // fetch reached no server, or lost the connection
      if (signal.aborted) this.end("stopped by you: the server frees its blocks");
      else this.end(lost ? "The server does not answer. Does lab serve still run?" : error.message, true);
    }
  }

  // Why the server refuses, in one line.
  async refusal(response) {
    this.unauthorized = response.status === 401;
    if (this.unauthorized) return "This server needs an API key: type it in above, and send again.";
    const body = await response.json().catch(() => ({}));
    return body.error?.message ?? body.detail ?? `The server answers ${response.status} ${response.statusText}.`;
  }

  // The tokens of a chunk, of either endpoint: [{ name, text, logprob, top: [[name, logprob], ...] }, ...].
  tokensOf(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    const { logprobs, text, delta } = chunk.choices[0];
    if (!logprobs) return [];
    const tokens = logprobs.content
      ? logprobs.content.map(({ token, logprob, top_logprobs }) => ({
          name: token, logprob, top: top_logprobs.map((other) => [other.token, other.logprob]),
        }))
      : logprobs.tokens.map((name, i) => ({
          name, logprob: logprobs.token_logprobs[i], top: Object.entries(logprobs.top_logprobs[i]),
        }));
    // Which text is whose? A token that is part of a character has no text until the character is whole, so the
    // chunk's text need not be that of its tokens. It is what counts, and the last token takes what is left of it.
    let rest = text ?? delta.content;
    for (const token of tokens.slice(0, -1)) {
      token.text = rest.startsWith(token.name) ? token.name : "";
      rest = rest.slice(token.text.length);
    }
    if (tokens.length) tokens.at(-1).text = rest;
    return tokens;
  }

  add(tokens) {
    const box = this.part(".tokens");
    for (const token of tokens) {
      const span = document.createElement("span");
      span.className = "token";
      span.textContent = token.text;
      span.tabIndex = box.childElementCount ? -1 : 0; // Tab goes to one of them, arrows from there
      span.style.setProperty("--unlikely", unlikely(token.logprob));
      span.token = token;
      box.append(span);
      this.text += token.text;
      this.count += 1;
    }
    if (this.state === "waiting") this.say("writing");
    this.due ??= requestAnimationFrame(() => this.drawFigures());
  }

  drawFigures() {
    this.due = undefined;
    this.part(".ttft").textContent = this.ttft === null ? "–" : milliseconds(this.ttft);
    this.part(".count").textContent = this.count;
    if (!this.gaps.length) return;
    const sum = this.gaps.reduce((a, b) => a + b);
    this.part(".itl").textContent = milliseconds(sum / this.gaps.length);
    this.part(".itl-top").textContent = `at most ${milliseconds(Math.max(...this.gaps))}`;
    drawLine(this.part("svg"), this.gaps, Math.max(...this.gaps));
  }

  say(state) {
    this.state = this.part(".state").textContent = state;
  }

  end(state, wrong = false) {
    this.failed = wrong;
    this.card.classList.remove("writing");
    const button = this.part(".stop");
    if (button === document.activeElement) this.part("h2").focus(); // it goes, and the keyboard's place with it
    button.remove();
    if (wrong) {
      this.part(".state").classList.add("mistake");
      this.part(".state").setAttribute("role", "alert");
    }
    this.say(state);
    this.drawFigures();
  }

  // Pointer, finger or keyboard on a token: the choices that the model had there.
  listen(box) {
    const ofToken = (handle) => (event) => {
      if (event.target.token && handle(event.target, event.key)) event.preventDefault();
    };
    const rest = () => {
      const focused = document.activeElement;
      if (focused.token) showChoices(focused);
      else hideChoices();
    };
    box.addEventListener("pointerover", ofToken(showChoices));
    box.addEventListener("pointerout", rest);
    box.addEventListener("focusin", ofToken((span) => {
      box.querySelector("[tabindex='0']").tabIndex = -1; // Tab comes back to this one
      span.tabIndex = 0;
      showChoices(span);
    }));
    box.addEventListener("focusout", hideChoices);
    box.addEventListener("keydown", ofToken((span, key) => {
      const to = {
        ArrowRight: span.nextSibling, ArrowLeft: span.previousSibling, Home: box.firstChild, End: box.lastChild,
      }[key];
      to?.focus();
      return Boolean(to);
    }));
  }
}

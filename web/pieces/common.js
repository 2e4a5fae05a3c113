// What every piece uses.

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// The same in a drawing.
export function shape(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// JupyterLab hears every key before the page does: an arrow key on a slider would choose the next cell. It leaves an
// element alone that carries this mark. What runs and saves stays JupyterLab's. Undo does not: it would take back what
// was typed into the cell.
export function keepKeys(box) {
  const mark = (event) => {
    if (!box.contains(event.target)) return;
    const command = event.ctrlKey || event.metaKey;
    const undoes = command && /^[zy]$/i.test(event.key);
    const theirs = (command && !undoes) || (event.key === "Enter" && (event.shiftKey || event.altKey));
    event.target.toggleAttribute("data-lm-suppress-shortcuts", !theirs);
    // Outside a text field the browser itself would undo in the cell that was typed in last.
    if (undoes && !event.target.matches("textarea, input:not([type=range])")) event.preventDefault();
  };
  box.addEventListener("focusin", () => window.addEventListener("keydown", mark, true));
  box.addEventListener("focusout", () => window.removeEventListener("keydown", mark, true));
}

// How every piece looks: `box(...)` gives the frame. Light or dark is what `color-scheme` says, which the page sets;
// JupyterLab says it in an attribute.
const LOOK = `
.piece-box { --paper: light-dark(#fff, #192027); --ink: light-dark(#1f2933, #e3e9ee); --muted: light-dark(#5d6975, #9aa7b3);
  --line: light-dark(#d3dae1, #3a4651); --faint: light-dark(#eef2f6, #242d36); --blue: light-dark(#2f6fb0, #74b0ea);
  --blue-tint: light-dark(#dbe8f5, #23405c); --orange: light-dark(#b85a1b, #f0a36c); --orange-tint: light-dark(#f6d9c2, #64401f);
  --red: light-dark(#b83a30, #f0938b); --green: light-dark(#2a7a50, #6cc795); --green-tint: light-dark(#d8efe2, #1f4733);
  --code: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  background: var(--paper); color: var(--ink); border: 1px solid var(--line); border-radius: 10px; padding: 14px;
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; box-sizing: border-box }
.piece-box[aria-busy="true"] > :not(:has(textarea)), .piece-box.stale > :not(:has(input, textarea), input, [role=status]) { opacity: .5 }
[data-jp-theme-light="false"] .piece-box { color-scheme: dark }
.piece-box :is(button, input, select, textarea) { font: inherit; color: inherit; background: var(--paper) }
.piece-box :is(button, select) { border: 1px solid var(--muted); border-radius: 5px; padding: 3px 10px; min-height: 28px }
.piece-box select { max-width: 100% }
.piece-box textarea { width: 100%; box-sizing: border-box; border: 1px solid var(--muted); border-radius: 5px; padding: 6px 8px }
.piece-box button { cursor: pointer } .piece-box button:disabled { opacity: .5; cursor: default }
.piece-box input[type=range] { accent-color: var(--blue); width: min(260px, 100%); vertical-align: middle }
.piece-box :focus-visible { outline: 2px solid var(--blue); outline-offset: 2px }
.piece-box .bar { display: flex; flex-wrap: wrap; gap: 8px 18px; align-items: center; margin: 8px 0 }
.piece-box .steps input[type=range] { flex: 1; min-width: 160px; width: auto }
.piece-box .counts { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 8px 0; color: var(--muted) }
.piece-box .counts b { display: block; font-size: 20px; color: var(--ink); font-variant-numeric: tabular-nums }
.piece-box table { border-collapse: collapse; margin: 6px 0; border: 0 }
.piece-box :is(td, th) { padding: 2px 10px 2px 0; font: 13px/1.6 var(--code); text-align: left !important; vertical-align: top;
  background: var(--paper) !important; color: var(--ink) !important; border: 0 }
.piece-box th { overflow-wrap: normal } .piece-box .scrolls { overflow-x: auto }
.piece-box h4 { margin: 12px 0 2px; font-size: 15px } .piece-box p { margin: 6px 0 } .piece-box small { color: var(--muted); font-size: 12px }
.piece-box .ok { color: var(--green) } .piece-box .wrong { color: var(--red) }`;

// One for each request, on paper and below text in the paper's colour.
export const COLORS = ["light-dark(#2f6fb0, #74b0ea)", "light-dark(#b85a1b, #f0a36c)", "light-dark(#2a7a50, #6cc795)",
  "light-dark(#7d5ba6, #c3a6e6)", "light-dark(#b83a30, #f0938b)", "light-dark(#1d7a7f, #62c6cb)", "light-dark(#886200, #d9b44a)",
  "light-dark(#5d6975, #9aa7b3)"];

// A token for people: a space and a line end can be seen.
export const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "↵");
export const thousands = (n) => n.toLocaleString("en");
export const short = (x) => x.toLocaleString("en", { maximumSignificantDigits: 3 });

// A button that tests find by its name.
export function button(name, label, click) {
  const made = element("button", { "data-do": name }, label);
  made.addEventListener("click", click);
  return made;
}

// An entry cannot be used: what is shown belongs to the last one that could, and is dimmed.
export const stale = (input, is) => input.closest(".piece-box")?.classList.toggle("stale", is);

// Numbers, each above its name: [[name, value], ...].
export function showCounts(place, pairs) {
  place.replaceChildren(...pairs.map(([name, value]) => element("span", {}, element("b", { "data-name": name }, String(value)), name)));
}

// The prompt of an address, `page.html#prompt=...`: a browser sends what stands behind # to no server.
export function withPrompt(address, prompt) {
  const url = new URL(address, location.href);
  url.hash = prompt && new URLSearchParams({ prompt }).toString();
  return url.href;
}

// Put the prompt of the page's address into a field, now and when the address changes.
export function followAddress(input) {
  const follow = () => {
    const prompt = new URLSearchParams(location.hash.slice(1)).get("prompt");
    if (prompt === null || prompt === input.value) return;
    input.value = prompt;
    input.dispatchEvent(new Event("input"));
  };
  addEventListener("hashchange", follow);
  follow();
}

// A field for a text of the reader's own, on the page. ask(ids, tokenizer) computes what the piece shows of it; one text
// after the other, and of those that came meanwhile only the last. A longer text is cut, and that is said.
export function textField(text, most, lm, ask) {
  const input = element("textarea", { rows: "2", "aria-label": "text" }), status = element("p", { role: "status" });
  input.value = text;
  let last = Promise.resolve();
  async function answer() {
    const wanted = input.value, tokenizer = await lm.tokenizer(), all = tokenizer.encode(wanted), ids = all.slice(0, most);
    status.textContent = all.length > most ? `Only the first ${most} of ${all.length} tokens are looked at.` : "";
    stale(input, !ids.length);
    if (!ids.length) return void (status.textContent = "Write something: the model needs a beginning.");
    const frame = input.closest(".piece-box");  // what it shows is of the old text until the model has computed
    frame?.setAttribute("aria-busy", "true");
    try { await ask(ids, tokenizer); } finally { frame?.removeAttribute("aria-busy"); }
  }
  input.addEventListener("input", () => {
    const wanted = input.value;
    last = last.then(() => (wanted === input.value ? answer() : null)).catch((error) => { status.textContent = error.message; });
  });
  followAddress(input);
  return element("div", {}, input, status);
}

// Steps to go through: buttons, a slider, and a clock that plays them. show(step) draws one, counted from 0; go(step)
// leads to it; begin(count) starts anew with so many, grow(count) adds to them.
export function player(milliseconds, show) {
  let at = 0, last = 0, clock = null;
  const stop = () => { clearInterval(clock); clock = null; play.textContent = "play"; };
  const back = button("back", "◀ back", () => go(at - 1)), forward = button("forward", "forward ▶", () => go(at + 1));
  const play = button("play", "play", () => {
    if (clock) return stop();
    play.textContent = "stop";
    clock = setInterval(() => (at === last || !bar.isConnected ? stop() : go(at + 1)), milliseconds);
  });
  const slider = element("input", { type: "range", min: "0", value: "0", "aria-label": "step" }), title = element("b", { "data-name": "step" });
  slider.addEventListener("input", () => go(Number(slider.value)));
  const bar = element("div", { class: "bar steps" }, back, forward, play, slider, title);
  function go(step) {
    at = Math.max(0, Math.min(last, step));
    slider.value = String(at);
    back.disabled = at === 0;
    forward.disabled = at === last;
    title.textContent = `step ${at + 1} of ${last + 1}`;
    show(at);
  }
  function begin(count) {
    last = count - 1;
    slider.max = String(last);
    go(0);
  }
  // More steps have come: a reader at the last one follows them.
  function grow(count) {
    const follows = at === last;
    last = count - 1;
    slider.max = String(last);
    go(follows ? last : at);
  }
  return { bar, go, begin, grow, at: () => at };
}

// What may be wider than a telephone scrolls, by keyboard as well.
export const scrolling = (label, wide) => element("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": label }, wide);

// Make a change, and let what it moved glide there: an element of `place` keeps its name in `data-glide`. Readers who
// want no motion see the change at once.
export function glide(place, change) {
  const spots = () => [...place.querySelectorAll("[data-glide]")].map((node) => [node, node.dataset.glide, node.getBoundingClientRect()]);
  const before = new Map(spots().map(([, name, spot]) => [name, spot]));
  change();
  if (!before.size || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const [node, name, { left, top }] of spots()) {
    const old = before.get(name);
    if (!old) node.animate([{ opacity: 0 }, { opacity: 1 }], 400);
    else if (old.left !== left || old.top !== top) {
      node.animate([{ transform: `translate(${old.left - left}px, ${old.top - top}px)` }, { transform: "none" }], { duration: 400, easing: "ease-in-out" });
    }
  }
}

// A piece grows and never shrinks: what stands below it is not pulled up by a state that needs less room.
function keepHeight(frame) {
  let width = 0;
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (frame.clientWidth !== width) frame.style.minHeight = "";
    width = frame.clientWidth;
    frame.style.minHeight = `${frame.offsetHeight}px`;
  })).observe(frame);
}

// The frame of a piece, with its look: name is a class of its own, style its own rules.
export function box(name, style, ...children) {
  const frame = element("div", { class: "piece-box " + name }, element("style", {}, LOOK + style), ...children);
  keepKeys(frame);
  keepHeight(frame);
  return frame;
}

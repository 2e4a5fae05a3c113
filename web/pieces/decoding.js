// Step through decoding: the naive way computes every token again, the cache computes each once and keeps it.
// All numbers come from Python: a real model, a real cache (web/pieces/decoding.py).

import { element, keepKeys } from "./common.js";

const STYLE = `
.dec { background:#fff; color:#1f2933; border:1px solid #e3e7eb; border-radius:10px; padding:14px; font:14px/1.5 system-ui,sans-serif }
[data-jp-theme-light="false"] .dec { filter:brightness(.87) }
.dec .bar { display:flex; gap:10px; align-items:center; flex-wrap:wrap } .dec .bar input { flex:1; min-width:160px }
.dec button { font:inherit; color:inherit; background:#fff; border:1px solid #9aa5b1; border-radius:4px; padding:1px 10px; cursor:pointer } .dec button:disabled { opacity:.4; cursor:default }
.dec .says { margin:8px 0; min-height:1.6em } .dec .says b { background:#d8efe2; border-radius:3px; padding:1px 3px; white-space:pre }
.dec .way { margin-top:10px } .dec .row { display:flex; flex-wrap:wrap; gap:3px; margin-top:2px; min-height:27px }
.dec .cell { font:12px/21px ui-monospace,monospace; padding:1px 4px; border-radius:3px; border:1px solid transparent; white-space:pre; min-width:10px; text-align:center }
.dec .cell.now { background:#f3c9a8; border-color:#e07b39 } .dec .cell.new { background:#f3c9a8; border-color:#e07b39 } .dec .cell.kept { background:#dbe8f5; border-color:#2f6fb0 }
.dec .cell.empty { border:1px dashed #9aa5b1; min-width:16px; height:21px } .dec .cell.on { outline:2px solid #1f2933 }
.dec .key { display:inline-block; width:12px; height:12px; border-radius:2px; border:1px solid; margin:0 4px 0 12px; vertical-align:-1px }
.dec .key.new { background:#f3c9a8; border-color:#e07b39 } .dec .key.kept { background:#dbe8f5; border-color:#2f6fb0 } .dec .key.empty { border:1px dashed #9aa5b1 }
.dec .lower { display:flex; gap:36px; flex-wrap:wrap; margin-top:12px } .dec .choices { min-width:240px } .dec .choice { display:grid; grid-template-columns:90px 1fr 44px; gap:6px; align-items:center; font:12px ui-monospace,monospace; white-space:pre }
.dec .choice i { height:11px; background:#9aa5b1; border-radius:2px; display:block } .dec .choice:first-child i { background:#3c9d6b }
.dec table { border-collapse:collapse } .dec table td, .dec table th { text-align:right !important; padding:1px 0 1px 18px; font-size:13px; background:#fff !important; color:#1f2933 !important; border:0 } .dec table td:first-child, .dec table th:first-child { text-align:left !important; padding-left:0 }
.dec .detail { min-height:1.6em; margin-top:8px } .dec .ok { color:#2c7a50 } .dec .wrong { color:#c8453b } .dec small { color:#66727f }`;

const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "↵");
const thousands = (n) => n.toLocaleString("en");

function render({ model, el }) {
  const data = model.get("data"), { moments, tokens, keys } = data, last = moments.length - 1;
  let at = 0, clock = null, looked = null;
  const box = element("div", { class: "dec" });
  keepKeys(box);
  const button = (name, label, click) => {
    const b = element("button", { "data-do": name }, label);
    b.addEventListener("click", click);
    return b;
  };
  const go = (step) => { at = Math.max(0, Math.min(last, step)); looked = null; draw(); };
  const back = button("back", "◀ back", () => go(at - 1)), forward = button("forward", "forward ▶", () => go(at + 1));
  const play = button("play", "play", () => {
    if (clock) { clearInterval(clock); clock = null; }
    else clock = setInterval(() => { if (at === last || !box.isConnected) { clearInterval(clock); clock = null; } else go(at + 1); play.textContent = clock ? "stop" : "play"; }, 600);
    play.textContent = clock ? "stop" : "play";
  });
  const slider = element("input", { type: "range", min: "0", max: String(last), value: "0", "aria-label": "step" });
  slider.addEventListener("input", () => go(Number(slider.value)));
  const title = element("b", { "data-name": "step" }), says = element("div", { class: "says", "data-name": "says", "aria-live": "polite" });
  const naive = element("div", { class: "row", "data-row": "naive" }), cached = element("div", { class: "row", "data-row": "cached" });
  const choices = element("div", { class: "choices" }), table = element("table"), detail = element("div", { class: "detail", "data-name": "detail", "aria-live": "polite" });
  const invariant = element("div", { "data-name": "invariant" });
  box.append(element("style", {}, STYLE), element("div", { class: "bar" }, back, forward, play, slider, title), says,
    element("div", { class: "way" }, element("b", {}, "naive"), element("small", {}, element("span", { class: "key new" }), "computed in this step, and forgotten"), naive),
    element("div", { class: "way" }, element("b", {}, "with a cache"), element("small", {}, element("span", { class: "key new" }), "computed in this step, and kept",
      element("span", { class: "key kept" }), "kept from before, only read", element("span", { class: "key empty" }), "room"), cached),
    detail, element("div", { class: "lower" }, element("div", {}, table), element("div", {}, element("small", {}, "what the model thinks comes next"), choices)), invariant);
  el.append(box);

  // A token's key: the same numbers, however often it is computed.
  function look(i) {
    looked = i;
    const times = moments.slice(0, at + 1).filter((m) => m.computed_naive > i).length;
    detail.textContent = i === null ? "Point at a token, or reach it with the Tab key, to see its key."
      : `The key of “${visible(tokens[i])}” begins with ${keys[i].map((x) => x.toFixed(2)).join(", ")} (first layer, first head). Computed by the naive way: ${times} time${times === 1 ? "" : "s"}, the same each time. With the cache: once.`;
    for (const row of [naive, cached]) row.querySelectorAll("[data-token]").forEach((c) => c.classList.toggle("on", Number(c.dataset.token) === i));
  }
  function cell(i, kind) {
    const c = element("span", { class: `cell ${kind}`, "data-token": String(i), tabindex: "0" }, visible(tokens[i]));
    c.addEventListener("mouseenter", () => look(i));
    c.addEventListener("focus", () => look(i));
    return c;
  }

  function draw() {
    const now = moments[at], first = now.stored - now.computed_cached;
    slider.value = String(at);
    title.textContent = `step ${at + 1} of ${moments.length}`;
    back.disabled = at === 0; forward.disabled = at === last;
    says.replaceChildren(tokens.slice(0, now.stored).join("").replaceAll("\n", "↵"), element("b", { "data-name": "said" }, now.said.replaceAll("\n", "↵")));
    naive.replaceChildren(); cached.replaceChildren();
    for (let i = 0; i < now.computed_naive; i++) naive.append(cell(i, "now"));
    for (let i = 0; i < now.stored; i++) cached.append(cell(i, i < first ? "kept" : "new"));
    for (let i = now.stored; i < now.room; i++) cached.append(element("span", { class: "cell empty" }));
    choices.replaceChildren();
    for (const [text, share] of now.choices) {
      choices.append(element("div", { class: "choice" }, element("span", {}, visible(text)), element("i", { style: `width:${100 * share}%` }), element("span", {}, `${(100 * share).toFixed(0)}%`)));
    }
    const total = (name) => moments.slice(0, at + 1).reduce((sum, m) => sum + m[name], 0);
    const sums = { naive: total("computed_naive"), cached: total("computed_cached") };
    const row = (label, ...cells) => element("tr", {}, element("td", {}, label), ...cells.map(([name, value]) => element("td", { "data-name": name }, value)));
    table.replaceChildren(
      element("tr", {}, ...["", "naive", "with a cache"].map((t) => element("th", {}, t))),
      row("tokens computed in this step", ["naive now", thousands(now.computed_naive)], ["cached now", thousands(now.computed_cached)]),
      row("tokens computed so far", ["naive in all", thousands(sums.naive)], ["cached in all", thousands(sums.cached)]),
      row("tokens whose keys and values are kept", ["kept naive", "0"], ["stored", thousands(now.stored)]),
      row("kilobytes they take", ["", "0"], ["used", (now.bytes_used / 1000).toFixed(1)]),
      row("kilobytes reserved", ["", "0"], ["reserved", (now.bytes_reserved / 1000).toFixed(1)]));
    const right = sums.cached === now.stored && now.stored === now.computed_naive && now.stored <= now.room && now.said === tokens[now.stored];
    invariant.className = right ? "ok" : "wrong";
    invariant.textContent = right ? `Each of ${now.stored} tokens was computed once and is in the cache; both ways chose the same next token.` : "the books of the cache are wrong";
    look(null);
    model.set("state", { step: at + 1 });
    model.save_changes();
  }
  draw();
}

export default { render };

// Step through decoding: without a cache every token is computed again, with one each is computed once and keeps it.
// In a notebook all numbers come from Python: a real model, a real cache (web/pieces/decoding.py). On the page the model
// there writes on whatever the reader types, and a clock runs for both ways.

import { box, element, player, textField, thousands, visible } from "./common.js";
import { likeliest, softmax } from "../model/sampling.js";

const STYLE = `
.dec .says { margin: 8px 0; min-height: 3em } .dec .says b { background: var(--green-tint); border-radius: 3px; padding: 1px 3px; white-space: pre }
.dec .way { margin-top: 10px } .dec .row { display: flex; flex-wrap: wrap; gap: 3px; margin-top: 2px; min-height: 27px }
.dec .cell { font: 12px/21px var(--code); padding: 1px 4px; border-radius: 3px; border: 1px solid transparent; white-space: pre; min-width: 10px; text-align: center }
.dec :is(.cell.now, .cell.new, .key.new) { background: var(--orange-tint); border-color: var(--orange) }
.dec :is(.cell.kept, .key.kept) { background: var(--blue-tint); border-color: var(--blue) }
.dec .cell.empty { border: 1px dashed var(--muted); min-width: 16px; height: 21px } .dec .cell.on { outline: 2px solid var(--ink) }
.dec .key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; border: 1px solid; margin: 0 4px 0 12px; vertical-align: -1px }
.dec .key.empty { border: 1px dashed var(--muted) }
.dec .lower { display: flex; gap: 12px 36px; flex-wrap: wrap; margin-top: 12px } .dec .choices { min-width: 240px }
.dec .choice { display: grid; grid-template-columns: 90px 1fr 44px; gap: 6px; align-items: center; font: 12px var(--code); white-space: pre }
.dec .choice i { height: 11px; background: var(--muted); border-radius: 2px; display: block } .dec .choice:first-child i { background: var(--green) }
.dec table { min-width: min(31em, 100%) } .dec table td, .dec table th { text-align: right !important; padding: 1px 0 1px 18px } .dec table td:first-child, .dec table th:first-child { text-align: left !important; padding-left: 0 }
.dec .detail { min-height: 4.5em; margin-top: 8px }`;

const MOST_PROMPT = 40, NEW_TOKENS = 16, FIRST_ROOM = 8;

// The same as `Decoding.of` in Python: the likeliest token each time, without a cache and with one.
async function decode(lm, ids, tokenizer, bytesOf) {
  const moments = [], prompt = ids.length;
  let room = FIRST_ROOM;
  const timed = async (who) => {
    const began = performance.now();
    return [await lm.logits(ids, who), performance.now() - began];
  };
  await lm.logits(ids);  // the weights are there, and the code is compiled, before the clock runs
  for (let n = 0; n < NEW_TOKENS; n++) {
    if (!n) await lm.logits([ids[0] ? 0 : 1], "decoding");  // another text: nothing of this one is in the cache
    await lm.logits([ids[0] ? 0 : 1], "without");
    const [naive, msNaive] = await timed("without"), [logits, msCached] = await timed("decoding");
    const best = likeliest(logits), probs = softmax(logits);
    if (best !== likeliest(naive)) throw new Error(`after ${ids.length} tokens the way without a cache and the cache disagree`);
    while (room < ids.length) room *= 2;
    moments.push({ computed_naive: ids.length, computed_cached: n ? 1 : prompt, stored: ids.length, room, bytes_used: ids.length * bytesOf,
      bytes_reserved: room * bytesOf, said: tokenizer.decode([best]), ms: [msNaive, msCached],
      choices: [...probs.keys()].sort((a, b) => probs[b] - probs[a]).slice(0, 4).map((id) => [tokenizer.decode([id]), probs[id]]) });
    ids = [...ids, best];
  }
  const { seen } = await lm.trace(ids.slice(0, -1), ["qkv"]);
  const qkv = seen.find((s) => s.layer === 0).values, width = qkv.length / (ids.length - 1) / 3;
  const keys = ids.slice(0, -1).map((_, t) => [...qkv.subarray(t * 3 * width + width, t * 3 * width + width + 3)]);
  return { moments, keys, tokens: ids.map((id) => tokenizer.decode([id])) };
}

function render({ data, el, lm }) {
  const bytesOf = data.moments[0].bytes_used / data.moments[0].stored;
  let { moments, tokens, keys } = data, at = 0;
  const steps = player(600, draw);
  const says = element("div", { class: "says", "data-name": "says", "aria-live": "polite" });
  const naive = element("div", { class: "row", "data-row": "naive" }), cached = element("div", { class: "row", "data-row": "cached" });
  const choices = element("div", { class: "choices" }), table = element("table"), detail = element("div", { class: "detail", "data-name": "detail", "aria-live": "polite" });
  const invariant = element("div", { "data-name": "invariant" });
  const frame = box("dec", STYLE, steps.bar, says,
    element("div", { class: "way" }, element("b", {}, "without a cache"), element("small", {}, element("span", { class: "key new" }), "computed in this step, and forgotten"), naive),
    element("div", { class: "way" }, element("b", {}, "with a cache"), element("small", {}, element("span", { class: "key new" }), "computed in this step, and kept",
      element("span", { class: "key kept" }), "kept from before, only read", element("span", { class: "key empty" }), "room"), cached),
    detail, element("div", { class: "lower" }, element("div", {}, table), element("div", {}, element("small", {}, "what the model thinks comes next"), choices)), invariant);
  if (lm) {
    frame.prepend(textField(tokens.slice(0, data.prompt_tokens).join(""), MOST_PROMPT, lm, async (ids, tokenizer) => {
      ({ moments, tokens, keys } = await decode(lm, ids, tokenizer, bytesOf));
      begin();
    }));
  }
  el.append(frame);

  // A token's key: the same numbers, however often it is computed.
  function look(i) {
    const times = moments.slice(0, at + 1).filter((m) => m.computed_naive > i).length;
    detail.textContent = i === null ? "Point at a token, or reach it with the Tab key, to see its key."
      : `The key of “${visible(tokens[i])}” begins with ${keys[i].map((x) => x.toFixed(2)).join(", ")} (first layer, first head). Computed without a cache: ${times} time${times === 1 ? "" : "s"}, the same each time. With the cache: once.`;
    for (const row of [naive, cached]) row.querySelectorAll("[data-token]").forEach((c) => c.classList.toggle("on", Number(c.dataset.token) === i));
  }
  function cell(i, kind) {
    const c = element("span", { class: `cell ${kind}`, "data-token": String(i), tabindex: "0" }, visible(tokens[i]));
    c.addEventListener("mouseenter", () => look(i));
    c.addEventListener("focus", () => look(i));
    return c;
  }

  function draw(step) {
    at = step;
    const now = moments[at], first = now.stored - now.computed_cached;
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
      element("tr", {}, ...["", "without a cache", "with a cache"].map((t) => element("th", {}, t))),
      row("tokens computed in this step", ["naive now", thousands(now.computed_naive)], ["cached now", thousands(now.computed_cached)]),
      row("tokens computed so far", ["naive in all", thousands(sums.naive)], ["cached in all", thousands(sums.cached)]),
      row("tokens whose keys and values are kept", ["kept naive", "0"], ["stored", thousands(now.stored)]),
      ...(now.ms ? [row("milliseconds of this step, in your browser", ["ms naive", now.ms[0].toFixed(0)], ["ms cached", now.ms[1].toFixed(0)])] : []),
      row("kilobytes they take (32-bit numbers)", ["", "0"], ["used", (now.bytes_used / 1000).toFixed(1)]),
      row("kilobytes reserved", ["", "0"], ["reserved", (now.bytes_reserved / 1000).toFixed(1)]));
    const right = sums.cached === now.stored && now.stored === now.computed_naive && now.stored <= now.room && now.said === tokens[now.stored];
    invariant.className = right ? "ok" : "wrong";
    invariant.textContent = right ? `Each of ${now.stored} tokens was computed once and is in the cache; both ways chose the same next token.` : "the books of the cache are wrong";
    look(null);
  }
  // The texts get the room of the last step at once: nothing below them moves from step to step.
  function begin() {
    const growing = [says, naive, cached];
    for (const part of growing) part.style.minHeight = "";
    draw(moments.length - 1);
    for (const part of growing) part.style.minHeight = `${part.offsetHeight}px`;
    steps.begin(moments.length);
  }
  begin();
}

export default { render };

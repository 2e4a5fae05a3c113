// The knobs of sampling on a real distribution: which tokens are left, how likely each is, and what is drawn.

import { box, element, followAddress, showCounts, thousands } from "./common.js";
import { draw, toProbs } from "../model/sampling.js";

const STYLE = `
.sam .knobs { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 6px 18px; margin: 8px 0 }
.sam .knobs input { width: 100% } .sam .knobs .reading { font-weight: 400; float: right; font-variant-numeric: tabular-nums }
.sam .bars { display: grid; grid-template-columns: minmax(70px, max-content) 1fr max-content; gap: 3px 8px; align-items: center; font: 13px/1.5 var(--code) }
.sam .bars i { display: block; height: 14px; background: var(--blue); border-radius: 2px; min-width: 1px }
.sam .before { grid-area: 1 / 1; background: var(--faint) !important } .sam .after { grid-area: 1 / 1 }
.sam .pair { display: grid } .sam .gone { color: var(--muted); text-decoration: line-through }
.sam .drawn b { background: var(--orange-tint); border-radius: 3px; padding: 1px 4px; white-space: pre-wrap; font-weight: 600 }`;

const SHOWN = 12;  // of the likeliest tokens
const KNOBS = [
  // name, what it does, lowest, highest, step, at first
  ["temperature", "divides the scores", 0, 2, 0.05, 1],
  ["top_k", "keeps so many (0: all)", 0, 50, 1, 0],
  ["top_p", "keeps this share of the probability", 0.05, 1, 0.05, 1],
  ["min_p", "drops what is less likely than this share of the likeliest", 0, 0.5, 0.01, 0],
];

// data: { text, logits, tokens: the text of each token }. With `lm` (on the page) the text can be changed.
function render({ data, el, lm }) {
  let { text, logits, tokens } = data;
  const input = element("textarea", { rows: "2", "aria-label": "text" });
  input.value = text;
  input.readOnly = !lm;
  const sliders = {}, readings = {}, knobs = element("div", { class: "knobs" });
  for (const [name, does, min, max, step, value] of KNOBS) {
    sliders[name] = element("input", { type: "range", min, max, step, value, "aria-label": name });
    readings[name] = element("b", { class: "reading" });
    knobs.append(element("label", { title: does }, name, readings[name], sliders[name]));
    sliders[name].addEventListener("input", show);
  }
  const counts = element("div", { class: "counts" }), bars = element("div", { class: "bars" });
  const drawButton = element("button", { "data-do": "draw" }, "draw a token");
  const drawn = element("p", { class: "drawn", "aria-live": "polite" }), status = element("p", { role: "status" });
  el.append(box("sam", STYLE, input, knobs, counts, bars, element("div", { class: "bar" }, drawButton), drawn, status));

  function show() {
    const settings = Object.fromEntries(KNOBS.map(([name]) => [name, Number(sliders[name].value)]));
    for (const [name] of KNOBS) readings[name].textContent = settings[name];
    const before = toProbs(logits), probs = toProbs(logits, settings);
    const order = [...before.keys()].sort((a, b) => before[b] - before[a]).slice(0, SHOWN);
    const widest = Math.max(...order.map((id) => Math.max(before[id], probs[id])));
    bars.replaceChildren();
    for (const id of order) {
      const width = (p) => `width:${(100 * p) / widest}%`;
      bars.append(
        element("span", { class: probs[id] ? "" : "gone" }, tokens[id]),
        element("span", { class: "pair" }, element("i", { class: "before", style: width(before[id]) }),
          element("i", { class: "after", style: probs[id] ? width(probs[id]) : "display:none" })),
        element("span", { "data-id": id }, percent(probs[id])));
    }
    const left = probs.filter((p) => p > 0);
    const surprise = left.reduce((sum, p) => sum - p * Math.log2(p), 0);
    showCounts(counts, [["tokens left", thousands(left.length)], ["the likeliest", percent(Math.max(...left))],
      ["bits of surprise, on average", surprise.toFixed(2)]]);
    return probs;
  }

  async function ask() {
    const ids = (await lm.tokenizer()).encode(input.value).slice(-512);
    if (ids.length === 0) { status.textContent = "Write something: the model needs a beginning."; return; }
    logits = await lm.logits(ids, "sampling");
    status.textContent = "";
    show();
  }
  if (lm) {
    let last = Promise.resolve();
    input.addEventListener("input", () => { drawn.replaceChildren(); last = last.then(ask).catch((error) => { status.textContent = error.message; }); });
  }
  drawButton.addEventListener("click", () => {
    const id = draw(show());
    drawn.replaceChildren("drawn: ", element("b", {}, tokens[id]));
    if (lm) {
      const more = element("button", { "data-do": "append" }, "append it");
      more.addEventListener("click", async () => {
        input.value += (await lm.tokenizer()).decode([id]);
        input.dispatchEvent(new Event("input"));
        drawButton.focus();
      });
      drawn.append(" ", more);
    }
  });
  show();
  if (lm) followAddress(input);
}

const percent = (p) => (p ? `${(100 * p).toFixed(1)}%` : "out");

export default { render };

// The logit lens: what the model would answer if it ended after each of its layers.

import { box, element, textField, visible } from "./common.js";
import { softmax } from "../model/sampling.js";

const STYLE = `
.len table { width: 100%; table-layout: fixed } .len th:first-child { width: 5.5em }
.len td { padding: 1px 4px 1px 0; overflow: hidden; white-space: nowrap; text-overflow: ellipsis }
.len td.guess { border: 1px solid var(--paper); border-radius: 3px; padding: 2px 5px } .len td.final { font-weight: 700; outline: 1px solid var(--green); outline-offset: -2px }
.len td small { color: inherit }
@media (max-width: 600px) { .len td.guess small { display: block } .len th { font-size: 11px } }`;

const SHOWN = 4, MOST_TOKENS = 200;

// data: { text, rows: for each layer, from before the first to the last, [[token, probability], ...] }.
function render({ data, el, lm }) {
  const table = element("table"), says = element("p", { "data-name": "says", "aria-live": "polite" });
  const frame = box("len", STYLE, says, table, element("small", {}, "Each row: the four most probable next tokens if the model ended there. At once: before the first layer, from the vector of the last token alone."));
  frame.prepend(lm ? textField(data.text, MOST_TOKENS, lm, ask) : element("p", {}, data.text));
  el.append(frame);

  async function ask(ids, tokenizer) {
    const { seen } = await lm.trace(ids, ["embedded", "after block"]);
    const width = seen[0].values.length / ids.length, hidden = new Float32Array(seen.length * width);
    seen.forEach(({ values }, layer) => hidden.set(values.subarray(-width), layer * width));
    const logits = await lm.lens(hidden), vocabulary = logits.length / seen.length;
    draw(seen.map((_, layer) => {
      const probs = softmax(logits.subarray(layer * vocabulary, (layer + 1) * vocabulary));
      return [...probs.keys()].sort((a, b) => probs[b] - probs[a]).slice(0, SHOWN).map((id) => [tokenizer.show(id), probs[id]]);
    }));
  }

  function draw(rows) {
    const answer = rows.at(-1)[0][0], decided = rows.findLastIndex((row) => row[0][0] !== answer) + 1;
    says.replaceChildren("The model answers ", element("b", { "data-name": "answer" }, visible(answer)), decided
      ? `. It leads from layer ${decided} of ${rows.length - 1} on.` : ". It leads before the first layer already.");
    table.replaceChildren(element("tr", {}, ...["ends", "first", "second", "third", "fourth"].map((t) => element("th", {}, t))));
    rows.forEach((row, layer) => table.append(element("tr", { "data-layer": String(layer) },
      element("td", {}, layer ? `after ${layer}` : "at once"),
      ...row.map(([token, p]) => element("td", { class: "guess" + (token === answer ? " final" : ""), title: `${visible(token)}: ${(100 * p).toFixed(1)}%`,
        style: `background:color-mix(in srgb, var(--blue-tint) ${(100 * Math.sqrt(p)).toFixed(0)}%, var(--paper)) !important` },
        visible(token), " ", element("small", {}, `${(100 * p).toFixed(1)}%`))))));
  }
  draw(data.rows);
}

export default { render };

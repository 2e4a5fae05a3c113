// Hover the attention of a real model: which token attends to which, in each layer and head.

import { box, element, textField, visible } from "./common.js";

const STYLE = `
.att .text { margin: 8px 0; line-height: 2 } .att .text span { padding: 3px 2px; border-radius: 3px; white-space: pre-wrap; cursor: default }
.att .text span.looks { outline: 2px solid var(--orange) }
.att .grid { display: grid; gap: 1px; max-width: 100%; overflow-x: auto }
.att .cell { height: 22px } .att .cell.future { background: repeating-linear-gradient(45deg, var(--faint), var(--faint) 3px, var(--paper) 3px, var(--paper) 6px) }
.att .cell.on { outline: 2px solid var(--orange) }
.att .row { font: 12px var(--code); text-align: right; padding-right: 6px; white-space: pre; line-height: 22px }
.att .column { font: 12px var(--code); writing-mode: vertical-rl; transform: rotate(180deg); white-space: pre; justify-self: center; padding-top: 4px }
.att .says { min-height: 3em; margin-top: 8px }`;

const MOST_TOKENS = 40;  // that one can still tell apart

const shade = (weight) => `color-mix(in srgb, var(--blue) ${(100 * Math.min(1, weight)).toFixed(1)}%, transparent)`;

// data: { tokens, weights: [layer][head][query][key], layer, head }. With `lm` (on the page) the text can be changed.
function render({ data, el, lm }) {
  const { layer, head, ...first } = data;
  let { tokens, weights } = first, spans = [], cells = [];
  const choose = (name, count, at) => {
    const select = element("select", { "aria-label": name });
    for (let i = 0; i < count; i++) select.append(element("option", { value: String(i) }, String(i + 1)));
    select.value = String(at);
    select.addEventListener("change", draw);
    return select;
  };
  const layers = choose("layer", weights.length, layer), heads = choose("head", weights[0].length, head);
  const text = element("div", { class: "text" });
  const grid = element("div", { class: "grid", tabindex: "0", role: "application", "aria-label": "map of weights: the arrow keys move" });
  const says = element("div", { class: "says", "data-name": "says", "aria-live": "polite" });
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  let place = null;  // [query, key] that is looked at
  grid.addEventListener("keydown", (event) => {
    if (!moves[event.key]) return;
    event.preventDefault();
    const [down, right] = moves[event.key], [q, k] = place;
    const query = Math.max(0, Math.min(tokens.length - 1, q + down));
    look(query, Math.max(0, Math.min(query, (k === null ? query : k) + (k === null ? 0 : right))));
  });
  const frame = box("att", STYLE, element("div", { class: "bar" }, element("label", {}, "layer ", layers), element("label", {}, "head ", heads)),
    text, grid, says);
  if (lm) frame.prepend(textField(tokens.join(""), MOST_TOKENS, lm, ask));
  el.append(frame);

  async function ask(ids, tokenizer) {
    const { seen } = await lm.trace(ids, ["attention"]);
    weights = weights.map((heads) => heads.map(() => []));
    for (const { layer, values } of seen) weights[layer][values.head][values.token] = [...values.weights];
    tokens = ids.map((id) => tokenizer.decode([id]));
    write();
  }

  function write() {
    spans = tokens.map((t, i) => {
      const span = element("span", { "data-token": String(i), tabindex: "0" }, t.replaceAll("\n", "↵"));
      ["mouseenter", "focus", "click"].forEach((event) => span.addEventListener(event, () => look(i, null)));
      return span;
    });
    text.replaceChildren(...spans);
    grid.style.gridTemplateColumns = `max-content repeat(${tokens.length}, minmax(12px, 26px))`;
    draw();
  }

  function row(query) { return weights[Number(layers.value)][Number(heads.value)][query]; }

  function look(query, key) {
    const weights = row(query);
    place = [query, key];
    spans.forEach((span, i) => {
      span.style.background = i <= query ? shade(weights[i]) : "";
      span.style.color = i <= query && weights[i] > 0.5 ? "var(--paper)" : "";
      span.classList.toggle("looks", i === query);
    });
    cells.forEach((line, q) => line.forEach((cell, k) => cell.classList.toggle("on", q === query && k === key)));
    const sum = weights.reduce((a, b) => a + b, 0);
    const most = weights.indexOf(Math.max(...weights));
    says.replaceChildren(
      key === null
        ? element("span", {}, `“${visible(tokens[query])}” looks most at “${visible(tokens[most])}”: `, element("b", { "data-name": "weight" }, weights[most].toFixed(3)))
        : element("span", {}, `“${visible(tokens[query])}” gives “${visible(tokens[key])}” a weight of `, element("b", { "data-name": "weight" }, weights[key].toFixed(3))),
      element("br"), `Its ${weights.length} weights add up to `, element("b", { "data-name": "sum" }, sum.toFixed(2)), ".");
  }

  function draw() {
    grid.replaceChildren();
    cells = tokens.map((token, query) => {
      grid.append(element("div", { class: "row" }, visible(token)));
      const weights = row(query);
      return tokens.map((_, key) => {
        const cell = element("div", { class: "cell" + (key > query ? " future" : ""), "data-cell": `${query},${key}` });
        if (key <= query) {
          cell.style.background = shade(weights[key]);
          ["mouseenter", "click"].forEach((event) => cell.addEventListener(event, () => look(query, key)));
        }
        grid.append(cell);
        return cell;
      });
    });
    grid.append(element("div"));
    tokens.forEach((token) => grid.append(element("div", { class: "column" }, visible(token))));
    look(tokens.length - 1, null);
  }
  write();
}

export default { render };

// Hover the attention of a real model: who looks at whom, in each layer and head.

import { element, keepKeys } from "./common.js";

const STYLE = `
.att { background:#fff; color:#1f2933; border:1px solid #e3e7eb; border-radius:10px; padding:14px; font:14px/1.5 system-ui,sans-serif }
[data-jp-theme-light="false"] .att { filter:brightness(.87) }
.att select { font:inherit; margin-right:14px; color:inherit; background:#fff }
.att .text { margin:8px 0; line-height:2 } .att .text span { padding:3px 2px; border-radius:3px; white-space:pre; cursor:default }
.att .text span.looks { outline:2px solid #e07b39 }
.att .grid { display:grid; gap:1px; width:max-content; max-width:100%; overflow-x:auto }
.att .cell { width:26px; height:22px } .att .cell.future { background:repeating-linear-gradient(45deg,#f3f5f7,#f3f5f7 3px,#fff 3px,#fff 6px) }
.att .cell.on { outline:2px solid #e07b39 }
.att .row { font:12px ui-monospace,monospace; text-align:right; padding-right:6px; white-space:pre; line-height:22px }
.att .column { font:12px ui-monospace,monospace; writing-mode:vertical-rl; transform:rotate(180deg); white-space:pre; justify-self:center; padding-top:4px }
.att .says { min-height:3em; margin-top:8px }`;

const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "↵");
const shade = (weight) => `rgba(47,111,176,${Math.min(1, weight).toFixed(3)})`;

function render({ model, el }) {
  const { tokens, weights, layer, head } = model.get("data");
  const box = element("div", { class: "att" });
  keepKeys(box);
  const choose = (name, count, at) => {
    const select = element("select", { "aria-label": name });
    for (let i = 0; i < count; i++) select.append(element("option", { value: String(i) }, String(i)));
    select.value = String(at);
    select.addEventListener("change", draw);
    return select;
  };
  const layers = choose("layer", weights.length, layer), heads = choose("head", weights[0].length, head);
  const text = element("div", { class: "text" });
  const spans = tokens.map((t, i) => {
    const span = element("span", { "data-token": String(i), tabindex: "0" }, t.replaceAll("\n", "↵"));
    ["mouseenter", "focus", "click"].forEach((event) => span.addEventListener(event, () => look(i, null)));
    return span;
  });
  text.append(...spans);
  const grid = element("div", { class: "grid", tabindex: "0", role: "application", "aria-label": "map of weights: the arrow keys move", style: `grid-template-columns:max-content repeat(${tokens.length},26px)` });
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
  box.append(element("style", {}, STYLE), element("label", {}, "layer ", layers), element("label", {}, "head ", heads),
    text, grid, says);
  el.append(box);
  let cells = [];

  function row(query) { return weights[Number(layers.value)][Number(heads.value)][query]; }

  function look(query, key) {
    const weights = row(query);
    place = [query, key];
    spans.forEach((span, i) => {
      span.style.background = i <= query ? shade(weights[i]) : "";
      span.style.color = i <= query && weights[i] > 0.6 ? "#fff" : "";
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
    model.set("state", { layer: Number(layers.value), head: Number(heads.value), query, key });
    model.save_changes();
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
  draw();
}

export default { render };

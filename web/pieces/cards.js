// More than one card: a model cut across all layers (tensor parallelism), and cut between layers (pipeline parallelism).
// The rules are those of web/pieces/cards.py, from data sheets; nothing is measured.

import { COLORS, box, element, short, showCounts } from "./common.js";

const STYLE = `
.car .hold { display: grid; gap: 4px; margin: 6px 0 } .car .hold div { border: 1px solid var(--muted); border-radius: 4px; padding: 3px 6px; font-size: 13px; background: var(--faint) }
.car .time { display: grid; gap: 2px; margin: 6px 0 } .car .time span { height: 20px; border-radius: 2px; background: var(--faint); font: 12px/20px system-ui; text-align: center; color: var(--paper); overflow: hidden }
.car h4 small { font-weight: 400 }`;

const CARDS = [1, 2, 4, 8], USERS = [1, 2, 4, 8, 16, 32, 64, 128], MICRO = [1, 2, 4, 8, 16];

function tensorParallel({ layers, vector, weights, kv_bytes }, cards, users, wire, data) {
  const sums = cards > 1 ? 2 * layers : 0, summed = sums * users * vector, sent = (summed * 2 * (cards - 1)) / cards;
  const read = (weights + kv_bytes * users * data.context) / cards;
  return { summed, sent, wire: sent / wire, delay: sums * data.delay, read: read / data.bandwidth };
}

function render({ data, el }) {
  const { start } = data;
  const choose = (label, names, at) => {
    const select = element("select", { "aria-label": label });
    for (const name of names) select.append(element("option", { value: name }, name));
    select.value = at;
    select.addEventListener("change", draw);
    return select;
  };
  const slide = (label, values, at) => {
    const slider = element("input", { type: "range", min: "0", max: String(values.length - 1), value: String(values.indexOf(at)), "aria-label": label }), shown = element("b");
    slider.addEventListener("input", draw);
    return { field: element("label", {}, label, " ", slider, " ", shown), value: () => { const now = values[Number(slider.value)]; shown.textContent = String(now); return now; } };
  };
  const name = choose("model", Object.keys(data.models), start.model), wire = choose("wire", Object.keys(data.wires), "NVLink");
  const cards = slide("cards", CARDS, start.cards), users = slide("users", USERS, start.users), micro = slide("micro-batches", MICRO, start.micro_batches);
  const together = element("div", { "data-way": "together", "aria-live": "polite" }), row = element("div", { "data-way": "row", "aria-live": "polite" });
  el.append(box("car", STYLE, element("div", { class: "bar" }, name, wire, cards.field, users.field, micro.field), together, row));

  function draw() {
    const shape = data.models[name.value], n = cards.value(), u = users.value(), m = micro.value();
    const gb = (bytes) => `${short(bytes / 1e9)} GB`, mb = (bytes) => `${short(bytes / 1e6)} MB`, ms = (s) => `${short(1e3 * s)} ms`;
    const shared = tensorParallel(shape, n, u, data.wires[wire.value], data), columns = `grid-template-columns:repeat(${Math.min(n, 4)}, 1fr)`;
    const hold = (text) => element("div", { class: "hold", style: columns }, ...Array.from({ length: n }, (_, i) => element("div", {}, element("b", {}, `card ${i + 1}`), element("br"), text(i))));

    const first = element("div", { class: "counts" });
    showCounts(first, [["a card's weights", gb(shape.weights / n)], ["of its memory", `${Math.round((100 * shape.weights) / n / data.memory)}%`], ["reading them and the caches", ms(shared.read)], ["into all-reduces", mb(shared.summed)],
      ["sent by each card", mb(shared.sent)], ["on the wire", ms(shared.wire)], ["fixed delays", ms(shared.delay)]]);
    together.replaceChildren(element("h4", {}, "tensor parallelism ", element("small", {}, "a part of every layer on each card")),
      hold(() => `1/${n} of ${shape.layers} layers, ${shape.kv_heads / n} KV heads`), first);

    const second = element("div", { class: "counts" }), handed = u * shape.vector;
    showCounts(second, [["handed on, each time", mb(handed)], ["times a step", n - 1], ["bubble", `${Math.round((100 * (n - 1)) / (m + n - 1))}%`]]);
    const slots = Array.from({ length: n }, (_, stage) => Array.from({ length: m + n - 1 }, (_, t) => {
      const batch = t - stage, busy = batch >= 0 && batch < m;
      return element("span", busy ? { style: `background:${COLORS[batch % COLORS.length]}`, title: `card ${stage + 1}, micro-batch ${batch + 1}` } : { class: "idle", title: `card ${stage + 1} waits` }, busy ? String(batch + 1) : "");
    })).flat();
    const ends = (i) => Math.round((i * shape.layers) / n);
    row.replaceChildren(element("h4", {}, "pipeline parallelism ", element("small", {}, "some layers, whole, on each card; below, time from left to right, a row a card, a number a micro-batch")),
      hold((i) => `layers ${ends(i) + 1} to ${ends(i + 1)}`), element("div", { class: "time", style: `grid-template-columns:repeat(${m + n - 1}, 1fr)` }, ...slots), second);
  }
  draw();
}

export default { render };

// The roofline of a decode step, with a batch to drag. The rules are those of `ComputedCost` in
// phase4_scheduler/simulator/cost_model.py: what a step reads and computes, at the limits of the card's data sheet.

import { box, element, short, showCounts, thousands } from "./common.js";

const STYLE = `
.roof .bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 4px 10px; align-items: center; margin: 10px 0 }
.roof .bars i { display: block; height: 16px; border-radius: 2px; min-width: 1px } .roof .bars .two { display: flex; gap: 1px }
.roof .of-weights { background: var(--blue) } .roof .of-kv { background: var(--orange) } .roof .of-arithmetic { background: var(--green) }
.roof .key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin: 0 4px 0 0; vertical-align: -1px }
.roof .values { font-variant-numeric: tabular-nums }`;

const USERS = Array.from({ length: 512 }, (_, i) => i + 1), CONTEXTS = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768];
const PLACES = 16;  // tokens in a block of the KV cache

// What one decode step costs in which every user has `context` tokens, the new one among them.
function stepOf(cost, users, context) {
  const weights = 2 * (cost.weights + cost.head), kv = cost.kv_bytes * users * context;
  const operations = 2 * users * (cost.weights + cost.head) + cost.attention * users * context;
  const memory = (weights + kv) / cost.ceilings.bandwidth, arithmetic = operations / cost.ceilings.rate;
  return { weights, kv, operations, memory, arithmetic, seconds: Math.max(memory, arithmetic) };
}

function render({ data, el }) {
  const { models, cards, costs, start } = data;
  const choose = (label, names, at) => {
    const select = element("select", { "aria-label": label });
    for (const [value, text] of names) select.append(element("option", { value }, text));
    select.value = at;
    select.addEventListener("change", draw);
    return select;
  };
  const slide = (label, values, at) => {
    const slider = element("input", { type: "range", min: "0", max: String(values.length - 1), value: String(values.indexOf(at)), "aria-label": label });
    slider.addEventListener("input", draw);
    return slider;
  };
  const name = choose("model", models.map((m) => [m, m]), start.model), card = choose("card", Object.entries(cards), start.card);
  const users = slide("users", USERS, start.users), context = slide("tokens each", CONTEXTS, start.context);
  const key = (kind, text) => element("span", {}, element("span", { class: "key of-" + kind }), text);
  const usersText = element("b"), contextText = element("b"), says = element("p", { "data-name": "says", "aria-live": "polite" });
  const bars = element("div", { class: "bars" }), counts = element("div", { class: "counts" });
  el.append(box("roof", STYLE, element("div", { class: "bar" }, name, "on", card),
    element("div", { class: "bar" }, element("label", {}, "users ", users, " ", usersText), element("label", {}, "tokens each ", context, " ", contextText)),
    says, bars, element("small", {}, key("weights", "weights, read once for all "), key("kv", "keys and values of each user ")), counts));

  function draw() {
    const cost = costs[`${name.value} ${card.value}`], n = USERS[users.value], length = CONTEXTS[context.value];
    usersText.textContent = thousands(n);
    contextText.textContent = thousands(length);
    bars.replaceChildren();
    counts.replaceChildren();
    if (!cost) { says.textContent = `${name.value} in 16 bit does not fit on this card.`; return; }
    if (length > cost.max_context) { says.textContent = `${name.value} looks at no more than ${thousands(cost.max_context)} tokens.`; return; }
    const step = stepOf(cost, n, length), needed = n * Math.ceil(length / PLACES), fits = needed <= cost.num_blocks;
    const limit = step.memory >= step.arithmetic ? "memory" : "arithmetic";
    const widest = step.seconds, ms = (seconds) => `${short(1e3 * seconds)} ms`, gigabytes = (blocks) => `${short((blocks * PLACES * cost.kv_bytes) / 1e9)} GB`;
    const part = (kind, seconds) => element("i", { class: "of-" + kind, style: `width:${(100 * seconds) / widest}%` });
    bars.append("memory", element("div", { class: "two" }, part("weights", step.weights / cost.ceilings.bandwidth), part("kv", step.kv / cost.ceilings.bandwidth)),
      element("span", { class: "values", "data-name": "memory" }, ms(step.memory)),
      "arithmetic", element("div", {}, part("arithmetic", step.arithmetic)), element("span", { class: "values", "data-name": "arithmetic" }, ms(step.arithmetic)));
    says.textContent = fits ? `The step is limited by ${limit}: it cannot be shorter than ${ms(step.seconds)}.`
      : `They do not fit on the card: the caches of ${thousands(n)} users with ${thousands(length)} tokens each take ${gigabytes(needed)}, and beside the weights it has room for ${gigabytes(cost.num_blocks)}.`;
    if (!fits) bars.replaceChildren();
    else showCounts(counts, [["limited by", limit], ["tokens a second, all users", thousands(Math.round(n / step.seconds))],
      ["tokens a second, each", short(1 / step.seconds)], ["operations a byte", short(step.operations / (step.weights + step.kv))],
      ["where both limits meet", short(cost.ceilings.rate / cost.ceilings.bandwidth)]]);
  }
  draw();
}

export default { render };

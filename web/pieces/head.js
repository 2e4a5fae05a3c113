// One attention head, number by number: the three words of phase2_attention_kvcache/story/attention_by_hand.py, whose
// numbers can be changed, and on the page a head of the model there, on a text of the reader's.

import { box, button, element, scrolling, stale, textField, visible } from "./common.js";

const STYLE = `
.hea .scrolls table { min-width: 34em } .hea td, .hea th { text-align: right !important; padding: 2px 0 2px 14px; overflow-wrap: normal } .hea td { white-space: nowrap } .hea :is(td, th):first-child { text-align: left !important; padding-left: 0; white-space: pre }
.hea td.left, .hea th.left { text-align: left !important } .hea tr.sum td { border-top: 1px solid var(--muted) !important; font-weight: 700 }
.hea td.weight { background: color-mix(in srgb, var(--blue-tint) var(--share), var(--paper)) !important }
.hea input[type=number] { width: 4.2em; border: 1px solid var(--muted); border-radius: 4px; padding: 1px 4px } .hea fieldset { border: 0; padding: 0; margin: 6px 0; display: flex; flex-wrap: wrap; gap: 6px 20px } .hea fieldset span { display: inline-flex; gap: 5px; align-items: center }
.hea .chosen td { background: var(--orange-tint) !important } .hea .products { max-height: 16em; overflow: auto } .hea td button { font: inherit; padding: 0 6px; min-height: 24px; white-space: pre }
.hea .matrices { display: flex; flex-wrap: wrap; gap: 2px 28px } .hea .matrices table { border-left: 1px solid var(--muted); border-right: 1px solid var(--muted) } .hea .matrices td { padding: 0 8px !important; text-align: right !important }`;

const MOST_WORDS = 8, SHOWN_NUMBERS = 3, SHOWN_WHERE_NARROW = 2;

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const times = (vector, matrix) => matrix[0].map((_, column) => dot(vector, matrix.map((row) => row[column])));

// What the token with query q takes of those that it sees: from keys and values to the mixture, every number kept.
function attendByHand(q, keys, values) {
  const raw = keys.map((k) => dot(q, k)), scaled = raw.map((s) => s / Math.sqrt(q.length)), largest = Math.max(...scaled);
  const powers = scaled.map((s) => Math.exp(s - largest)), sum = powers.reduce((a, b) => a + b, 0), weights = powers.map((p) => p / sum);
  return { raw, scaled, powers, sum, weights, out: q.map((_, i) => weights.reduce((total, w, m) => total + w * values[m][i], 0)) };
}

function render({ data, el, lm }) {
  const byHand = { tokens: data.words, vectors: data.vectors.map((v) => [...v]) };
  let real = null, key = 0;  // real: { tokens, qkv by layer } of the reader's text
  const who = element("select", { "aria-label": "who looks" }), inputs = element("fieldset", { "aria-label": "the vectors of the three words" });
  const choose = (label, count) => {
    const select = element("select", { "aria-label": label });
    for (let i = 0; i < count; i++) select.append(element("option", { value: String(i) }, String(i + 1)));
    select.addEventListener("change", draw);
    return select;
  };
  const layer = choose("layer", data.layers), head = choose("head", data.heads), ofModel = element("div", { hidden: "" }), heads = element("div", { class: "bar" }, element("label", {}, "layer ", layer), element("label", {}, "head ", head));
  const source = element("select", { "aria-label": "whose numbers" }, element("option", { value: "hand" }, "three words, small numbers"), ...(lm ? [element("option", { value: "model" }, "a head of the page's model")] : []));
  const queries = element("p", { "data-name": "query" }), table = element("table"), products = element("table"), says = element("p", { "data-name": "says", "aria-live": "polite" }), title = element("h4");
  const missing = element("p", { class: "wrong", role: "status" }), matrices = element("div", { class: "matrices" }), worked = element("p", { "data-name": "worked" });
  matrices.append(...data.matrices.map((matrix, m) => element("div", {}, ["query", "key", "value"][m], " matrix", element("table", {}, ...matrix.map((row) => element("tr", {}, ...row.map((x) => element("td", {}, String(x)))))))));
  who.addEventListener("change", draw);
  source.addEventListener("change", () => { key = 0; fill(); });
  for (const [w, word] of data.words.entries()) {
    inputs.append(element("span", {}, `vector of “${word}”`, ...byHand.vectors[w].map((x, i) => {
      const input = element("input", { type: "number", step: "1", value: String(x), "aria-label": `${word}, number ${i + 1}` });
      input.addEventListener("input", () => {
        const right = [...inputs.querySelectorAll("input")].every((each) => each.value !== "");
        missing.textContent = right ? "" : "Each field needs a number. What is shown belongs to the last complete ones.";
        stale(inputs, !right);
        if (right) { byHand.vectors[w][i] = Number(input.value); draw(); }
      });
      return input;
    })));
  }
  if (lm) {
    let asked = false;
    const field = textField(data.text, MOST_WORDS, lm, ask);
    ofModel.append(field, heads);
    if (field.querySelector("textarea").value !== data.text) [source.value, asked] = ["model", true];  // a prompt of the address
    source.addEventListener("change", () => { if (!asked && source.value === "model") { asked = true; field.querySelector("textarea").dispatchEvent(new Event("input")); } });
  }
  el.append(box("hea", STYLE, element("div", { class: "bar" }, source, element("label", {}, "who looks ", who)), inputs, missing, matrices, worked, ofModel, queries, scrolling("from scores to the mixture", table),
    element("small", {}, "The largest of the divided scores is subtracted before e^ is taken: the weights stay the same, and no power becomes too large for the number format."), says,
    title, element("div", { class: "products", tabindex: "0", role: "region", "aria-label": "products" }, products)));

  async function ask(ids, tokenizer) {
    const { seen } = await lm.trace(ids, ["qkv"]);
    real = { tokens: ids.map((id) => tokenizer.show(id)), qkv: seen.map(({ values }) => values) };
    fill();
  }

  // Tokens, queries, keys and values of what is looked at.
  function numbers() {
    if (source.value === "hand") {
      const [q, k, v] = data.matrices.map((matrix) => byHand.vectors.map((x) => times(x, matrix)));
      return { tokens: byHand.tokens, q, k, v, show: (x) => String(Math.round(1000 * x) / 1000) };
    }
    const { tokens, qkv } = real, values = qkv[Number(layer.value)], width = values.length / tokens.length / 3, size = width / data.heads, from = Number(head.value) * size;
    const part = (which) => tokens.map((_, t) => [...values.subarray(t * 3 * width + which * width + from, t * 3 * width + which * width + from + size)]);
    return { tokens, q: part(0), k: part(1), v: part(2), show: (x) => x.toFixed(3) };
  }

  function fill() {
    const isHand = source.value === "hand";
    for (const part of [inputs, missing, matrices, worked]) part.hidden = !isHand;
    ofModel.hidden = isHand;
    if (!isHand && !real) return;
    const { tokens } = numbers();
    who.replaceChildren(...tokens.map((t, i) => element("option", { value: String(i) }, visible(t))));
    who.value = String(tokens.length - 1);
    key = 0;
    draw();
  }

  function draw() {
    if (source.value === "model" && !real) return;
    const { tokens, q, k, v, show } = numbers(), query = Number(who.value), seen = query + 1, size = q[0].length, few = Math.min(size, size > SHOWN_NUMBERS && matchMedia("(max-width: 700px)").matches ? SHOWN_WHERE_NARROW : SHOWN_NUMBERS);
    const list = (vector) => vector.slice(0, few).map(show).join("  ") + (size > few ? "  …" : "");
    const { raw, scaled, powers, sum, weights, out } = attendByHand(q[query], k.slice(0, seen), v.slice(0, seen));
    key = Math.min(key, query);
    if (source.value === "hand") {
      const x = byHand.vectors[query];
      worked.textContent = `Each vector times a matrix gives a query, a key or a value. The first number of the query of “${tokens[query]}”: ${x.map((n, i) => `${n} × ${data.matrices[0][i][0]}`).join(" + ")} = ${show(q[query][0])}.`;
    }
    queries.replaceChildren("The query of ", element("b", {}, `“${visible(tokens[query])}”`), `: ${list(q[query])}${size > few ? ` (${size} numbers)` : ""}`);
    const cell = (name, text, attributes = {}) => element("td", { "data-name": name, ...attributes }, text);
    table.replaceChildren(
      element("tr", {}, ...["", "key", "score", `/ √${size}`, "e^(it − largest)", "weight", "value"].map((t) => element("th", {}, t))),
      ...tokens.slice(0, seen).map((t, m) => {
        const pick = button("products", visible(t), () => { key = m; draw(); });
        pick.setAttribute("aria-pressed", String(m === key));
        return element("tr", { "data-token": String(m), class: m === key ? "chosen" : "" }, element("td", {}, pick), cell("key", list(k[m])), cell("score", show(raw[m])), cell("scaled", scaled[m].toFixed(3)),
          cell("power", powers[m].toFixed(4)), cell("weight", weights[m].toFixed(4), { class: "weight", style: `--share:${(100 * weights[m]).toFixed(0)}%` }), cell("value", list(v[m])));
      }),
      element("tr", { class: "sum" }, element("td", {}, "sum"), element("td"), element("td"), element("td"), cell("sum of powers", sum.toFixed(4)), cell("sum of weights", weights.reduce((a, b) => a + b, 0).toFixed(4)),
        cell("out", out.slice(0, few).map((x) => x.toFixed(3)).join("  ") + (size > few ? "  …" : ""))));
    says.textContent = `“${visible(tokens[query])}” takes ${weights.map((w, m) => `${(100 * w).toFixed(0)}% of “${visible(tokens[m])}”`).join(", ")}.` + (seen < tokens.length ? ` It does not see ${tokens.slice(seen).map((t) => `“${visible(t)}”`).join(", ")}: the causal mask.` : "");
    title.replaceChildren(`the score of “${visible(tokens[query])}” and “${visible(tokens[key])}”: ${size} products, added up`);
    let total = 0;
    products.replaceChildren(element("tr", {}, ...["", "query", "key", "product", "sum so far"].map((t) => element("th", {}, t))),
      ...q[query].map((x, i) => { total += x * k[key][i]; return element("tr", {}, element("td", {}, `number ${i + 1}`), element("td", {}, show(x)), element("td", {}, show(k[key][i])), element("td", {}, show(x * k[key][i])), element("td", { "data-name": i === size - 1 ? "score of products" : "so far" }, show(total))); }));
  }
  fill();
}

export default { render };

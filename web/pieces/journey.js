// One prompt from the text to the next token: tokens, vectors, attention, cache, scores. Each stage opens its section.

import { box, button, element, shape, textField, thousands, visible, withPrompt } from "./common.js";
import { softmax } from "../model/sampling.js";

const STYLE = `
.jou ol.stages { list-style: none; margin: 10px 0 0; padding: 0 } .jou ol.stages > li { border: 1px solid var(--line); border-left: 4px solid var(--blue); border-radius: 8px; padding: 8px 12px; margin: 0 0 22px; position: relative }
.jou ol.stages > li:not(:last-child)::after { content: "↓"; position: absolute; left: 50%; bottom: -23px; color: var(--muted); line-height: 22px } .jou ol.stages > li:last-child { margin: 0 }
.jou .terms a { color: inherit; margin-right: 6px } .jou .head { display: flex; flex-wrap: wrap; gap: 0 12px; justify-content: space-between } .jou .says { min-height: 3em }
.jou .text { line-height: 2; padding: 3px } .jou .text button { border: 0; padding: 2px 1px; min-height: 24px; border-radius: 3px; white-space: pre-wrap; background: var(--faint); margin: 0 2px 2px 0 }
.jou .text button[aria-pressed="true"] { outline: 2px solid var(--orange) } .jou .text small { display: block; line-height: 1.2; font-size: 11px; color: var(--ink) }
.jou .seen span { border-radius: 3px; padding: 2px 1px; white-space: pre-wrap } .jou .seen { line-height: 1.9 }
.jou svg { display: block; width: 100%; height: 56px } .jou svg .up { fill: var(--blue) } .jou svg .down { fill: var(--orange) } .jou svg line { stroke: var(--muted) }
.jou .blocks { display: flex; flex-wrap: wrap; gap: 6px 10px; margin: 6px 0 } .jou .block { display: flex; border: 1px solid var(--muted); border-radius: 4px; padding: 2px; gap: 1px }
.jou .block i { width: 9px; height: 18px; background: var(--blue-tint); border: 1px solid var(--blue); border-radius: 2px; box-sizing: border-box } .jou .block i.empty { background: none; border: 1px dashed var(--muted) } .jou .block i.on { background: var(--orange) }
.jou .scores { display: grid; grid-template-columns: minmax(60px, max-content) 4em 1fr 4em; gap: 3px 8px; align-items: center; font: 13px/1.5 var(--code) } .jou .scores i { display: block; height: 12px; background: var(--blue); border-radius: 2px; min-width: 1px }
.jou .next b { background: var(--green-tint); border-radius: 3px; padding: 2px 6px; white-space: pre-wrap }`;

const MOST_TOKENS = 60, BARS = 32, LISTED = 3, BEST = 5;

// Words of each stage, by their keys in the glossary, from which the page takes what they mean.
const TERMS = { tokens: { token: "token", vocabulary: "vocabulary" }, embeddings: { vector: "vector", embedding: "embedding" },
  attention: { attention: "attention", "attention-weights": "attention weights", head: "head", layer: "layer" }, "kv-cache": { "kv-cache": "KV cache", query: "key, value", "block-phase3": "block" },
  stacking: { score: "score", logits: "logits", softmax: "softmax" }, sampling: { sampling: "sampling" } };
const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
// A token that is a part of a character, such as of an emoji, is shown as its bytes.
const nameOf = (tokenizer, id) => (tokenizer.decode([id]).includes("\ufffd") ? tokenizer.show(id) : tokenizer.decode([id]));
const percent = (p) => `${(100 * p).toFixed(1)}%`;

// data: { text, config, state }, a state: { ids, tokens, vectors: [token][first numbers], weights: [layer][query][key], means
// over the heads, best: [[token, score, probability, text if it is another], ...] }. With `lm` (on the page) the text can be changed.
function render({ data, el, lm }) {
  const { layers, heads, head_size, block_size, vocabulary } = data.config, width = heads * head_size;
  let { text, state } = data, chosen = state.ids.length - 1;
  const part = (name) => element("div", { "data-name": name });
  const tokens = element("div", { class: "text" }), vector = part("vector"), seen = element("div", { class: "seen" }), cache = part("blocks"), scores = element("div", { class: "scores" });
  cache.className = "blocks";
  const says = Object.fromEntries(["tokens", "vector", "attention", "cache", "scores"].map((name) => [name, element("div", { "data-name": `${name} says`, "aria-live": "polite" })]));
  says.attention.className = "says";
  const layer = element("input", { type: "range", min: "1", max: String(layers), value: String(layers), "aria-label": "layer" }), layerShown = element("b");
  layer.addEventListener("input", drawChosen);
  const next = element("b", { "data-name": "next" }), links = [];
  const append = button("append", "append it, and go round again", () => {
    const input = field.querySelector("textarea");
    input.value = text + (state.best[0][3] ?? state.best[0][0]);
    input.dispatchEvent(new Event("input"));
  });
  const full = element("small", { role: "status" });
  const stage = (name, section, title, ...inside) => {
    const link = element("a", { href: `${section}.html` }, `section: ${title}`);
    links.push(link);
    const terms = Object.entries(TERMS[section]).map(([key, term]) => element("a", { class: "term", href: `glossary.html#${key}` }, term));
    const words = element("small", { class: "terms" }, "words: ", ...terms);
    return element("li", { "data-stage": section }, element("div", { class: "head" }, element("b", {}, name), link), words, ...inside);
  };
  const frame = box("jou", STYLE,
    element("ol", { class: "stages" },
      stage("1. Tokens", "tokens", data.sections.tokens, says.tokens, tokens),
      stage("2. Vectors", "embeddings", data.sections.embeddings, says.vector, vector),
      stage("3. Attention", "attention", data.sections.attention, element("div", { class: "bar" }, element("label", {}, "layer ", layer), layerShown), says.attention, seen),
      stage("4. KV cache", "kv-cache", data.sections["kv-cache"], says.cache, cache),
      stage("5. Scores", "stacking", data.sections.stacking, says.scores, scores),
      stage("6. Next token", "sampling", data.sections.sampling, element("p", { class: "next", "aria-live": "polite" }, "The most probable token: ", next), ...(lm ? [append, full] : []))));
  const field = lm ? textField(text, MOST_TOKENS, lm, ask) : element("p", {}, text);
  frame.children[0].after(field);
  el.append(frame);

  let writing = null;
  async function ask(ids, tokenizer) {
    state = stateOf(ids, tokenizer, await lm.trace(ids, ["embedded", "attention"]));
    text = tokenizer.decode(ids);
    chosen = ids.length - 1;
    draw();
    clearTimeout(writing);  // browsers limit how often an address changes
    writing = setTimeout(() => history.replaceState(null, "", withPrompt(location.href, text)), 400);
  }

  function stateOf(ids, tokenizer, { logits, seen: watched }) {
    const embedded = watched.find(({ name }) => name === "embedded").values, weights = Array.from({ length: layers }, () => ids.map((_, q) => new Array(q + 1).fill(0)));
    for (const { name, layer: at, values } of watched) {
      if (name === "attention") values.weights.forEach((w, key) => { weights[at][values.token][key] += w / heads; });
    }
    const probs = softmax(logits), best = [...probs.keys()].sort((a, b) => probs[b] - probs[a]).slice(0, BEST);
    return { ids, tokens: ids.map((id) => nameOf(tokenizer, id)), weights, vectors: ids.map((_, t) => [...embedded.subarray(t * width, t * width + BARS)]),
      best: best.map((id) => [nameOf(tokenizer, id), logits[id], probs[id], tokenizer.decode([id])]) };
  }

  function draw() {
    const { ids, best } = state, count = ids.length, blocks = Math.ceil(count / block_size);
    says.tokens.replaceChildren(`${many([...text].length, "character")} ${[...text].length === 1 ? "becomes" : "become"} `, element("b", { "data-name": "count" }, String(count)), ` ${count === 1 ? "token" : "tokens"} of a vocabulary of ${thousands(vocabulary)}.`);
    tokens.replaceChildren(...state.tokens.map((token, t) => {
      const choice = button(`token ${t}`, visible(token), () => { chosen = t; drawChosen(); });
      choice.append(element("small", {}, String(ids[t])));
      return choice;
    }));
    const numbers = 2 * layers * heads * head_size * count;
    says.cache.replaceChildren(`A key and a value for each token, in each of ${layers} layers and ${heads} heads, ${head_size} numbers each: 2 × ${layers} × ${heads} × ${head_size} × ${count} = `,
      element("b", { "data-name": "numbers" }, thousands(numbers)), ` numbers. The next step reads them and computes one token. In blocks of ${block_size} tokens: `,
      element("b", { "data-name": "block count" }, String(blocks)), `, with room for ${blocks * block_size - count} more.`);
    cache.replaceChildren(...Array.from({ length: blocks }, (_, b) => element("span", { class: "block" },
      ...Array.from({ length: block_size }, (_, i) => element("i", b * block_size + i < count ? {} : { class: "empty" })))));
    says.scores.textContent = `The last token's vector is compared with all ${thousands(vocabulary)} rows of the token table. The highest scores, and the probabilities that softmax makes of them:`;
    scores.replaceChildren(...best.flatMap(([token, score, p], i) => [element("span", {}, visible(token)), element("span", { "data-score": String(i) }, score.toFixed(2)),
      element("i", { style: `width:${(100 * p) / best[0][2]}%` }), element("span", { "data-probability": String(i) }, percent(p))]));
    next.textContent = visible(best[0][0]);
    append.disabled = count >= MOST_TOKENS;
    full.textContent = append.disabled ? ` This piece looks at ${MOST_TOKENS} tokens: shorten the text to go on.` : "";
    for (const link of links) link.href = withPrompt(link.href, text);
    drawChosen();
  }

  // What depends on the token and the layer that the reader chose.
  function drawChosen() {
    const { tokens: names, vectors, weights } = state, at = Number(layer.value) - 1, name = `“${visible(names[chosen])}”`;
    [...tokens.children].forEach((choice, t) => choice.setAttribute("aria-pressed", String(t === chosen)));
    [...cache.querySelectorAll("i")].forEach((cell, t) => cell.classList.toggle("on", t === chosen));
    const numbers = vectors[chosen], most = Math.max(...numbers.map(Math.abs));
    says.vector.replaceChildren(`${name}, at place ${chosen + 1}, becomes ${width} numbers: its row of the token table plus the vector of its place. They begin `, element("b", { "data-name": "numbers of the vector" }, numbers.slice(0, 4).map((x) => x.toFixed(3)).join(", ")), `. The first ${BARS}:`);
    vector.replaceChildren(shape("svg", { viewBox: `0 0 ${BARS * 10} 56`, preserveAspectRatio: "none", role: "img", "aria-label": `the first ${BARS} numbers of the vector` },
      ...numbers.map((x, i) => shape("rect", { class: x < 0 ? "down" : "up", x: i * 10 + 1, y: x < 0 ? 28 : 28 - (27 * x) / most, width: 8, height: (27 * Math.abs(x)) / most })), shape("line", { x1: 0, x2: BARS * 10, y1: 28, y2: 28 })));
    const row = weights[at][chosen], order = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, LISTED);
    layerShown.textContent = `${at + 1} of ${layers}`;
    says.attention.textContent = `${name} attends most to ${order.map((key) => `“${visible(names[key])}” (${percent(row[key])})`).join(", ")}: mean of the ${heads} heads. The stronger the colour, the larger the weight; later tokens are not seen.`;
    seen.replaceChildren(...names.map((token, key) => element("span", { "data-key": String(key), title: key < row.length ? percent(row[key]) : "not seen",
      style: key < row.length ? `background:color-mix(in srgb, var(--blue) ${(40 * Math.sqrt(row[key] / row[order[0]])).toFixed(0)}%, transparent)` : "text-decoration:line-through" }, visible(token).replaceAll("␣", " "))));
  }
  draw();
}

export default { render };

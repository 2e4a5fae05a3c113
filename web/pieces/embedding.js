// A map of the reader's words: their vectors, flattened to the two directions in which they differ most.

import { box, element, followAddress, showCounts, stale } from "./common.js";

const STYLE = `
.emb input { width: 100%; box-sizing: border-box; border: 1px solid var(--muted); border-radius: 5px; padding: 4px 8px }
.emb .map { position: relative; height: 300px; background: var(--faint); border-radius: 6px; margin: 8px 0; overflow: hidden }
.emb .map button { position: absolute; transform: translate(-50%, -50%); border: 0; background: none; padding: 2px 5px; min-height: 24px; white-space: nowrap; border-radius: 4px }
.emb .map button.chosen { z-index: 1; background: var(--orange-tint); font-weight: 600 }`;

const MOST_WORDS = 24, NEAREST = 6;

// Vectors [n][width] -> places [n][2]: the two principal components, found by multiplying again and again.
function flatten(vectors) {
  const width = vectors[0].length, mean = Array.from({ length: width }, (_, i) => vectors.reduce((sum, v) => sum + v[i], 0) / vectors.length);
  const centred = vectors.map((v) => mean.map((m, i) => v[i] - m));
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const gram = centred.map((a) => centred.map((b) => dot(a, b)));
  const total = gram.reduce((sum, row, i) => sum + row[i], 0), found = [];
  for (let component = 0; component < 2; component++) {
    let u = vectors.map((_, i) => Math.sin(i + 1)), size = 0;
    for (let round = 0; round < 500; round++) {
      let next = gram.map((row) => dot(row, u));
      for (const other of found) next = next.map((x, i) => x - dot(next, other.u) * other.u[i]);
      size = Math.sqrt(dot(next, next));
      if (size < 1e-9) break;
      u = next.map((x) => x / size);
    }
    found.push({ u, size });
  }
  return { places: vectors.map((_, i) => found.map(({ u, size }) => u[i] * Math.sqrt(size))), kept: total ? (found[0].size + found[1].size) / total : 0 };
}

// Labels that lie on each other move apart, up and down, until none does. All stay inside the frame.
function spread(labels, frame) {
  const within = (spot, moved) => Math.min(frame.bottom - spot.bottom, Math.max(frame.top - spot.top, moved));
  const spots = labels.map((label) => { const { left, right, top, bottom } = label.getBoundingClientRect(); return { left, right, top, bottom, moved: 0 }; });
  for (let round = 0, touched = true; touched && round < 200; round++) {
    touched = false;
    spots.forEach((a, i) => spots.slice(i + 1).forEach((b) => {
      const shared = Math.min(a.bottom + a.moved, b.bottom + b.moved) - Math.max(a.top + a.moved, b.top + b.moved);
      if (shared <= 0.5 || a.right <= b.left || b.right <= a.left) return;
      const way = a.top + a.moved <= b.top + b.moved ? 1 : -1;
      a.moved = within(a, a.moved - (way * shared) / 2);
      b.moved = within(b, b.moved + (way * shared) / 2);
      touched = true;
    }));
  }
  labels.forEach((label, i) => { label.style.marginTop = `${spots[i].moved}px`; });
}

// data: { words, vectors, nearest: { word: [[word, cosine], ...] } }. With `lm` (on the page) the words can be changed.
function render({ data, el, lm }) {
  const input = element("input", { type: "text", value: data.words.join(" "), "aria-label": "words" }), status = element("p", { role: "status", class: "wrong" });
  input.readOnly = !lm;
  const map = element("div", { class: "map" }), near = element("p", { "data-name": "near", "aria-live": "polite" }), counts = element("div", { class: "counts" });
  el.append(box("emb", STYLE, input, status, map, near, counts));
  let last = Promise.resolve();
  if (lm) input.addEventListener("input", () => { last = last.then(ask).catch((error) => { status.textContent = error.message; }); });

  async function ask() {
    const tokenizer = await lm.tokenizer(), typed = [...new Set(input.value.split(/[\s,;]+/).filter(Boolean))].slice(0, MOST_WORDS);
    const ids = typed.map((word) => tokenizer.encode(" " + word)), single = typed.filter((_, i) => ids[i].length === 1);
    const others = typed.filter((_, i) => ids[i].length > 1);
    status.textContent = others.length ? `No vector of its own, since it takes several tokens: ${others.join(", ")}.` : "";
    stale(input, single.length < 3);
    if (single.length < 3) { status.textContent ||= "Write at least three words."; return; }
    const rows = await lm.rows(ids.flatMap((id) => (id.length === 1 ? id : []))), width = rows.length / single.length;
    const nearest = async (word) => (await lm.nearest(tokenizer.encode(" " + word)[0], NEAREST)).map(([id, cosine]) => [tokenizer.decode([id]), cosine]);
    draw(single, single.map((_, i) => [...rows.subarray(i * width, (i + 1) * width)]), nearest);
  }

  function draw(words, vectors, nearest) {
    const { places, kept } = flatten(vectors), reach = [0, 1].map((c) => Math.max(...places.map((p) => Math.abs(p[c]))) || 1);
    map.replaceChildren(...words.map((word, i) => {
      const [x, y] = places[i].map((p, c) => 50 + ((c ? 42 : 36) * p) / reach[c]);
      const at = element("button", { style: `left:${x}%;top:${y}%`, "data-place": places[i].join(" ") }, word);
      at.addEventListener("click", () => choose(word));
      return at;
    }));
    spread([...map.children], map.getBoundingClientRect());
    showCounts(counts, [["words", words.length], ["of their differences can be seen here", `${Math.round(100 * kept)}%`]]);
    async function choose(word) {
      for (const at of map.children) at.classList.toggle("chosen", at.textContent === word);
      near.textContent = `Nearest to “${word}” in the whole vocabulary: ${(await nearest(word)).map(([w, c]) => `${w.trim()} ${c.toFixed(2)}`).join(", ")}.`;
    }
    choose(words[0]);
  }
  draw(data.words, data.vectors, async (word) => data.nearest[word]);
  if (lm) followAddress(input);
}

export default { render };

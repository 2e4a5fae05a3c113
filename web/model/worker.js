// The model, in a thread of its own: the page stays smooth while it computes.

import { fetchWhole } from "./fetching.js";
import { KVCache, Transformer } from "./transformer.js";

let model = null;
const caches = new Map();  // one for each piece that asks

// Fetch a large file and tell how far it is.
async function fetchSlowly(url) {
  const answer = await fetchWhole(url);
  const size = Number(answer.headers.get("Content-Length")), parts = [];
  let received = 0;
  for (const reader = answer.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    received += value.length;
    postMessage({ received, size });
  }
  return new Blob(parts).arrayBuffer();
}

const calls = {
  async load({ folder }) {
    const config = await (await fetchWhole(folder + "config.json")).json();
    const code = await (await fetchWhole(new URL("linear.wasm", import.meta.url))).arrayBuffer();
    model = await Transformer.create(await fetchSlowly(folder + "model.safetensors"), config, code);
    return config;
  },

  // Scores of the token behind `ids`.
  logits({ ids, who }) {
    return model.next(ids, cacheOf(who));
  },

  // The same, with all that is computed on the way: { logits, seen: [{ name, layer, values }] }. Nothing is taken from a cache.
  trace({ ids, names }) {
    const seen = [];
    const logits = model.next(ids, new KVCache(model.config), (name, layer, values) => {
      if (names.includes(name)) seen.push({ name, layer, values });
    });
    return { logits, seen };
  },

  // Rows of the token table: ids -> [n x width].
  rows({ ids }) {
    const { n_embd: width } = model.config, out = new Float32Array(ids.length * width);
    ids.forEach((id, i) => out.set(model.row(id), i * width));
    return out;
  },

  // The tokens whose rows point most nearly the same way as that of `id`: [[id, cosine], ...].
  nearest({ id, count }) {
    const length = (v) => Math.sqrt(v.reduce((sum, x) => sum + x * x, 0)), mine = model.row(id);
    const cosines = Array.from({ length: model.config.vocab_size }, (_, other) => {
      const row = model.row(other);
      return [other, row.reduce((sum, x, i) => sum + x * mine[i], 0) / (length(row) * length(mine) || 1)];
    });
    return cosines.filter(([other]) => other !== id).sort((a, b) => b[1] - a[1]).slice(0, count);
  },

  // The `count` drawers of a layer's MLP that hand out most: how far each is open (`values`) times the length of its content.
  // With each the tokens whose scores the content raises most: [{ drawer, value, tokens: [[id, score], ...] }, ...].
  drawers({ layer, values, count }) {
    const { down } = model.blocks[layer], length = (v) => Math.sqrt(v.reduce((sum, x) => sum + x * x, 0));
    const given = Array.from(values, (value, drawer) => Math.abs(value) * length(down.column(drawer)));
    return [...values.keys()].sort((a, b) => given[b] - given[a]).slice(0, count).map((drawer) => {
      const scores = model.logits(down.column(drawer));
      return { drawer, value: values[drawer], tokens: [...scores.keys()].sort((a, b) => scores[b] - scores[a]).slice(0, count).map((id) => [id, scores[id]]) };
    });
  },

  // The scores that a vector of any layer would give: hidden [n x width] -> [n x vocabulary].
  lens({ hidden }) {
    return model.logits(model.finalNorm.apply(hidden));
  },
};

function cacheOf(who) {
  if (!caches.has(who)) caches.set(who, new KVCache(model.config));
  return caches.get(who);
}

onmessage = async ({ data: { call, number, ...rest } }) => {
  try {
    postMessage({ number, result: await calls[call](rest) });
  } catch (error) {
    postMessage({ number, error: error.message });
  }
};

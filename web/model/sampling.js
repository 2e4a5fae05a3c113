// From scores to a token: temperature, min_p, top_k, top_p, in this order.
// The same rules as phase2_attention_kvcache/model/truncation.py.

const LOWEST_TEMPERATURE = 0.01, HIGHEST_TEMPERATURE = 1e30;

export function softmax(scores) {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const shares = scores.map((s) => Math.exp(s - most));
  const sum = shares.reduce((a, b) => a + b, 0);
  return shares.map((s) => s / sum);
}

// Index of the largest: what greedy sampling takes.
export function likeliest(scores) {
  let best = 0;
  for (let i = 1; i < scores.length; i++) if (scores[i] > scores[best]) best = i;
  return best;
}

// Logits -> probabilities. Tokens exactly as likely as the last one kept are kept as well, in top_k and in top_p.
// temperature 0 is greedy: a single 1.
export function toProbs(logits, { temperature = 1, top_k = 0, top_p = 1, min_p = 0 } = {}) {
  if (temperature < 1e-5) {
    const best = likeliest(logits);
    return Float32Array.from(logits, (_, i) => (i === best ? 1 : 0));
  }
  const divisor = Math.min(Math.max(temperature, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE);
  let scores = Float32Array.from(logits, (s) => s / divisor);
  const keep = (lowest) => { scores = scores.map((s) => (s < lowest ? -Infinity : s)); };
  if (min_p > 0) keep(scores[likeliest(scores)] + Math.log(min_p));
  if (top_k > 0 && top_k < scores.length) keep(scores.toSorted().at(-top_k));
  const probs = softmax(scores);
  if (top_p >= 1) return probs;
  const falling = probs.toSorted().reverse();
  let before = 0, last = 0;  // what the likelier ones hold together
  while (last + 1 < falling.length && before + falling[last] < top_p) before += falling[last++];
  const kept = probs.map((p) => (p < falling[last] ? 0 : p));
  const sum = kept.reduce((a, b) => a + b, 0);
  return kept.map((p) => p / sum);
}

// Lay the tokens side by side on a line, each as wide as it is likely, and take the one at `point` (0 to 1) of it.
export function draw(probs, point = Math.random()) {
  const at = point * probs.reduce((a, b) => a + b, 0);
  let end = 0;
  for (let i = 0; i < probs.length; i++) {
    end += probs[i];
    if (at < end) return i;
  }
  return likeliest(probs);
}

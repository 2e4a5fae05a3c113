// GPT-2, whole, in float32: the same steps as phase2_attention_kvcache/model/transformer.py.
// Vectors of n tokens lie one behind the other in a Float32Array [n x width].

import { Linear, LinearMemory } from "./linear.js";
import { readSafetensors } from "./safetensors.js";
import { softmax } from "./sampling.js";

// Bring each token's vector to mean 0 and variance 1, then scale and shift.
class LayerNorm {
  constructor(weight, bias, eps) {
    Object.assign(this, { weight, bias, eps });
  }

  apply(x) {
    const width = this.weight.length, out = new Float32Array(x.length);
    for (let t = 0; t < x.length / width; t++) {
      const row = x.subarray(t * width, (t + 1) * width);
      const mean = row.reduce((sum, v) => sum + v, 0) / width;
      const variance = row.reduce((sum, v) => sum + (v - mean) ** 2, 0) / width;
      const scale = 1 / Math.sqrt(variance + this.eps);
      for (let i = 0; i < width; i++) out[t * width + i] = (row[i] - mean) * scale * this.weight[i] + this.bias[i];
    }
    return out;
  }
}

const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));

// [rows x columns] -> [columns x rows]. The file has GPT-2's matrices as [in x out]; a Linear wants them the other way.
function turned(matrix, rows, columns) {
  const out = new Float32Array(matrix.length);
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) out[c * rows + r] = matrix[r * columns + c];
  return out;
}

// Keys and values of one sequence, [tokens x width] in each layer.
export class KVCache {
  constructor(config) {
    const room = () => Array.from({ length: config.n_layer }, () => new Float32Array(config.n_positions * config.n_embd));
    this.keys = room();
    this.values = room();
    this.ids = [];  // whose keys and values these are
  }
}

export class Transformer {
  // file: a .safetensors file. config: config.json in Hugging Face's layout. code: linear.wasm. All but config as ArrayBuffers.
  static async create(file, config, code) {
    const tensors = readSafetensors(file), model = new Transformer();
    const memory = await LinearMemory.create(code, file.byteLength / 2, config.vocab_size);
    const tensor = (name) => tensors["transformer." + name];
    const norm = (name) => new LayerNorm(tensor(name + ".weight").values, tensor(name + ".bias").values, config.layer_norm_epsilon);
    const linear = (name) => {
      const { shape: [numIn, numOut], values } = tensor(name + ".weight");
      return new Linear(memory, turned(values, numIn, numOut), tensor(name + ".bias").values, numOut);
    };
    model.config = config;
    model.tokenTable = tensor("wte.weight").values;
    model.positionTable = tensor("wpe.weight").values;
    model.blocks = Array.from({ length: config.n_layer }, (_, i) => ({
      attentionNorm: norm(`h.${i}.ln_1`), qkv: linear(`h.${i}.attn.c_attn`), out: linear(`h.${i}.attn.c_proj`),
      mlpNorm: norm(`h.${i}.ln_2`), up: linear(`h.${i}.mlp.c_fc`), down: linear(`h.${i}.mlp.c_proj`),
    }));
    model.finalNorm = norm("ln_f");
    model.head = new Linear(memory, model.tokenTable, null, config.vocab_size);  // tied: the table serves a second time
    return model;
  }

  // The row of the token table for a token.
  row(id) {
    return this.tokenTable.subarray(id * this.config.n_embd, (id + 1) * this.config.n_embd);
  }

  // Run new tokens behind those in the cache through all blocks: ids -> hidden [n x width], after the last norm.
  // watch(name, layer, values) is shown what is computed on the way; see `attend` and below for the names.
  forward(ids, cache, watch = () => {}) {
    const { n_embd: width } = this.config, n = ids.length, first = cache.ids.length;
    let x = new Float32Array(n * width);
    for (let t = 0; t < n; t++) {
      for (let i = 0; i < width; i++) {
        x[t * width + i] = this.tokenTable[ids[t] * width + i] + this.positionTable[(first + t) * width + i];
      }
    }
    watch("embedded", 0, x);
    cache.ids.push(...ids);
    this.blocks.forEach((block, layer) => {
      const qkv = block.qkv.apply(block.attentionNorm.apply(x));
      const attended = block.out.apply(this.attend(qkv, n, layer, cache, watch));
      x = x.map((value, i) => value + attended[i]);
      watch("after attention", layer, x);
      const wide = block.up.apply(block.mlpNorm.apply(x)).map(gelu);
      watch("drawers", layer, wide);
      const thought = block.down.apply(wide);
      x = x.map((value, i) => value + thought[i]);
      watch("after block", layer, x);
    });
    return this.finalNorm.apply(x);
  }

  // Store the new keys and values of a layer; each new token takes the values of all that it may see.
  attend(qkv, n, layer, cache, watch) {
    const { n_embd: width, n_head: numHeads } = this.config, size = width / numHeads;
    const keys = cache.keys[layer], values = cache.values[layer];
    const end = cache.ids.length, first = end - n;
    for (let t = 0; t < n; t++) {
      const row = t * 3 * width;
      keys.set(qkv.subarray(row + width, row + 2 * width), (first + t) * width);
      values.set(qkv.subarray(row + 2 * width, row + 3 * width), (first + t) * width);
    }
    const out = new Float32Array(n * width);
    for (let head = 0; head < numHeads; head++) {
      for (let t = 0; t < n; t++) {
        const q = qkv.subarray(t * 3 * width + head * size, t * 3 * width + (head + 1) * size);
        const scores = new Float32Array(first + t + 1);  // the causal mask: nothing behind itself
        for (let m = 0; m < scores.length; m++) {
          let score = 0;
          for (let i = 0; i < size; i++) score += q[i] * keys[m * width + head * size + i];
          scores[m] = score / Math.sqrt(size);
        }
        const weights = softmax(scores);
        watch("attention", layer, { head, token: first + t, scores, weights });
        for (let m = 0; m < weights.length; m++) {
          for (let i = 0; i < size; i++) out[t * width + head * size + i] += weights[m] * values[m * width + head * size + i];
        }
      }
    }
    watch("qkv", layer, qkv);
    return out;
  }

  // Scores of all tokens as the next one: hidden [n x width] -> [n x vocabulary].
  logits(hidden) {
    return this.head.apply(hidden);
  }

  // The scores behind the last of `ids`. What the cache has of the same beginning is not computed again.
  next(ids, cache, watch) {
    const { n_positions: most } = this.config;
    if (ids.length < 1 || ids.length > most) throw new Error(`${ids.length} tokens: the model takes 1 to ${most}`);
    let same = 0;
    while (same < ids.length - 1 && ids[same] === cache.ids[same]) same++;
    cache.ids.length = same;
    return this.logits(this.forward(ids.slice(same), cache, watch).subarray(-this.config.n_embd));
  }
}

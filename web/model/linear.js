// Linear layers: nearly all the arithmetic of a step. Plain JavaScript took 14 ms for those of `tales`; four numbers at a
// time, in WebAssembly (linear.wat), they take a fraction of that.

const MOST_TOKENS = 128;  // at a time; more go in several calls
const BYTES = 4;  // of a float32

// The memory in which all weights of a model lie, and the function that works on it.
export class LinearMemory {
  // code: linear.wasm, as an ArrayBuffer. numWeights: of all layers. widest: the most inputs, and outputs, of a layer.
  static async create(code, numWeights, widest) {
    const room = numWeights + 2 * MOST_TOKENS * widest;
    const memory = new WebAssembly.Memory({ initial: Math.ceil((room * BYTES) / 65536) });
    const { instance } = await WebAssembly.instantiate(code, { page: { memory } });
    return Object.assign(new LinearMemory(), {
      linear: instance.exports.linear, numbers: new Float32Array(memory.buffer), x: 0, out: MOST_TOKENS * widest,
      used: 2 * MOST_TOKENS * widest,
    });
  }

  // Room for `size` numbers, at the place that is returned.
  take(size) {
    this.used += size;
    return this.used - size;
  }
}

export class Linear {
  // weight: [out x in], so that an output is a dot product of two rows. bias: [out], or null.
  constructor(memory, weight, bias, numOut) {
    Object.assign(this, { memory, bias, numOut, numIn: weight.length / numOut, place: memory.take(weight.length) });
    memory.numbers.set(weight, this.place);
  }

  // x [n x in] -> [n x out].
  apply(x) {
    const { memory: { numbers, linear, x: from, out: to }, bias, numIn, numOut, place } = this;
    const n = x.length / numIn, out = new Float32Array(n * numOut);
    for (let t = 0; t < n; t += MOST_TOKENS) {
      const some = Math.min(MOST_TOKENS, n - t);
      numbers.set(x.subarray(t * numIn, (t + some) * numIn), from);
      linear(from * BYTES, place * BYTES, to * BYTES, some, numIn * BYTES, numOut);
      out.set(numbers.subarray(to, to + some * numOut), t * numOut);
    }
    if (bias) for (let i = 0; i < out.length; i++) out[i] += bias[i % numOut];
    return out;
  }

  // What input i adds to the outputs, if it is 1: a column of the matrix.
  column(i) {
    const { memory: { numbers }, numIn, numOut, place } = this;
    return Float32Array.from({ length: numOut }, (_, o) => numbers[place + o * numIn + i]);
  }
}

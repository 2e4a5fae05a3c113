// A model file: eight bytes for the length of a header, the header in JSON, then the tensors. Phase 1, chapters/05-model-file.md.

// Returns name -> { shape, values }, values as float32. Of the formats this one reads BF16, which our models have:
// the upper half of a float32, so nothing is rounded.
export function readSafetensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [name, tensor] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, shape, data_offsets: [start, end] } = tensor;
    if (dtype !== "BF16") throw new Error(`${name} is ${dtype}: only BF16 is read here`);
    const bits = new Uint16Array(buffer.slice(8 + length + start, 8 + length + end));
    const values = new Float32Array(bits.length);
    const words = new Uint32Array(values.buffer);
    for (let i = 0; i < bits.length; i++) words[i] = bits[i] << 16;
    tensors[name] = { shape, values };
  }
  return tensors;
}

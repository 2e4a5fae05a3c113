// What a piece on the page asks: the model in its worker, and its tokenizer. Every answer is a promise.

import { fetchWhole } from "./fetching.js";
import { Tokenizer } from "./tokenizer.js";

const HERE = new URL(".", import.meta.url);

export class LanguageModel {
  // name: a folder beside this file. onProgress({ received, size }) hears how far the weights are, in bytes.
  constructor(name, onProgress = () => {}) {
    this.folder = new URL(name + "/", HERE).href;
    this.onProgress = onProgress;
    this.waiting = new Map();
  }

  // The tokenizer alone: some kilobytes, no weights.
  tokenizer() {
    this.reading ??= fetchWhole(this.folder + "tokenizer.json").then((answer) => answer.json()).then((data) => new Tokenizer(data));
    this.reading.catch(() => { this.reading = null; });  // the next call tries again
    return this.reading;
  }

  // Fetch the weights, once for all who ask. If they do not arrive the promise fails, and the next call tries again.
  load() {
    if (!this.loading) {
      this.worker = new Worker(new URL("worker.js", HERE), { type: "module" });
      this.worker.onmessage = ({ data }) => this.hear(data);
      this.worker.onerror = (event) => this.giveUp(new Error(event.message ?? "worker.js did not arrive"));
      this.loading = this.ask("load", { folder: this.folder }).then((config) => {
        this.config = config;
        return this;
      });
      this.loading.catch((error) => this.giveUp(error));
    }
    return this.loading;
  }

  // Scores [vocabulary] of each token as the one behind `ids`. `who` asks: what it asked before is not computed again,
  // as far as the beginning is the same.
  async logits(ids, who = "") {
    await this.load();
    return this.ask("logits", { ids, who });
  }

  // { logits, seen: [{ name, layer, values }] }: also what is computed on the way, as `forward` in transformer.js names it.
  async trace(ids, names) {
    await this.load();
    return this.ask("trace", { ids, names });
  }

  // The scores that vectors of any layer [n x width] would give, through the last norm and the LM head: [n x vocabulary].
  async lens(hidden) {
    await this.load();
    return this.ask("lens", { hidden });
  }

  // The drawers of a layer's MLP that hand out most, as the worker says: `values` are what `trace` shows as "drawers".
  async drawers(layer, values, count) {
    await this.load();
    return this.ask("drawers", { layer, values, count });
  }

  // Rows of the token table [n x width], and the tokens nearest to one: [[id, cosine], ...].
  async rows(ids) {
    await this.load();
    return this.ask("rows", { ids });
  }

  async nearest(id, count) {
    await this.load();
    return this.ask("nearest", { id, count });
  }

  // Without its worker the model is as it was before the first call.
  giveUp(error) {
    this.worker.terminate();
    this.loading = null;
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
  }

  ask(call, rest) {
    const number = (this.last = (this.last ?? 0) + 1);
    this.worker.postMessage({ call, number, ...rest });
    return new Promise((resolve, reject) => this.waiting.set(number, { resolve, reject }));
  }

  hear({ number, result, error, ...progress }) {
    if (number === undefined) return this.onProgress(progress);
    const { resolve, reject } = this.waiting.get(number);
    this.waiting.delete(number);
    return error === undefined ? resolve(result) : reject(new Error(error));
  }
}

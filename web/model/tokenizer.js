// Byte-level BPE: text -> ids -> text. The same rules as phase1_tokens_embeddings/tokens/bpe.py.

// White space as Unicode has it: JavaScript's own \s knows one character less and one more.
const SPLIT = /'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

export class Tokenizer {
  // byte_ids: the id of each of the 256 bytes. merges: [left, right, merged], in the order in which they were learned.
  constructor({ byte_ids, merges }) {
    this.byteIds = byte_ids;
    this.bytes = [];  // of each token
    byte_ids.forEach((id, byte) => { this.bytes[id] = [byte]; });
    this.ranks = new Map();  // pair -> [rank, merged]
    merges.forEach(([left, right, merged], rank) => {
      this.bytes[merged] = this.bytes[left].concat(this.bytes[right]);
      this.ranks.set(pairKey(left, right), [rank, merged]);
    });
  }

  // Merges never cross the end of a word. A half of a UTF-16 pair is no character and becomes U+FFFD.
  words(text) {
    return text.toWellFormed().match(SPLIT) ?? [];
  }

  // How a word is put together: its bytes, then the tokens after each merge, the one learned first first.
  // Of the merges only the first `limit` count.
  steps(word, limit = Infinity) {
    let ids = [...new TextEncoder().encode(word)].map((byte) => this.byteIds[byte]);
    const all = [{ ids }];
    for (;;) {
      let rank = limit, pair = null;
      for (let i = 0; i + 1 < ids.length; i++) {
        const found = this.ranks.get(pairKey(ids[i], ids[i + 1]));
        if (found && found[0] < rank) { rank = found[0]; pair = [ids[i], ids[i + 1], found[1]]; }
      }
      if (!pair) return all;
      const merged = [];
      for (let i = 0; i < ids.length; i++) {
        if (ids[i] === pair[0] && ids[i + 1] === pair[1]) { merged.push(pair[2]); i++; }
        else merged.push(ids[i]);
      }
      ids = merged;
      all.push({ ids, rank, pair });
    }
  }

  encode(text) {
    return this.words(text).flatMap((word) => this.steps(word).at(-1).ids);
  }

  // Bytes that form no character become U+FFFD.
  decode(ids) {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(ids.flatMap((id) => this.bytes[id] ?? [])));
  }

  // A token for people: a space, a line end and half a character can be seen.
  show(id) {
    return showBytes(this.bytes[id] ?? [...new TextEncoder().encode("<|endoftext|>")]);
  }
}

const pairKey = (left, right) => left * 65536 + right;

export function showBytes(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
    return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
  } catch {  // part of a character
    return bytes.map((b) => "<" + b.toString(16).toUpperCase().padStart(2, "0") + ">").join("");
  }
}

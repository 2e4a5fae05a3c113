// Brings the pieces of a page to life, each when it comes near the window.

import { fetchWhole } from "../model/fetching.js";
import { LanguageModel } from "../model/language_model.js";
import { element } from "../pieces/common.js";

const PIECES = new URL("../pieces/", import.meta.url);

// The language models of the page: weights are fetched when a piece first asks for them, and all pieces share them.
const tales = new LanguageModel("tales", showProgress), draft = new LanguageModel("tales-draft", showProgress);

function showProgress({ received, size }) {
  for (const bar of document.querySelectorAll(".weights progress")) {
    if (size) Object.assign(bar, { max: size, value: received });
  }
}

export function startPieces() {
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      start(target);
    }
  }, { rootMargin: "600px" });
  for (const place of document.querySelectorAll("[data-piece]")) near.observe(place);
}

async function start(place) {
  const { piece, module } = place.dataset;
  const live = place.querySelector(".live"), words = place.querySelector(".words");
  try {
    const [{ default: made }, data] = await Promise.all([
      import(new URL(module + ".js", PIECES)),
      fetchWhole(new URL(piece + ".json", PIECES)).then((answer) => answer.json()),
    ]);
    made.render({ data, el: live, lm: { ...withNotice(tales, live), draft: withNotice(draft, live) } });
    words.open = false;
    place.setAttribute("data-alive", "");
  } catch (error) {
    live.replaceChildren(`This piece could not be started (${error.message}). Below it stands in words.`);
  }
}

// The language model as one piece sees it: while the weights come, a bar; if they or the vocabulary do not arrive, a line
// and a button.
function withNotice(lm, live) {
  const notice = element("div", { class: "weights", role: "status", hidden: "" });
  live.before(notice);
  let arrival = null;
  const arrived = () => (arrival ??= insist("The model's weights", () => lm.load(), () => [element("label", {}, "fetching the model's weights ", element("progress"))]));
  async function insist(what, load, meanwhile = () => []) {
    for (;;) {
      notice.replaceChildren(...meanwhile());
      notice.hidden = !notice.hasChildNodes();
      try {
        const loaded = await load();
        notice.hidden = true;
        return loaded;
      } catch (error) {
        const again = element("button", {}, "try again");
        notice.replaceChildren(`${what} did not arrive (${error.message}). `, again);
        notice.hidden = false;
        await new Promise((resolve) => again.addEventListener("click", resolve));
      }
    }
  }
  const guarded = (method) => async (...args) => {
    await arrived();
    return lm[method](...args);
  };
  const asked = ["logits", "trace", "lens", "drawers", "rows", "nearest"].map((method) => [method, guarded(method)]);
  return { tokenizer: () => insist("The vocabulary", () => lm.tokenizer()), ...Object.fromEntries(asked) };
}

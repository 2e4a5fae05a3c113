// Brings the pieces of a page to life, each when it comes near the window.

import { standIn } from "../pieces/stand_in.js";
import { LanguageModel } from "../model/language_model.js";

const PIECES = new URL("../pieces/", import.meta.url);

// The language model of the page, fetched when a piece first asks it; all pieces share it.
const models = {};
export function languageModel(name = "tales") {
  return (models[name] ??= new LanguageModel(name, ({ received, size }) => {
    for (const bar of document.querySelectorAll(".weights progress")) {
      bar.max = size || 1;
      bar.value = received;
      bar.parentElement.hidden = received >= size;
    }
  }));
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
      fetch(new URL(piece + ".json", PIECES)).then((answer) => answer.json()),
    ]);
    const lm = withNotice(live);
    made.render({ model: standIn(data), el: live, lm });
    words.open = false;
    place.setAttribute("data-alive", "");
  } catch (error) {
    live.replaceChildren(`This piece could not be started (${error.message}). Below it stands in words.`);
  }
}

// The language model as one piece sees it: while the weights come, a bar; if they do not arrive, a line and a button.
function withNotice(live) {
  const notice = document.createElement("div");
  notice.className = "weights";
  notice.hidden = true;
  live.before(notice);
  const guarded = (model, method) => async (...args) => {
    if (!model.config) {
      notice.innerHTML = `<label>fetching the model's weights <progress></progress></label>`;
      notice.hidden = false;
      try {
        await model.load();
        notice.hidden = true;
      } catch (error) {
        const again = document.createElement("button");
        again.textContent = "try again";
        notice.replaceChildren(`The model's weights did not arrive (${error.message}). `, again);
        notice.hidden = false;
        return new Promise((resolve) => again.addEventListener("click", () => resolve(guarded(model, method)(...args))));
      }
    }
    return model[method](...args);
  };
  const seen = (name) => {
    const model = languageModel(name);
    const calls = Object.fromEntries(["load", "logits", "trace", "lens"].map((method) => [method, guarded(model, method)]));
    return { ...calls, tokenizer: () => model.tokenizer() };
  };
  return { ...seen("tales"), named: seen };
}

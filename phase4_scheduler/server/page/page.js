// The page's form: it sends the requests. answer.js shows an answer, engine.js the engine's figures.

import { Answer } from "./answer.js";
import { watchEngine } from "./engine.js";

const MOST_AT_ONCE = 5; // a browser opens six connections to a server, of which the engine's figures need one

const byId = (id) => document.getElementById(id);
const form = byId("ask");
const conversation = []; // messages of the turns that have ended
let asked = 0, running = 0;

watchEngine((live) => {
  byId("model").textContent = `${live.model} · context ${live.max_model_len.toLocaleString("en")}`;
  document.title = `${live.model} · Inference Lab`;
  byId("max-tokens").max = live.max_model_len;
  byId("modes").hidden = !live.can_chat;
});

const chats = () => form.elements.mode.value === "chat";

function request() {
  const body = {
    max_tokens: Number(byId("max-tokens").value),
    temperature: Number(byId("temperature").value),
    stream: true,
  };
  if (byId("seed").value !== "") body.seed = Number(byId("seed").value);
  const prompt = byId("prompt").value;
  return chats()
    ? { ...body, messages: [...conversation, { role: "user", content: prompt }], logprobs: true, top_logprobs: 5 }
    : { ...body, prompt, logprobs: 5 };
}

async function send() {
  byId("mistake").textContent = "";
  if (running === MOST_AT_ONCE) {
    byId("mistake").textContent = `${MOST_AT_ONCE} answers are running, the most that a browser can follow: stop one, or wait.`;
    return;
  }
  const prompt = byId("prompt").value, chat = chats();
  const answer = new Answer(++asked, prompt, request(), byId("key").value);
  byId("answers").prepend(answer.card);
  document.querySelector(".scale").hidden = false;
  if (chat) byId("prompt").value = "";
  running += 1;
  byId("news").textContent = `Answer ${answer.number} has begun.`;
  await answer.read();
  running -= 1;
  if (!answer.failed) byId("news").textContent = `Answer ${answer.number}: ${answer.count} tokens, ${answer.state}.`;
  if (answer.unauthorized) {
    byId("key-field").hidden = false;
    byId("key").focus();
  }
  if (chat && answer.count) conversation.push({ role: "user", content: prompt }, { role: "assistant", content: answer.text });
  else if (chat) byId("prompt").value ||= prompt; // so that the user can change it and send it again
  showMode();
}

function showMode() {
  const words = chats() ? "A message to the model" : "A text for the model to continue";
  byId("prompt").placeholder = byId("prompt-label").textContent = words;
  byId("forget").hidden = !chats() || !conversation.length;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
byId("modes").addEventListener("change", showMode);
byId("forget").addEventListener("click", () => {
  conversation.length = 0;
  showMode();
  byId("prompt").focus();
});

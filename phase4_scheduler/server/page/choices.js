// The box beside a token: its probability, and the tokens that the model held likeliest there.

const box = document.getElementById("choices");
const visible = (name) => name.replaceAll(" ", "␣").replaceAll("\n", "↵") || "part of a character";
const percent = (p) => (p < 0.001 ? "< 0.1%" : `${(100 * p).toFixed(1)}%`);

function element(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text; // never as HTML: a model may write what it likes
  return node;
}

export function showChoices(span) {
  const { name, logprob, top } = span.token;
  const others = top.filter((other) => other[0] !== name);
  const rows = [[name, logprob], ...others].sort((a, b) => b[1] - a[1]);
  const list = element("ul", "");
  for (const [other, value] of rows) {
    const row = element("li", other === name ? "chosen" : "");
    const bar = element("span", "bar");
    bar.style.setProperty("--share", Math.exp(value).toFixed(4));
    row.append(element("code", "", visible(other)), bar, element("span", "percent", percent(Math.exp(value))));
    list.append(row);
  }
  const head = element("p", "", ` was ${percent(Math.exp(logprob))} likely`);
  head.prepend(element("code", "", visible(name)));
  box.replaceChildren(head, list);
  box.hidden = false;
  place(span);
  span.setAttribute("aria-describedby", box.id);
}

// Below the token, or above it where there is no room; within the window.
function place(span) {
  const token = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const left = Math.max(8, Math.min(token.left, document.documentElement.clientWidth - width - 8));
  const below = token.bottom + 6 + height < innerHeight || token.top < height + 6;
  box.style.left = `${left + scrollX}px`;
  box.style.top = `${(below ? token.bottom + 6 : token.top - 6 - height) + scrollY}px`;
}

export function hideChoices() {
  box.hidden = true;
}

document.addEventListener("keydown", (event) => event.key === "Escape" && hideChoices());

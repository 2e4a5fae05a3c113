// The interactive parts of a page: light and dark, the definitions of terms, and the pieces. The text works without it.

// ---- light and dark
const root = document.documentElement, button = document.getElementById("theme");
const isDark = () => (root.dataset.colours ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const name = () => { button.textContent = `${isDark() ? "light" : "dark"} colours`; };
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.colours = isDark() ? "light" : "dark";
  try { localStorage.setItem("colours", root.dataset.colours); } catch { /* for this page only */ }
  name();
});
name();

// ---- the menu: beside the text in a wide window, folded above it in a narrow one
const menu = document.getElementById("menu"), wide = matchMedia("(min-width: 1000px)");
const unfold = () => { menu.open = wide.matches; };
wide.addEventListener("change", unfold);
unfold();
const here = menu.querySelector("[aria-current]"), list = menu.parentElement;  // the list scrolls to this page, the page itself stays
if (here && wide.matches) list.scrollTop = here.offsetTop + here.offsetHeight - list.clientHeight + 16;

// ---- definitions: a term opens by hover, tap and keyboard, and closes by Escape
const definition = document.getElementById("definition");
let opened = null;
function open(term) {
  close();
  opened = term;
  if (!term.dataset.definition) return void fetchDefinition(term);
  definition.textContent = term.dataset.definition;
  definition.hidden = false;
  term.setAttribute("aria-describedby", "definition");
  const at = term.getClientRects()[0], width = definition.offsetWidth, height = definition.offsetHeight;
  const left = Math.min(Math.max(8, at.left), root.clientWidth - width - 8);
  const above = at.bottom + height + 16 > innerHeight && at.top > height;
  definition.style.left = `${left + scrollX}px`;
  definition.style.top = `${(above ? at.top - height - 6 : at.bottom + 6) + scrollY}px`;
}
// A term of a piece: its line in the glossary.
async function fetchDefinition(term) {
  const page = new DOMParser().parseFromString(await (await fetch(term.href)).text(), "text/html");
  const line = page.getElementById(new URL(term.href).hash.slice(1))?.textContent ?? "";
  term.dataset.definition = line.slice(line.indexOf(": ") + 2);
  if (opened === term && line) open(term);
}
function close() {
  opened?.removeAttribute("aria-describedby");
  opened = null;
  definition.hidden = true;
}
// The page hears for all terms: those of a piece come later.
function onTerm(type, act) {
  document.addEventListener(type, (event) => {
    const term = event.target.closest?.("a.term");
    if (term) act(term, event);
  });
}
let tapped = false;
onTerm("pointerover", (term, { pointerType }) => { if (pointerType === "mouse") open(term); });
onTerm("pointerout", (term, { pointerType }) => { if (pointerType === "mouse" && document.activeElement !== term) close(); });
onTerm("focusin", open);
onTerm("focusout", close);
onTerm("pointerdown", (term, { pointerType }) => { tapped = pointerType !== "mouse"; });
onTerm("click", (term, event) => {  // a tap opens; mouse and Enter follow the link to the glossary
  if (!tapped) return;
  event.preventDefault();
  term.focus();
  open(term);
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });

// ---- links to other pages keep the prompt in the address
function carryPrompt({ target }) {
  const link = target.closest?.("a[href]");
  if (link && location.hash.startsWith("#prompt=") && link.origin === location.origin && !link.hash) link.hash = location.hash;
}
for (const event of ["click", "auxclick"]) document.addEventListener(event, carryPrompt, true);

// ---- an element wider than the window can be scrolled by keyboard
function reachable() {
  for (const wide of document.querySelectorAll("main pre, .wide")) {
    const scrolls = wide.scrollWidth > wide.clientWidth || wide.scrollHeight > wide.clientHeight;
    if (scrolls) Object.entries({ tabindex: 0, role: "region", "aria-label": wide.matches("pre") ? "code" : "wider than the window" }).forEach((a) => wide.setAttribute(...a));
    else for (const name of ["tabindex", "role", "aria-label"]) wide.removeAttribute(name);
  }
}
addEventListener("resize", reachable);
addEventListener("toggle", reachable, true);  // a folded element has no size
document.addEventListener("load", reachable, true);  // nor has an image that is not loaded
reachable();

// ---- in a narrow window a figure fits; a tap shows it large, in a frame that scrolls
for (const image of document.querySelectorAll(".wide > img")) {
  image.addEventListener("click", () => { image.parentElement.classList.toggle("large"); reachable(); });
}

// ---- marked words of a task change the piece below them
for (const words of document.querySelectorAll("[data-set]")) {
  words.addEventListener("click", () => {
    const place = words.closest("[data-piece]"), live = place.querySelector(".live");
    if (!place.hasAttribute("data-alive")) return;  // the piece is not loaded yet, or cannot run here
    for (const setting of words.dataset.set.split("; ")) {
      if (setting[0] === "!") { live.querySelector(`[data-do="${setting.slice(1)}"]`).click(); continue; }
      const [label, value] = setting.split("="), control = live.querySelector(`[aria-label="${label}"]`);
      if (control.type === "checkbox") control.checked = value === "on"; else control.value = value;
      for (const type of ["input", "change"]) control.dispatchEvent(new Event(type, { bubbles: true }));
    }
  });
}

// ---- which piece of this page has the prompt of the address
const TAKE_A_PROMPT = ["tokens", "embedding", "head", "attention", "lens", "drawers", "decoding", "sampling", "speculation"];
const taker = [...document.querySelectorAll("[data-piece]")].find((piece) => TAKE_A_PROMPT.includes(piece.dataset.piece));
if (taker && location.hash.startsWith("#prompt=")) {
  const jump = document.createElement("button"), line = document.createElement("p");
  Object.assign(jump, { type: "button", textContent: taker.getAttribute("aria-label") });
  jump.addEventListener("click", () => { taker.scrollIntoView(); taker.querySelector(".live :is(input, textarea)")?.focus({ preventScroll: true }); });
  line.className = "task";
  line.append("Your prompt is in ", jump, " below.");
  document.querySelector("main h1").after(line);
}

// ---- the pieces, with the modules that they need
if (document.querySelector("[data-piece]")) import("./start.js").then(({ startPieces }) => startPieces());

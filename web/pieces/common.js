// What every piece uses.

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// JupyterLab hears every key before the page does: an arrow key on a slider would choose the next cell. It leaves an
// element alone that carries this mark. What runs and saves stays JupyterLab's. Undo does not: it would take back what
// was typed into the cell.
export function keepKeys(box) {
  const mark = (event) => {
    if (!box.contains(event.target)) return;
    const command = event.ctrlKey || event.metaKey;
    const undoes = command && /^[zy]$/i.test(event.key);
    const theirs = (command && !undoes) || (event.key === "Enter" && (event.shiftKey || event.altKey));
    event.target.toggleAttribute("data-lm-suppress-shortcuts", !theirs);
    // Outside a text field the browser itself would undo in the cell that was typed in last.
    if (undoes && !event.target.matches("textarea, input:not([type=range])")) event.preventDefault();
  };
  box.addEventListener("focusin", () => window.addEventListener("keydown", mark, true));
  box.addEventListener("focusout", () => window.removeEventListener("keydown", mark, true));
}


// How every piece looks: `box(...)` gives the frame. Light or dark is what `color-scheme` says, which the page sets;
// JupyterLab says it in an attribute.
const LOOK = `
.piece-box { --paper: light-dark(#fff, #192027); --ink: light-dark(#1f2933, #e3e9ee); --muted: light-dark(#5d6975, #9aa7b3);
  --line: light-dark(#d3dae1, #3a4651); --faint: light-dark(#eef2f6, #242d36); --blue: light-dark(#2f6fb0, #74b0ea);
  --blue-tint: light-dark(#dbe8f5, #23405c); --orange: light-dark(#b85a1b, #f0a36c); --orange-tint: light-dark(#f6d9c2, #64401f);
  --green: light-dark(#2a7a50, #6cc795); --green-tint: light-dark(#d8efe2, #1f4733);
  --code: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  background: var(--paper); color: var(--ink); border: 1px solid var(--line); border-radius: 10px; padding: 14px;
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
[data-jp-theme-light="false"] .piece-box { color-scheme: dark }
.piece-box :is(button, input, select, textarea) { font: inherit; color: inherit; background: var(--paper) }
.piece-box :is(button, select) { border: 1px solid var(--muted); border-radius: 5px; padding: 3px 10px; min-height: 28px }
.piece-box textarea { width: 100%; box-sizing: border-box; border: 1px solid var(--muted); border-radius: 5px; padding: 6px 8px }
.piece-box button { cursor: pointer } .piece-box button:disabled { opacity: .5; cursor: default }
.piece-box input[type=range] { accent-color: var(--blue); width: min(260px, 100%); vertical-align: middle }
.piece-box :focus-visible { outline: 2px solid var(--blue); outline-offset: 2px }
.piece-box .bar { display: flex; flex-wrap: wrap; gap: 8px 18px; align-items: center; margin: 8px 0 }
.piece-box .counts { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 8px 0; color: var(--muted) }
.piece-box .counts b { display: block; font-size: 20px; color: var(--ink); font-variant-numeric: tabular-nums }
.piece-box table { border-collapse: collapse; margin: 6px 0; border: 0 }
.piece-box :is(td, th) { padding: 2px 10px 2px 0; font: 13px/1.6 var(--code); text-align: left !important; vertical-align: top;
  background: var(--paper) !important; color: var(--ink) !important; border: 0 }
.piece-box h4 { margin: 12px 0 2px; font-size: 15px } .piece-box p { margin: 6px 0 } .piece-box small { color: var(--muted); font-size: 12px }
.piece-box .mistake { color: var(--orange) }`;

// The frame of a piece, with its look: name is a class of its own, style its own rules.
export function box(name, style, ...children) {
  const frame = element("div", { class: "piece-box " + name }, element("style", {}, LOOK + style), ...children);
  keepKeys(frame);
  return frame;
}

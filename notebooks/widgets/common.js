// What every piece begins with; piece.py puts it before the module.

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// JupyterLab hears every key before the page does: an arrow key on a slider would choose the next cell. It leaves an
// element alone that carries this mark. Shift-Enter and other keys with a modifier stay JupyterLab's.
function keepKeys(box) {
  const mark = (event) => {
    if (!box.contains(event.target)) return;
    const modified = event.shiftKey || event.ctrlKey || event.altKey || event.metaKey;
    event.target.toggleAttribute("data-lm-suppress-shortcuts", !modified);
  };
  box.addEventListener("focusin", () => window.addEventListener("keydown", mark, true));
  box.addEventListener("focusout", () => window.removeEventListener("keydown", mark, true));
}


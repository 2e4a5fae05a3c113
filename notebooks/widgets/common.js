// What every piece begins with; piece.py puts it before the module.

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// JupyterLab hears every key before the page does: an arrow key on a slider would choose the next cell. It leaves an
// element alone that carries this mark. What runs and saves stays JupyterLab's. Undo does not: it would take back what
// was typed into the cell.
function keepKeys(box) {
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


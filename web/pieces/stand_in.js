// What a piece asks of its model, where no kernel is behind it: get, set, save_changes, on.
export function standIn(data) {
  const heard = {}, values = { data, state: {} };
  return {
    get: (name) => values[name],
    set: (name, value) => { values[name] = value; (heard["change:" + name] || []).forEach((f) => f()); },
    on: (name, f) => { (heard[name] = heard[name] || []).push(f); },
    off: () => {},
    save_changes: () => {},
  };
}

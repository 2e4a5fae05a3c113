// Before anything is painted: light or dark, as the reader chose it last. "color-scheme" on the page decides all colours.
{
  let chosen = null;
  try { chosen = localStorage.getItem("colours"); } catch { /* no storage: as the system has it */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.colours = chosen;
}

// A small line chart in an SVG element that holds two paths: the area under the line, and the line.

export function drawLine(svg, values, top) {
  const points = values.map((value, i) => `${i} ${(1 - value / (top || 1)).toFixed(4)}`);
  if (points.length === 1) points.push(`1 ${points[0].split(" ")[1]}`);
  const right = points.length - 1;
  svg.setAttribute("viewBox", `0 0 ${right} 1`);
  svg.querySelector(".edge").setAttribute("d", `M${points.join("L")}`);
  svg.querySelector(".area").setAttribute("d", `M0 1L${points.join("L")}L${right} 1Z`);
}

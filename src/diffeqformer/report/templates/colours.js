// The scales of colours: RISING and BOTH are those of all figures.
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const colour = (stops, share) => {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const left = Math.min(Math.floor(place), stops.length - 2);
  const [a, b] = [channels(stops[left]), channels(stops[left + 1])];
  return a.map((value, i) => Math.round(value + (place - left) * (b[i] - value)));
};
const css = (rgb) => `rgb(${rgb.join(" ")})`;
const ink = ([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1c2128" : "#ffffff");

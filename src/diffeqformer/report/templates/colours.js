"use strict";
// The one scale of colours of all pages.
// From low to high, each darker than the one before; where scores have both signs, zero is pale and both ends dark.
const RISING = ["#f4f6ee", "#cbe5d3", "#7fc6c6", "#3593bf", "#2858a0", "#191d5c"];
const BOTH = ["#6b1f04", "#c5601d", "#efc39a", "#f1f1ee", "#a8cbe4", "#3778b4", "#0b2a63"];

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const colour = (stops, share) => {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const left = Math.min(Math.floor(place), stops.length - 2);
  const [a, b] = [channels(stops[left]), channels(stops[left + 1])];
  return a.map((value, i) => Math.round(value + (place - left) * (b[i] - value)));
};
const css = (rgb) => `rgb(${rgb.join(" ")})`;
const ink = ([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1c2128" : "#ffffff");

// What goes with the grid: a continuation as it is generated, an overlay on the text, weights over depth.

// The prediction at the end, in words.
const plural = (steps) => `${steps} step${steps === 1 ? "" : "s"}`;
const sentence = (tokens, piece, p, end) => {
  const before = tokens.slice(-4).join(tokens.some((token) => token.includes("·")) ? "" : " ");
  return `Most likely next after “${tokens.length > 4 ? "…" : ""}${before}”: “${piece}”, with probability ${written(p, 2)} at ${plural(end)}.`;
};
// What the dial says of the depths of training, and how it looks: elsewhere a prediction is no fact about the model.
const trainedAt = ({ trained, least, most, scheme: own }, { steps, scheme, rtol }) => {
  const adaptive = "with a tolerance, by which the solver chooses its own steps";
  if (!trained.length) return rtol === null || scheme !== own ? [`Trained by ${own} ${adaptive}; these are others.`, "elsewhere"] : [`Trained ${adaptive}.`, ""];
  const said = trained.length > 1 ? `${trained.slice(0, -1).join(", ")} and ${trained.at(-1)} steps` : plural(trained[0]);
  if (scheme !== own) return [`Trained at ${said} with the scheme ${own}; this is another.`, "elsewhere"];
  if (rtol !== null) return [`Trained at ${said}; with a tolerance the solver chooses its own.`, "elsewhere"];
  if (trained.includes(steps) || least === most) return [`Trained at ${said}.`, ""];
  return [`Trained at ${said}${trained.length > 1 ? "" : " alone"}; other depths may mean little.`, "elsewhere"];
};

// Times that the weights are shown at: those of the steps where nothing between them was trained, else all over depth.
const timesOf = ({ stops }) => (stops.length ? stops : Array.from({ length: 51 }, (_, i) => i / 50));
const nearest = (values, at) => values.reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a));

// Greedy continuation, token by token. With `draft` so many steps propose four tokens, which all steps then verify at
// once: those up to the first that differs are accepted, and its replacement is the deep reading's own.
const DRAFTED = 4;
const continuation = async ({ question, count, draft, threshold, start, told, stopped }) => {
  const found = [];
  while (found.length < count && !stopped()) {
    const added = found.map(({ id }) => id);
    const drafted = [];
    for (let k = 0; draft && k < Math.min(DRAFTED, count - found.length - 1); k += 1) {
      const since = start + added.length + k - 1;
      drafted.push((await backend.predict({ ...question, steps: draft, added: [...added, ...drafted], since })).ids[0]);
    }
    const deep = await backend.predict({ ...question, threshold, added: [...added, ...drafted], since: start + added.length - 1 });
    let right = 0;
    while (right < drafted.length && deep.ids[right] === drafted[right]) right += 1;
    for (let i = 0; i <= right; i += 1) found.push({ id: deep.ids[i], piece: deep.pieces[i], p: deep.p[i], taken: deep.taken[i], drafted: i < right, replaced: i === right && right < drafted.length });
    told(found, stopped());
  }
  return found;
};

// One token: its probability and steps, and whether a draft had it.
const WORDS = { drafted: "drafted and accepted", replaced: "replaces a draft that was rejected", own: "not drafted" };
const continued = (found, steps, draft) => found.map(({ piece, p, taken, drafted, replaced }) => {
  const kind = drafted ? "drafted" : replaced ? "replaced" : "own";
  const token = make("span", { className: draft ? kind : "own", title: `probability ${written(p)}, ${taken} of ${plural(steps)}${draft ? `, ${WORDS[kind]}` : ""}` }, piece, ...(draft || taken < steps ? [make("small", { textContent: taken })] : []));
  token.dataset.taken = taken;
  return token;
});
const tally = (found, steps, draft, threshold) => {
  const mean = found.reduce((sum, { taken }) => sum + taken, 0) / found.length;
  const drafted = found.filter((one) => one.drafted).length;
  const rejected = found.filter((one) => one.replaced).length;
  return [`${found.length} tokens, the most likely one each time, by ${plural(steps)}.`,
    threshold === null ? "" : `With early exit below ${threshold} they took ${mean.toFixed(1)} steps on average (small numbers).`,
    draft ? `Drafts at ${plural(draft)} gave ${drafted} of them (underlined); after a wrong one all steps’ own came ${rejected} times (≠).` : ""].filter(Boolean).join(" ");
};

// Scores of the tokens up to an output as colours of their heads in the grid, and in words.
const overlay = (cells, tokens, { name, description, signed }, { piece, p, scores }) => {
  const own = scores.length - 1;
  const { paint, low, high } = scaleOf([scores], [own], signed);
  cells.forEach((cell, i) => {
    const shade = known(scores[i]) ? paint(scores[i]) : null;
    [cell.style.background, cell.style.color] = shade ? [css(shade), ink(shade)] : ["", ""];
    cell.title = `${tokens[i]}${shade ? `: ${name} ${written(scores[i])}` : ""}`;
  });
  const best = scores.reduce((a, v, i) => (i !== own && known(v) && (a < 0 || v > scores[a]) ? i : a), -1);
  return [`First row: on which tokens “${piece}” (probability ${written(p, 2)}), predicted after token ${own} “${tokens[own]}”, rests by ${name}, `,
    ...range(written(low), `${written(high)}.`, [low, (low + high) / 2, high].map(paint)),
    best < 0 ? "" : ` Highest before its own: token ${best} “${tokens[best]}” (${written(scores[best])}).`, ` ${description}`];
};

// Eigenvalues at a time; those of other times that were seen stay as a faint trail.
const TRAIL = 60;
const trails = new Map();
const scrubbed = (run, time, found, own, reach) => {
  if (!trails.has(run)) trails.set(run, new Map());
  const trail = trails.get(run);
  trail.set(time, found);
  if (trail.size > TRAIL) trail.delete(trail.keys().next().value);
  const past = [...trail].filter(([t]) => t !== time).map(([, one]) => one);
  for (const name of ["QK", "OV", "FF"]) $(`depth${name}`).replaceChildren(plane(found[name], name, name === "FF" ? -1 : own, past.map((one) => one[name]), reach?.[name]));
};

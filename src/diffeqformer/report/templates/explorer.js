// The explorer: a text, a dial for depth, and what the model would predict after every step. `backend` answers.
{
  let state = fromAddress();
  const toAddress = () => {
    const said = Object.entries(state).filter(([, value]) => value !== null && value !== -1);
    if (location.protocol !== "about:") history.replaceState(null, "", `#${new URLSearchParams(said)}`);
  };
  const within = (steps, run) => Math.min(Math.max(steps, run.least), run.most);

  let shown = { reading: null, other: null, cell: null, explained: null, weights: null, reach: {} };
  const question = () => ({ run: state.run, text: state.text, steps: state.steps, scheme: state.scheme, rtol: state.rtol });
  const ownDepth = () => ({ steps: about.runs[state.run].steps, scheme: about.runs[state.run].scheme, rtol: null });
  const compared = () => {
    const run = about.runs[state.other];
    return { run: state.other, text: state.text, steps: within(state.otherSteps, run), scheme: run.scheme, rtol: null };
  };

  const fill = () => {
    const own = about.runs[state.run];
    state.steps = within(state.steps, own);
    const choose = (id, options, value) => {
      $(id).replaceChildren(...options.map(([key, text]) => new Option(text, key)));
      $(id).value = value;
      $(id).parentElement.hidden = options.length < 2;
    };
    if ($("text").value !== state.text) $("text").value = state.text;
    choose("scheme", own.schemes.map((name) => [name, name === own.scheme ? `${name} (its own)` : name]), state.scheme);
    choose("rtol", [["", "fixed steps"], ...own.tolerances.map((rtol) => [rtol, `steps for ${rtol}`])], state.rtol ?? "");
    choose("run", about.runs.map(({ name }, i) => [i, name]), state.run);
    choose("other", [[-1, "nothing"], ...about.runs.map(({ name }, i) => [i, name])], state.other);
    $("otherSteps").parentElement.hidden = state.other < 0;
    for (const [id, value] of [["steps", state.steps], ["dial", state.steps], ["otherSteps", state.otherSteps]]) {
      if (document.activeElement !== $(id) || Number($(id).value) !== value) $(id).value = value;
      $(id).disabled = id !== "otherSteps" && (own.least === own.most || state.rtol !== null);
    }
    [$("dial").max, $("dial").min, $("steps").max] = [Math.min(Math.max(24, ...own.trained), own.most), own.least, own.most];
    $("depths").replaceChildren(...own.trained.map((depth) => new Option("", depth)));
    [$("trained").textContent, $("trained").className] = trainedAt(own, state);
    $("colour").value = state.colour;
    if (state.rtol !== null) state.overlay = null;  // explanations are of fixed steps
    choose("overlay", state.rtol !== null ? [] : [["", "nothing"], ...about.methods.map(({ name }) => [name, name])], state.overlay ?? "");
    choose("draft", [[-1, "no drafts"], ...[1, 2, 3, 4, 6, 8].filter((n) => n >= own.least && n < state.steps).map((n) => [n, plural(n)])], state.draft);
    if ($("draft").value === "") $("draft").value = state.draft = -1;
    choose("exit", [["", "none"], ...[0.003, 0.01, 0.03, 0.1, 0.3, 1].map((value) => [value, `below ${value}`])], state.exit ?? "");
    if ($("exit").selectedIndex < 0) $("exit").value = state.exit = "";
    state.exit ||= null;
    $("depth").open = state.time !== null;
    const times = timesOf(own);
    if (state.time !== null) state.time = nearest(times, state.time);
    [$("time").max, $("time").value] = [times.length - 1, times.indexOf(state.time)];
    $("which").textContent = `${own.name}: ${own.said}, update ${own.update}`;
    [$("pages").hidden, $("pages").href] = [!own.pages, own.pages || ""];
  };

  // Colours: of a probability from 0 to 1; of a divergence from 0 to the largest one.
  const scale = ({ kl }) => {
    const most = state.colour === "kl" ? largest(kl, 1e-9) : 1;
    return { most, paint: (value) => colour(RISING, value / most) };
  };
  const valueAt = (reading, step, position) => reading[state.colour][step]?.[position] ?? null;
  const labels = (reading) => reading.times.map((time, i) => (i ? `step ${i} of ${reading.times.length - 1}, t = ${+time.toFixed(3)}` : "depth 0"));

  const outcome = (...found) => { $("headline").textContent = sentence(...found); };
  // Predictions are compared as ids: several pieces of bytes read alike.
  const headline = ({ tokens, top, top_ids, p, kl, loss, times }) => {
    const [end, last] = [times.length - 1, tokens.length - 1];
    const first = top_ids.map((row) => row[last] === top_ids[end][last]);
    let since = end;
    while (since && first[since - 1]) since -= 1;
    outcome(tokens, top[end][last], p[end][last], end);
    const before = first.indexOf(true) < since;
    const lately = before ? "It was the first choice before, and is again after the last step" : "Only the last step makes it the first choice";
    const when = since === end ? lately : `It is the first choice from ${since ? `step ${since}` : "depth 0"} on`;
    const near = end ? `; one step before the end the prediction is ${written(kl[end - 1][last])} nats away` : "";
    $("terms").textContent = `${when}${near}.${loss ? ` Loss of the whole text: ${written(loss[end])} nats per token.` : ""}`;
  };

  const drawGrid = () => {
    const { reading, other } = shown;
    const { tokens, ids, top, top_ids, p, kl, next } = reading;
    const [end, { most, paint }, names] = [top.length - 1, scale(reading), labels(reading)];
    const rows = top.map((row, step) => {
      const cells = row.map((piece, position) => {
        const value = valueAt(reading, step, position);
        const shade = value === null ? null : paint(value);
        const cell = make("td", { tabIndex: -1, className: top_ids[step][position] === top_ids[end][position] ? "settled" : "", dataset: { step, position } },
          piece, make("small", { textContent: `${written(p[step][position], 2)} · ${written(kl[step][position], 2)}` }));
        cell.setAttribute("role", "gridcell");
        cell.setAttribute("aria-label", `token ${position} ${tokens[position]}, ${names[step]}: ${piece}, probability ${written(p[step][position])}, KL to the end ${written(kl[step][position])}`);
        cell.title = `${piece}: p ${written(p[step][position])}, KL ${written(kl[step][position])}${next[step]?.[position] === undefined ? "" : `, the text's own next token ${written(next[step][position])}`}`;
        if (shade) [cell.style.background, cell.style.color] = [css(shade), ink(shade)];
        return cell;
      });
      return make("tr", {}, make("th", { scope: "row", textContent: step ? `step ${step}` : "depth 0", title: names[step] }), ...cells);
    });
    const plain = (name, pieces, changed = () => false) => make("tr", { className: "plain" }, make("th", { scope: "row", textContent: name }),
      ...pieces.map((piece, i) => make("td", { className: changed(i) ? "changed" : "", textContent: changed(i) ? `≠ ${piece}` : piece })));
    let same = null;
    if (other) {
      same = other.tokens.length === tokens.length && other.tokens.every((token, i) => token === tokens[i]);
      const last = other.top[other.top.length - 1];
      const by = other.ids.every((id, i) => id === ids[i]) ? "top_ids" : "top"; // ids of another tokenizer mean others
      const changed = (i) => other[by].at(-1)[i] !== reading[by][end][i];
      if (same) rows.push(plain(`${state.other === state.run ? "" : `${about.runs[state.other].name}, `}${plural(other.top.length - 1)}`, last, changed));
      const count = last.filter((_, i) => changed(i)).length;
      $("changes").textContent = same ? `${count} of ${tokens.length} predictions are others with ${about.runs[state.other].name} at ${plural(other.top.length - 1)} (marked ≠).` : "The two runs cut this text into other tokens, so that their predictions cannot be compared one by one.";
    } else $("changes").textContent = "";
    rows.push(plain("next in text", [...tokens.slice(1), ""]));
    $("grid").className = end > 12 ? "dense" : "";
    $("grid").replaceChildren(
      make("thead", {}, make("tr", {}, make("th", { textContent: "token" }), ...tokens.map((token) => make("th", { scope: "col", textContent: token, title: token })))),
      make("tbody", {}, ...rows));
    $("legend").replaceChildren(`${$("colour").selectedOptions[0].text}: `, ...range(0, written(most, most < 10 ? 2 : 1)), ". ",
      "In each cell the top token (point at it for its probability and the KL divergence to the end); bold: the token that comes out at the end.");
  };

  const mark = () => {
    const { top, tokens } = shown.reading;
    const [step, position] = [Math.min(state.step < 0 ? Infinity : state.step, top.length - 1), Math.min(state.position < 0 ? Infinity : state.position, tokens.length - 1)];
    const focused = document.activeElement?.closest?.("#grid") !== null;
    for (const cell of $("grid").querySelectorAll("td[data-step]")) {
      const chosen = Number(cell.dataset.step) === step && Number(cell.dataset.position) === position;
      cell.setAttribute("aria-selected", chosen);
      cell.tabIndex = chosen ? 0 : -1;
      if (chosen && focused) cell.focus();
      if (chosen) {
        const box = $("grid").parentElement;
        const [left, right] = [cell.offsetLeft - $("grid").rows[0].cells[0].offsetWidth - 8, cell.offsetLeft + cell.offsetWidth - box.clientWidth + 8];
        box.scrollLeft = Math.max(right, Math.min(left, box.scrollLeft));
      }
    }
    return { step, position };
  };

  const drawCell = () => {
    const { cell, reading } = shown;
    const { step, position } = mark();
    $("cell").hidden = false;
    $("place").textContent = `Token ${position} “${reading.tokens[position]}”, ${labels(reading)[step]}`;
    $("top").replaceChildren(...cell.top.map(([piece, p]) => {
      const bar = make("i");
      bar.style.width = `${100 * p}%`;
      return make("li", {}, make("span", { textContent: piece, title: piece }), make("span", {}, bar), make("b", { textContent: written(p) }));
    }));
    $("moved").replaceChildren(curve(reading, position, step));
    const heads = cell.attention;
    $("heads").closest("figure").hidden = !heads;
    if (heads) {
      if (state.head >= heads.length) state.head = -1;
      $("head").replaceChildren(new Option("mean over heads", -1), ...heads.map((_, i) => new Option(`head ${i}`, i)));
      $("head").value = state.head;
      const row = state.head < 0 ? heads[0].map((_, i) => heads.reduce((sum, head) => sum + head[i], 0) / heads.length) : heads[state.head];
      const most = Math.max(...row);
      $("looked").replaceChildren(...row.map((value, i) => {
        const shade = colour(RISING, value / most);
        const token = make("span", { textContent: reading.tokens[i], title: written(value) });
        [token.style.background, token.style.color] = [css(shade), ink(shade)];
        return token;
      }));
      $("heads").replaceChildren(...strips(heads));
      $("shares").replaceChildren("Share of attention, above: ", ...range(0, written(most, 2)), "; of single heads: ", ...range(0, written(largest(heads, 0), 2)), `; ${written(1 / heads[0].length, 2)} each is attention to all alike.`);
    }
    for (const name of ["QK", "OV"]) {
      $(name).parentElement.hidden = !cell.eigenvalues;
      if (cell.eigenvalues) $(name).replaceChildren(plane(cell.eigenvalues[name], name, state.head, [], shown.reach[state.run]?.[name]));
    }
  };

  const drawOverlay = () => {
    const cells = [...$("grid").rows[0].cells].slice(1);
    for (const cell of cells) [cell.style.background, cell.style.color] = ["", ""];
    const method = about.methods.find(({ name }) => name === state.overlay);
    if (about.methods.length) $("explained").replaceChildren(...(method ? overlay(cells, shown.reading.tokens, method, shown.explained) : []));
  };
  const drawWeights = () => {
    const { stops } = about.runs[state.run];
    $("timeNow").textContent = `t = ${state.time.toFixed(2)}${stops.length ? `, ${stops.indexOf(state.time) + 1} of ${stops.length} times at which steps take weights` : ""}`;
    scrubbed(state.run, state.time, shown.weights, state.head, shown.reach[state.run]);
  };

  // One question at a time; of those that come meanwhile the newest alone is asked. What is there is not asked again.
  let [busy, again, read, answered, drawn, opened, explained, wound] = [false, false, "", "", "", "", "", ""];
  const refresh = async () => {
    fill();
    toAddress();
    forget();
    const began = performance.now();
    const key = JSON.stringify([question(), state.other >= 0 && compared()]);
    if (key !== answered) {
      $("status").textContent = "Computing …";
      // Of a text whose tokens are known the end comes first: predictions after every step take as long again.
      const { tokens } = read === `${state.run} ${state.text}` ? shown.reading : {};
      if (tokens) {
        const found = await backend.predict({ ...question(), threshold: null, since: tokens.length - 1 });
        outcome(tokens, found.pieces[0], found.p[0], found.taken[0]);
        $("terms").textContent = "";
        $("status").textContent = "Reading every step …";
      }
      const reading = await backend.read(question());
      shown = { ...shown, reading, other: state.other >= 0 ? await backend.read(compared()) : null };
      [answered, read] = [key, `${state.run} ${state.text}`];
      headline(reading);
    }
    const picture = JSON.stringify([key, state.colour]);
    if (picture !== drawn) drawGrid();
    drawn = picture;
    const { step, position } = mark();
    const place = JSON.stringify([key, step, position]);
    if (place !== opened) {
      shown.cell = await backend.cell({ ...question(), step, position });
      opened = place;
    }
    // One scale for all steps of a run, that of those it was trained with; asked once.
    if (shown.cell.eigenvalues) shown.reach[state.run] ??= await backend.reach({ ...question(), ...ownDepth() });
    drawCell();
    const asked = JSON.stringify([key, position, state.overlay]);
    if (state.overlay && asked !== explained) {
      $("status").textContent = "Explaining; the first time at a number of steps takes longer …";
      shown.explained = await backend.explain({ ...question(), position, method: state.overlay });
      explained = asked;
    }
    drawOverlay();
    if (state.time !== null) {
      if (wound !== `${state.run} ${state.time}`) shown.weights = await backend.weights({ run: state.run, time: state.time });
      wound = `${state.run} ${state.time}`;
      drawWeights();
    }
    $("status").className = "note";
    $("status").textContent = `Computed in ${((performance.now() - began) / 1000).toFixed(2)} s.`;
  };
  const update = async (change = {}) => {
    Object.assign(state, change);
    if (busy) { again = true; return; }
    busy = true;
    do {
      again = false;
      try {
        await refresh();
      } catch (error) {
        [answered, drawn, opened, explained, wound] = ["", "", "", "", ""];
        $("status").className = "note wrong";
        $("status").textContent = error.message;
      }
    } while (again);
    busy = false;
    document.body.dataset.ready = String(Number(document.body.dataset.ready ?? 0) + 1);
  };

  const on = (id, event, change) => $(id).addEventListener(event, () => update(change($(id).value)));
  on("text", "input", (text) => ({ text, position: -1 }));
  const turned = (value) => ({ steps: whole(value, state.steps), step: -1 });
  on("dial", "input", turned);
  on("steps", "change", turned);
  on("scheme", "change", (scheme) => ({ scheme }));
  on("rtol", "change", (rtol) => ({ rtol: rtol === "" ? null : Number(rtol), step: -1 }));
  on("run", "change", (run) => ({ run: Number(run), scheme: about.runs[run].scheme, rtol: null, steps: about.runs[run].steps, step: -1, position: -1 }));
  on("other", "change", (other) => ({ other: Number(other), otherSteps: other < 0 ? state.otherSteps : about.runs[other].steps }));
  on("otherSteps", "change", (value) => ({ otherSteps: whole(value, state.otherSteps) }));
  on("colour", "change", (colour) => ({ colour }));
  on("head", "change", (head) => ({ head: Number(head) }));
  on("overlay", "change", (overlay) => ({ overlay: overlay || null }));
  on("draft", "change", (draft) => ({ draft: Number(draft) }));
  on("exit", "change", (exit) => ({ exit: exit ? Number(exit) : null }));
  const times = () => timesOf(about.runs[state.run]);
  on("time", "input", (place) => ({ time: times()[place] }));
  $("depth").addEventListener("toggle", () => { if ($("depth").open !== (state.time !== null)) update({ time: $("depth").open ? 0 : null }); });
  let playing = 0;
  $("play").addEventListener("click", async () => {
    const own = playing = playing ? 0 : performance.now();
    $("play").textContent = playing ? "Pause" : "Play";
    const rest = times().filter((time) => time > state.time);
    for (const time of rest.length ? rest : times()) {
      if (playing !== own) break;
      await update({ time });
      await new Promise((done) => setTimeout(done, about.runs[state.run].stops.length ? 400 : 0));
      await new Promise(requestAnimationFrame);
    }
    if (playing === own) [playing, $("play").textContent] = [0, "Play"];
  });

  // One continuation at a time; another question, or the button, ends it. It is gone once it is of another question.
  let [running, wentOn] = [null, ""];
  const usual = $("tally").textContent;
  const forget = () => {
    if (!wentOn || wentOn === JSON.stringify(question())) return;
    wentOn = "";
    $("written").replaceChildren();
    $("tally").textContent = usual;
    $("kinds").hidden = true;
  };
  const goOn = async () => {
    const own = running = running ? null : {};
    const [asked, steps, draft, threshold, began] = [{ ...question(), rtol: null }, state.steps, state.draft > 0 ? state.draft : 0, state.exit, JSON.stringify(question())];
    const stopped = () => running !== own || JSON.stringify(question()) !== began;
    const told = (found, ended) => {
      if (ended) return;
      $("written").replaceChildren(make("span", { className: "before", textContent: `${state.text.slice(-60)}` }), ...continued(found, steps, draft));
      $("tally").textContent = tally(found, steps, draft, threshold);
      $("kinds").hidden = !draft;
    };
    if (!own) return;
    wentOn = began;
    $("go").textContent = "Stop";
    try {
      const start = (await backend.read({ ...asked })).tokens.length;
      const wanted = Number($("count").value) || 24;
      if (wanted < 1) throw new Error(`Tokens is ${wanted}, but must be at least 1.`);
      const count = Math.min(wanted, about.runs[state.run].context - start);
      if (count < 1) throw new Error("The text fills the model's context; shorten it to continue it.");
      await continuation({ question: asked, count, draft, threshold, start, told, stopped });
    } catch (error) {
      if (!stopped()) $("tally").textContent = error.message;
    }
    if (running === own) running = null;
    if (!running) $("go").textContent = "Continue";
    $("written").dataset.done = String(Number($("written").dataset.done ?? 0) + 1);
  };
  $("go").addEventListener("click", goOn);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("grid").addEventListener("click", async (event) => {
    const cell = event.target.closest("td[data-step]");
    if (!cell) return;
    await update({ step: Number(cell.dataset.step), position: Number(cell.dataset.position) });
    $("top").parentElement.scrollIntoView({ block: "nearest" });
  });
  $("grid").addEventListener("keydown", (event) => {
    const cell = event.target.closest("td[data-step]");
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -Infinity], End: [0, Infinity], Enter: [0, 0], " ": [0, 0] }[event.key];
    if (!cell || !move) return;
    event.preventDefault();
    const [rows, columns] = [shown.reading.top.length, shown.reading.tokens.length];
    const to = (value, by, count) => Math.min(Math.max(Number(value) + by, 0), count - 1);
    update({ step: to(cell.dataset.step, move[0], rows), position: to(cell.dataset.position, move[1], columns) });
  });
  const swipe = () => {
    const box = $("grid").parentElement;
    $("swipe").hidden = box.scrollWidth <= box.clientWidth;
    $("swipe").textContent = `${$("grid").rows[0]?.cells.length - 1} tokens: swipe or scroll sideways.`;
  };
  new ResizeObserver(swipe).observe($("grid"));
  window.addEventListener("resize", swipe);
  window.addEventListener("hashchange", () => { state = fromAddress(); update(); });

  const save = (name, kind, text) => {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  $("picture").addEventListener("click", () => save("explorer.svg", "image/svg+xml", gridPicture(shown.reading, shown.reading[state.colour], scale(shown.reading).paint, `${$("which").textContent}. Colour: ${$("colour").selectedOptions[0].text}.`)));
  $("data").addEventListener("click", () => save("explorer.json", "application/json", JSON.stringify({ ...state, ...shown }, null, 1)));
  update();
}

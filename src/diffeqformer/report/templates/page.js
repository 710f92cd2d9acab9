// Token maps: a text coloured by how much each of its tokens matters to one output, and two figures linked to it.
{
  const known = (value) => typeof value === "number";
  const extent = (values) => [Math.min(...values), Math.max(...values)];
  const written = (value) => {
    const size = Math.abs(value);
    const text = value !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(+value.toPrecision(4));
    return text.replace("-", "−");
  };
  // The range of some rows of scores: both signs are drawn about zero, one sign from the least to the most. An output's
  // score of itself, which may be many times the others', is left out, if there are others; it is cut to the scale.
  const scaleOf = (rows, owns, signed) => {
    let [low, high] = [Infinity, -Infinity];
    const others = rows.map((row, i) => row.filter((value, place) => known(value) && place !== owns[i]));
    for (const values of others.some((row) => row.length) ? others : rows.map((row) => row.filter(known))) {
      if (values.length) {
        const [least, most] = extent(values);
        [low, high] = [Math.min(low, least), Math.max(high, most)];
      }
    }
    if (low > high) [low, high] = [0, 0];
    if (signed) [low, high] = [-Math.max(-low, high), Math.max(-low, high)];
    const share = (value) => (value - low) / (high - low || Number.MIN_VALUE);
    const paint = (value) => colour(signed ? BOTH : RISING, high > low || value > high ? share(value) : signed ? 0.5 : 0);
    return { low, high, paint, beyond: (value) => known(value) && (value < low || value > high) };
  };

  const make = (section) => {
    const find = (name) => section.querySelector(name);
    const { tokens, outputs, methods, headlines, captions } = JSON.parse(find("script").textContent);
    for (const method of methods) {
      const values = method.scores.flat().filter(known);
      method.signed = values.some((v) => v < 0) && values.some((v) => v > 0);
    }
    let [method, row, pointed] = [0, outputs.length - 1, -1];
    const headline = [...document.querySelectorAll("header p")].find((p) => p.textContent === headlines[row]);
    const caption = [...document.querySelectorAll("h2.caption")].find((h) => h.textContent === captions[row]);
    const columns = [...(caption?.parentElement.querySelectorAll("thead th") ?? [])].slice(1).map((th) => th.textContent);
    const chooser = find(".method");
    const span = find(".span");
    methods.forEach(({ name }, i) => chooser.add(new Option(name, i)));

    const buttons = tokens.map((token, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = token;
      button.tabIndex = -1;
      button.dataset.place = place;
      button.classList.toggle("analysed", outputs.includes(place));
      find(".tokens").append(button);
      if (token.includes("⏎")) find(".tokens").append(document.createElement("br"));
      return button;
    });

    const names = methods.map(({ name }, i) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: name, value: i, title: name });
      find(".strip ol").append(document.createElement("li"));
      find(".strip li:last-child").append(button);
      return button;
    });

    // Cells of equal size, row under row, each row with its own way of painting; also where the pointer is.
    const grid = (canvas, rows, paints, height, mark) => {
      const width = canvas.clientWidth;
      if (!width) return;
      const sharp = window.devicePixelRatio || 1;
      [canvas.width, canvas.height] = [width * sharp, height * sharp];
      canvas.style.height = `${height}px`;
      const pen = canvas.getContext("2d");
      const [w, h] = [canvas.width / tokens.length, canvas.height / rows.length];
      rows.forEach((scores, i) => scores.forEach((value, j) => {
        if (!known(value)) return;
        pen.fillStyle = css(paints[i](value));
        pen.fillRect(Math.floor(j * w), Math.floor(i * h), Math.ceil(w), Math.ceil(h) - (mark < 0 ? 1 : 0));
      }));
      pen.strokeStyle = "#b3261e";
      pen.lineWidth = 2 * sharp;
      if (mark >= 0) pen.strokeRect(0, mark * h, canvas.width, Math.max(h, 2 * sharp));
      if (pointed >= 0) pen.strokeRect(pointed * w, 0, Math.max(w, 2 * sharp), canvas.height);
    };

    const linked = () => {
      const strip = find("figure.methods");
      strip.hidden = methods.length < 2;
      if (!strip.hidden) {
        const rows = methods.map((m) => m.scores[row]);
        const paints = methods.map((m, i) => scaleOf([rows[i]], [outputs[row]], m.signed).paint);
        grid(strip.querySelector("canvas"), rows, paints, 22 * methods.length, -1);
      }
      const matrix = find("figure.matrix");
      matrix.hidden = outputs.length < 2;
      if (!matrix.hidden) {
        const scores = methods[method].scores;
        const signed = methods[method].signed;
        const { paint } = scaleOf(scores, outputs, signed);
        const paints = scores.map((one, i) => (span.value === "all" ? paint : scaleOf([one], [outputs[i]], signed).paint));
        const canvas = matrix.querySelector("canvas");
        grid(canvas, scores, paints, Math.min(Math.max(8 * outputs.length, 60), canvas.clientWidth, 420), row);
      }
    };

    const read = () => {
      const value = pointed < 0 ? undefined : methods[method].scores[row][pointed];
      const said = find(".reading");
      said.replaceChildren();
      const bold = (text) => said.append(Object.assign(document.createElement("b"), { textContent: text }));
      said.append("Output at token ", `${outputs[row]} `);
      bold(tokens[outputs[row]]);
      if (pointed < 0) return said.append(": point at a token to read its score.");
      said.append(`, input token ${pointed} `);
      bold(tokens[pointed]);
      if (!known(value)) return said.append(": the output cannot see it, or it was not scored.");
      const others = methods[method].scores[row].filter(known);
      said.append(": ");
      bold(written(value));
      said.append(` (rank ${1 + others.filter((v) => v > value).length} of ${others.length}).`);
      if (methods.length > 1) {
        const rest = methods.filter((m, i) => i !== method && known(m.scores[row][pointed]));
        if (rest.length) said.append(` ${rest.map((m) => `${m.name}: ${written(m.scores[row][pointed])}`).join(", ")}.`);
      }
    };

    const draw = () => {
      const { name, description, signed, scores } = methods[method];
      const scale = span.value === "all" ? scaleOf(scores, outputs, signed) : scaleOf([scores[row]], [outputs[row]], signed);
      buttons.forEach((button, place) => {
        const value = scores[row][place];
        const shade = known(value) ? scale.paint(value) : null;
        button.style.background = shade ? css(shade) : "";
        button.style.color = shade ? ink(shade) : "";
        button.classList.toggle("behind", !shade);
        const chosen = place === outputs[row];
        button.classList.toggle("chosen", chosen);
        button.setAttribute("aria-pressed", chosen);
        button.title = shade ? `${name}: ${written(value)}` : "not seen by the output";
        button.setAttribute("aria-label", `token ${place}, ${tokens[place]}, ${button.title}`);
      });
      find(".description").textContent = description;
      find(".low").textContent = written(scale.low);
      find(".high").textContent = written(scale.high);
      const own = scores[row][outputs[row]];
      const beyond = scale.beyond(own) ? `; its own token, ${written(own)}, is beyond the scale` : "";
      find(".scale .output").textContent = `${name}, output at token ${outputs[row]}${beyond}`;
      for (const button of names) button.setAttribute("aria-pressed", Number(button.value) === method);
      const pen = find(".scale canvas").getContext("2d");
      for (let x = 0; x < 256; x += 1) {
        pen.fillStyle = css(colour(signed ? BOTH : RISING, x / 255));
        pen.fillRect(x, 0, 1, 1);
      }
      find("figure.methods canvas").ariaLabel = `Scores of every token by ${methods.length} methods`;
      find("figure.methods figcaption").textContent =
        "The chosen output by every method, each in its own colours; click a name to choose the method.";
      find("figure.matrix canvas").ariaLabel = `Scores of every token for each of ${outputs.length} outputs`;
      find("figure.matrix figcaption").textContent =
        `${name} for all analysed outputs (from above) and all tokens (from the left); click a row to choose its output.`;
      linked();
      read();
    };

    const point = (place) => {
      if (place === pointed) return;
      pointed = place;
      linked();
      read();
    };
    // What the page says of one output, outside of the map.
    const follow = () => {
      if (headline) headline.textContent = headlines[row];
      if (!caption) return;
      caption.textContent = captions[row];
      const element = (tag, text, rest) => Object.assign(document.createElement(tag), { textContent: text, ...rest });
      const cell = (name, place) => methods.find((m) => m.name === name)?.scores[row][place];
      caption.parentElement.querySelector("tbody").replaceChildren(...tokens.slice(0, outputs[row] + 1).map((token, place) => {
        const line = document.createElement("tr");
        line.append(element("th", `${place} ${token}`, { scope: "row" }), ...columns.map((name) => {
          const value = cell(name, place);
          return element("td", known(value) ? written(value) : "–", { className: "number" });
        }));
        return line;
      }));
    };
    const choose = (next) => {
      if (next < 0) {
        find(".reading").textContent = "The output at this token was not analysed; the underlined ones were.";
        return;
      }
      row = next;
      draw();
      follow();
    };
    const placeOf = (event) => {
      const button = event.target.closest("button");
      return button ? Number(button.dataset.place) : -1;
    };
    const rove = (place) => {
      buttons.forEach((button, i) => { button.tabIndex = i === place ? 0 : -1; });
    };

    const text = find(".tokens");
    text.addEventListener("click", (event) => {
      const place = placeOf(event);
      if (place >= 0) {
        rove(place);
        choose(outputs.indexOf(place));
      }
    });
    text.addEventListener("pointerover", (event) => point(placeOf(event)));
    text.addEventListener("pointerleave", () => point(-1));
    text.addEventListener("focusin", (event) => point(placeOf(event)));
    text.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
      if (!(event.key in moves)) return;
      event.preventDefault();
      const place = Math.min(Math.max(placeOf(event) + moves[event.key], 0), tokens.length - 1);
      rove(place);
      buttons[place].focus();
    });
    const explainBy = (value) => {
      chooser.value = value;
      method = Number(value);
      draw();
    };
    chooser.addEventListener("change", () => explainBy(chooser.value));
    find(".strip ol").addEventListener("click", (event) => { if (event.target.value) explainBy(event.target.value); });
    span.addEventListener("change", draw);
    const at = (event, canvas) => {
      const box = canvas.getBoundingClientRect();
      const within = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
      return [
        within((event.clientX - box.left) / box.width, tokens.length),
        within((event.clientY - box.top) / box.height, outputs.length),
      ];
    };
    for (const canvas of section.querySelectorAll(".linked canvas")) {
      canvas.addEventListener("pointermove", (event) => point(at(event, canvas)[0]));
      canvas.addEventListener("pointerleave", () => point(-1));
    }
    const matrix = find(".matrix canvas");
    matrix.addEventListener("click", (event) => choose(at(event, matrix)[1]));
    window.addEventListener("resize", linked);

    for (const part of section.querySelectorAll(".controls, .scale, .keys")) part.hidden = false;
    rove(outputs[row]);
    draw();
  };
  document.querySelectorAll("section.map").forEach(make);
}

// Clouds of points that move: seen from afar in parallel projection, turned by dragging, wound by a slider.
{
  const UP = Math.sin(Math.PI / 9);
  const FRONT = Math.cos(Math.PI / 9);
  const SECONDS = 7;
  const TAIL = 14;
  const EDGES = [[0, 1], [1, 3], [3, 2], [2, 0], [4, 5], [5, 7], [7, 6], [6, 4], [0, 4], [1, 5], [2, 6], [3, 7]];
  const CORNERS = [...Array(8).keys()].map((i) => [i & 1, i & 2, i & 4].map((bit) => (bit ? 1 : -1)));

  const play = (section) => {
    const find = (name) => section.querySelector(name);
    const { clouds, times, unit } = JSON.parse(find("script").textContent);
    const last = times.length - 1;
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    let [now, turn, running, before] = [still.matches ? last : 0, 0.61, false, 0];
    const [button, slider, label] = [find(".play"), find(".time"), find("output")];
    const canvases = clouds.map(({ title }) => {
      const panel = document.createElement("div");
      const canvas = document.createElement("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `Moving points: ${title}`);
      panel.append(title, canvas);
      find(".clouds").append(panel);
      return canvas;
    });

    const draw = () => {
      const style = getComputedStyle(section);
      const ink = style.getPropertyValue("--ink");
      const shade = (series) => (series < 0 ? ink : style.getPropertyValue(`--series-${series}`));
      const frame = Math.round(now);
      const [sine, cosine] = [Math.sin(turn), Math.cos(turn)];
      canvases.forEach((canvas, k) => {
        const sharp = window.devicePixelRatio || 1;
        const size = Math.round(canvas.clientWidth * sharp);
        if (!size) return;
        if (canvas.width !== size) [canvas.width, canvas.height] = [size, size];
        const pen = canvas.getContext("2d");
        const scale = size / 3;
        // To the right, upwards on the screen, and towards the eye.
        const seen = (x, y, z) => {
          const away = x * cosine + y * sine;
          return [size / 2 + scale * (y * cosine - x * sine), size / 2 - scale * (z * FRONT - away * UP), away];
        };
        pen.clearRect(0, 0, size, size);
        pen.strokeStyle = ink;
        pen.globalAlpha = 0.2;
        pen.lineWidth = Math.min(size / 300, sharp);
        pen.beginPath();
        for (const [a, b] of EDGES) {
          pen.moveTo(...seen(...CORNERS[a]).slice(0, 2));
          pen.lineTo(...seen(...CORNERS[b]).slice(0, 2));
        }
        pen.stroke();
        const { frames, series } = clouds[k];
        // Between two frames points go straight, as in the figures.
        const at = (when, i) => {
          const [before, after] = [frames[Math.floor(when)], frames[Math.ceil(when)]];
          const share = when - Math.floor(when);
          return seen(...[0, 1, 2].map((j) => (before[3 * i + j] * (1 - share) + after[3 * i + j] * share) / 1000));
        };
        series.forEach((one, i) => {
          pen.strokeStyle = pen.fillStyle = shade(one);
          pen.globalAlpha = 0.4;
          pen.beginPath();
          for (let when = Math.max(0, Math.floor(now) - TAIL); when <= now; when += 1) pen.lineTo(...at(when, i).slice(0, 2));
          const [x, y, near] = at(now, i);
          pen.lineTo(x, y);
          pen.stroke();
          pen.globalAlpha = 0.8 + 0.15 * near;
          pen.beginPath();
          pen.arc(x, y, Math.min(size / 90, 3 * sharp) * (1 + 0.2 * near), 0, 2 * Math.PI);
          pen.fill();
        });
      });
      slider.value = frame;
      label.textContent = `${unit} ${times[frame]}`;
      button.textContent = running ? "Pause" : "Play";
    };
    const tick = (clock) => {
      if (!running) return;
      const passed = before ? Math.min((clock - before) / 1000, 0.1) : 0;
      before = clock;
      now = Math.min(now + (passed * last) / SECONDS, last);
      turn += passed * 0.09;
      running = now < last;
      draw();
      if (running) requestAnimationFrame(tick);
    };
    const start = () => {
      if (now >= last) now = 0;
      [running, before] = [true, 0];
      requestAnimationFrame(tick);
    };
    button.addEventListener("click", () => {
      if (running) running = false;
      else start();
      draw();
    });
    slider.max = last;
    slider.addEventListener("input", () => {
      [now, running] = [Number(slider.value), false];
      draw();
    });
    let dragged = null;
    find(".clouds").addEventListener("pointerdown", (event) => { dragged = event.clientX; });
    window.addEventListener("pointerup", () => { dragged = null; });
    window.addEventListener("pointercancel", () => { dragged = null; });
    window.addEventListener("pointermove", (event) => {
      if (dragged === null) return;
      turn -= (event.clientX - dragged) / 120;
      dragged = event.clientX;
      draw();
    });
    window.addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    for (const part of section.querySelectorAll(".player, .how")) part.hidden = false;
    draw();
    if (!still.matches) {
      // Plays once when it first comes into sight; never where the reader asked for less motion.
      const watcher = new IntersectionObserver((entries) => {
        if (entries.some((entry) => entry.isIntersecting)) {
          watcher.disconnect();
          start();
        }
      }, { threshold: 0.4 });
      watcher.observe(find(".clouds"));
    }
  };
  document.querySelectorAll("section.animation").forEach(play);
}

// Token maps: a text coloured by how much each of its tokens matters to one output, and two figures linked to it.
{
  // A score as Python writes it in the table (`decimals`); a reading of a small one in powers of ten.
  const fixed = (value, places) =>
    minus(value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places, signDisplay: "negative" }));
  const decimals = (scores) => {
    const largest = Math.max(0, ...scores.filter(known).map(Math.abs));
    return largest ? Math.min(Math.max(4, 2 - Math.floor(Math.log10(largest))), 12) : 4;
  };
  const written = (value) => (value && Math.abs(value) < 1e-3 ? minus(value.toExponential(2)) : fixed(value, 4));
  const make = (section) => {
    const find = (name) => section.querySelector(name);
    const { tokens, outputs, methods, headlines, captions } = JSON.parse(find("script").textContent);
    let [method, row, pointed] = [0, outputs.length - 1, -1];
    const headline = [...document.querySelectorAll("header p")].find((p) => p.dataset.said === headlines[row]);
    const caption = [...document.querySelectorAll("h2.caption")].find((h) => h.dataset.caption === captions[row]);
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
      if (pointed < 0) return said.append(": point at a token, or tap it, to read its score.");
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
        `${name} for all analysed outputs (from above) and all tokens (from the left)${span.value === "all" ? "" : ", each row in colours of its own"}; click a row to choose its output.`;
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
      for (const note of document.querySelectorAll(".another")) note.hidden = Number(note.dataset.output) === outputs[row];
      if (!caption) return;
      caption.textContent = captions[row].split("\n")[0];
      const element = (tag, text, rest) => Object.assign(document.createElement(tag), { textContent: text, ...rest });
      const cells = columns.map((name) => methods.find((m) => m.name === name)?.scores[row].slice(0, outputs[row] + 1) ?? []);
      const places = cells.map(decimals);
      caption.parentElement.querySelector("tbody").replaceChildren(...tokens.slice(0, outputs[row] + 1).map((token, place) => {
        const line = document.createElement("tr");
        line.append(element("th", `${place} ${token}`, { scope: "row" }), ...cells.map((scores, i) => {
          const value = scores[place];
          return element("td", known(value) ? fixed(value, places[i]) : "–", { className: "number" });
        }));
        return line;
      }));
    };
    const choose = (next) => {
      if (next < 0) {
        read();
        find(".reading").append(" Its own output was not analysed; the underlined ones were.");
        return;
      }
      row = next;
      draw();
      follow();
      // The other pages of the run open at the same token.
      history.replaceState(null, "", `#token=${outputs[row]}`);
      homeward();
    };
    const placeOf = (event) => {
      const button = event.target.closest("button");
      return button ? Number(button.dataset.place) : -1;
    };
    const rove = (place) => {
      buttons.forEach((button, i) => { button.tabIndex = i === place ? 0 : -1; });
    };

    // A finger cannot point: its first tap on a token reads the score, which stays, and the second chooses the token.
    const leaves = (event) => { if (event.pointerType === "mouse") point(-1); };
    let [tapped, onlyReads] = [-1, false];
    const text = find(".tokens");
    text.addEventListener("pointerdown", (event) => {
      onlyReads = event.pointerType !== "mouse" && tapped !== placeOf(event);
      tapped = placeOf(event);
    });
    text.addEventListener("click", (event) => {
      const place = placeOf(event);
      if (place < 0) return;
      rove(place);
      point(place);
      if (!onlyReads) choose(outputs.indexOf(place));
      onlyReads = false;
    });
    text.addEventListener("pointerover", (event) => point(placeOf(event)));
    text.addEventListener("pointerleave", leaves);
    text.addEventListener("focusin", (event) => point(placeOf(event)));
    text.addEventListener("pointercancel", () => { onlyReads = false; });  // the finger scrolled
    text.addEventListener("keydown", (event) => {
      onlyReads = false;
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
      canvas.addEventListener("pointerleave", leaves);
    }
    const matrix = find(".matrix canvas");
    matrix.addEventListener("click", (event) => choose(at(event, matrix)[1]));
    window.addEventListener("resize", linked);

    for (const part of section.querySelectorAll(".controls, .scale, .keys")) part.hidden = false;
    const asked = () => outputs.indexOf(Number(/^#token=(\d+)$/.exec(location.hash)?.[1] ?? -1));
    window.addEventListener("hashchange", () => { if (asked() >= 0) choose(asked()); });
    if (asked() >= 0) choose(asked());
    else draw();
    rove(outputs[row]);
  };
  document.querySelectorAll("section.map").forEach(make);
}
